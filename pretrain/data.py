"""Documents to packed rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from fbt_rl.config import DataConfig
from fbt_rl.data.problems import DataError
from fbt_rl.data.tasks import encode_documents, load_documents
from fbt_rl.training.rows import lengths, on_disk, pack_rows

_ENCODED_TOGETHER = 256  # documents: enough for the tokenizer's threads


def read_documents(data: Sequence[DataConfig], seed: int) -> Iterator[str]:
    """All sources' documents, one after the other. Raises DataError."""
    return chain.from_iterable(load_documents(source, seed) for source in data)


def build_rows(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerBase, row_length: int, work: Path
) -> tuple[Dataset, dict[str, int]]:
    """Tokenise (each document ends in the end token) and pack; longer documents go on in further rows.

    Returns:
        The rows, which lie in the folder ``work``, and counts: documents, dropped (empty) and split (longer than a
        row) ones, rows, tokens. Raises DataError where nothing is left.
    """
    count = 0

    def encoded() -> Iterator[dict[str, Any]]:
        nonlocal count
        remaining = iter(documents)
        while texts := list(islice(remaining, _ENCODED_TOGETHER)):
            count += len(texts)
            for ids in encode_documents(tokenizer, [text for text in texts if text.strip()]):
                yield {"input_ids": ids}

    tokens = on_disk(encoded, ("input_ids",), work)
    if tokens is None:
        raise DataError(f"none of the {count} pretraining documents holds any text")
    found = lengths(tokens)
    rows = pack_rows(tokens, row_length, split=True)
    counts = {
        "documents": count,
        "dropped": count - len(tokens),
        "split": int((found > row_length).sum()),
        "rows": len(rows),
        "tokens": int(found.sum()),
    }
    return rows, counts
