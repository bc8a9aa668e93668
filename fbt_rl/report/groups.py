"""Figures by level and by subject, where the data names them: what tables and charts of the report show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fbt_rl.analysis.summary import GROUPINGS
from fbt_rl.report.text import one_line, shortened

MOST_ROWS = 200  # of a table: a column that is different in every problem groups nothing
MOST_CHARACTERS = 120  # of a name


@dataclass(frozen=True)
class Groups:
    """Every level, or every subject, with its figures on every side or in every mode."""

    kind: str  # "level" or "subject"
    labels: list[str]  # the sides or modes
    rows: list[dict[str, Any]]  # one a level: ``name``, ``problems``, ``figures`` and ``points`` by label
    left_out: int  # names beyond ``MOST_ROWS``


def groups_of(summaries: Mapping[str, Mapping[str, Any]]) -> list[Groups]:
    """The groups in ``summaries[label]``, each what ``summary.summarise`` has of one mode; [] where it names none."""
    return [_groups(kind, found) for kind in GROUPINGS if (found := _having(summaries, kind))]


def _having(summaries: Mapping[str, Mapping[str, Any]], kind: str) -> dict[str, Mapping[str, Any]]:
    return {label: summary[kind] for label, summary in summaries.items() if kind in summary}


def _groups(kind: str, found: Mapping[str, Mapping[str, Any]]) -> Groups:
    names = sorted({name for of in found.values() for name in of})
    if all(name.isdecimal() for name in names):
        names.sort(key=lambda name: (len(name), name))  # 10 after 9
    rows = [_row(name, {label: of.get(name) for label, of in found.items()}) for name in names[:MOST_ROWS]]
    return Groups(kind, list(found), rows, len(names[MOST_ROWS:]))


def _row(name: str, of: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    """``problems`` are the counts of the labels, or the one that they share; ``points`` what a label has gained on the
    first, a share."""
    nothing = {"n": 0, "accuracy": None, "accuracy_ci": [None, None], "median_length_correct": None}
    figures = {label: found or nothing for label, found in of.items()}
    first, *others = figures
    counts = [found["n"] for found in figures.values()]
    return {
        "name": shortened(one_line(name), MOST_CHARACTERS),
        "problems": counts if len(set(counts)) > 1 else counts[:1],
        "figures": figures,
        "points": {label: _gain(figures[first]["accuracy"], figures[label]["accuracy"]) for label in others},
    }


def _gain(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
