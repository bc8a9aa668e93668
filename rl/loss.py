"""The policy loss and the terms beside it: pure functions of the log-probs of one micro-batch (METHOD 2.3).

A token's ratio is ``pi_theta / pi_prox``: the present weights over those before the first update on the batch.
Its loss is the clipped surrogate of PPO, or CISPO's. What is made of the tokens' losses differs by ``loss_type``:

- ``dapo``, ``cispo``: a mean over all tokens of the batch;
- ``bnpo``: a mean over the tokens of the micro-batch;
- ``grpo``: a mean over each rollout, then over rollouts;
- ``dr_grpo``: a sum over each rollout divided by the longest there can be, then a mean over rollouts.

Parts of micro-batches and ranks add up to the loss of the batch, because the trainer adds gradients over
micro-batches and averages them over ranks. ``tests/rl/test_loss.py`` holds every type to TRL's.

Letters: B rollouts of the micro-batch, N completion columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LossType = Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo"]
Level = Literal["token", "sequence"]


@dataclass(frozen=True)
class Division:
    """How a micro-batch's part is weighed, so that the parts make up the batch."""

    tokens: Tensor  # () tokens that count in the whole batch, over all ranks
    kept_share: Tensor  # () share of the batch's rollouts that were not dropped
    micro_batches: int  # that one rank goes through before an update
    ranks: int
    max_new_tokens: int


def policy_ratio(log_probs: Tensor, old_log_probs: Tensor, counted: Tensor, level: Level) -> Tensor:
    """``pi_theta / pi_prox`` of each token (B, N), or of each rollout (B, 1), the geometric mean over its tokens.

    ``log_probs`` and ``old_log_probs`` (B, N) are of the sampled tokens, ``counted`` (B, N) is 1 on those that count.
    """
    log_ratio = log_probs - old_log_probs
    if level == "sequence":
        log_ratio = ((log_ratio * counted).sum(-1) / counted.sum(-1).clamp(min=1.0)).unsqueeze(-1)
    return log_ratio.exp()


def token_losses(
    ratio: Tensor, log_probs: Tensor, advantages: Tensor, loss_type: LossType, clip_low: float, clip_high: float
) -> Tensor:
    """What each token (B, N) or rollout (B, 1) adds to the loss.

    ``advantages`` (B, N) or (B, 1) have their importance weights in them. CISPO bounds the ratio from above alone
    and keeps the gradient of bounded tokens; the others take the worse of the ratio and its clipped value.
    """
    if loss_type == "cispo":
        return -ratio.clamp(max=1 + clip_high).detach() * advantages * log_probs
    return -torch.min(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


def kl_to_reference(log_probs: Tensor, reference: Tensor) -> Tensor:
    """The K3 estimate of ``KL(pi_theta || pi_ref)`` at each sampled token (B, N); never negative."""
    log_ratio = reference - log_probs
    return log_ratio.exp() - log_ratio - 1


def batch_loss(losses: Tensor, counted: Tensor, loss_type: LossType, division: Division) -> Tensor:
    """This micro-batch's part of the loss, of the tokens' ``losses`` (B, N) or the rollouts' (B, 1)."""
    total = (losses * counted).sum(-1)
    if loss_type in ("dapo", "cispo"):
        return (losses * counted).sum() / (division.tokens.clamp(min=1.0) / division.ranks)
    if loss_type == "bnpo":
        return (losses * counted).sum() / counted.sum().clamp(min=1.0) / division.micro_batches
    if loss_type == "grpo":
        mean = (total / counted.sum(-1).clamp(min=1.0)).mean()
    else:
        mean = (losses * counted).sum() / (len(counted) * division.max_new_tokens)
    # Rollouts that were dropped are still rows here; without them in the mean, it is one over the kept.
    return mean / division.micro_batches / division.kept_share.clamp(min=torch.finfo(mean.dtype).eps)


def token_mean(values: Tensor, mask: Tensor, total: Tensor, ranks: int) -> Tensor:
    """Part of the mean of ``values`` (B, N) over the ``total`` tokens of all micro-batches and ranks; 0 of none.

    ``mask`` (B, N) is 1 on the tokens that count. For the entropy bonus and the plain passes' next-token loss.
    """
    return (values * mask).sum() * ranks / total.clamp(min=1)


def clipped(
    ratio: Tensor, advantages: Tensor, loss_type: LossType, clip_low: float, clip_high: float
) -> dict[str, Tensor]:
    """Where a bound took the gradient away (or, with CISPO, weighed it): 1 or 0, (B, N) or (B, 1), by its name."""
    high = (ratio > 1 + clip_high) & (advantages > 0)
    if loss_type == "cispo":
        return {"high": high.float()}
    low = (ratio < 1 - clip_low) & (advantages < 0)
    return {"low": low.float(), "high": high.float(), "region": (low | high).float()}
