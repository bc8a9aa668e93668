"""One evaluation in numbers, mode by mode."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fbt_rl.analysis.statistics import (
    accuracy_at_budgets,
    accuracy_interval,
    average_at_k,
    kaplan_meier_median,
    majority_at_k,
    median_over_correct,
    pass_at_k,
    quantiles,
    tokens_per_correct,
    truncated_share,
)
from fbt_rl.analysis.table import Rows, mean, modes_of, number, of_mode

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
GROUPINGS = ("level", "subject")  # columns that put problems into groups


def summarise(table: pa.Table) -> dict[str, dict[str, Any]]:
    """Per mode: accuracy with its interval, lengths in tokens, truncated share.

    ``n`` counts problems, ``rows`` judged samples, ``unjudged`` the samples without a verdict, which
    are left out. ``pass_at_k``, ``majority_at_k`` and ``average_at_k`` (for k = 1, 2, 4, ... up to the
    samples every problem has) are there when problems were sampled more than once. ``budgets`` is the curve of
    accuracy were every answer cut at so many tokens. ``median_length_unbounded`` is the Kaplan-Meier median, what the
    median would be without a token limit. ``level`` and ``subject`` have each group's figures where the data names
    groups. Numbers that cannot be had are None.
    """
    return {mode: _summarise_mode(of_mode(table, mode)) for mode in modes_of(table)}


def _summarise_mode(table: pa.Table) -> dict[str, Any]:
    rows = Rows.of(table)
    budgets = _budgets(rows.lengths)
    curve = accuracy_at_budgets(rows.lengths, rows.correct, budgets)
    known = rows.finish_known
    return {
        **_figures(rows),
        "rows": len(rows.problem),
        "unjudged": rows.unjudged,
        "median_length": _median(rows.lengths),
        "median_length_unbounded": number(kaplan_meier_median(rows.lengths, rows.truncated)) if known else None,
        "length_quantiles": length_quantiles(rows.lengths),
        "length_quantiles_correct": length_quantiles(rows.lengths[rows.correct]),
        "mean_length": mean(rows.lengths),
        "tokens_per_correct": number(tokens_per_correct(rows.lengths, rows.correct)),
        "truncated": number(truncated_share(rows.finish)),
        "budgets": dict(zip(map(str, budgets), curve.tolist(), strict=True)),
        **_of_several_samples(rows),
        **{name: _groups(table, name) for name in GROUPINGS if _named(table, name)},
    }


def _figures(rows: Rows) -> dict[str, Any]:
    return {
        "n": len(rows.ids),
        "accuracy": mean(rows.correct),
        "accuracy_ci": list(accuracy_interval(rows.correct, rows.problem)),
        "median_length_correct": number(median_over_correct(rows.lengths, rows.correct)),
    }


def _of_several_samples(rows: Rows) -> dict[str, dict[str, float]]:
    samples = np.bincount(rows.problem, minlength=len(rows.ids))
    fewest = int(samples.min()) if samples.size else 0
    if fewest < 2:
        return {}
    counts = np.bincount(rows.problem, weights=rows.correct).astype(int)
    ks = [2**power for power in range(int(math.log2(fewest)) + 1)]
    answers = rows.extracted.tolist()
    return {
        "pass_at_k": {str(k): pass_at_k(counts, samples, k) for k in ks},
        "majority_at_k": {str(k): majority_at_k(answers, rows.correct, rows.problem, k) for k in ks},
        "average_at_k": {str(k): average_at_k(rows.correct, rows.problem, k) for k in ks},
    }


def _groups(table: pa.Table, name: str) -> dict[str, dict[str, Any]]:
    """Figures of each level or subject, in the order of their names."""
    names = sorted(value for value in table[name].unique().to_pylist() if value)
    return {value: _figures(Rows.of(table.filter(pc.field(name) == value))) for value in names}


def _named(table: pa.Table, name: str) -> bool:
    return name in table.column_names and any(table[name].unique().to_pylist())


def _budgets(lengths: NDArray[np.float64]) -> list[int]:
    """Powers of the root of two from the shortest length to the longest: the same numbers for every evaluation."""
    if not lengths.size or lengths.max() < 1:
        return []
    first, last = (math.ceil(2 * math.log2(max(1.0, end))) for end in (lengths.min(), lengths.max()))
    return sorted({math.ceil(2 ** (power / 2)) for power in range(first, last + 1)})


def length_quantiles(lengths: NDArray[np.float64]) -> dict[str, float | None]:
    """Share of the answers -> the length that it does not exceed."""
    return {str(share): number(value) for share, value in zip(QUANTILES, quantiles(lengths, QUANTILES), strict=True)}


def _median(values: NDArray[Any]) -> float | None:
    return float(np.median(values)) if values.size else None
