"""Packed rows: what pretraining, extension and fine-tuning feed the model.

A row of ``row_length`` tokens holds several documents. Positions restart at each, which is what
cuts attention, RoPE and the feedback's shift at the boundaries. B rows, T = row_length.

Rows are made once, by one process, and lie in a folder that all ranks map into memory: a rank holds no more of
them than the pages it reads, and a resumed stage makes nothing again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, List, Value
from torch.utils.data import Sampler
from trl.data_utils import pack_dataset

IGNORED = -100  # a label that is not predicted
_PACKED_TOGETHER = 10_000  # documents among which the packer looks for a fit


COUNTS = "counts.json"
_LOOK_EVERY_S = 0.5  # for rows that another rank is making


def kept_rows(
    folder: Path, made_from: dict[str, Any], make: Callable[[Path], tuple[Dataset, dict[str, int]]], *, first: bool
) -> tuple[Dataset, dict[str, int]]:
    """The rows and counts that ``make`` gives, from the disk where they were made already.

    They are kept below ``folder`` under a hash of ``made_from``, plain values that say all they depend on, and
    memory-mapped. The rank that is ``first`` calls ``make`` with a folder for what it needs meanwhile; the others
    wait for as long as that takes.
    """
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]
    place = folder / key
    if first and not place.is_dir():
        shutil.rmtree(folder, ignore_errors=True)  # of other settings, or half made
        work = folder / f".{key}.tmp"
        work.mkdir(parents=True)
        rows, counts = make(work / "work")
        rows.save_to_disk(work / "rows")
        (work / "rows" / COUNTS).write_text(json.dumps(counts))
        (work / "rows").rename(place)
        shutil.rmtree(work)
    while not place.is_dir():
        time.sleep(_LOOK_EVERY_S)
    return Dataset.load_from_disk(os.fspath(place)), json.loads((place / COUNTS).read_text())


def on_disk(documents: Callable[[], Iterator[dict[str, Any]]], columns: Sequence[str], folder: Path) -> Dataset | None:
    """A data set of token ``columns``, written to ``folder`` one document after the other; None: of no documents."""
    first = next(remaining := documents(), None)
    if first is None:
        return None
    features = Features({name: List(Value("int32")) for name in columns})
    folder.mkdir(parents=True, exist_ok=True)
    own = tempfile.mkdtemp(dir=folder)  # else the data set of another call is found under the fingerprint
    made: Any = Dataset.from_generator(lambda: chain([first], remaining), features, own, fingerprint="documents")
    return made


def lengths(documents: Dataset, column: str = "input_ids") -> np.ndarray:
    """How many tokens each document has, (documents,)."""
    return pc.list_value_length(documents.data.column(column)).to_numpy()  # type: ignore[attr-defined]


def pack_rows(documents: Dataset, row_length: int, *, split: bool) -> Dataset:
    """Pack documents (columns ``input_ids`` and, where not every token is predicted, ``labels``).

    TRL's best-fit-decreasing packing. Documents longer than a row are cut into several (``split``)
    or must not occur. Adds ``seq_lengths``, the documents' lengths, and ``row_id``.
    """
    columns = [name for name in ("input_ids", "labels") if name in documents.column_names]
    strategy = "bfd_split" if split else "bfd"
    rows = pack_dataset(documents.select_columns(columns), row_length, strategy, {"batch_size": _PACKED_TOGETHER})
    return rows.add_column("row_id", list(range(len(rows))))  # type: ignore[call-arg]


@dataclass(frozen=True)
class RowCollator:
    """Rows -> one micro-batch, padded to ``row_length`` so that every step has the same shape.

    ``input_ids``, ``labels``, ``position_ids``: (B, T) int64. A document's first token is not
    predicted (there is nothing before it), nor is padding; each padding token has position 0, a
    document of its own, and nothing attends to it. ``row_ids`` names the rows; ``num_tokens`` counts
    the tokens that are not padding.
    """

    row_length: int
    pad_token_id: int

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        shape = (len(rows), self.row_length)
        input_ids = np.full(shape, self.pad_token_id, dtype=np.int64)
        labels = np.full(shape, IGNORED, dtype=np.int64)
        position_ids = np.zeros(shape, dtype=np.int64)
        for index, row in enumerate(rows):
            used = len(row["input_ids"])
            input_ids[index, :used] = row["input_ids"]
            labels[index, :used] = row.get("labels", row["input_ids"])
            position_ids[index, :used] = np.concatenate([np.arange(length) for length in row["seq_lengths"]])
        labels[position_ids == 0] = IGNORED
        return {
            "input_ids": torch.from_numpy(input_ids),
            "labels": torch.from_numpy(labels),
            "position_ids": torch.from_numpy(position_ids),
            "row_ids": [row["row_id"] for row in rows],
            "num_tokens": sum(len(row["input_ids"]) for row in rows),
        }


class ShuffledRows(Sampler[int]):
    """The rows of a whole run in order: epoch after epoch, each in an order drawn from (seed, epoch).

    One sampler for all epochs: a step's rows depend on its number alone, so a resumed run skips to
    its place, and an epoch's end is nothing special.
    """

    def __init__(self, num_rows: int, num_draws: int, seed: int) -> None:
        self.num_rows, self.num_draws, self.seed = num_rows, num_draws, seed

    def __len__(self) -> int:
        return self.num_draws

    def __iter__(self) -> Iterator[int]:
        epochs = (np.random.default_rng([self.seed, epoch]).permutation(self.num_rows) for epoch in count())
        return islice((int(row) for rows in epochs for row in rows), self.num_draws)
