"""Documents to packed rows."""

from __future__ import annotations

from collections.abc import Sequence

from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedTokenizerBase

from fbt_rl.config import DataConfig
from fbt_rl.data.problems import DataError
from fbt_rl.data.tasks import encode_document, load_documents
from fbt_rl.training.rows import pack_rows


def read_documents(data: Sequence[DataConfig], seed: int) -> Dataset:
    """All sources' documents, one after the other: column ``text``. Raises DataError."""
    return concatenate_datasets([load_documents(source, seed) for source in data])


def build_rows(
    documents: Dataset, tokenizer: PreTrainedTokenizerBase, row_length: int
) -> tuple[Dataset, dict[str, int]]:
    """Tokenise (each document ends in the end token) and pack; longer documents go on in further rows.

    Returns:
        The rows, and counts: documents, dropped (empty) and split (longer than a row) ones, rows,
        tokens. Raises DataError where nothing is left.
    """

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"input_ids": [encode_document(tokenizer, text) for text in batch["text"] if text.strip()]}

    tokens = documents.map(encode, batched=True, remove_columns=documents.column_names)
    if len(tokens) == 0:
        raise DataError(f"none of the {len(documents)} pretraining documents holds any text")
    lengths = [len(ids) for ids in tokens["input_ids"]]
    rows = pack_rows(tokens, row_length, split=True)
    counts = {
        "documents": len(documents),
        "dropped": len(documents) - len(tokens),
        "split": sum(length > row_length for length in lengths),
        "rows": len(rows),
        "tokens": sum(lengths),
    }
    return rows, counts
