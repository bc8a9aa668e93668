"""Problems with worked solutions to packed rows that predict the solutions only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from fbt_rl.data.problems import DataError
from fbt_rl.data.tasks import encode_example
from fbt_rl.training.rows import IGNORED, lengths, on_disk, pack_rows


def build_rows(
    problems: Dataset, tokenizer: PreTrainedTokenizerBase, row_length: int, work: Path
) -> tuple[Dataset, dict[str, int]]:
    """Encode prompt and completion as decoding will meet them, mask the prompts, pack.

    Labels are the completion's tokens and the end token after it. A problem that does not fit into
    a row is dropped: cutting it would teach to stop anywhere.

    Returns:
        The rows, which lie in the folder ``work``, and counts: problems, dropped ones, rows, tokens. Raises
        DataError where nothing is left.
    """

    def encoded() -> Iterator[dict[str, Any]]:
        for prompt, completion in zip(problems["prompt"], problems["completion"], strict=True):
            ids, mask = encode_example(tokenizer, prompt, completion)
            if len(ids) <= row_length:
                labels = [token if predicted else IGNORED for token, predicted in zip(ids, mask, strict=True)]
                yield {"input_ids": ids, "labels": labels}

    examples = on_disk(encoded, ("input_ids", "labels"), work)
    if examples is None:
        raise DataError(f"none of the {len(problems)} problems fits into row_length {row_length}: raise it")
    rows = pack_rows(examples, row_length, split=False)
    counts = {
        "problems": len(problems),
        "dropped": len(problems) - len(examples),
        "rows": len(rows),
        "tokens": int(lengths(rows).sum()),
    }
    return rows, counts
