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

    def metrics(self) -> dict[str, float | None]:
        """Means over the rows that could be judged (length and truncation: over all); None where there is none."""
        return {
            "reward": _mean(self.rewards),
            "accuracy": _mean(self.correct),
            "length_mean": _mean(self.lengths),
            "length_correct_mean": _mean(self.lengths[self.correct == 1]),
            "truncated": _mean(self.truncated),
            "unjudged": int(self.rewards.isnan().sum()),
        }


def _mean(values: Tensor) -> float | None:
    mean = values.nanmean().item()
    return None if math.isnan(mean) else mean


def mismatch_sums(
    rollout: Tensor, training: Tensor, mask: Tensor, latents: Tensor | None = None, states: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sums (8,) in float64 and the maximum () of |Δ log p| over the tokens of ``mask``; see :func:`mismatch_metrics`.

    ``rollout`` and ``training`` are log-probs (B, N) of the sampled tokens when sampled and as scored
    for the loss; ``latents`` and ``states`` (B, N, D) the recorded states and the replayed ones.
    """
    mask = mask.bool()
    log_ratio = (training - rollout)[mask].double()
    ratio = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    outside = (ratio < _RATIO_LOW) | (ratio > _RATIO_HIGH)
    sums = [
        mask.sum(),
        log_ratio.abs().sum(),
        (ratio - 1 - log_ratio).sum(),
        ratio[outside].sum(),
        ratio.sum(),
        ratio.square().sum(),
    ]
    if latents is not None and states is not None:
        recorded = latents[mask].double()
        sums += [(states[mask].double() - recorded).square().sum(), recorded.square().sum()]
    else:
        sums += [sums[0].new_zeros(()), sums[0].new_zeros(())]
    largest = log_ratio.abs().max() if len(log_ratio) else log_ratio.new_zeros(())
    return torch.stack([value.double() for value in sums]), largest


def mismatch_metrics(sums: Tensor, largest: float) -> dict[str, float | None]:
    """The sums of :func:`mismatch_sums` over a whole batch as metrics.

    ``kl_rollout_train`` is the K3 estimate of KL(rollout ‖ training), ``ratio_outside`` the share of
    the ratio's mass outside [0.8, 1.2], ``effective_sample_size`` (Σw)² / (n Σw²) with w the ratio,
    ``residual`` the relative distance of the replayed states from the recorded ones (None: no states).
    """
    count, absolute, k3, outside, mass, squares, distance, norm = sums.tolist()
    count = max(count, 1.0)
    return {
        "logprob_mismatch_mean": absolute / count,
        "logprob_mismatch_max": largest,
        "kl_rollout_train": k3 / count,
        "ratio_outside": outside / mass if mass else 0.0,
        "effective_sample_size": mass**2 / (count * squares) if squares else 1.0,
        "residual": math.sqrt(distance / norm) if norm else None,
    }


def swapped_latents(latents: Tensor, lengths: Tensor) -> Tensor:
    """Each row's ``latents`` (B, N, D) replaced by the next row's; past that row's end its last one repeats."""
    positions = torch.arange(latents.shape[1], device=latents.device)
    other = lengths.roll(-1)[:, None] - 1
    index = torch.minimum(positions[None], other)[:, :, None].expand_as(latents)
    return latents.roll(-1, dims=0).gather(1, index)
