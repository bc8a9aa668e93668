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

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fbt_rl.config import Mode


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
    """Stands in for the model where log-probs are computed: adds the replay arguments to every call.

    TRL's loss calls its model with tokens, mask and labels only. After the call ``log_probs`` (B, N)
    and, in a mode with feedback, ``states`` (B, N, D) hold what was computed, without gradient, for
    the monitors; ``states[:, j]`` is to be compared with ``latents[:, j]``.
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
        self._inputs = replay_inputs(mode, batch["prompt_mask"], batch.get("latents"), passes, anchored=anchored)
        self._count = batch["completion_ids"].shape[1]
        self.log_probs: Tensor
        self.states: Tensor | None = None

    def __call__(self, **inputs: Any) -> Any:
        handle = self._body.register_forward_hook(self._keep_states) if self._inputs else None
        try:
            output = self._model(**inputs, **self._inputs)
        finally:
            if handle is not None:
                handle.remove()
        self.log_probs = output.log_probs[:, -self._count :].detach()
        return output

    def _keep_states(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self.states = output.last_hidden_state[:, -self._count - 1 : -1].detach()
