"""Generations as a table: one row a sample, in the columns of ``generations.parquet``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fbt_rl.analysis.statistics import problem_means

SCHEMA = pa.schema(
    [
        ("problem_id", pa.string()),
        ("mode", pa.string()),  # decoding mode; of other systems' generations the system
        ("sample", pa.int32()),
        ("prompt", pa.string()),  # the problem as it stands in the data
        ("prompt_hash", pa.string()),  # of the exact text that was answered
        ("completion", pa.string()),
        ("answer", pa.string()),
        ("extracted", pa.string()),
        ("correct", pa.bool_()),  # null: could not be judged
        ("error", pa.string()),
        ("finish_reason", pa.string()),  # "stop", "length"; null: not known
        ("num_tokens", pa.int32()),
        ("reasoning_tokens", pa.int32()),  # before the final answer, which is the rest
        ("answer_tokens", pa.int32()),
        ("seconds", pa.float64()),  # its share of the decoding time of its batch
        ("level", pa.string()),
        ("subject", pa.string()),
        ("claimed", pa.bool_()),  # what a file of generations says itself of ``correct``
        ("seed", pa.int64()),
    ]
)
LENGTH_UNIT = b"length_unit"  # metadata: what num_tokens counts, where not tokens
_NEEDED = ("problem_id", "mode", "answer", "correct", "finish_reason", "num_tokens")
_OPTIONAL = ("extracted", "level", "subject")


def read_generations(path: Path, prompt: bool = False) -> pa.Table:
    """The columns of ``generations.parquet`` that statistics need, and perhaps the prompts. Raises ValueError."""
    try:
        with pq.ParquetFile(path) as file:
            there = file.schema_arrow.names
            if missing := [name for name in _NEEDED if name not in there]:
                raise ValueError(f"{path} is no table of generations: it has no column {', '.join(missing)}")
            wanted = (*_NEEDED, *_OPTIONAL, *(["prompt"] if prompt else []))
            return file.read([name for name in wanted if name in there])
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"cannot read {path} as parquet: {error}") from error


def length_unit(table: pa.Table) -> str:
    """What ``num_tokens`` counts: "tokens", or "characters"."""
    return (table.schema.metadata or {}).get(LENGTH_UNIT, b"tokens").decode()


def of_mode(table: pa.Table, mode: str) -> pa.Table:
    """The rows of one mode."""
    return table.filter(pc.field("mode") == mode)


def modes_of(table: pa.Table) -> list[str]:
    """Modes in order of appearance."""
    return table["mode"].unique().to_pylist()


def before_stop(text: str, stop: Sequence[str]) -> str:
    """What stands before the first of the texts ``stop``."""
    return text[: min((place for end in stop if (place := text.find(end)) >= 0), default=len(text))]


@dataclass(frozen=True)
class Rows:
    """The judged rows of one table; R rows, ``problem`` in 0..P-1 by first appearance."""

    ids: list[str]  # (P,)
    gold: list[str]  # (P,)
    problem: NDArray[np.int64]  # (R,)
    correct: NDArray[np.bool_]
    lengths: NDArray[np.float64]
    finish: NDArray[np.object_]  # "stop", "length" or None: not known
    extracted: NDArray[np.object_]  # None: no answer
    unjudged: int  # rows left out

    @classmethod
    def of(cls, table: pa.Table) -> Rows:
        judged = table.filter(table["correct"].is_valid())
        names = judged["problem_id"].to_pylist()
        first: dict[str, int] = {}
        problem = [first.setdefault(name, len(first)) for name in names]
        gold = dict(zip(names, judged["answer"].to_pylist(), strict=True))
        return cls(
            ids=list(first),
            gold=[gold[name] for name in first],
            problem=np.asarray(problem, dtype=np.int64),
            correct=judged["correct"].to_numpy().astype(bool),
            lengths=judged["num_tokens"].to_numpy().astype(float),
            finish=_objects(judged, "finish_reason"),
            extracted=_objects(judged, "extracted"),
            unjudged=len(table) - len(judged),
        )

    def restricted(self, ids: list[str]) -> Rows:
        """The same rows for the problems ``ids`` only, renumbered in that order."""
        number = {name: index for index, name in enumerate(ids)}
        place = np.asarray([number.get(name, -1) for name in self.ids], dtype=np.int64)
        problem = place[self.problem]
        keep = problem >= 0
        gold = dict(zip(self.ids, self.gold, strict=True))
        return Rows(
            ids=ids,
            gold=[gold[name] for name in ids],
            problem=problem[keep],
            correct=self.correct[keep],
            lengths=self.lengths[keep],
            finish=self.finish[keep],
            extracted=self.extracted[keep],
            unjudged=self.unjudged,
        )

    def accuracies(self) -> NDArray[np.float64]:
        """Share of right samples of each problem, (P,)."""
        return problem_means(self.correct, self.problem, len(self.ids))

    def solved_lengths(self) -> NDArray[np.float64]:
        """Mean length over each problem's right samples, (P,); nan where none is right."""
        return problem_means(self.lengths[self.correct], self.problem[self.correct], len(self.ids))

    def mean_lengths(self) -> NDArray[np.float64]:
        return problem_means(self.lengths, self.problem, len(self.ids))

    @property
    def truncated(self) -> NDArray[np.bool_]:
        return self.finish == "length"

    @property
    def finish_known(self) -> bool:
        """Whether it is known of any row if it was cut off."""
        return any(reason is not None for reason in self.finish)

    def limit(self) -> float | None:
        """The length that answers were cut at; None where none was."""
        return float(self.lengths[self.truncated].max()) if self.truncated.any() else None

    def ever_truncated(self) -> NDArray[np.bool_]:
        return problem_means(self.truncated, self.problem, len(self.ids)) > 0


def _objects(table: pa.Table, name: str) -> NDArray[np.object_]:
    values: list[Any] = table[name].to_pylist() if name in table.column_names else [None] * len(table)
    return np.asarray(values, dtype=object)


def mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if values.size else None


def number(value: float) -> float | None:
    """A number for JSON: None where there is none."""
    return value if math.isfinite(value) else None
