"""Charts of any data: labels without markup, ticks enough, whole-token bins; digits of intervals."""

import re
import warnings
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from fbt_rl.analysis.shown import shown
from fbt_rl.report import paint as figures
from fbt_rl.report.charts import rl_charts


def painted(paint):
    """The texts of a chart's SVG; a warning of its painter is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = figures.draw("chart", "", "", paint).svg
    assert not re.search(r"mathdefault|\$|\bnan\b", svg)
    elements = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(element.itertext()).strip() for element in elements]


RANGES = [(1, 2), (15, 90), (15, 33), (17, 19), (1, 1e6), (9e-8, 1.1e-4), (3e-7, 8e-7), (0.9, 1.1), (1e-12, 1e12)]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_log_axes_have_ticks_enough(low, high):
    ticks = figures._log_ticks(low, high)
    assert 3 <= len(ticks) <= 12
    assert ticks == sorted(set(ticks))
    assert low <= ticks[0] <= ticks[-1] <= high
    labels = [figures._log_form(tick) for tick in ticks]
    assert len(set(labels)) == len(labels)
    assert [float(label.replace(",", "")) for label in labels] == pytest.approx(ticks, rel=1e-5)


MISMATCHES = {
    "usual": np.linspace(4e-6, 2e-5, 300),
    "constant": np.full(50, 6e-7),
    "zeros": np.zeros(20),
    "some zeros": np.tile([0.0, 1e-6], 20),
    "one step": np.array([3e-6]),
    "not finite": np.array([np.nan, 1e-6, np.inf, 2e-6]),
    "wide": np.geomspace(1e-9, 10, 40),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_the_mismatch_of_any_run(name):
    values = MISMATCHES[name]
    rows = [
        {"step": step, "logprob_mismatch_max": value, "logprob_mismatch_mean": value / 10, "ratio_outside": 0.0}
        for step, value in enumerate(values, 1)
    ]
    texts = painted(lambda axes: figures.paint_mismatch(axes, rows))
    assert len([text for text in texts if re.fullmatch(r"[\d.]+(e-?\d+)?", text) and "e" in text]) >= 3
    assert ("largest" in texts) == bool((np.nan_to_num(values, posinf=0) > 0).any())
    assert {chart.name for chart in rl_charts("rl", rows)} == {"rl_mismatch_rl", "rl_drift_rl"}


LENGTHS = {
    "usual": [[17, 19, 20, 20, 22], [14, 14, 15]],
    "one": [[12], []],
    "constant": [[20] * 50, [20] * 50],
    "none right": [[], []],
    "zero": [[0, 0, 3], [1]],
    "far": [[1, 2, 40_000], [5]],
}


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_of_any_answers(name):
    before, after = (np.array(values, dtype=float) for values in LENGTHS[name])
    lengths = {"before": before, "after": after}
    texts = painted(lambda axes: figures.paint_distribution(axes, lengths, "Lengths"))
    assert all(float(text.replace("−", "-")).is_integer() for text in texts[: texts.index("tokens")])
    painted(lambda axes: figures.paint_lengths(axes, {label: {"soft": of} for label, of in lengths.items()}))
    count = min(len(before), len(after))
    if count:
        painted(lambda axes: figures.paint_pairs(axes, before[:count], after[:count], "Pairs"))


@pytest.mark.parametrize("shares", [[0.0], [0.5], [0.2, 0.45, 0.5], [1.0] * 8])
def test_budgets_of_any_answers(shares):
    curve = {str(8 * 2**place): share for place, share in enumerate(shares)}
    texts = painted(lambda axes: figures.paint_budgets(axes, {"soft": curve}, "Accuracy at a budget"))
    assert len(texts[: texts.index("tokens allowed")]) >= 3


def bins(*lengths):
    known = [np.array(values) for values in lengths]
    spread = max(values.max() for values in known) - min(values.min() for values in known)
    return figures._bin_width(known, int(spread))


def test_bins_are_whole_tokens_and_no_comb():
    rng = np.random.default_rng(0)
    plain = np.clip(np.round(rng.normal(20, 3, 2000)), 10, 30)
    assert bins(plain) == 1
    assert bins(2 * plain) == 2  # even lengths only
    assert bins(plain, 2 * plain) == 2
    assert bins(3 * plain) == 3
    assert bins(np.concatenate([plain, plain + 100])) == 2  # two heaps are no comb
    assert bins([5]) == bins([5, 5]) == 1
    wide = np.round(np.exp(rng.normal(6, 0.7, 5000)))
    assert 1 < bins(wide) <= np.ptp(wide) / 8


@pytest.mark.parametrize(
    ("value", "ends", "form", "expected"),
    [
        (0.6, (0.598, 0.602), "ratio", "0.600 [0.598, 0.602]"),
        (0.5996, (0.5984, 0.6009), "ratio", "0.600 [0.598, 0.601]"),
        (0.87, (0.85, 0.88), "ratio", "0.87 [0.85, 0.88]"),
        (1.0, (1.0, 1.0), "ratio", "1.00 [1.00, 1.00]"),
        (1.0, (0.9991, 1.0), "percent", "100.0% [99.9%, 100.0%]"),
        (1.0, (0.99991, 1.0), "percent", "100.00% [99.99%, 100.00%]"),
        (0.0, (0.0, 0.0096), "percent", "0.0% [0.0%, 1.0%]"),
        (-0.003, (-0.006, 0.001), "points", "−0.3 [−0.6, +0.1]"),
        (-0.0030, (-0.0033, -0.0027), "points", "−0.30 [−0.33, −0.27]"),
        (None, (None, None), "ratio", "– [–, –]"),
        (0.6, (0.6 - 1e-9, 0.6 + 1e-9), "ratio", "0.60 [0.60, 0.60]"),
    ],
)
def test_an_interval_has_the_digits_that_it_needs(value, ends, form, expected):
    assert str(shown(value, ends, form)) == expected
