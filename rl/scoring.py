"""Scoring rollouts in parallel: the log-probs, entropies and states of sampled tokens (METHOD 2.2).

Sampling under latent feedback is sequential: the state that produced one token is carried into the
next position. Three scorers get at those states without decoding again:

- ``replay`` reads them: a rollout keeps its states, so a single parallel pass that is fused with them
  has the very inputs of the rollout and gives its log-probs without error at the behaviour weights.
  That pass reads the states as constants. ``passes`` further passes re-fuse the states of the pass
  before, each adding one feedback edge to the gradient (the truncated Neumann series of
  back-propagation through time). At the behaviour weights the recorded states are the fixed point, so
  the value is unchanged; there the passes are anchored: re-fused states keep the recorded value and add
  only their gradient. Otherwise round-off would be fed back, and where the map is locally expansive it
  grows tenfold a pass.
- ``jacobi`` approaches them: its first pass is plain on completions, each further one is fused with the
  states of the one before. After K passes the first K states are exact, the others biased.
- ``sequential`` is the slow oracle: as many Jacobi passes as tokens, which is exact, and whose gradient is
  that of back-propagation through time. Passes before the last are computed again in the backward pass.

Prompt inputs are never re-fused: plain for soft; for fused the shifted states of a plain pass,
recomputed with the current weights.

Shapes: B rollouts, P prompt columns (left-padded), N completion columns (right-padded), T = P + N,
D hidden width. ``latents[:, j]`` is the state that produced completion token j, which is also the
one carried into that token's position P + j.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fbt_rl.config import Mode
from fbt_rl.config.rl import ScorerConfig

_PARTS, _PART_ROWS = 4, 16  # a batch is scored in up to so many parts of at least so many rows


def scoring_inputs(
    scorer: ScorerConfig,
    mode: Mode,
    prompt_mask: Tensor,
    count: int,
    latents: Tensor | None = None,
    *,
    anchored: bool = True,
    longest: int = 0,
) -> dict[str, Any]:
    """The feedback arguments of ``FBTModel.forward`` by which ``scorer`` scores rollouts of ``mode``.

    ``prompt_mask`` is (B, P), ``count`` the number N of completion columns, ``latents`` (B, N, D) what the
    rollouts recorded; only replay reads them. ``anchored`` is for replay at the behaviour weights; after an
    update the recorded states are stale and re-fused ones show the change. ``longest``, where more than N,
    is how many passes sequential runs. Standard rollouts take no arguments. Raises ValueError where replay
    is to score a mode with feedback without its latents.
    """
    if mode == "standard":
        return {}
    rows, columns = prompt_mask.shape
    completion = torch.zeros(rows, columns + count, dtype=torch.bool, device=prompt_mask.device)
    completion[:, columns:] = True
    inputs: dict[str, Any] = {"fused_mask": completion, "refresh_mask": completion}
    if mode == "fused":
        inputs["fused_mask"] = torch.ones_like(completion)
        inputs["prefill_mask"] = nn.functional.pad(prompt_mask.bool(), (0, count))
    if scorer.use == "jacobi":
        return inputs | {"num_passes": scorer.passes, "detach_passes": scorer.detach}
    if scorer.use == "sequential":
        # Two passes at least: ZeRO-3 repeats the last gradient of a module that a step leaves out.
        return inputs | {"num_passes": max(count, longest, 2), "pass_activations": "recompute"}
    if latents is None:
        raise ValueError(f"replay scores a rollout of mode {mode!r} from its recorded latents; none were given")
    latents = nn.functional.pad(latents, (0, 0, columns, 0))  # (B, T, D); nothing is carried into a prompt
    return inputs | {"latents": latents, "num_passes": 1 + scorer.passes, "anchor_latents": anchored}


class Scorer:
    """Stands in for the model where TRL computes log-probs: adds the scorer's arguments to every call.

    Rows of like length are scored together, each part padded to its own longest completion only. Latents
    may lie on the host; each part's are moved to the device when it is scored. After the call
    ``log_probs`` (B, N) and, in a mode with feedback, ``states`` (B, N, D) hold what was computed, without
    gradient, for the monitors: ``states[:, j]`` compares with ``latents[:, j]``.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        body: nn.Module,
        mode: Mode,
        scorer: ScorerConfig,
        batch: dict[str, Tensor],
        *,
        policy_step: int,
        anchored: bool,
    ):
        """``policy_step``: of the weights that the batch's rollouts are taken to be sampled by.

        Raises ValueError if the batch carries another one.
        """
        recorded = int(batch["policy_step"])
        if recorded != policy_step:
            raise ValueError(
                f"these rollouts and their latents were recorded at policy step {recorded}, but are to be scored as "
                f"rollouts of policy step {policy_step}"
            )
        self._model = model
        self._body = body  # the module whose last_hidden_state the LM head reads
        self._mode: Mode = mode
        self._scorer: ScorerConfig = scorer
        self._anchored = anchored
        self._prompt_mask = batch["prompt_mask"]
        self._lengths = batch["completion_mask"].sum(1)
        self._latents = batch.get("latents") if scorer.use == "replay" else None
        self.log_probs: Tensor
        self.states: Tensor | None = None

    def __call__(self, *, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, **options: Any) -> Any:
        """The model's output with ``log_probs`` and ``entropy`` (B, T - 1) in the order of the rows."""
        rows, columns = input_ids.shape
        prompt = self._prompt_mask.shape[1]
        order = self._lengths.argsort(stable=True)
        parts = order.chunk(max(1, min(_PARTS, rows // _PART_ROWS)))
        counts = torch.stack([self._lengths[part[-1]] for part in parts])
        longest = _longest_of_ranks(counts) if self._scorer.use == "sequential" else counts
        outputs, states = [], []
        for part, count, most in zip(parts, counts.tolist(), longest.tolist(), strict=True):
            width = prompt + count
            latents = None if self._latents is None else _rows_on(self._latents, part, count, input_ids.device)
            inputs = scoring_inputs(
                self._scorer, self._mode, self._prompt_mask[part], count, latents, anchored=self._anchored, longest=most
            )
            with self._states_kept() as kept:
                output = self._model(
                    input_ids=input_ids[part, :width],
                    attention_mask=attention_mask[part, :width],
                    labels=labels[part, :width],
                    **inputs,
                    **options,
                )
            outputs.append(
                [nn.functional.pad(value, (0, columns - width)) for value in (output.log_probs, output.entropy)]
            )
            if inputs:
                states.append(nn.functional.pad(kept[0][:, prompt - 1 : -1], (0, 0, 0, columns - width)))
        back = order.argsort()
        log_probs, entropy = (torch.cat(values)[back] for values in zip(*outputs, strict=True))
        self.log_probs = log_probs[:, prompt - 1 :].detach()
        self.states = torch.cat(states)[back] if states else None
        return type(output)(log_probs=log_probs, entropy=entropy)

    @contextmanager
    def _states_kept(self) -> Iterator[list[Tensor]]:
        kept: list[Tensor] = []
        handle = self._body.register_forward_hook(lambda _, __, output: kept.append(output.last_hidden_state.detach()))
        try:
            yield kept
        finally:
            handle.remove()


def _rows_on(latents: Tensor, rows: Tensor, count: int, device: torch.device) -> Tensor:
    """The first ``count`` columns of some rows of ``latents`` (B, N, D) on ``device``, through page-locked memory."""
    chosen = latents[rows.to(latents.device), :count]
    if chosen.device == device:
        return chosen
    return chosen.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else chosen.to(device)


def _longest_of_ranks(counts: Tensor) -> Tensor:
    """Each part's longest completion over all ranks: under ZeRO-3 they have to run equally many passes."""
    if dist.is_initialized():
        counts = counts.clone()
        dist.all_reduce(counts, op=dist.ReduceOp.MAX)
    return counts
