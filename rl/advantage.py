"""Advantages of grouped rollouts (METHOD: centred on the group, scaled by the batch) and their importance weights."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

_EPSILON = 1e-4  # TRL's: keeps a batch of nearly equal rewards from being blown up


def group_advantages(rewards: Tensor, group_size: int, scale: Literal["batch", "group", "none"] = "batch") -> Tensor:
    """Advantages (B,) of ``rewards`` (B,), the whole batch over all ranks, group after group.

    A NaN reward (could not be judged) takes part in no mean or deviation and gets advantage 0. Each
    reward is centred on its group's mean, then divided by the standard deviation of the batch (a
    group's own deviation would blow a tiny spread of lengths up to full size), of the group, or by
    nothing. A group of equal rewards gets exactly 0.
    """
    if rewards.ndim != 1 or len(rewards) % group_size:
        raise ValueError(f"expected whole groups of {group_size} rewards in one dimension, got {tuple(rewards.shape)}")
    groups = rewards.double().view(-1, group_size)
    # Measured from a member of the group, equal rewards are exactly 0 and so is their mean.
    groups = groups - groups.nan_to_num(nan=torch.inf).amin(dim=1, keepdim=True)
    centred = groups - groups.nanmean(dim=1, keepdim=True)
    if scale == "batch":
        centred = centred / (_deviation(rewards.double()[None]) + _EPSILON)
    elif scale == "group":
        centred = centred / (_deviation(groups) + _EPSILON)
    return centred.nan_to_num(nan=0.0).flatten().to(rewards.dtype)


def importance_weights(
    proximal: Tensor, rollout: Tensor, mask: Tensor, cap: float, level: Literal["token", "sequence"] = "token"
) -> Tensor:
    """Truncated importance weights ``min(pi_prox / pi_roll, cap)`` (B, N) without gradient; 1 where ``mask`` is 0.

    They make up for scoring another distribution than was sampled from, before any update (METHOD 2.3).
    ``proximal`` and ``rollout`` are log-probs (B, N) of the sampled tokens, scored at the weights that sampled
    them and as sampled. At level "sequence" a row has one weight: the ratio is the geometric mean over its tokens.
    """
    mask = mask.bool()
    log_ratio = (proximal - rollout).detach().masked_fill(~mask, 0.0)
    if level == "sequence":
        log_ratio = (log_ratio.sum(1) / mask.sum(1).clamp(min=1))[:, None].expand_as(mask)
    return log_ratio.exp().clamp(max=cap).masked_fill(~mask, 1.0)


def _deviation(rows: Tensor) -> Tensor:
    """Sample standard deviation (R, 1) of each row of (R, C), NaN left out; 0 for fewer than two values."""
    count = (~rows.isnan()).sum(dim=1, keepdim=True)
    squares = (rows - rows.nanmean(dim=1, keepdim=True)).square().nansum(dim=1, keepdim=True)
    return (squares / (count - 1).clamp(min=1)).sqrt()
