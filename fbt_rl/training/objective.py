"""The multi-pass training objective (METHOD 1.3; Wang et al. 2026, section 2).

    loss = L_1 + (lambda / (K - 1)) * sum of L_2..L_K,    L_k = NTP_k + z * Z_k

NTP_k is the mean next-token loss of pass k and Z_k its mean squared log-partition, which counts in
the cool-down only. Means are over the predicted tokens of the whole optimiser step (all ranks and
micro-batches), so neither the number of ranks nor of micro-batches changes a gradient.

B rows, T positions, K passes, D hidden width, V vocabulary, N predicted tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from fbt_rl.training.rows import IGNORED

_CHUNK_LOGITS = 1 << 24  # logits held at once: 64 MiB in fp32


# --- which positions are fused -------------------------------------------------------------------


def draw_fused_mask(
    position_ids: Tensor,
    row_ids: Sequence[int],
    num_passes: int,
    *,
    seed: int,
    step: int,
    prompt_mask: Tensor | None = None,
    plain_prompt_probability: float = 0.5,
) -> Tensor:
    """Prefix mixing: in every pass > 1 the first p positions of each document stay plain.

    Without ``prompt_mask`` p ~ U{1..document length} (pretraining). With it, (B, T) and true on the
    prompts, p is the prompt's length with ``plain_prompt_probability``, else 1: both soft and fused
    decoding are then in distribution. Draws are independent over documents and passes, and depend on
    (seed, step, row id) alone: not on the rank or micro-batch a row falls to.

    Returns:
        (B, K, T) bool; pass 1 is all plain.
    """
    rows, length = position_ids.shape
    uniforms = np.stack(
        [np.random.default_rng([seed, step, row]).random((num_passes - 1, length)) for row in row_ids]
    ).reshape(rows, num_passes - 1, length)
    starts = position_ids == 0
    document = starts.cumsum(1) - 1  # (B, T): the index of a position's document in its row
    draw = torch.from_numpy(uniforms).to(position_ids.device)
    draw = draw.gather(2, document[:, None].expand(draw.shape))  # (B, K-1, T): one draw a document
    if prompt_mask is None:
        lengths = torch.zeros_like(position_ids).scatter_add_(1, document, torch.ones_like(position_ids))
        lengths = lengths.gather(1, document)[:, None]
        plain_prefix = (draw * lengths).long().clamp(max=lengths - 1) + 1
        fused = position_ids[:, None] >= plain_prefix
    else:
        fused = ~(starts[:, None] | ((draw < plain_prompt_probability) & prompt_mask[:, None]))
    return torch.cat((torch.zeros_like(starts)[:, None], fused), dim=1)


# --- the loss of each pass -----------------------------------------------------------------------


def token_loss_sums(head: nn.Module, states: Tensor, labels: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Summed next-token loss and summed squared log-partition, without the (B, T, V) logits.

    Only positions whose next token has a label go through ``head``; where those are many, chunk by
    chunk, each chunk's logits being computed again in the backward pass.

    Args:
        states: (B, T, D) top states; labels: (B, T), ``IGNORED`` where nothing is predicted.
    """
    targets = labels[:, 1:]
    predicted = targets != IGNORED
    states, targets = states[:, :-1][predicted], targets[predicted]  # (N, D), (N,)
    chunk = max(1, _CHUNK_LOGITS // vocab_size)
    if len(targets) <= chunk:
        return _loss_sums(head, states, targets)
    sums = [
        checkpoint(_loss_sums, head, *part, use_reentrant=False)
        for part in zip(states.split(chunk), targets.split(chunk), strict=True)
    ]
    losses, squares = zip(*sums, strict=True)
    return torch.stack(losses).sum(), torch.stack(squares).sum()


def _loss_sums(head: nn.Module, states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logits = head(states)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_partition = logits.logsumexp(-1)
    chosen = logits.gather(-1, targets[:, None]).squeeze(-1)
    return (log_partition - chosen).sum(), log_partition.square().sum()


def multi_pass_loss(ntp: Tensor, z: Tensor, *, feedback_weight: float, z_weight: float) -> Tensor:
    """The formula above. ``ntp``, ``z``: (K,), per-pass means (or one rank's share of them)."""
    losses = ntp + z_weight * z if z_weight else ntp
    passes = len(losses)
    return losses[0] if passes == 1 else losses[0] + feedback_weight / (passes - 1) * losses[1:].sum()


# --- the seam into the model ---------------------------------------------------------------------


def has_feedback(model: PreTrainedModel) -> bool:
    """Whether ``model`` can run more than one pass; a plain decoder or fusion ``none`` cannot."""
    return getattr(model.base_model, "feedback", None) is not None


def add_pass_losses(model: PreTrainedModel) -> None:
    """Let ``model(..., labels=labels, pass_losses=True)`` return ((K,), (K,)): :func:`token_loss_sums` a pass.

    Called through the model's own forward, as TRL does for its fused head, because DeepSpeed, PEFT
    and checkpointing all wrap exactly that call. Add it before wrapping. Other calls are unchanged.
    """
    original: Callable[..., Any] = model.forward

    @functools.wraps(original)
    def forward(self: PreTrainedModel, *args: Any, pass_losses: bool = False, **kwargs: Any) -> Any:
        return _pass_loss_sums(self, **kwargs) if pass_losses else original(*args, **kwargs)

    model.forward = MethodType(forward, model)


def _pass_loss_sums(model: PreTrainedModel, labels: Tensor, num_passes: int, **inputs: Any) -> tuple[Tensor, Tensor]:
    inputs = {name: value for name, value in inputs.items() if value is not None}  # PEFT fills in None
    body: Any = model.base_model
    head: Any = model.get_output_embeddings()
    if has_feedback(model):
        states = body(num_passes=num_passes, output_passes=True, use_cache=False, **inputs).pass_states
    else:
        states = (body(use_cache=False, **inputs).last_hidden_state,)
    vocab_size = model.config.get_text_config().vocab_size
    sums = [token_loss_sums(head, state, labels, vocab_size) for state in states]
    losses, squares = (torch.stack(values) for values in zip(*sums, strict=True))
    if has_feedback(model) and num_passes == 1:
        losses = losses + idle_feedback(body, states[0])
    return losses, squares


def idle_feedback(body: Any, states: Tensor) -> Tensor:
    """Zero, with a zero gradient for the feedback module of ``body``.

    ZeRO-3 applies a module's last gradient again where the module sits out a step.
    """
    idle = states[:1, :1].detach()
    return 0.0 * body.input_norm(body.feedback(idle, idle, body.input_norm(idle))).sum()
