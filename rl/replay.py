"""Scoring rollouts in parallel by replaying the latents they were decoded under.

Sampling under latent feedback is sequential: the state that produced one token is carried into the
next position. A rollout keeps those states, so a single parallel pass that is fused with them has
the very inputs of the rollout and gives its log-probs without error at the behaviour weights. That
pass reads the states as constants. ``n`` further passes re-fuse the states of the pass before, each
adding one feedback edge to the gradient (the truncated Neumann series of back-propagation through
time). At the behaviour weights the recorded states are the fixed point, so the value is unchanged;
there the passes are anchored: re-fused states keep the recorded value and add only their gradient.
Otherwise round-off would be fed back, and where the map is locally expansive it grows tenfold a pass.

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
from torch import Tensor, nn

from fbt_rl.config import Mode

_PARTS, _PART_ROWS = 4, 16  # a batch is scored in up to so many parts of at least so many rows


def replay_inputs(
    mode: Mode, prompt_mask: Tensor, latents: Tensor | None, passes: int, *, anchored: bool = True
) -> dict[str, Any]:
    """The feedback arguments of ``FBTModel.forward`` that score rollouts of ``mode``.

    ``prompt_mask`` is (B, P), ``latents`` (B, N, D) and ``passes`` the number n of re-fusing passes
    after the replay pass. ``anchored`` is for scoring at the behaviour weights; after an update the
    recorded states are stale and re-fused ones show the change. Standard rollouts take no arguments.
    Raises ValueError where a mode with feedback comes without its latents.
    """
    if mode == "standard":
        return {}
    if latents is None:
        raise ValueError(f"a rollout of mode {mode!r} is scored from its recorded latents; none were given")
    rows, columns = prompt_mask.shape
    count = latents.shape[1]
    completion = torch.zeros(rows, columns + count, dtype=torch.bool, device=latents.device)
    completion[:, columns:] = True
    inputs: dict[str, Any] = {
        "latents": nn.functional.pad(latents, (0, 0, columns, 0)),  # (B, T, D); nothing is carried into a prompt
        "fused_mask": completion,
        "refresh_mask": completion,
        "num_passes": 1 + passes,
        "anchor_latents": anchored,
    }
    if mode == "fused":
        inputs["fused_mask"] = torch.ones_like(completion)
        inputs["prefill_mask"] = nn.functional.pad(prompt_mask.bool(), (0, count))
    return inputs


class ReplayScorer:
    """Stands in for the model where TRL computes log-probs: adds the replay arguments to every call.

    Rows of like length are scored together, each part padded to its own longest completion only.
    After the call ``log_probs`` (B, N) and, in a mode with feedback, ``states`` (B, N, D) hold what was
    computed, without gradient, for the monitors: ``states[:, j]`` compares with ``latents[:, j]``.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        body: nn.Module,
        mode: Mode,
        passes: int,
        batch: dict[str, Tensor],
        *,
        anchored: bool,
    ):
        self._model = model
        self._body = body  # the module whose last_hidden_state the LM head reads
        self._mode: Mode = mode
        self._passes = passes
        self._anchored = anchored
        self._prompt_mask = batch["prompt_mask"]
        self._lengths = batch["completion_mask"].sum(1)
        self._latents = batch.get("latents")
        self.log_probs: Tensor
        self.states: Tensor | None = None

    def __call__(self, *, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, **options: Any) -> Any:
        """The model's output with ``log_probs`` and ``entropy`` (B, T - 1) in the order of the rows."""
        rows, columns = input_ids.shape
        prompt = self._prompt_mask.shape[1]
        order = self._lengths.argsort(stable=True)
        outputs, states = [], []
        for part in order.chunk(max(1, min(_PARTS, rows // _PART_ROWS))):
            count = int(self._lengths[part[-1]])
            width = prompt + count
            latents = None if self._latents is None else self._latents[part, :count]
            with self._states_kept() as kept:
                output = self._model(
                    input_ids=input_ids[part, :width],
                    attention_mask=attention_mask[part, :width],
                    labels=labels[part, :width],
                    **replay_inputs(
                        self._mode, self._prompt_mask[part], latents, self._passes, anchored=self._anchored
                    ),
                    **options,
                )
            outputs.append(
                [nn.functional.pad(value, (0, columns - width)) for value in (output.log_probs, output.entropy)]
            )
            if latents is not None:
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
