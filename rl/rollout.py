"""Sampling a batch of rollouts and laying it out for the loss.

Letters: B rollouts (groups of G samples of one prompt, side by side), P prompt columns (padded on
the left), N completion columns (padded on the right, to the longest completion), D hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from fbt_rl.config import RLStage
from fbt_rl.decoding import Completion, OnEnd, SamplingParams, decode

# One rank's rollouts of one step and what else the loss is computed from, by name; row r is sample r % G of prompt
# r // G. Tensors without dimensions are of the whole batch. From :func:`lay_out`:
#   prompt_ids, prompt_mask (B, P), completion_ids, completion_mask (B, N): masks are 1 on tokens, EOS among them
#   rollout_log_probs (B, N): under the distribution sampled from; 0 on padding
#   latents (B, N, D): in the model's dtype, on the host; absent where none were kept; 0 on padding
# From the trainer: counted (B, N), 1 on tokens with a part in the loss; advantages (B,); policy_step, counted_tokens,
# kept_share (); and where asked for importance, old_log_probs, reference_log_probs, standard_mask (B, N) and
# standard_tokens ().
Batch = dict[str, Tensor]


def sampling_seed(seed: int, batch: int, attempt: int = 0) -> int:
    """Seed of the ``batch``-th batch of rollouts: a resumed run samples what it would have sampled.

    ``attempt`` counts how often a place in the batch has been given a fresh prompt.
    """
    return int(np.random.SeedSequence([seed, batch, attempt]).generate_state(1, np.uint64)[0])


def sample_completions(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    stage: RLStage,
    *,
    eos_token_ids: Sequence[int],
    seed: int,
    row_keys: Sequence[int],
    on_end: OnEnd | None = None,
) -> list[Completion]:
    """Sample ``stage.group_size`` completions of each prompt at the stage's mode and temperature.

    The distribution is never cut to its top: a truncated one would bias the ratio of the loss. Latents are kept
    where the mode has them and ``stage.latents`` is "store". ``row_keys`` are the rows' places in the batch
    of all ranks, so that what a row samples does not depend on their number. ``on_end`` is told of each row as it
    ends. Raises ValueError for a prompt that does not fit (see ``decode``).
    """
    params = SamplingParams(
        mode=stage.mode,
        max_new_tokens=stage.max_new_tokens,
        temperature=stage.temperature,
        num_samples=stage.group_size,
        eos_token_ids=tuple(eos_token_ids),
    )
    keep = stage.mode != "standard" and stage.latents == "store"
    return decode(model, prompts, params, seed=seed, row_keys=row_keys, return_latents=keep, on_end=on_end)


def sample_rollouts(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    stage: RLStage,
    *,
    eos_token_ids: Sequence[int],
    pad_token_id: int,
    seed: int,
    first_row: int = 0,
) -> Batch:
    """:func:`sample_completions` laid out; ``first_row`` is the place of the first row in the batch of all ranks."""
    each = [prompt for prompt in prompts for _ in range(stage.group_size)]
    rows = range(first_row, first_row + len(each))
    completions = sample_completions(model, prompts, stage, eos_token_ids=eos_token_ids, seed=seed, row_keys=rows)
    return lay_out(each, completions, pad_token_id, model.device)


def padded(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], pad_token_id: int, device: torch.device
) -> Batch:
    """``prompt_ids``, ``prompt_mask`` (B, P), padded on the left; ``completion_ids``, ``completion_mask`` (B, N)."""
    columns = {}
    for name, rows, side in (("prompt", prompts, "left"), ("completion", completions, "right")):
        ids = [torch.tensor(row, device=device) for row in rows]
        columns[f"{name}_ids"] = pad_sequence(ids, True, pad_token_id, side)
        columns[f"{name}_mask"] = pad_sequence([torch.ones_like(row) for row in ids], True, 0, side)
    return columns


def lay_out(
    prompts: Sequence[Sequence[int]], completions: Sequence[Completion], pad_token_id: int, device: torch.device
) -> Batch:
    """Tensors of ``completions``, ``prompts`` (one a completion) and what was recorded of each."""
    batch = padded(prompts, [completion.token_ids for completion in completions], pad_token_id, device)
    batch["rollout_log_probs"] = pad_sequence([completion.logprobs.float() for completion in completions], True)
    latents = [completion.latents for completion in completions if completion.latents is not None]
    return batch | {"latents": on_host(latents)} if latents else batch


def on_host(latents: Sequence[Tensor]) -> Tensor:
    """States (B, N, D) in the host's memory, of the dtype of the rows (N_r, D) given; 0 past a row's end.

    From a GPU each row is copied once, straight to its place in page-locked memory.
    """
    first = latents[0]
    shape = len(latents), max(map(len, latents)), first.shape[-1]
    laid = torch.zeros(shape, dtype=first.dtype, pin_memory=first.is_cuda)
    for place, row in zip(laid, latents, strict=True):
        place[: len(row)].copy_(row, non_blocking=True)
    if first.is_cuda:
        torch.cuda.synchronize(first.device)
    return laid


def mebibytes(tensor: Tensor) -> float:
    return tensor.numel() * tensor.element_size() / 2**20


def rows_of(batch: Batch, rows: slice | Tensor) -> Batch:
    """Some rows of a batch; what is one number for all of it stays."""
    return {
        name: values[rows.to(values.device) if isinstance(rows, Tensor) else rows] if values.dim() else values
        for name, values in batch.items()
    }
