"""``rollouts.parquet``: whole batches of rollouts, kept every so often for the report and for reading."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("problem_id", pa.string()),
        ("sample", pa.int32()),
        ("mode", pa.string()),
        ("prompt", pa.string()),
        ("completion", pa.string()),
        ("answer", pa.string()),
        ("correct", pa.bool_()),  # null: could not be judged
        ("reward", pa.float64()),  # null: could not be judged
        ("advantage", pa.float64()),
        ("num_tokens", pa.int32()),
        ("finish_reason", pa.string()),
    ]
)


def append_rollouts(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Add ``rows`` of one step, in place of any of that step or later (those of a run that was resumed before it)."""
    new = pa.Table.from_pylist(list(rows), SCHEMA)
    old = _before(path, rows[0]["step"]) if path.is_file() else SCHEMA.empty_table()
    _write(path, pa.concat_tables([old, new]))


def truncate_rollouts(path: Path, step: int) -> None:
    """Drop the rows after ``step``: a resumed run samples them again."""
    if path.is_file():
        _write(path, _before(path, step + 1))


def _before(path: Path, step: int) -> pa.Table:
    return pq.read_table(path, filters=[("step", "<", step)])


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, temporary)
    temporary.replace(path)
