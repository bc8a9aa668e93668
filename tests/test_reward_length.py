"""The conciseness reward: its formula by hand, and the properties every such reward must have."""

import math
import random

import pytest

from reward.length import relative

SETTINGS = {"weight": 0.5, "sigma_min": 1.0}


def test_formula_by_hand():
    # lengths 10, 20 right and 5 wrong: mean 15, std 5, solve rate 2/3
    got = relative([True, True, False], [10, 20, 5], weight=0.5, sigma_min=1.0)
    low, high = 1 / (1 + math.e), math.e / (1 + math.e)
    assert got == pytest.approx([1 - 0.5 * 2 / 3 * low, 1 - 0.5 * 2 / 3 * high, 0.0], abs=1e-12)
    # sigma_min replaces a smaller spread
    narrow = relative([True, True], [10, 12], weight=0.4, sigma_min=4.0)
    assert narrow == pytest.approx([1 - 0.4 / (1 + math.exp(0.25)), 1 - 0.4 / (1 + math.exp(-0.25))], abs=1e-12)


def groups():
    draws = random.Random(0)
    for _ in range(300):
        size = draws.randint(1, 16)
        yield [draws.random() < 0.6 for _ in range(size)], [draws.choice((0, 1, 7, 40, 10**6)) for _ in range(size)]


def test_shorter_correct_is_never_below_longer_correct_and_always_above_wrong():
    for correct, lengths in groups():
        scores = relative(correct, lengths, **SETTINGS)
        assert all(math.isfinite(score) and 0.0 <= score <= 1.0 for score in scores)
        for i, right in enumerate(correct):
            if not right:
                assert scores[i] == 0.0
                continue
            assert scores[i] >= 1 - SETTINGS["weight"]
            for j, other in enumerate(correct):
                if other and lengths[i] < lengths[j]:
                    assert scores[i] >= scores[j]


def test_strictly_shorter_is_strictly_better_at_ordinary_lengths():
    scores = relative([True] * 4, [10, 11, 19, 30], **SETTINGS)
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 4


def test_order_in_the_group_does_not_matter():
    draws = random.Random(1)
    for correct, lengths in groups():
        order = draws.sample(range(len(correct)), len(correct))
        scores = relative(correct, lengths, **SETTINGS)
        shuffled = relative([correct[i] for i in order], [lengths[i] for i in order], **SETTINGS)
        assert shuffled == [scores[i] for i in order]


def test_edges():
    assert relative([], [], **SETTINGS) == []
    assert relative([False, False], [3, 9], **SETTINGS) == [0.0, 0.0]
    assert relative([True], [0], **SETTINGS) == [0.75]  # alone: at its own mean
    assert relative([True, True], [8, 8], **SETTINGS) == [0.75, 0.75]
    assert relative([True, False], [8, 1], weight=0.0, sigma_min=1.0) == [1.0, 0.0]


def test_a_hard_prompt_is_pressed_less():
    easy = relative([True, True, True, True], [10, 20, 10, 20], **SETTINGS)
    hard = relative([True, True, False, False], [10, 20, 10, 20], **SETTINGS)
    assert hard[0] - hard[1] == pytest.approx((easy[0] - easy[1]) / 2)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="2 correctness flags for 1 lengths"):
        relative([True, False], [1], **SETTINGS)
    for settings in (
        {"weight": 1.0, "sigma_min": 1.0},
        {"weight": -0.1, "sigma_min": 1.0},
        {"weight": 0.5, "sigma_min": 0},
    ):
        with pytest.raises(ValueError, match="expected 0 <= weight < 1"):
            relative([True], [1], **settings)
