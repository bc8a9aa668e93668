"""Statistics against scipy, brute force, values worked by hand, and simulated coverage."""

from itertools import combinations
from math import isnan, sqrt

import numpy as np
import pytest
from scipy import stats

from fbt_rl.analysis.statistics import (
    accuracy_at_budgets,
    accuracy_difference,
    accuracy_interval,
    average_at_k,
    kaplan_meier_median,
    length_ratio,
    majority_at_k,
    mcnemar_exact,
    median_interval,
    median_over_correct,
    non_inferiority,
    pass_at_k,
    problem_means,
    quantiles,
    ratio_of_ratios,
    tokens_per_correct,
    truncated_share,
    wilcoxon,
    wilson_interval,
)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (7, 10), (959, 1000), (1, 1)])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_wilson_equals_scipy(successes, trials, confidence):
    expected = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson_interval(successes, trials, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_by_hand_and_at_the_edges():
    z2 = 1.959963984540054**2  # 0 of n: the upper end is z² / (n + z²)
    assert wilson_interval(0, 20) == pytest.approx((0.0, z2 / (20 + z2)), abs=1e-12)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"0\.\.trials, got 3 of 2"):
        wilson_interval(3, 2)
    with pytest.raises(ValueError, match="confidence"):
        wilson_interval(1, 2, confidence=1.0)


def test_accuracy_interval_counts_problems_not_samples():
    correct = np.array([1, 0, 1, 1, 1, 0, 0, 1, 1, 1])
    assert accuracy_interval(correct, np.arange(10)) == wilson_interval(7, 10)
    # Copies of a sample add nothing beyond the P/(P-1) of the variance; it is kept within P..R.
    assert accuracy_interval(np.repeat(correct, 8), np.repeat(np.arange(10), 8)) == pytest.approx(
        wilson_interval(7, 10)
    )
    # Samples that differ within a problem as much as they can count one by one.
    balanced = np.tile([0, 1], 10)
    assert accuracy_interval(balanced, np.repeat(np.arange(10), 2)) == pytest.approx(wilson_interval(10, 20))
    # All right: the variance says nothing, so only the problems count.
    assert accuracy_interval(np.ones(20), np.repeat(np.arange(10), 2)) == wilson_interval(10, 10)
    assert accuracy_interval([], []) == (0.0, 1.0)


def test_accuracy_interval_by_hand():
    correct, problem = [1, 1, 1, 0, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2, 3, 3]
    share = 5 / 8
    sums = np.array([2 * 3 / 8, 1 - 2 * 5 / 8, -2 * 5 / 8, 2 * 3 / 8])
    effective = share * (1 - share) / (4 / 3 * np.sum(sums**2) / 64)
    assert 4 <= max(effective, 4) <= 8
    assert accuracy_interval(correct, problem) == wilson_interval(share * max(effective, 4), max(effective, 4))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_equals_brute_force(k):
    samples = 5
    for right in range(samples + 1):
        outcome = [True] * right + [False] * (samples - right)
        subsets = list(combinations(outcome, k))
        assert pass_at_k([right], samples, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_averages_problems_and_refuses_too_few_samples():
    assert pass_at_k([3, 0], [10, 4], 1) == pytest.approx((0.3 + 0.0) / 2, abs=1e-12)
    assert pass_at_k([1, 4], [4, 8], 4) == pytest.approx((1.0 + (1 - 1 / 70)) / 2, abs=1e-12)
    assert pass_at_k([5], [2000], 100) == pytest.approx(1 - np.prod(1 - 100 / np.arange(1996, 2001)), abs=1e-9)
    assert isnan(pass_at_k([], [], 1))
    with pytest.raises(ValueError, match="smallest has 2"):
        pass_at_k([1, 1], [4, 2], 3)
    with pytest.raises(ValueError, match="between 0 and"):
        pass_at_k([5], [4], 1)


def test_mcnemar_is_the_exact_binomial_test_on_discordant_pairs():
    before = [1] * 9 + [0] * 2 + [1] * 30 + [0] * 5  # 9 lost, 2 won
    after = [0] * 9 + [1] * 2 + [1] * 30 + [0] * 5
    tail = sum(stats.binom.pmf(i, 11, 0.5) for i in range(3))
    assert mcnemar_exact(before, after) == pytest.approx(2 * tail, abs=1e-12)
    assert mcnemar_exact([0.5, 1.0], [0.5, 1.0]) == 1.0
    assert mcnemar_exact([0.25] * 6, [0.5] * 6) == pytest.approx(2 / 2**6)  # the sign test with samples


def test_accuracy_difference_by_hand():
    before = np.array([1.0] * 9 + [0.0] * 2 + [1.0] * 80 + [0.0] * 9)
    after = np.array([0.0] * 9 + [1.0] * 2 + [1.0] * 80 + [0.0] * 9)
    lost, won, n = (9 + 1) / 102, (2 + 1) / 102, 102
    half = 1.959963984540054 * sqrt((lost + won - (won - lost) ** 2) / n)
    difference, interval = accuracy_difference(before, after)
    assert difference == pytest.approx(-0.07, abs=1e-12)
    assert interval == pytest.approx((won - lost - half, won - lost + half), abs=1e-12)


def test_accuracy_difference_is_never_empty():
    difference, interval = accuracy_difference(np.ones(10), np.ones(10))
    assert difference == 0.0
    assert interval.low == pytest.approx(-interval.high)
    assert interval.high > 0.2
    difference, interval = accuracy_difference([], [])
    assert isnan(difference)
    assert interval == (-1.0, 1.0)


def test_non_inferiority_is_what_the_interval_says():
    before = np.array([1.0] * 9 + [0.0] * 2 + [1.0] * 89)
    after = np.array([0.0] * 9 + [1.0] * 2 + [1.0] * 89)
    d = np.concatenate([after - before, [1, -1]])
    by_hand = stats.norm.sf((d.mean() + 0.1) / sqrt(np.mean((d - d.mean()) ** 2) / d.size))
    assert non_inferiority(before, after, 0.1) == pytest.approx(by_hand, abs=1e-12)
    low = accuracy_difference(before, after)[1].low
    assert non_inferiority(before, after, -low) == pytest.approx(0.025, abs=1e-12)
    assert non_inferiority([], [], 0.1) == 1.0
    with pytest.raises(ValueError, match="margin"):
        non_inferiority(before, after, -0.1)


def test_majority_and_average_by_hand():
    #            right 2 of 3 | a tie of right and x | all abstain | wrong y outvotes, one abstains
    answers = ["7", "7.0", "x", "7", "x", None, None, None, None, "y", "y", None]
    correct = [1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    problem = np.repeat(np.arange(4), 3)
    assert majority_at_k(answers, correct, problem, 3) == pytest.approx((1 + 0.5 + 0 + 0) / 4, abs=1e-12)
    assert majority_at_k(answers, correct, problem, 1) == average_at_k(correct, problem, 1) == 0.5
    assert average_at_k(correct, problem, 3) == pytest.approx((2 / 3 + 1 / 3) / 4, abs=1e-12)
    assert isnan(majority_at_k([], [], [], 1))
    assert isnan(average_at_k([], [], 1))
    for function in (
        lambda k: majority_at_k(answers, correct, problem, k),
        lambda k: average_at_k(correct, problem, k),
    ):
        for k in (0, 4):
            with pytest.raises(ValueError, match="samples of every problem"):
                function(k)


def test_quantiles_and_median_interval():
    assert quantiles([4, 1, 3, 2], (0.0, 0.25, 0.5, 1.0)) == [1.0, 1.75, 2.5, 4.0]
    assert all(map(isnan, quantiles([])))
    # Of 10 values the median lies between the second and the ninth with 1 - 2 * 11 / 1024 = 97.9 %.
    assert median_interval(np.arange(10)[::-1]) == (4.5, (1.0, 8.0))
    assert median_interval(np.arange(6)) == (2.5, (0.0, 5.0))
    assert isnan(median_interval(np.arange(5))[1].low)
    assert isnan(median_interval([])[0])


# Acute myelogenous leukaemia (Miller 1981), R's survival::aml; survfit's medians are 31 and 23.
AML = (
    ([9, 13, 13, 18, 23, 28, 31, 34, 45, 48, 161], [0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1], 31),
    ([5, 5, 8, 8, 12, 16, 23, 27, 30, 33, 43, 45], [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0], 23),
)


@pytest.mark.parametrize(("lengths", "truncated", "median"), AML)
def test_kaplan_meier_median_is_that_of_r(lengths, truncated, median):
    assert kaplan_meier_median(lengths, truncated) == median


def test_kaplan_meier_median_by_hand():
    lengths = np.random.default_rng(0).integers(1, 30, 101)
    for count in (100, 101):
        assert kaplan_meier_median(lengths[:count], np.zeros(count)) == np.median(lengths[:count])
    assert kaplan_meier_median([1, 2, 3, 4], [0, 0, 0, 0]) == 2.5
    # Cut off at 3 of 5: survival 4/5, 3/5, then (3/5)(1/2) at 7.
    assert kaplan_meier_median([1, 2, 3, 7, 9], [0, 0, 1, 0, 0]) == 7
    assert isnan(kaplan_meier_median([1, 5, 5, 5], [0, 1, 1, 1]))
    assert isnan(kaplan_meier_median([5, 5], [1, 1]))
    assert isnan(kaplan_meier_median([], []))
    # Whatever the limit, as long as it lies above the median.
    assert kaplan_meier_median(np.minimum(lengths, 20), lengths > 20) == np.median(lengths)


def test_budgets_and_tokens_per_correct():
    curve = accuracy_at_budgets([3, 5, 5, 9], [True, False, True, True], [2, 3, 5, 8, 9])
    np.testing.assert_array_equal(curve, [0, 0.25, 0.5, 0.5, 0.75])
    assert np.isnan(accuracy_at_budgets([], [], [1, 2])).all()
    with pytest.raises(ValueError, match="a length and a verdict"):
        accuracy_at_budgets([1], [True, False], [1])
    assert tokens_per_correct([3, 5, 5, 9], [True, False, True, True]) == 22 / 3
    assert isnan(tokens_per_correct([3], [False]))


def test_median_and_truncated_share():
    assert median_over_correct([5, 9, 100, 7], [True, True, False, True]) == 7.0
    assert isnan(median_over_correct([5], [False]))
    assert truncated_share(["stop", "length", "stop", "stop"]) == 0.25
    assert truncated_share(["stop", None, "length"]) == 0.5  # of those that are known
    assert isnan(truncated_share([]))
    assert isnan(truncated_share([None]))


def test_problem_means():
    means = problem_means([2, 4, 9], [0, 0, 2], 4)
    np.testing.assert_array_equal(means, [3.0, np.nan, 9.0, np.nan])
    with pytest.raises(ValueError, match="one value and one problem"):
        problem_means([1, 2], [0], 1)


def test_length_ratio_is_a_ratio_of_sums_over_problems():
    ratio, interval = length_ratio([10, 30], [10, 10])
    assert ratio == 0.5
    # Two problems resampled: both the first (1), both the second (1/3), or one of each (1/2).
    assert interval == pytest.approx((1 / 3, 1.0))
    assert length_ratio([10, 20, 30], [5, 10, 15]) == (0.5, pytest.approx((0.5, 0.5)))


def test_length_ratio_equals_a_plain_bootstrap():
    rng = np.random.default_rng(5)
    before = rng.gamma(9, 2, 300)
    after = before**0.8 * rng.uniform(0.4, 0.9, 300)  # the longer, the smaller its ratio: their mean is another
    picks = rng.integers(300, size=(4000, 300))
    expected = np.quantile(after[picks].sum(1) / before[picks].sum(1), [0.025, 0.975])
    ratio, interval = length_ratio(before, after)
    assert interval == pytest.approx(tuple(expected), abs=2e-3)
    assert interval.low < ratio < interval.high
    assert length_ratio(before, after) == (ratio, interval)  # seeded
    assert length_ratio(before, after, seed=1)[1] != interval


def test_length_ratio_without_enough_pairs():
    ratio, interval = length_ratio([], [])
    assert isnan(ratio)
    assert isnan(interval.low)
    ratio, interval = length_ratio([10], [5])
    assert ratio == 0.5
    assert isnan(interval.high)
    with pytest.raises(ValueError, match="positive"):
        length_ratio([0, 1], [1, 1])
    with pytest.raises(ValueError, match="one value a problem"):
        length_ratio([1, 2], [1])
    with pytest.raises(ValueError, match="finite"):
        length_ratio([1, np.nan], [1, 1])


def test_ratio_of_ratios():
    # Ratios that differ between problems of unlike lengths: their mean is not the ratio of the sums.
    before, after, other_before, other_after = [10.0, 30.0], [5.0, 21.0], [20.0, 40.0], [20.0, 10.0]
    ratio, (low, high) = ratio_of_ratios(before, after, other_before, other_after)
    assert ratio == pytest.approx((30 / 60) / (26 / 40))
    assert low <= ratio <= high
    same, interval = ratio_of_ratios(before, after, before, after)
    assert (same, *interval) == (1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="four equally long columns"):
        ratio_of_ratios(before, after, other_before, [1.0])


def test_wilcoxon():
    before, after = np.array([20, 18, 25, 30, 19, 22]), np.array([11, 18, 15, 22, 12, 21])
    assert wilcoxon(before, after) == pytest.approx(2 / 2**5)  # all five nonzero differences are negative
    assert wilcoxon(before, before) == 1.0
    assert isnan(wilcoxon([], []))


def coverage(interval_of, truth, trials=1500, seed=0):
    rng = np.random.default_rng(seed)
    intervals = np.array([interval_of(rng) for _ in range(trials)])
    return np.mean((intervals[:, 0] <= truth) & (truth <= intervals[:, 1]))


@pytest.mark.parametrize("trials", [100, 1000])
def test_coverage_of_the_wilson_interval(trials):
    """Exact for each accuracy, and averaged over them: for a single one it swings with the whole numbers."""
    outcomes = np.arange(trials + 1)
    low, high = np.array([wilson_interval(int(count), trials) for count in outcomes]).T
    shares = np.linspace(0.05, 0.95, 181)
    covered = [stats.binom.pmf(outcomes, trials, p)[(low <= p) & (p <= high)].sum() for p in shares]
    assert 0.945 <= np.mean(covered) <= 0.955
    assert np.mean((np.array(covered) >= 0.93) & (np.array(covered) <= 0.97)) > 0.97


def test_coverage_of_the_median():
    assert 0.93 <= coverage(lambda rng: median_interval(rng.gamma(3, 10, 300))[1], stats.gamma.median(3) * 10) <= 0.97


def test_coverage_of_the_ratio_of_ratios():
    def draw(rng):
        before, other = rng.gamma(6, 3, (2, 120))
        columns = before, before * rng.beta(2, 2, 120), other, other * rng.beta(4, 2, 120)
        return ratio_of_ratios(*columns, resamples=500)[1]

    assert 0.93 <= coverage(draw, (4 / 6) / 0.5, trials=600) <= 0.97


def test_coverage_of_the_accuracy_interval_with_several_samples():
    def draw(rng):
        solve_rates = rng.beta(4, 2, 150)
        correct = rng.random((150, 4)) < solve_rates[:, None]
        return accuracy_interval(correct.ravel(), np.repeat(np.arange(150), 4))

    assert 0.93 <= coverage(draw, 4 / 6) <= 0.97


@pytest.mark.parametrize(("lost", "won"), [(0.04, 0.01), (0.10, 0.15)])
def test_coverage_of_the_accuracy_difference(lost, won):
    def draw(rng):
        differences = rng.choice([-1.0, 1.0, 0.0], 300, p=[lost, won, 1 - lost - won])
        return accuracy_difference(np.zeros(300), differences)[1]

    assert 0.93 <= coverage(draw, won - lost) <= 0.97


def test_coverage_of_the_length_ratio():
    def draw(rng):
        before = rng.gamma(6, 3, 120)
        after = before * rng.beta(2, 2, 120)
        return length_ratio(before, after, resamples=500)[1]

    assert 0.93 <= coverage(draw, 0.5, trials=600) <= 0.97
