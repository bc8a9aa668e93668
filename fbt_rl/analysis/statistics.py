"""Statistics of an evaluation: pure functions of arrays, without torch.

A *problem* is the unit that repeats: samples of one problem are not independent, so every interval
and test here treats problems as the independent units ("problem-clustered").

Shapes: P problems; R rows (samples of all problems); ``problem`` (R,) gives each row's problem in
``0 .. P-1``. A row's ``length`` is its number of completion tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """A confidence interval, both ends included."""

    low: float
    high: float


def wilson_interval(successes: float, trials: float, confidence: float = 0.95) -> Interval:
    """Score interval of a proportion, ``(p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)``.

    Wilson 1927. Counts may be fractional, for an effective sample size (see
    :func:`accuracy_interval`); scipy's ``binomtest(...).proportion_ci("wilson")`` is the same for
    whole ones. No trials give the whole of [0, 1].
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must lie in 0..trials, got {successes} of {trials}")
    if trials == 0:
        return Interval(0.0, 1.0)
    z2 = _z(confidence) ** 2
    share = successes / trials
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = math.sqrt(z2 * share * (1 - share) / trials + (z2 / (2 * trials)) ** 2) / (1 + z2 / trials)
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def accuracy_interval(correct: ArrayLike, problem: ArrayLike, confidence: float = 0.95) -> Interval:
    """Interval of the share of right rows when rows come in problems.

    The Wilson interval at the effective sample size ``n_eff = p(1-p) / Var(p)``, with the
    cluster-robust ``Var(p) = P/(P-1) · Σ_i (Σ_{r in i} (c_r - p))² / R²`` (Korn & Graubard 1998),
    kept within P..R: samples of one problem count for between one observation and all of them.
    One row a problem gives the plain Wilson interval.
    """
    correct, problem = _rows(correct, problem)
    rows, problems = len(correct), len(np.unique(problem))
    if rows == problems or problems < 2:
        return wilson_interval(float(correct.sum()) * problems / max(rows, 1), problems, confidence)
    share = correct.mean()
    residual = np.bincount(problem, weights=correct - share)
    variance = problems / (problems - 1) * np.sum(residual**2) / rows**2
    spread = share * (1 - share)  # 0 when every row agrees: then only the problems count
    effective = float(np.clip(spread / max(variance, 1e-300), problems, rows)) if spread else problems
    return wilson_interval(float(share * effective), effective, confidence)


def pass_at_k(correct: ArrayLike, samples: ArrayLike, k: int) -> float:
    """Unbiased pass@k, the mean over problems of ``1 - C(n-c, k) / C(n, k)`` (Chen et al. 2021, eq. 1).

    ``correct`` (P,) counts c of ``samples`` (P,) counts n. Drawing k of the n samples without
    replacement misses every right one with the hypergeometric probability of 0 of them. Problems
    need at least k samples: ``ValueError`` otherwise.
    """
    c, n = np.broadcast_arrays(np.asarray(correct, dtype=np.int64), np.asarray(samples, dtype=np.int64))
    if c.size == 0:
        return math.nan
    if k < 1 or (n < k).any():
        raise ValueError(f"pass@{k} needs 1 <= k <= samples of every problem; the smallest has {int(n.min())}")
    if (c < 0).any() or (c > n).any():
        raise ValueError("correct counts must lie between 0 and the number of samples")
    return float(np.mean(1.0 - stats.hypergeom.pmf(0, n, c, k)))


def mcnemar_exact(before: ArrayLike, after: ArrayLike) -> float:
    """Two-sided p-value that as many problems got better as got worse.

    ``before``, ``after`` (P,): each problem's share of right samples. Of the problems whose share
    changed, the number that rose is Binomial(changed, ½) when nothing changed systematically; with
    one sample a problem that is McNemar's exact test on the discordant pairs (McNemar 1947), with
    more it is the exact sign test. No changed problem: 1.
    """
    difference = _paired(before, after)
    worse, better = int((difference < 0).sum()), int((difference > 0).sum())
    return 1.0 if worse + better == 0 else float(stats.binomtest(better, worse + better, 0.5).pvalue)


def accuracy_difference(before: ArrayLike, after: ArrayLike, confidence: float = 0.95) -> tuple[float, Interval]:
    """Mean paired difference ``after - before`` of the problems' accuracies, and its interval.

    The adjusted Wald interval for paired proportions (Bonett & Price 2012): one problem that got
    better and one that got worse are added to the P differences d, then ``mean ± z · sd / sqrt(P+2)``.
    It is never empty when no problem changed, unlike a bootstrap. With several samples a problem d
    is the difference of two shares and the interval is the cluster-robust one. The estimate itself
    is the plain mean. ``(nan, (-1, 1))`` without problems.
    """
    difference = _paired(before, after)
    if difference.size == 0:
        return math.nan, Interval(-1.0, 1.0)
    centre, error = _adjusted(difference)
    half = _z(confidence) * error
    return float(difference.mean()), Interval(max(-1.0, centre - half), min(1.0, centre + half))


def non_inferiority(before: ArrayLike, after: ArrayLike, margin: float) -> float:
    """One-sided p-value of "accuracy fell by ``margin`` or more": a small one shows that it did not.

    ``before``, ``after`` (P,) as in :func:`accuracy_difference`, whose adjusted Wald statistic is tested: below 2.5 %
    exactly when the low end of its 95 % interval lies above ``-margin``. 1 without problems.
    """
    difference = _paired(before, after)
    if margin < 0:
        raise ValueError(f"margin is a loss of accuracy that does not count, 0 or more, got {margin}")
    if difference.size == 0:
        return 1.0
    centre, error = _adjusted(difference)
    return float(stats.norm.sf((centre + margin) / error))


def majority_at_k(answers: Sequence[str | None], correct: ArrayLike, problem: ArrayLike, k: int) -> float:
    """maj@k: the share of problems whose most frequent answer, among their first k samples, is right.

    ``answers`` (R,) are what was extracted; all right ones count as one answer however written, None is no vote, and
    t answers tied for the most votes are each right with 1/t (Wang et al. 2023, self-consistency). nan without rows.
    """
    correct, problem = _rows(correct, problem)
    votes: dict[int, list[str]] = {}
    for answer, right, index in zip(answers, correct.astype(bool).tolist(), problem.tolist(), strict=True):
        votes.setdefault(index, []).append("right" if right else "none" if answer is None else f"wrong {answer}")
    if k < 1 or any(len(given) < k for given in votes.values()):
        raise ValueError(f"maj@{k} needs 1 <= k <= samples of every problem")
    credits = []
    for given in votes.values():
        counts = Counter(vote for vote in given[:k] if vote != "none")
        most = [vote for vote, count in counts.items() if count == max(counts.values())]
        credits.append(("right" in most) / len(most) if most else 0.0)
    return float(np.mean(credits)) if credits else math.nan


def average_at_k(correct: ArrayLike, problem: ArrayLike, k: int) -> float:
    """avg@k: mean over problems of the share of right ones among their first k samples; nan without rows."""
    correct, problem = _rows(correct, problem)
    groups = [correct[problem == index] for index in np.unique(problem)]
    if k < 1 or any(len(group) < k for group in groups):
        raise ValueError(f"avg@{k} needs 1 <= k <= samples of every problem")
    return float(np.mean([group[:k].mean() for group in groups])) if groups else math.nan


def median_over_correct(lengths: ArrayLike, correct: ArrayLike) -> float:
    """Median length of the right rows, the paper's figure; nan without any.

    Two systems' medians are over different sets of problems; :func:`length_ratio` is not.
    """
    kept = np.asarray(lengths, dtype=float)[np.asarray(correct, dtype=bool)]
    return float(np.median(kept)) if kept.size else math.nan


def length_ratio(
    before: ArrayLike, after: ArrayLike, confidence: float = 0.95, resamples: int = 4000, seed: int = 0
) -> tuple[float, Interval]:
    """Paired length ratio ``Σ after / Σ before`` and its interval by a problem-clustered bootstrap.

    ``before``, ``after`` (Q,): mean length over each problem's right samples, for the Q problems
    that both sides solve. So 0.75 reads: the same problems are solved with 75 % of the tokens. The
    ratio of sums is what a user pays for, and no problem with a very short answer can dominate it,
    as it can a mean of ratios. Problems are resampled with replacement, the percentile interval is
    taken (Efron & Tibshirani 1993, ch. 13), and equal inputs and seed give equal numbers.
    nan without a pair; a single pair has no interval (nan, nan).
    """
    before, after = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    _paired(before, after)
    if (before <= 0).any() or (after <= 0).any():
        raise ValueError("lengths must be positive token counts")
    if before.size == 0:
        return math.nan, Interval(math.nan, math.nan)
    estimate = float(after.sum() / before.sum())
    if before.size == 1:
        return estimate, Interval(math.nan, math.nan)
    interval = _bootstrap(
        (before, after), lambda b, a, axis: a.sum(axis=axis) / b.sum(axis=axis), confidence, resamples, seed
    )
    return estimate, interval


def ratio_of_ratios(
    before: ArrayLike,
    after: ArrayLike,
    other_before: ArrayLike,
    other_after: ArrayLike,
    confidence: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> tuple[float, Interval]:
    """``(Σ other_after / Σ other_before) / (Σ after / Σ before)`` and its interval, as in :func:`length_ratio`.

    All (Q,) positive, for the same Q >= 2 problems, which are resampled together. Above 1: the other pair's ratio is
    the larger one.
    """
    columns = [np.asarray(each, dtype=float) for each in (before, after, other_before, other_after)]
    if any((column <= 0).any() or column.shape != columns[0].shape for column in columns) or columns[0].size < 2:
        raise ValueError("four equally long columns of positive token counts are needed, two problems or more")

    def statistic(*sides: Array, axis: int = -1) -> Array:
        sums = [side.sum(axis=axis) for side in sides]
        return sums[3] / sums[2] / (sums[1] / sums[0])

    return float(statistic(*columns)), _bootstrap(columns, statistic, confidence, resamples, seed)


def _bootstrap(
    columns: Sequence[Array], statistic: Callable[..., Array], confidence: float, resamples: int, seed: int
) -> Interval:
    """Percentile interval of a statistic of paired columns, problems resampled with replacement."""
    result = stats.bootstrap(
        columns,
        statistic,
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=resamples,
        confidence_level=confidence,
        batch=max(1, 2_000_000 // columns[0].size),  # bounds the memory of large evaluations
        rng=np.random.default_rng(seed),
    )
    return Interval(float(result.confidence_interval.low), float(result.confidence_interval.high))


def quantiles(values: ArrayLike, shares: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 0.9)) -> list[float]:
    """Quantiles by linear interpolation; nan without values."""
    values = np.asarray(values, dtype=float)
    return np.quantile(values, shares).tolist() if values.size else [math.nan] * len(shares)


def median_interval(values: ArrayLike, confidence: float = 0.95) -> tuple[float, Interval]:
    """Median of independent values (Q,) and its interval between order statistics.

    As many values lie below a median as Binomial(Q, ½) says, whatever they are distributed like; ties make the
    interval wider than need be. Too few values for the confidence: (nan, nan).
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    if ordered.size == 0:
        return math.nan, Interval(math.nan, math.nan)
    below = int(stats.binom.ppf((1 - confidence) / 2, ordered.size, 0.5)) - 1
    ends = (math.nan, math.nan) if below < 0 else (float(ordered[below]), float(ordered[-1 - below]))
    return float(np.median(ordered)), Interval(*ends)


def kaplan_meier_median(lengths: ArrayLike, truncated: ArrayLike) -> float:
    """Median length had no answer been cut off, a truncated one being known to be longer only (Kaplan & Meier 1958).

    ``lengths``, ``truncated`` (R,). Where the survival curve is ½ over a stretch its middle is the median, as in R and
    as with :func:`numpy.median`, which it equals without truncation. nan where half or more were cut off before it.
    """
    lengths, truncated = np.asarray(lengths, dtype=float), np.asarray(truncated, dtype=bool)
    if lengths.size == 0 or truncated.all():
        return math.nan
    curve = stats.ecdf(stats.CensoredData.right_censored(lengths, truncated)).sf
    at, survival = curve.quantiles, np.where(np.isclose(curve.probabilities, 0.5, atol=1e-12), 0.5, curve.probabilities)
    reached = np.flatnonzero(survival <= 0.5)
    if reached.size == 0:
        return math.nan
    first, later = reached[0], np.flatnonzero(survival < 0.5)
    if survival[first] < 0.5:
        return float(at[first])
    return float((at[first] + at[later[0]]) / 2) if later.size else float(at[first])


def accuracy_at_budgets(lengths: ArrayLike, correct: ArrayLike, budgets: ArrayLike) -> Array:
    """Accuracy were every answer cut at b tokens, for each b of ``budgets`` (K,): a cut answer is wrong. (K,)."""
    lengths, correct = np.asarray(lengths, dtype=float), np.asarray(correct, dtype=bool)
    if lengths.shape != correct.shape:
        raise ValueError(f"each row needs a length and a verdict, got shapes {lengths.shape} and {correct.shape}")
    if lengths.size == 0:
        return np.full(np.shape(budgets), math.nan)
    right = np.sort(lengths[correct])
    return np.searchsorted(right, np.asarray(budgets, dtype=float), side="right") / lengths.size


def tokens_per_correct(lengths: ArrayLike, correct: ArrayLike) -> float:
    """Tokens written for each right answer, those of wrong answers included; nan where none is right."""
    right = np.asarray(correct, dtype=bool).sum()
    return float(np.asarray(lengths, dtype=float).sum() / right) if right else math.nan


def wilcoxon(before: ArrayLike, after: ArrayLike) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test on paired lengths (Q,); equal pairs are dropped.

    nan without a pair, 1 when every pair is equal.
    """
    difference = _paired(before, after)
    if difference.size == 0:
        return math.nan
    if not difference.any():
        return 1.0
    return float(stats.wilcoxon(difference, zero_method="wilcox").pvalue)  # pyright: ignore[reportAttributeAccessIssue]


def truncated_share(finish_reasons: ArrayLike) -> float:
    """Share of rows that ran into the token limit (finish reason "length"), of those whose reason is known (not None).

    nan without any.
    """
    reasons = np.asarray([reason for reason in np.asarray(finish_reasons).tolist() if reason is not None])
    return float((reasons == "length").mean()) if reasons.size else math.nan


def problem_means(values: ArrayLike, problem: ArrayLike, problems: int) -> Array:
    """Mean of ``values`` (R,) over the rows of each problem, (P,); nan for a problem without rows."""
    values, problem = _rows(values, problem)
    counts = np.bincount(problem, minlength=problems)
    sums = np.bincount(problem, weights=values, minlength=problems)
    return np.divide(sums, counts, out=np.full(problems, np.nan), where=counts > 0)


def _adjusted(difference: Array) -> tuple[float, float]:
    """Mean and standard error of paired differences with one that rose and one that fell added."""
    adjusted = np.concatenate([difference, [1.0, -1.0]])
    return float(adjusted.mean()), float(adjusted.std() / math.sqrt(adjusted.size))


def _z(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    return float(stats.norm.ppf((1 + confidence) / 2))


def _paired(before: ArrayLike, after: ArrayLike) -> Array:
    before, after = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    if before.shape != after.shape or before.ndim != 1:
        raise ValueError(f"both sides need one value a problem, got shapes {before.shape} and {after.shape}")
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        raise ValueError("paired values must be finite; leave out problems that one side has not")
    return after - before


def _rows(values: ArrayLike, problem: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    values, problem = np.asarray(values, dtype=float), np.asarray(problem, dtype=np.int64)
    if values.shape != problem.shape or values.ndim != 1:
        raise ValueError(f"each row needs one value and one problem, got shapes {values.shape} and {problem.shape}")
    return values, problem
