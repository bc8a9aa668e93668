"""A fixed batch of rollouts on which it is measured, again and again, what the carried states are worth.

Only its tokens are kept. Their states are made anew with the weights of the day, by Jacobi passes from
plain completions, as in training (METHOD 1.3): recorded ones would be another model's after a while.

Letters: B rows, P and N prompt and completion columns, D hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fbt_rl.config import Mode
from fbt_rl.config.rl import JacobiScorer
from rl.scoring import scoring_inputs

PASSES = 4
ProbeRow = tuple[list[int], list[int]]  # prompt and completion, unpadded


def probe_rows(batch: dict[str, Tensor], rows: int) -> list[ProbeRow]:
    """The tokens of the first ``rows`` rollouts of a batch, as they are kept in a checkpoint."""

    def unpadded(ids: Tensor, mask: Tensor) -> list[list[int]]:
        return [row[kept].tolist() for row, kept in zip(ids[:rows], mask[:rows].bool(), strict=True)]

    prompts = unpadded(batch["prompt_ids"], batch["prompt_mask"])
    completions = unpadded(batch["completion_ids"], batch["completion_mask"])
    return list(zip(prompts, completions, strict=True))


@torch.no_grad()
def jacobi_states(body: Callable[..., Any], mode: Mode, batch: dict[str, Tensor], passes: int = PASSES) -> Tensor:
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
