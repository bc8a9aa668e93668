"""What is watched at every RL step (METHOD: "what to watch"): pure functions of tensors.

Each returns plain numbers or sums that add up over micro-batches and ranks. Everything is measured
at the behaviour weights, that is before the first update on a batch.
Letters: B rollouts, N completion columns, D hidden width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

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
    not_finite: Tensor  # (B,), 1 or 0: a reward was NaN or infinite
    out_of_bounds: Tensor  # (B,), 1 or 0: a reward lay beyond the bound
    raised: Tensor  # (B,), 1 or 0: a reward raised an exception
    timed_out: Tensor  # (B,), 1 or 0: a reward did not return in time
    attempts: Tensor  # (B,), fresh prompts that the row's group has been given
    first_correct: Tensor  # (B,), as correct, of the rollouts drawn first

    def metrics(self, degenerate: Tensor) -> dict[str, float]:
        """Means over the rows that could be judged (length and truncation: over all); NaN over none.

        ``degenerate`` (B,) says whether the row's group is. ``degenerate_groups`` is the share of such groups
        among all that were sampled, ``resamples`` how many a place needed on average. Where groups were sampled
        anew all else is of the groups that took their place; ``accuracy_first`` is of those drawn first.
        """
        replaced, rows = self.attempts.sum().item(), len(self.attempts)
        return {
            "reward": self.rewards.nanmean().item(),
            "accuracy": self.correct.nanmean().item(),
            "length_mean": self.lengths.mean().item(),
            "length_correct_mean": self.lengths[self.correct == 1].mean().item(),
            "truncated": self.truncated.mean().item(),
            "unjudged": int(self.rewards.isnan().sum()),
            "unjudged_share": self.rewards.isnan().double().mean().item(),
            "not_finite": int(self.not_finite.sum()),
            "out_of_bounds": int(self.out_of_bounds.sum()),
            "raised": int(self.raised.sum()),
            "timed_out": int(self.timed_out.sum()),
            "degenerate_groups": (replaced + degenerate.sum().item()) / (replaced + rows),
            "resamples": replaced / rows,
            "accuracy_first": self.first_correct.nanmean().item(),
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


def payload_sums(score: Callable[[Tensor], Tensor], latents: Tensor, mask: Tensor) -> Tensor:
    """Payload dependence of one rank's rows, as sums (3,) float64: lost when zeroed, when swapped; tokens.

    ``score(latents)`` gives the log-probs (B, N) of fixed tokens when the states (B, N, D) are carried,
    ``mask`` (B, N) is 1 on tokens. What a token loses is its log-prob under its own row's states, less
    that under zeros or another row's. The first token's distribution comes before the first carried state.
    """
    own, counted = score(latents), mask[:, 1:]
    changed = (torch.zeros_like(latents), swapped_latents(latents, mask.sum(1)))
    lost = [((own - score(states))[:, 1:] * counted).sum() for states in changed]
    return torch.stack([*lost, counted.sum()]).double()


def policy_gradient(
    score: Callable[[int], Tensor], passes: int, weights: Tensor, parameters: Sequence[Tensor]
) -> Tensor:
    """The flat gradient of ``sum(weights * score(passes))``; ``score`` gives log-probs (B, N), as ``weights`` are."""
    with torch.enable_grad():
        parts = torch.autograd.grad((score(passes) * weights).sum(), parameters, materialize_grads=True)
    return torch.cat([part.flatten().float() for part in parts])


def gradient_cosines(gradients: Sequence[Tensor]) -> dict[str, float]:
    """Cosine of each pair of flat ``gradients``, of replay with n = 0, 1, ... re-fusing passes; NaN for a zero one."""
    cosines = {}
    for (i, first), (j, second) in combinations(enumerate(gradients), 2):
        norms = first.norm() * second.norm()
        cosines[f"gradient_cosine_{i}_{j}"] = (first @ second / norms).item() if norms > 0 else math.nan
    return cosines
