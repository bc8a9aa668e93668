"""Latent feedback: how the last state enters the next input (METHOD 1.1–1.2; Wang et al. 2026, section 2).

Legend: B batch, T positions, D hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

DECODE_MODES = ("standard", "soft", "fused")


class LatentFeedback(nn.Module):
    """Join the carried state ``h`` with the token embedding ``e`` into one input of the stack.

    ``gate``: ``(W_U h) * sigmoid(W_G RMSNorm(e))``. The state is the value and the token only the gate: without an
    additive path the model cannot learn to ignore the state, and a zero state gives a zero input.
    ``concat``: a D x 2D projection of ``[h; e]``. ``add``: ``e + W h``. Both are ablations.
    """

    def __init__(self, hidden_size: int, fusion: str) -> None:
        super().__init__()
        self.fusion = fusion
        width = 2 * hidden_size if fusion == "concat" else hidden_size
        self.value_proj = nn.Linear(width, hidden_size, bias=False)  # W_U
        if fusion == "gate":
            self.gate_proj = nn.Linear(hidden_size, hidden_size, bias=False)  # W_G

    def forward(self, latents: Tensor, embeds: Tensor, normed_embeds: Tensor) -> Tensor:
        """All (B, T, D): the carried states, the token embeddings, the latter through the input norm."""
        if self.fusion == "gate":
            return self.value_proj(latents) * self.gate_proj(normed_embeds).sigmoid()
        if self.fusion == "concat":
            return self.value_proj(torch.cat((latents, embeds), dim=-1))
        return embeds + self.value_proj(latents)


def shift_right(states: Tensor) -> Tensor:
    """``states`` (B, T, D) -> the state carried into each position, that of the one before; zeros into the first."""
    return torch.cat((torch.zeros_like(states[:, :1]), states[:, :-1]), dim=1)


@dataclass(frozen=True)
class PassPlan:
    """What is carried into every position of every pass, and where inputs are fused with it.

    Masks are bool (B, T). ``later``: positions that are not the first of their document. ``fused_mask`` may also be
    (B, K, T). ``carried`` (B, T, D): states given from outside, valid at ``known`` (None: everywhere). ``refresh``:
    where passes after the first take the previous pass's states instead (None: everywhere); ``anchored``: they take
    only the gradient, the value stays that of ``carried``.
    """

    later: Tensor
    fused_mask: Tensor | None = None
    carried: Tensor | None = None
    known: Tensor | None = None
    refresh: Tensor | None = None
    jitter: float = 0.0
    anchored: bool = False

    def carried_into(self, index: int, previous: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """The state carried into every position of pass ``index`` and where it is used.

        ``previous`` (B, T, D) are the states of the pass before. A state of None: the whole pass is plain.
        """
        fuse = self.later
        if self.fused_mask is not None:
            fuse = fuse & (self.fused_mask[:, index] if self.fused_mask.dim() == 3 else self.fused_mask)
        if previous is None:
            return self.carried, fuse if self.known is None else fuse & self.known

        state = shift_right(previous)
        if self.jitter > 0.0:
            state = state + torch.empty_like(state).uniform_(-self.jitter, self.jitter)
        refresh = torch.ones_like(self.later) if self.refresh is None else self.refresh.clone()
        refresh[:, 0] = False  # nothing in this call comes before the first column
        if self.carried is None:
            return state, fuse & refresh
        if self.anchored:
            state = self.carried + (state - state.detach())
        state = torch.where(refresh[..., None], state, self.carried)
        return state, fuse if self.known is None else fuse & (refresh | self.known)


def resolve_prefill_passes(mode: str, prefill_passes: int | None = None) -> int:
    """How often a prompt is run before decoding (METHOD 1.2): 1 in standard and soft, 2 in fused mode by default.

    Raises:
        ValueError: an unknown mode, or a number of passes that contradicts it.
    """
    if mode not in DECODE_MODES:
        raise ValueError(f"unknown decode mode {mode!r}; choose one of {', '.join(DECODE_MODES)}")
    fewest = 2 if mode == "fused" else 1
    passes = fewest if prefill_passes is None else prefill_passes
    if passes < fewest or (mode == "standard" and passes > 1):
        allowed = "exactly 1" if mode == "standard" else f"at least {fewest}"
        raise ValueError(f"prefill_passes is {passes}; decode mode {mode!r} takes {allowed}")
    return passes
