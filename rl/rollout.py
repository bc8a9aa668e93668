"""Sampling a batch of rollouts and laying it out for the loss.

Letters: B rollouts (groups of G samples of one prompt, side by side), P prompt columns (padded on
the left), N completion columns (padded on the right, to the longest completion), D hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from fbt_rl.config import RLStage
from fbt_rl.decoding import SamplingParams, decode


@dataclass(frozen=True)
class Rollouts:
    """One rank's rollouts of one step; row r is sample ``r % G`` of prompt ``r // G``."""

    prompt_ids: Tensor  # (B, P)
    prompt_mask: Tensor  # (B, P), 1 on tokens
    completion_ids: Tensor  # (B, N), with the EOS of a finished completion
    completion_mask: Tensor  # (B, N), 1 on tokens
    log_probs: Tensor  # (B, N), under the distribution sampled from; 0 on padding
    latents: Tensor | None  # (B, N, D) in the model's dtype on the host; None: none were kept; 0 on padding
    token_ids: list[list[int]]  # the completions, unpadded
    truncated: list[bool]  # cut at max_new_tokens, without an EOS


def sampling_seed(seed: int, batch: int) -> int:
    """Seed of the ``batch``-th batch of rollouts: a resumed run samples what it would have sampled."""
    return int(np.random.SeedSequence([seed, batch]).generate_state(1, np.uint64)[0])


def sample_rollouts(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    stage: RLStage,
    *,
    eos_token_ids: Sequence[int],
    pad_token_id: int,
    seed: int,
    first_row: int = 0,
) -> Rollouts:
    """Sample ``stage.group_size`` completions of each prompt at the stage's mode and temperature.

    The distribution is never cut to its top: a truncated one would bias the ratio of the loss. Latents are kept
    where the mode has them and ``stage.latents`` is "store".
    ``first_row`` is this rank's first row in the whole batch, so that what a row samples does not
    depend on the number of ranks. Raises ValueError for a prompt that does not fit (see ``decode``).
    """
    params = SamplingParams(
        mode=stage.mode,
        max_new_tokens=stage.max_new_tokens,
        temperature=stage.temperature,
        num_samples=stage.group_size,
        eos_token_ids=tuple(eos_token_ids),
    )
    count = len(prompts) * stage.group_size
    rows = range(first_row, first_row + count)
    keep = stage.mode != "standard" and stage.latents == "store"
    completions = decode(model, prompts, params, seed=seed, row_keys=rows, return_latents=keep)

    device = model.device
    prompt_ids = [torch.tensor(prompt, device=device) for prompt in prompts for _ in range(stage.group_size)]
    token_ids = [completion.token_ids for completion in completions]
    completion_ids = [torch.tensor(ids, device=device) for ids in token_ids]
    latents = [completion.latents for completion in completions if completion.latents is not None]
    return Rollouts(
        prompt_ids=pad_sequence(prompt_ids, True, pad_token_id, "left"),
        prompt_mask=pad_sequence([torch.ones_like(ids) for ids in prompt_ids], True, 0, "left"),
        completion_ids=pad_sequence(completion_ids, True, pad_token_id),
        completion_mask=pad_sequence([torch.ones_like(ids) for ids in completion_ids], True),
        log_probs=pad_sequence([completion.logprobs.float() for completion in completions], True),
        latents=on_host(latents) if latents else None,
        token_ids=token_ids,
        truncated=[completion.finish_reason == "length" for completion in completions],
    )


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
