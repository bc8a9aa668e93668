"""One evaluation in numbers, mode by mode."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from fbt_rl.evaluation.statistics import accuracy_interval, median_over_correct, pass_at_k, truncated_share
from fbt_rl.evaluation.table import Rows, mean, modes_of, number, of_mode


def summarise(table: pa.Table) -> dict[str, dict[str, Any]]:
    """Per mode: accuracy with its interval, lengths in tokens, truncated share.

    ``n`` counts problems, ``rows`` judged samples, ``unjudged`` the samples without a verdict, which
    are left out. ``pass_at_k`` (for k = 1, 2, 4, ... up to the samples every problem has) is there
    when problems were sampled more than once.
    """
    return {mode: _summarise_rows(Rows.of(of_mode(table, mode))) for mode in modes_of(table)}


def _summarise_rows(rows: Rows) -> dict[str, Any]:
    samples = np.bincount(rows.problem, minlength=len(rows.ids))
    summary = {
        "n": len(rows.ids),
        "rows": len(rows.problem),
        "unjudged": rows.unjudged,
        "accuracy": mean(rows.correct),
        "accuracy_ci": list(accuracy_interval(rows.correct, rows.problem)),
        "median_length": float(np.median(rows.lengths)) if rows.lengths.size else None,
        "median_length_correct": number(median_over_correct(rows.lengths, rows.correct)),
        "mean_length": mean(rows.lengths),
        "truncated": number(truncated_share(rows.finish)),
    }
    fewest = int(samples.min()) if samples.size else 0
    if fewest > 1:
        counts = np.bincount(rows.problem, weights=rows.correct).astype(int)
        ks = [2**power for power in range(int(math.log2(fewest)) + 1)]
        summary["pass_at_k"] = {str(k): pass_at_k(counts, samples, k) for k in ks}
    return summary
