"""``rollouts.parquet``: whole batches of rollouts, kept every so often for the report and for reading."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from fbt_rl.analysis.table import read_table, write_table
from fbt_rl.config import Mode

if TYPE_CHECKING:  # which writes its rows by this module
    from rl.collector import Groups

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
        # By the rewards' names: their scores before weights, their terms, and under "length" what shaping added to the
        # first.
        ("scores", pa.map_(pa.string(), pa.float64())),
        ("error", pa.string()),  # kinds, with commas between
        ("metadata", pa.string()),  # JSON: by the rewards' names what else they said; null: nothing
        ("advantage", pa.float64()),
        ("num_tokens", pa.int32()),
        ("reasoning_tokens", pa.int32()),  # the rest are the answer
        ("finish_reason", pa.string()),
    ]
)


def rollout_rows(
    step: int,
    mode: Mode,
    groups: Groups,
    texts: Sequence[str],
    reasoning: Sequence[int],
    advantages: Sequence[float],
) -> list[dict[str, Any]]:
    """The rows of one rank's groups, rolled out before ``step`` (counted from 1); ``reasoning`` in tokens."""
    group_size = len(groups.completions) // len(groups.problems)
    columns = zip(groups.completions, groups.judgements, texts, reasoning, advantages, strict=True)
    rows = []
    for index, (completion, judgement, text, thought, advantage) in enumerate(columns):
        problem = groups.problems[index // group_size]
        rows.append(
            {
                "step": step,
                "problem_id": problem["problem_id"],
                "sample": index % group_size,
                "mode": mode,
                "prompt": problem["prompt"],
                "completion": text,
                "answer": problem["answer"],
                "correct": None if math.isnan(judgement.correct) else bool(judgement.correct),
                "reward": None if math.isnan(judgement.reward) else judgement.reward,
                "scores": judgement.scores,
                "error": ", ".join(judgement.errors) or None,
                "metadata": json.dumps(dict(judgement.metadata), default=str) if judgement.metadata else None,
                "advantage": advantage,
                "num_tokens": len(completion.token_ids),
                "reasoning_tokens": thought,
                "finish_reason": completion.finish_reason,
            }
        )
    return rows


def append_rollouts(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Add ``rows`` of one step, in place of any of that step or later (those of a run that was resumed before it)."""
    new = pa.Table.from_pylist(list(rows), SCHEMA)
    old = _before(path, rows[0]["step"]) if path.is_file() else SCHEMA.empty_table()
    write_table(path, pa.concat_tables([old, new]))


def truncate_rollouts(path: Path, step: int) -> None:
    """Drop the rows after ``step``: a resumed run samples them again."""
    if path.is_file():
        write_table(path, _before(path, step + 1))


def _before(path: Path, step: int) -> pa.Table:
    return read_table(path).filter(pc.field("step") < step)
