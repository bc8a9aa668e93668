"""Before and after: two sets of generations on the same problems, compared pairwise.

Input are tables with the columns of ``generations.parquet``: ``problem_id``, ``mode``, ``sample``,
``answer``, ``correct`` (null: could not be judged), ``finish_reason``, ``num_tokens``. A truncated
row is wrong and as long as the limit; :mod:`fbt_rl.evaluation.evaluate` writes it so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fbt_rl.evaluation.statistics import (
    accuracy_difference,
    accuracy_interval,
    length_ratio,
    mcnemar_exact,
    median_over_correct,
    pass_at_k,
    problem_means,
    truncated_share,
    wilcoxon,
)

MARGIN = 0.03  # a loss of accuracy below this counts as "no worse", where the interval excludes more
FEWEST_PAIRS = 10  # below it a bootstrap over problems says little, whatever its interval
TRUNCATION_LIMIT = 0.01  # above it, lengths say more about the token limit than about the model


@dataclass(frozen=True)
class Rows:
    """The judged rows of one table; R rows, ``problem`` in 0..P-1 by first appearance."""

    ids: list[str]  # (P,)
    gold: list[str]  # (P,)
    problem: NDArray[np.int64]  # (R,)
    correct: NDArray[np.bool_]
    lengths: NDArray[np.float64]
    finish: NDArray[np.object_]  # "stop" or "length"
    unjudged: int  # rows left out

    @classmethod
    def of(cls, table: pa.Table) -> Rows:
        judged = table.filter(table["correct"].is_valid())
        first: dict[str, int] = {}
        problem = [first.setdefault(name, len(first)) for name in judged["problem_id"].to_pylist()]
        gold = dict(zip(judged["problem_id"].to_pylist(), judged["answer"].to_pylist(), strict=True))
        return cls(
            ids=list(first),
            gold=[gold[name] for name in first],
            problem=np.asarray(problem, dtype=np.int64),
            correct=judged["correct"].to_numpy().astype(bool),
            lengths=judged["num_tokens"].to_numpy().astype(float),
            finish=np.asarray(judged["finish_reason"].to_pylist(), dtype=object),
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

    def ever_truncated(self) -> NDArray[np.bool_]:
        return problem_means(self.finish == "length", self.problem, len(self.ids)) > 0


def of_mode(table: pa.Table, mode: str) -> pa.Table:
    """The rows of one mode."""
    return table.filter(pc.field("mode") == mode)


def modes_of(table: pa.Table) -> list[str]:
    """Modes in order of appearance."""
    return list(dict.fromkeys(table["mode"].to_pylist()))


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
        "accuracy": _mean(rows.correct),
        "accuracy_ci": list(accuracy_interval(rows.correct, rows.problem)),
        "median_length": _median(rows.lengths),
        "median_length_correct": _number(median_over_correct(rows.lengths, rows.correct)),
        "mean_length": _mean(rows.lengths),
        "truncated": _number(truncated_share(rows.finish)),
    }
    fewest = int(samples.min()) if samples.size else 0
    if fewest > 1:
        counts = np.bincount(rows.problem, weights=rows.correct).astype(int)
        ks = [2**power for power in range(int(math.log2(fewest)) + 1)]
        summary["pass_at_k"] = {str(k): pass_at_k(counts, samples, k) for k in ks}
    return summary


def compare(
    before: pa.Table, after: pa.Table, *, before_name: str, after_name: str, mode: str, margin: float = MARGIN
) -> dict[str, Any]:
    """One entry of the report's ``comparisons``: ``after`` against ``before``, on the problems of both.

    Each table holds the rows of one mode; ``mode`` labels the entry. Problems are paired by
    ``problem_id`` and must have the same gold answer; problems (or unjudged rows) of one side only
    are left out and counted. Accuracies, medians and truncated shares are over the paired problems;
    ``paired_length_ratio`` is :func:`~fbt_rl.evaluation.statistics.length_ratio` over the
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
        if gold != other:
            raise ValueError(f"problem {name!r} has answer {gold!r} in {before_name} but {other!r} in {after_name}")

    difference, interval = accuracy_difference(old.accuracies(), new.accuracies())
    old_solved, new_solved = old.solved_lengths(), new.solved_lengths()
    both = np.isfinite(old_solved) & np.isfinite(new_solved)
    ratio, ratio_interval = length_ratio(old_solved[both], new_solved[both])
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
        "mcnemar_p": mcnemar_exact(old.accuracies(), new.accuracies()),
        "median_length_correct_before": _number(median_over_correct(old.lengths, old.correct)),
        "median_length_correct_after": _number(median_over_correct(new.lengths, new.correct)),
        "n_both_solve": int(both.sum()),
        "n_only_before_solves": int((np.isfinite(old_solved) & ~both).sum()),
        "n_only_after_solves": int((np.isfinite(new_solved) & ~both).sum()),
        "paired_length_ratio": _number(ratio),
        "paired_length_ratio_ci": [_number(end) for end in ratio_interval],
        "wilcoxon_p": _number(wilcoxon(old_solved[both], new_solved[both])),
        "truncated_before": truncated_share(old.finish),
        "truncated_after": truncated_share(new.finish),
        "mean_length_before": _mean(old.lengths),
        "mean_length_after": _mean(new.lengths),
        "n_both_finish": int(finished.sum()),
        "mean_length_both_finish_before": _mean(old.mean_lengths()[finished]),
        "mean_length_both_finish_after": _mean(new.mean_lengths()[finished]),
        "left_out_problems": len(set(sides[0].ids) ^ there),
        "unjudged_rows": old.unjudged + new.unjudged,
        "margin": margin,
    }
    entry["accuracy_verdict"] = _accuracy_verdict(*interval, margin)
    entry["length_verdict"] = _length_verdict(*ratio_interval, entry["n_both_solve"])
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


def findings(entry: dict[str, Any]) -> list[str]:
    """Sentences on one comparison. Each claim rests on an interval, never on a bare p-value."""
    sentences = [_accuracy_finding(entry), _length_finding(entry)]
    shorter = entry["length_verdict"] == "shorter"
    fewer_truncated = entry["truncated_after"] < entry["truncated_before"]
    if fewer_truncated and entry["mean_length_after"] < entry["mean_length_before"]:
        lead = "Part of the fall in mean length is" if shorter else "The shorter mean is explained by"
        rest = ""
        if entry["n_both_finish"]:
            rest = (
                f" On the {entry['n_both_finish']:,} problems that neither side truncated the mean went from "
                f"{entry['mean_length_both_finish_before']:.1f} to {entry['mean_length_both_finish_after']:.1f} tokens."
            )
        sentences.append(
            f"{lead} fewer truncations: over all answers the mean went from {entry['mean_length_before']:.1f} to "
            f"{entry['mean_length_after']:.1f} tokens while truncated answers, each as long as the limit, went from "
            f"{_percent(entry['truncated_before'])} to {_percent(entry['truncated_after'])}.{rest}"
        )
    median_before, median_after = entry["median_length_correct_before"], entry["median_length_correct_after"]
    if median_before and median_after and median_after < median_before and not shorter:
        sentences.append(
            f"The lower median over correct answers ({median_before:g} to {median_after:g} tokens) compares different "
            f"problems ({entry['n_only_before_solves']:,} solved only by {entry['before']}, "
            f"{entry['n_only_after_solves']:,} only by {entry['after']}); it is not evidence of shorter answers."
        )
    worst = max(entry["truncated_before"], entry["truncated_after"])
    if worst > TRUNCATION_LIMIT:
        sentences.append(
            f"{_percent(worst)} of answers on one side hit the token limit (more than {_percent(TRUNCATION_LIMIT)}): "
            "raise max_new_tokens before reading much into lengths."
        )
    if entry["left_out_problems"] or entry["unjudged_rows"]:
        sentences.append(
            f"Left out: problems that only one side has ({entry['left_out_problems']:,}), "
            f"answers that could not be judged ({entry['unjudged_rows']:,})."
        )
    return sentences


def _accuracy_finding(entry: dict[str, Any]) -> str:
    low, high = entry["accuracy_diff_ci"]
    margin = f"{100 * entry['margin']:g} points"
    numbers = (
        f"{_percent(entry['accuracy_before'])} to {_percent(entry['accuracy_after'])}, n = {entry['n']:,}; "
        f"95% interval of the difference {_points(low)} to {_points(high)} points, "
        f"exact McNemar p {_p(entry['mcnemar_p'])}"
    )
    if entry["accuracy_verdict"] == "higher":
        return f"Accuracy is higher ({numbers})."
    if entry["accuracy_verdict"] == "lower":
        excluded = "a loss of {} or more is excluded" if low > -entry["margin"] else "a loss of {} is not excluded"
        return f"Accuracy is lower ({numbers}); {excluded.format(margin)}."
    if entry["accuracy_verdict"] == "no worse":
        return f"Accuracy is no worse at a margin of {margin} ({numbers}); a difference is not shown."
    return f"Too few problems to tell whether accuracy changed ({numbers}); a loss of {margin} is not excluded."


def _length_finding(entry: dict[str, Any]) -> str:
    low, high = entry["paired_length_ratio_ci"]
    both = f"{entry['n_both_solve']:,} problem{'s' if entry['n_both_solve'] != 1 else ''} that both sides solve"
    if entry["length_verdict"] == "unknown":
        return f"Too few problems to compare lengths: {both}."
    ratio = entry["paired_length_ratio"]
    numbers = f"ratio {ratio:.3f}, 95% interval {low:.3f} to {high:.3f}, Wilcoxon p {_p(entry['wilcoxon_p'])}"
    if low == high == 1:
        return f"Correct answers are equally long on each of the {both}."
    if entry["length_verdict"] == "unchanged":
        bound = math.ceil(1000 * max(1 - low, high - 1)) / 10
        return f"No change in length is shown on the {both} ({numbers}); changes beyond {bound}% are excluded."
    return f"Correct answers are {100 * abs(1 - ratio):.1f}% {entry['length_verdict']} on the {both} ({numbers})."


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}".replace("-", "−")


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if values.size else None


def _median(values: NDArray[Any]) -> float | None:
    return float(np.median(values)) if values.size else None


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
