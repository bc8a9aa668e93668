"""What is watched at every RL step (METHOD: "what to watch"): pure functions of tensors.

Each returns plain numbers or sums that add up over micro-batches and ranks. Everything is measured
at the behaviour weights, that is before the first update on a batch.
Letters: B rollouts, P and N prompt and completion columns, D hidden width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fbt_rl.config import Mode
from fbt_rl.config.rl import JacobiScorer
from rl.rollout import Batch
from rl.scoring import scoring_inputs

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

    def of_all_ranks(self, gather: Callable[[Tensor], Tensor]) -> Outcomes:
        """``gather`` puts the rows of all ranks one after another, in one call."""
        names = [field.name for field in fields(self)]
        table = gather(torch.stack([getattr(self, name) for name in names], dim=1))
        return Outcomes(**dict(zip(names, table.unbind(1), strict=True)))

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


class Mismatch(NamedTuple):
    """Of the tokens of one micro-batch: sums, and the largest difference; tensors () or plain numbers."""

    tokens: Any
    absolute: Any  # |difference of log-probs|
    k3: Any
    outside: Any  # ratios outside the bounds
    mass: Any  # ratios
    squares: Any  # squared ratios
    distance: Any  # squared, of replayed and recorded states
    norm: Any  # squared, of recorded states
    largest: Any


def mismatch_sums(
    rollout: Tensor, training: Tensor, mask: Tensor, latents: Tensor | None = None, states: Tensor | None = None
) -> Tensor:
    """:class:`Mismatch` of one micro-batch as one tensor (9,), float64.

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
    sums = Mismatch(
        tokens=mask.sum(),
        absolute=log_ratio.abs().sum(),
        k3=(ratio - 1 - log_ratio).sum(),
        outside=ratio[outside].sum(),
        mass=ratio.sum(),
        squares=ratio.square().sum(),
        distance=distance,
        norm=norm,
        largest=log_ratio.abs().max() if len(log_ratio) else torch.zeros((), device=mask.device),
    )
    return torch.stack([value.double() for value in sums])


def mismatch_metrics(parts: Tensor) -> dict[str, float]:
    """Metrics of a whole batch from :func:`mismatch_sums` of its micro-batches on all ranks (M, 9).

    ``kl_rollout_train`` is the K3 estimate of KL(rollout ‖ training), ``ratio_outside`` the share of
    the ratio's mass outside [0.8, 1.2], ``effective_sample_size`` is (Σw)² / (n Σw²) with w the ratio,
    ``residual`` the relative distance of the replayed states from the recorded ones (NaN: no states).
    """
    sums, largest = Mismatch(*parts.sum(0).tolist()), Mismatch(*parts.unbind(1)).largest.max().item()
    count = max(sums.tokens, 1.0)
    return {
        "logprob_mismatch_mean": sums.absolute / count,
        "logprob_mismatch_max": largest,
        "kl_rollout_train": sums.k3 / count,
        "ratio_outside": sums.outside / sums.mass if sums.mass else 0.0,
        "effective_sample_size": sums.mass**2 / (count * sums.squares) if sums.squares else 1.0,
        "residual": math.sqrt(sums.distance / sums.norm) if sums.norm else math.nan,
    }


# --- payload dependence --------------------------------------------------------------------------
# What the carried states are worth is measured, again and again, on one fixed batch of rollouts. Only its tokens are
# kept. Their states are made anew with the weights of the day, by Jacobi passes from plain completions, as in training
# (METHOD 1.3): recorded ones would be another model's after a while.

PROBE_PASSES = 4
ProbeRow = tuple[list[int], list[int]]  # prompt and completion, unpadded


def probe_rows(batch: Batch, rows: int) -> list[ProbeRow]:
    """The tokens of the first ``rows`` rollouts of a batch, as they are kept in a checkpoint."""

    def unpadded(ids: Tensor, mask: Tensor) -> list[list[int]]:
        return [row[kept].tolist() for row, kept in zip(ids[:rows], mask[:rows].bool(), strict=True)]

    prompts = unpadded(batch["prompt_ids"], batch["prompt_mask"])
    completions = unpadded(batch["completion_ids"], batch["completion_mask"])
    return list(zip(prompts, completions, strict=True))


@torch.no_grad()
def jacobi_states(body: Callable[..., Any], mode: Mode, batch: Batch, passes: int = PROBE_PASSES) -> Tensor:
    """The states (B, N, D) that produce each completion token, approached in ``passes`` passes of ``body``.

    The first pass is plain on completions; prompts are as decoding in ``mode`` has them in every pass.
    """
    prompt_mask, count = batch["prompt_mask"], batch["completion_mask"].shape[1]
    states = body(
        input_ids=torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
        attention_mask=torch.cat([prompt_mask, batch["completion_mask"]], dim=1),
        **scoring_inputs(JacobiScorer(passes=passes), mode, prompt_mask, count),
    ).last_hidden_state
    return states[:, prompt_mask.shape[1] - 1 : -1]


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


# --- gradients and weights ------------------------------------------------------------------------


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


def feedback_norms(policy: nn.Module, distribution: Any) -> dict[str, float]:
    """Frobenius norms of the feedback's matrices that are trained: W_U is ``value``, W_G ``gate``.

    ``distribution`` is TRL's, which gathers parameters where they are spread.
    """
    matrices = {
        name.split(".")[-2].removesuffix("_proj"): parameter
        for name, parameter in policy.named_parameters()
        if "feedback" in name and parameter.requires_grad
    }
    with distribution.gather_params(list(matrices.values())):
        return {f"norm_{name}": matrix.detach().norm().item() for name, matrix in matrices.items()}
