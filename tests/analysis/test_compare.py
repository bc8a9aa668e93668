"""Paired comparison: numbers by hand, planted cases the sentences must call rightly, bad input."""

import json
from math import isclose

import numpy as np
import pyarrow as pa
import pytest

from fbt_rl.analysis.compare import compare
from fbt_rl.analysis.statistics import wilson_interval
from fbt_rl.analysis.summary import summarise
from fbt_rl.analysis.table import modes_of, of_mode
from fbt_rl.analysis.temperature import choose_temperature, is_dev

CAP = 100

# The entry the issue of record and other tools read; more keys may stand beside these.
SCHEMA = {
    "before": str,
    "after": str,
    "mode": str,
    "n": int,
    "accuracy_before": float,
    "accuracy_after": float,
    "accuracy_diff_ci": list,
    "median_length_correct_before": float,
    "median_length_correct_after": float,
    "paired_length_ratio": float,
    "paired_length_ratio_ci": list,
    "truncated_before": float,
    "truncated_after": float,
}


def table(correct, lengths, *, ids=None, samples=None, mode="soft", answers=None):
    """Rows of generations; a length of CAP is a truncated row."""
    count = len(correct)
    ids = [f"p{i}" for i in range(count)] if ids is None else ids
    return pa.table(
        {
            "problem_id": ids,
            "mode": [mode] * count,
            "sample": [0] * count if samples is None else samples,
            "answer": [f"gold {name}" for name in ids] if answers is None else answers,
            "correct": pa.array(correct, pa.bool_()),
            "finish_reason": ["length" if length >= CAP else "stop" for length in lengths],
            "num_tokens": pa.array(lengths, pa.int64()),
        }
    )


def compared(before, after, **options):
    return compare(before, after, before_name="old", after_name="new", mode="soft", **options)


def text(entry):
    return " ".join(entry["findings"])


def test_entry_by_hand():
    before = table([True, True, False, True, True], [10, 20, CAP, 30, 12])
    after = table([True, True, True, False, True], [5, 10, 40, 20, 12])
    entry = compared(before, after)
    for key, kind in SCHEMA.items():
        assert isinstance(entry[key], kind), key
    assert json.loads(json.dumps(entry, allow_nan=False)) == entry
    assert (entry["before"], entry["after"], entry["mode"], entry["n"]) == ("old", "new", "soft", 5)
    assert entry["accuracy_before"] == entry["accuracy_after"] == 0.8
    low, high = entry["accuracy_diff_ci"]
    assert isclose(low, -high)
    assert (entry["n_both_solve"], entry["n_only_before_solves"], entry["n_only_after_solves"]) == (3, 1, 1)
    assert entry["median_length_correct_before"] == 16.0
    assert entry["median_length_correct_after"] == 11.0
    assert entry["paired_length_ratio"] == 27 / 42
    low, high = entry["paired_length_ratio_ci"]
    assert 0.5 <= low < 27 / 42 < high <= 1.0
    assert entry["paired_length_difference"] == -5.0  # of -5, -10 and 0
    assert entry["paired_length_difference_ci"] == [None, None]  # three pairs are too few
    assert entry["paired_length_quantiles_before"]["0.5"] == 12.0
    assert (entry["truncated_before"], entry["truncated_after"]) == (0.2, 0.0)
    assert entry["mean_length_before"] == 172 / 5
    assert entry["n_both_finish"] == 4
    assert entry["mean_length_both_finish_before"] == 18.0


def test_rows_are_paired_by_problem_whatever_their_order():
    rng = np.random.default_rng(0)
    before = table(rng.random(40) < 0.8, rng.integers(5, 30, 40).tolist())
    after = table(rng.random(40) < 0.7, rng.integers(5, 30, 40).tolist())
    entry, shuffled = compared(before, after), compared(before, after.take(rng.permutation(40)))
    for key in entry:
        if key != "findings":
            assert shuffled[key] == pytest.approx(entry[key]), key


def test_samples_count_as_one_problem():
    correct, lengths = [True, True, False, True], [10, 20, 30, 8]
    before = table(correct, lengths, ids=["a", "a", "a", "b"], samples=[0, 1, 2, 0])
    after = table([True, False, False, True], [6, 9, 9, 4], ids=["a", "a", "a", "b"], samples=[0, 1, 2, 0])
    entry = compared(before, after)
    assert entry["n"] == 2
    assert entry["accuracy_before"] == pytest.approx((2 / 3 + 1) / 2)
    assert entry["paired_length_ratio"] == (6 + 4) / (15 + 8)  # means over the right samples of each problem


def population(count, accuracy, length, seed):
    rng = np.random.default_rng(seed)
    return rng.random(count) < accuracy, np.maximum(rng.poisson(length, count), 1)


def test_truly_shorter_on_the_same_problems():
    correct, lengths = population(1000, 0.97, 20, 1)
    entry = compared(table(correct, lengths), table(correct, (lengths + 1) // 2))
    assert entry["paired_length_ratio_ci"][1] < 0.6
    assert "% shorter on the" in text(entry)
    assert "no worse at a margin of 3 points" in text(entry)
    assert entry["non_inferiority_p"] < 0.025
    assert "explained" not in text(entry)
    assert "different problems" not in text(entry)


def test_equal_lengths_with_fewer_truncations():
    correct, lengths = population(1000, 0.9, 20, 2)
    rng = np.random.default_rng(3)
    cut = ~correct & (rng.random(1000) < 0.9)
    before = table(correct, np.where(cut, CAP, lengths))
    entry = compared(before, table(correct, lengths))
    assert entry["mean_length_after"] < 0.9 * entry["mean_length_before"]
    assert "The shorter mean is explained by fewer truncations" in text(entry)
    assert "Correct answers are equally long on each of the" in text(entry)
    assert entry["mean_length_both_finish_before"] == entry["mean_length_both_finish_after"]
    assert "raise max_new_tokens" in text(entry)  # 9% truncated


def test_fewer_truncations_beside_a_real_shortening():
    correct, lengths = population(1000, 0.9, 20, 2)
    before = table(correct, np.where(correct, lengths, CAP))
    entry = compared(before, table(correct, (lengths + 1) // 2))
    assert "Part of the fall in mean length is fewer truncations" in text(entry)
    assert "explained" not in text(entry)


def test_shorter_only_because_hard_problems_were_dropped():
    lengths = np.concatenate([np.full(500, 10), np.full(500, 30)]) + np.arange(1000) % 3
    before = table([True] * 1000, lengths)
    after = table([True] * 500 + [False] * 500, lengths)
    entry = compared(before, after)
    assert entry["median_length_correct_after"] < entry["median_length_correct_before"]
    assert "compares different problems (500 solved only by old, 0 only by new)" in text(entry)
    assert "Correct answers are equally long on each of the 500 problems" in text(entry)
    assert "shorter on the" not in text(entry)
    assert "Accuracy is lower" in text(entry)
    assert "not excluded" in text(entry)


def test_shorter_only_because_hard_problems_are_missing():
    lengths = np.concatenate([np.full(500, 10), np.full(500, 30)]) + np.arange(1000) % 3
    before = table([True] * 1000, lengths)
    after = table([True] * 500, lengths[:500])
    entry = compared(before, after)
    assert (
        "The shorter mean over all that each side answered (21.0 to 11.0 tokens) compares different problems"
        in text(entry)
    )
    assert "on those that both have it went from 11.0 to 11.0 tokens" in text(entry)
    assert "Correct answers are equally long on each of the 500 problems" in text(entry)
    assert "problems that only one side has (500)" in text(entry)


def test_sides_cut_at_different_lengths():
    correct, lengths = population(400, 0.9, 20, 7)
    before = table(correct, np.where(correct, lengths, 2 * CAP))
    entry = compared(before, table(correct, np.where(correct, lengths, CAP)))
    assert "The sides were cut at different lengths (200 and 100 tokens)" in text(entry)
    assert "Correct answers are equally long" in text(entry)
    assert "different lengths" not in text(compared(before, before))


def test_accuracy_lower_by_five_points():
    rng = np.random.default_rng(4)
    before = rng.random(2000) < 0.97
    after = before & (rng.random(2000) > 0.05)
    entry = compared(table(before, [10] * 2000), table(after, [10] * 2000))
    assert -0.07 < entry["accuracy_diff_ci"][0] < entry["accuracy_diff_ci"][1] < -0.03
    assert "Accuracy is lower" in text(entry)
    assert "a loss of 3 points is not excluded" in text(entry)
    assert "a loss of 8 points or more is excluded" in text(
        compared(table(before, [10] * 2000), table(after, [10] * 2000), margin=0.08)
    )


def test_accuracy_higher():
    entry = compared(table([False] * 20 + [True] * 20, [10] * 40), table([True] * 40, [10] * 40))
    assert "Accuracy is higher" in text(entry)
    assert entry["mcnemar_p"] == pytest.approx(2 / 2**20)


def test_too_few_problems_to_tell():
    entry = compared(table([True] * 6, [10] * 6), table([True] * 5 + [False], [10] * 6))
    assert "Too few problems to tell whether accuracy changed" in text(entry)
    same = table([True] * 60, [10] * 60)
    entry = compared(same, same, margin=0.03)
    assert -0.06 < entry["accuracy_diff_ci"][0] < -0.03
    assert entry["accuracy_verdict"] == "unclear"


def test_no_change_in_length_is_bounded():
    rng = np.random.default_rng(6)
    before, after = rng.integers(10, 30, 200), rng.integers(10, 30, 200)
    entry = compared(table([True] * 200, before), table([True] * 200, after))
    low, high = entry["paired_length_ratio_ci"]
    assert low < 1 < high
    assert entry["length_verdict"] == "unchanged"
    bound = float(text(entry).split("changes beyond ")[1].split("%")[0])
    assert 0 <= bound / 100 - max(1 - low, high - 1) < 0.001


def test_few_pairs_show_nothing_about_length():
    entry = compared(table([True] * 9, [20] * 9), table([True] * 9, [10] * 9))
    assert entry["paired_length_ratio"] == 0.5
    assert entry["length_verdict"] == "unknown"
    assert "Too few problems to compare lengths: 9 problems that both sides solve" in text(entry)


def test_nothing_solved():
    entry = compared(table([False] * 3, [10] * 3), table([False] * 3, [9] * 3))
    assert entry["median_length_correct_before"] is entry["paired_length_ratio"] is entry["wilcoxon_p"] is None
    assert entry["paired_length_ratio_ci"] == [None, None]
    assert "Too few problems to compare lengths: 0 problems" in text(entry)
    assert json.dumps(entry, allow_nan=False)
    one = compared(table([True], [10]), table([True], [9]))
    assert one["paired_length_ratio"] == 0.9
    assert "Too few problems to compare lengths: 1 problem that" in text(one)


def test_what_is_left_out_is_counted():
    before = table([True, None, False], [10, 11, 12])
    after = table([True, True, True], [10, 11, 12], ids=["p0", "p1", "p9"])
    entry = compared(before, after)
    assert entry["n"] == 1
    assert (entry["left_out_problems"], entry["unjudged_rows"]) == (3, 1)
    assert "Left out: problems that only one side has (3), answers that could not be judged (1)." in text(entry)


def test_sides_that_cannot_be_paired():
    with pytest.raises(ValueError, match="old and new have no judged problem in common"):
        compared(table([True], [1], ids=["a"]), table([True], [1], ids=["b"]))
    with pytest.raises(ValueError, match="'a' has answer '1' in old but '2' in new"):
        compared(table([True], [1], ids=["a"], answers=["1"]), table([True], [1], ids=["a"], answers=["2"]))


def test_summary_by_mode():
    standard = table([True, False, True, True], [10, CAP, 30, 20], mode="standard")
    soft = table([True, None], [7, 9], mode="soft")
    both = pa.concat_tables([standard, soft])
    assert modes_of(both) == ["standard", "soft"]
    assert of_mode(both, "soft").equals(soft)
    summary = summarise(both)
    assert summary["standard"] == {
        "n": 4,
        "rows": 4,
        "unjudged": 0,
        "accuracy": 0.75,
        "accuracy_ci": list(wilson_interval(3, 4)),
        "median_length": 25.0,
        "median_length_unbounded": 25.0,
        "median_length_correct": 20.0,
        "length_quantiles": pytest.approx({"0.1": 13.0, "0.25": 17.5, "0.5": 25.0, "0.75": 47.5, "0.9": 79.0}),
        "length_quantiles_correct": pytest.approx({"0.1": 12.0, "0.25": 15.0, "0.5": 20.0, "0.75": 25.0, "0.9": 28.0}),
        "mean_length": 40.0,
        "tokens_per_correct": 160 / 3,
        "truncated": 0.25,
        "budgets": ({"12": 0.25, "16": 0.25, "23": 0.5, "32": 0.75, "46": 0.75, "64": 0.75, "91": 0.75, "128": 0.75}),
    }
    soft = summary["soft"]
    assert (soft["n"], soft["rows"], soft["unjudged"], soft["accuracy"], soft["median_length"]) == (1, 1, 1, 1.0, 7.0)
    assert (soft["accuracy_ci"], soft["tokens_per_correct"]) == (list(wilson_interval(1, 1)), 7.0)


def test_summary_by_level_and_subject():
    rows = table([True, False, True, None], [10, 12, 30, 5])
    rows = rows.append_column("level", pa.array(["2", "2", "1", None])).append_column(
        "subject", pa.nulls(4, pa.string())
    )
    summary = summarise(rows)["soft"]
    assert "subject" not in summary
    assert list(summary["level"]) == ["1", "2"]
    assert summary["level"]["2"] == {
        "n": 2,
        "accuracy": 0.5,
        "accuracy_ci": list(wilson_interval(1, 2)),
        "median_length_correct": 10.0,
    }


def test_nothing_is_said_of_truncation_where_it_is_not_known():
    rows = table([True] * 20, [10] * 20)
    unknown = rows.set_column(rows.column_names.index("finish_reason"), "finish_reason", pa.nulls(20, pa.string()))
    summary = summarise(unknown)["soft"]
    assert summary["truncated"] is summary["median_length_unbounded"] is None
    entry = compared(rows, unknown)
    assert (entry["truncated_before"], entry["truncated_after"]) == (0.0, None)
    assert "Which answers hit a token limit is not known" in text(entry)
    assert "not known" not in text(compared(rows, rows))


def test_summary_of_several_samples_and_of_none_judged():
    sampled = table([True, False, False, False], [5] * 4, ids=["a", "a", "b", "b"], samples=[0, 1, 0, 1])
    summary = summarise(sampled.append_column("extracted", pa.array(["7", "8", None, "9"])))["soft"]
    assert summary["pass_at_k"] == {"1": 0.25, "2": 0.5}
    assert summary["majority_at_k"] == {"1": 0.5, "2": 0.25}
    assert summary["average_at_k"] == {"1": 0.5, "2": 0.25}
    uneven = table([True, False, True], [5] * 3, ids=["a", "a", "b"], samples=[0, 1, 0])
    assert "pass_at_k" not in summarise(uneven)["soft"]  # b has one sample only
    unjudged = summarise(table([None, None], [5, 5]))["soft"]
    assert (unjudged["accuracy"], unjudged["median_length_correct"], unjudged["unjudged"]) == (None, None, 2)
    assert json.dumps(unjudged, allow_nan=False)


def test_a_temperature_is_chosen_on_one_half_and_reported_on_the_other():
    ids = [f"p{n}" for n in range(40)]
    dev = np.array([is_dev(name) for name in ids])
    assert 10 < dev.sum() < 30
    tables = {
        0.7: table(dev, [10] * 40),  # best on the dev half, and always wrong on the other
        0.3: table(~dev, [10] * 40),
        0.9: table(dev, [20] * 40),  # as good: the lower temperature is taken
    }
    chosen = choose_temperature(tables)["soft"]
    assert chosen["temperature"] == 0.7
    assert chosen["dev_accuracy"] == {"0.3": 0.0, "0.7": 1.0, "0.9": 1.0}
    assert (chosen["summary"]["n"], chosen["summary"]["accuracy"]) == ((~dev).sum(), 0.0)
    with pytest.raises(ValueError, match="too few problems"):
        choose_temperature({0.3: table([True], [10]), 0.7: table([True], [10])})
