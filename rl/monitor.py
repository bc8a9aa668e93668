"""What is watched at every RL step (METHOD: "what to watch"): pure functions of tensors.

Each returns plain numbers or sums that add up over micro-batches and ranks. Everything is measured
at the behaviour weights, that is before the first update on a batch.
Letters: B rollouts, N completion columns, D hidden width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_RATIO_LOW, _RATIO_HIGH = 0.8, 1.2
_MAX_LOG_RATIO = 20.0  # keeps exp() finite where a token has become impossible


@dataclass(frozen=True)
class Outcomes:
    """How the rollouts of one batch came out, over all ranks."""

    rewards: Tensor  # (B,), NaN: could not be judged
    correct: Tensor  # (B,), 1 or 0, NaN: could not be judged
    lengths: Tensor  # (B,), tokens
    truncated: Tensor  # (B,), 1 or 0

    def metrics(self) -> dict[str, float]:
        """Means over the rows that could be judged (length and truncation: over all); NaN over none."""
        return {
            "reward": self.rewards.nanmean().item(),
            "accuracy": self.correct.nanmean().item(),
            "length_mean": self.lengths.mean().item(),
            "length_correct_mean": self.lengths[self.correct == 1].mean().item(),
            "truncated": self.truncated.mean().item(),
            "unjudged": int(self.rewards.isnan().sum()),
        }


def mismatch_sums(
    rollout: Tensor, training: Tensor, mask: Tensor, latents: Tensor | None = None, states: Tensor | None = None
) -> Tensor:
    """What :func:`mismatch_metrics` needs of one micro-batch: sums, and a maximum last; (9,) float64.

    ``rollout`` and ``training`` are log-probs (B, N) of the sampled tokens when sampled and as scored
    for the loss; ``latents`` and ``states`` (B, N, D) the recorded states and the replayed ones.
    """
    mask = mask.bool()
    log_ratio = (training - rollout)[mask].double()
    ratio = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    outside = (ratio < _RATIO_LOW) | (ratio > _RATIO_HIGH)
    distance = norm = torch.zeros((), device=mask.device)
    if latents is not None and states is not None:
        recorded = latents[mask].double()
        distance, norm = (states[mask].double() - recorded).square().sum(), recorded.square().sum()
    values = [
        mask.sum(),
        log_ratio.abs().sum(),
        (ratio - 1 - log_ratio).sum(),
        ratio[outside].sum(),
        ratio.sum(),
        ratio.square().sum(),
        distance,
        norm,
        log_ratio.abs().max() if len(log_ratio) else torch.zeros((), device=mask.device),
    ]
    return torch.stack([value.double() for value in values])


def mismatch_metrics(parts: Tensor) -> dict[str, float]:
    """Metrics of a whole batch from :func:`mismatch_sums` of its micro-batches on all ranks (M, 9).

    ``kl_rollout_train`` is the K3 estimate of KL(rollout ‖ training), ``ratio_outside`` the share of
    the ratio's mass outside [0.8, 1.2], ``effective_sample_size`` is (Σw)² / (n Σw²) with w the ratio,
    ``residual`` the relative distance of the replayed states from the recorded ones (NaN: no states).
    """
    count, absolute, k3, outside, mass, squares, distance, norm = parts[:, :-1].sum(0).tolist()
    count = max(count, 1.0)
    return {
        "logprob_mismatch_mean": absolute / count,
        "logprob_mismatch_max": parts[:, -1].max().item(),
        "kl_rollout_train": k3 / count,
        "ratio_outside": outside / mass if mass else 0.0,
        "effective_sample_size": mass**2 / (count * squares) if squares else 1.0,
        "residual": math.sqrt(distance / norm) if norm else math.nan,
    }


def swapped_latents(latents: Tensor, lengths: Tensor) -> Tensor:
    """Each row's ``latents`` (B, N, D) replaced by the next row's; past that row's end its last one repeats."""
    positions = torch.arange(latents.shape[1], device=latents.device)
    other = lengths.roll(-1)[:, None] - 1
    index = torch.minimum(positions[None], other)[:, :, None].expand_as(latents)
    return latents.roll(-1, dims=0).gather(1, index)
