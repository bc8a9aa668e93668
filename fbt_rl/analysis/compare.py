"""Before and after: two sets of generations on the same problems, compared pairwise.

Input are tables with the columns of ``generations.parquet``: ``problem_id``, ``mode``, ``sample``,
``answer``, ``correct`` (null: could not be judged), ``finish_reason``, ``num_tokens``. A truncated
row is wrong and as long as the limit; :mod:`fbt_rl.evaluation.evaluate` writes it so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from fbt_rl.analysis.findings import findings
from fbt_rl.analysis.statistics import (
    accuracy_difference,
    length_ratio,
    mcnemar_exact,
    median_interval,
    median_over_correct,
    non_inferiority,
    truncated_share,
    wilcoxon,
)
from fbt_rl.analysis.summary import length_quantiles
from fbt_rl.analysis.table import Rows, length_unit, mean, number
from reward.math.answer import equivalent

MARGIN = 0.03  # a loss of accuracy below this counts as "no worse", where the interval excludes more
FEWEST_PAIRS = 10  # below it a bootstrap over problems says little, whatever its interval


def compare(
    before: pa.Table, after: pa.Table, *, before_name: str, after_name: str, mode: str, margin: float = MARGIN
) -> dict[str, Any]:
    """One entry of the report's ``comparisons``: ``after`` against ``before``, on the problems of both.

    Each table holds the rows of one mode; ``mode`` labels the entry. Problems are paired by
    ``problem_id`` and must have the same gold answer; problems (or unjudged rows) of one side only
    are left out and counted. Accuracies, medians and truncated shares are over the paired problems;
    ``paired_length_ratio`` is :func:`~fbt_rl.analysis.statistics.length_ratio` over the
    ``n_both_solve`` problems that both sides solve. Numbers that cannot be had are None.
    ``findings`` are plain sentences: what is shown and what is not. Raises ``ValueError`` when the
    two sides share no problem or disagree on a gold answer.
    """
    sides = Rows.of(before), Rows.of(after)
    there = set(sides[1].ids)
    common = [name for name in sides[0].ids if name in there]
    if not common:
        raise ValueError(
            f"{before_name} and {after_name} have no judged problem in common; compare runs on the same data"
        )
    old, new = (side.restricted(common) for side in sides)
    for name, gold, other in zip(common, old.gold, new.gold, strict=True):
        if gold != other and not equivalent(gold, other)[0]:
            answers = f"{gold[:200]!r} in {before_name} but {other[:200]!r} in {after_name}"
            raise ValueError(f"problem {name!r} has answer {answers}")

    difference, interval = accuracy_difference(old.accuracies(), new.accuracies())
    old_solved, new_solved = old.solved_lengths(), new.solved_lengths()
    both = np.isfinite(old_solved) & np.isfinite(new_solved)
    units = [length_unit(before), length_unit(after)]
    paired = both & (units[0] == units[1])
    ratio, ratio_interval = length_ratio(old_solved[paired], new_solved[paired])
    shift, shift_interval = median_interval(new_solved[paired] - old_solved[paired])
    finished = ~old.ever_truncated() & ~new.ever_truncated()
    entry = {
        "before": before_name,
        "after": after_name,
        "mode": mode,
        "n": len(common),
        "accuracy_before": float(old.accuracies().mean()),
        "accuracy_after": float(new.accuracies().mean()),
        "accuracy_diff": difference,
        "accuracy_diff_ci": list(interval),
        "non_inferiority_p": non_inferiority(old.accuracies(), new.accuracies(), margin),
        "mcnemar_p": mcnemar_exact(old.accuracies(), new.accuracies()),
        "median_length_correct_before": number(median_over_correct(old.lengths, old.correct)),
        "median_length_correct_after": number(median_over_correct(new.lengths, new.correct)),
        "n_both_solve": int(both.sum()),
        "n_only_before_solves": int((np.isfinite(old_solved) & ~both).sum()),
        "n_only_after_solves": int((np.isfinite(new_solved) & ~both).sum()),
        "paired_length_ratio": number(ratio),
        "paired_length_ratio_ci": [number(end) for end in ratio_interval],
        "paired_length_difference": number(shift),
        "paired_length_difference_ci": [number(end) for end in shift_interval],
        "paired_length_quantiles_before": length_quantiles(old_solved[paired]),
        "paired_length_quantiles_after": length_quantiles(new_solved[paired]),
        "wilcoxon_p": number(wilcoxon(old_solved[paired], new_solved[paired])),
        "truncated_before": number(truncated_share(old.finish)),
        "truncated_after": number(truncated_share(new.finish)),
        "token_limit_before": old.limit(),
        "token_limit_after": new.limit(),
        "mean_length_before": mean(old.lengths),
        "mean_length_after": mean(new.lengths),
        "mean_length_of_all_before": mean(sides[0].lengths),
        "mean_length_of_all_after": mean(sides[1].lengths),
        "n_both_finish": int(finished.sum()),
        "mean_length_both_finish_before": mean(old.mean_lengths()[finished]),
        "mean_length_both_finish_after": mean(new.mean_lengths()[finished]),
        "left_out_problems": len(set(sides[0].ids) ^ there),
        "unjudged_rows": old.unjudged + new.unjudged,
        "length_units": units,
        "margin": margin,
    }
    entry["accuracy_verdict"] = _accuracy_verdict(*interval, margin)
    entry["length_verdict"] = _length_verdict(*ratio_interval, int(paired.sum()))
    return {**entry, "findings": findings(entry)}


def _accuracy_verdict(low: float, high: float, margin: float) -> str:
    """What the interval of the difference shows: higher, lower, "no worse" at the margin, or unclear."""
    if low > 0 or high < 0:
        return "higher" if low > 0 else "lower"
    return "no worse" if low > -margin else "unclear"


def _length_verdict(low: float, high: float, pairs: int) -> str:
    """What the interval of the paired ratio shows: shorter, longer, unchanged (as far as it shows), or unknown."""
    if pairs < FEWEST_PAIRS:
        return "unknown"
    return "shorter" if high < 1 else "longer" if low > 1 else "unchanged"
