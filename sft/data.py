"""Problems with worked solutions to packed rows that predict the solutions only."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from fbt_rl.data.problems import DataError
from fbt_rl.data.tasks import encode_example
from fbt_rl.training.rows import IGNORED, pack_rows


def build_rows(
    problems: Dataset, tokenizer: PreTrainedTokenizerBase, row_length: int
) -> tuple[Dataset, dict[str, int]]:
    """Encode prompt and completion as decoding will meet them, mask the prompts, pack.

    Labels are the completion's tokens and the end token after it. A problem that does not fit into
    a row is dropped: cutting it would teach to stop anywhere.

    Returns:
        The rows, and counts: problems, dropped ones, rows, tokens. Raises DataError where nothing is left.
    """

    def encode(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        encoded = [encode_example(tokenizer, *pair) for pair in zip(batch["prompt"], batch["completion"], strict=True)]
        fitting = [(ids, mask) for ids, mask in encoded if len(ids) <= row_length]
        return {
            "input_ids": [ids for ids, _ in fitting],
            "labels": [
                [token if predicted else IGNORED for token, predicted in zip(ids, mask, strict=True)]
                for ids, mask in fitting
            ],
        }

    examples = problems.map(encode, batched=True, remove_columns=problems.column_names)
    if len(examples) == 0:
        raise DataError(f"none of the {len(problems)} problems fits into row_length {row_length}: raise it")
    rows = pack_rows(examples, row_length, split=False)
    counts = {
        "problems": len(problems),
        "dropped": len(problems) - len(examples),
        "rows": len(rows),
        "tokens": sum(len(ids) for ids in rows["input_ids"]),
    }
    return rows, counts
