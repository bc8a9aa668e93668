"""Differences in differences between arms: by hand, and planted effects that the sentence must call rightly."""

import numpy as np
import pyarrow as pa
import pytest

from fbt_rl.analysis.arms import difference_in_differences


def cells(standard, soft):
    """Rows of one arm: (correct, tokens) of each problem in two modes."""
    rows = [
        {
            "problem_id": f"p{index}",
            "mode": mode,
            "sample": 0,
            "answer": "1",
            "correct": bool(correct),
            "finish_reason": "stop",
            "num_tokens": int(tokens),
        }
        for mode, results in (("standard", standard), ("soft", soft))
        for index, (correct, tokens) in enumerate(results)
    ]
    return pa.Table.from_pylist(rows)


def difference(baseline, arm):
    return difference_in_differences(baseline, arm, baseline_name="plain", arm_name="latent", mode="soft")


def test_by_hand():
    baseline = cells([(1, 10)] * 12, [(1, 10)] * 10 + [(0, 10)] * 2)  # soft loses 2 of 12
    arm = cells([(1, 20)] * 9 + [(0, 20)] * 3, [(1, 10)] * 12)  # soft wins 3 of 12, in half the tokens
    found = difference(baseline, arm)
    assert found["n"] == 12
    assert found["accuracy"] == pytest.approx((3 + 2) / 12)
    assert found["n_all_solve"] == 9
    assert found["length"] is None  # below ten problems
    assert "too few problems are solved in all four cells" in found["finding"]
    longer = cells([(1, 20)] * 12, [(1, 10)] * 12)
    assert difference(baseline, longer)["length"] == pytest.approx(0.5)
    assert difference(baseline, longer)["length_ci"] == pytest.approx([0.5, 0.5])


def population(accuracy, length, seed, count=600):
    rng = np.random.default_rng(seed)
    return list(zip(rng.random(count) < accuracy, rng.integers(length - 5, length + 5, count), strict=True))


def test_planted_effects_are_called():
    plain = cells(population(0.8, 30, 1), population(0.8, 30, 2))
    better = cells(population(0.8, 30, 3), population(0.95, 20, 4))
    finding = difference(plain, better)["finding"]
    assert finding == (
        "Accuracy: latent gains more from soft decoding than plain. "
        "Length: soft decoding makes right answers of latent shorter relative to those of plain."
    )
    assert difference(better, plain)["finding"].startswith("Accuracy: latent gains less from soft decoding")
    same = difference(plain, cells(population(0.9, 20, 5), population(0.9, 20, 6)))
    assert same["finding"] == (
        "Accuracy: no difference between latent and plain is shown in what soft decoding does. "
        "Length: no difference between latent and plain is shown in what soft decoding does."
    )
    assert same["accuracy_ci"][0] < 0 < same["accuracy_ci"][1]


def test_problems_are_paired():
    plain = cells([(1, 10), (0, 10)] * 10, [(1, 10), (0, 10)] * 10)
    shuffled = plain.take(list(reversed(range(len(plain)))))
    found = difference(plain, shuffled)
    assert (found["accuracy"], found["length"], found["n_all_solve"]) == (0.0, 1.0, 10)


def test_nothing_in_common():
    plain = cells([(1, 10)], [(1, 10)])
    other = plain.set_column(0, "problem_id", [["q0", "q0"]])
    with pytest.raises(ValueError, match="plain and latent have no problem judged in both standard and soft mode"):
        difference(plain, other)
