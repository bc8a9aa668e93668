"""The rewards for short answers: their formulas by hand, and the properties each has or documents not to have."""

import inspect
import math
import random
from itertools import pairwise

import pytest
from pydantic import ValidationError

from fbt_rl.config import LengthConfig
from fbt_rl.config.presets import LENGTHS
from reward.length import LENGTH_REWARDS, relative

SETTINGS = {"weight": 0.5, "sigma_min": 1.0}
GIVEN = {"target": 20, "max_length": 60, "buffer": 40}  # what has no default
# Of every reward: its bounds with the settings below, and what a wrong answer scores (None: it depends on L).
BOUNDS = {
    "relative": (0.0, 1.0, 0.0),
    "arora_zanette": (0.0, 1.0, 0.0),
    "kimi": (-0.25, 1.25, None),
    "l1_exact": (-1.0, 1.0, None),
    "l1_max": (0.0, 1.0, 0.0),
    "dapo": (-2.0, 1.0, None),
    "alp": (-0.5, 1.0, None),
    "gr3": (0.0, 1.0, 0.0),
    "shorter_better": (-1.0, 2.0, None),
    "laser": (0.0, 1.5, 0.0),
    "cosine": (-1.0, 1.0, None),
    "linear": (0.0, 1.0, 0.0),
}


def shape(name, correct, lengths):
    return LENGTH_REWARDS[name](correct, lengths, **settings(name))


def settings(name):
    return {setting: GIVEN[setting] if value is None else value for setting, value in LENGTHS[name].items()}


def groups():
    draws = random.Random(0)
    for _ in range(300):
        size = draws.randint(1, 16)
        lengths = [draws.choice((0, 1, 7, 20, 40, 59, 10**6)) for _ in range(size)]
        yield [draws.random() < 0.6 for _ in range(size)], lengths


# --- each formula by hand ------------------------------------------------------------------------

LOW, HIGH = 1 / (1 + math.e), math.e / (1 + math.e)
BY_HAND = {  # name: correct, lengths, settings, scores
    # lengths 10, 20 right and 5 wrong: mean 15, std 5, solve rate 2/3
    "relative": ([1, 1, 0], [10, 20, 5], SETTINGS, [1 - LOW / 3, 1 - HIGH / 3, 0]),
    "arora_zanette": ([1, 1, 0], [10, 20, 5], {"alpha": 0.4}, [1 - 0.4 * LOW, 1 - 0.4 * HIGH, 0]),
    "kimi": ([1, 1, 0, 0], [10, 30, 20, 50], {"weight": 0.4}, [1.2, 1, 0, -0.2]),
    "l1_exact": ([1, 1, 0, 0], [50, 100, 100, 900], {"target": 100, "alpha": 0.01, "max_penalty": 2}, [0.5, 1, 0, -2]),
    "l1_max": ([1, 1, 1, 0], [0, 110, 160, 0], {"target": 100, "alpha": 0.01}, [1, 0.4, 0, 0]),
    "dapo": ([1, 1, 1, 0, 0], [60, 90, 500, 60, 90], {"max_length": 100, "buffer": 40}, [1, 0.25, 0, -1, -1.75]),
    "alp": ([1, 1, 1, 0], [10, 100, 900, 50], {"max_length": 100, "beta": 0.4}, [0.97, 0.7, 0.7, -0.15]),
    "gr3": ([1, 1, 0], [10, 20, 30], {"alpha": 0.5}, [0.8, 2 / 3, 0]),
    "shorter_better": (
        [1, 1, 0, 0],
        [10, 20, 7, 900],
        {"alpha": 2, "beta": 0.1, "max_penalty": 1.5},
        [2, 1, -0.3, -1.5],
    ),
    "laser": ([1, 1, 0], [20, 21, 3], {"target": 20, "alpha": 0.5}, [1.5, 1, 0]),
    "cosine": ([1, 1, 1, 0, 0], [0, 50, 100, 0, 50], {"max_length": 100}, [1, 0.75, -1, -1, -0.75]),
    "linear": ([1, 1, 1, 0], [0, 50, 900, 3], {"max_length": 100, "weight": 0.4}, [1, 0.8, 0.6, 0]),
}


@pytest.mark.parametrize("name", LENGTH_REWARDS)
def test_formula_by_hand(name):
    correct, lengths, given, expected = BY_HAND[name]
    assert LENGTH_REWARDS[name](correct, lengths, **given) == pytest.approx(expected, abs=1e-12)


def test_least_spread_and_solve_rate_of_the_default():
    narrow = relative([True, True], [10, 12], weight=0.4, sigma_min=4.0)  # sigma_min replaces a smaller spread
    assert narrow == pytest.approx([1 - 0.4 / (1 + math.exp(0.25)), 1 - 0.4 / (1 + math.exp(-0.25))], abs=1e-12)
    easy = relative([True, True, True, True], [10, 20, 10, 20], **SETTINGS)
    hard = relative([True, True, False, False], [10, 20, 10, 20], **SETTINGS)  # pressed less
    assert hard[0] - hard[1] == pytest.approx((easy[0] - easy[1]) / 2)


def test_without_a_correct_answer_shorter_better_pulls_to_the_mean():
    got = LENGTH_REWARDS["shorter_better"]([False, False], [10, 20], alpha=2.0, beta=0.1, max_penalty=1.0)
    assert got == pytest.approx([-0.5, -0.5])


# --- the properties ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LENGTH_REWARDS)
def test_shorter_correct_is_never_below_longer_correct(name):
    for correct, lengths in groups():
        scores = shape(name, correct, lengths)
        solved = sorted((length, score) for length, score, right in zip(lengths, scores, correct, strict=True) if right)
        falls = all(first[1] >= second[1] for first, second in pairwise(solved))
        if name != "l1_exact":
            assert falls
    if name == "l1_exact":  # by design: below its target the longer answer is better
        short, exact, long = shape(name, [True] * 3, [5, 20, 35])
        assert short < exact > long


@pytest.mark.parametrize("name", LENGTH_REWARDS)
def test_correct_is_above_wrong(name):
    tied = False
    for correct, lengths in groups():
        scores = shape(name, correct, lengths)
        right = [score for score, flag in zip(scores, correct, strict=True) if flag]
        wrong = [score for score, flag in zip(scores, correct, strict=True) if not flag]
        if right and wrong and min(right) <= max(wrong):
            tied = True
    # Documented: far from the target l1 gives a correct answer no more than a wrong one; so does the cosine at its end.
    assert tied == (name in ("l1_exact", "l1_max", "cosine"))


@pytest.mark.parametrize("name", LENGTH_REWARDS)
def test_bounded_and_of_the_documented_sign(name):
    low, high, wrong = BOUNDS[name]
    for correct, lengths in groups():
        for score, right in zip(shape(name, correct, lengths), correct, strict=True):
            assert isinstance(score, float)
            assert low <= score <= high
            if not right:
                assert score <= 0.0
                assert wrong is None or score == wrong
            elif name not in ("cosine", "l1_exact"):
                assert score >= 0.0


@pytest.mark.parametrize("name", LENGTH_REWARDS)
def test_what_being_short_does_for_a_wrong_answer(name):
    short, long = shape(name, [False, False, True], [5, 22, 5])[:2]
    pays = {"kimi": True, "l1_exact": False, "dapo": True, "alp": True, "shorter_better": True, "cosine": False}
    assert (short > long, short < long) == ((pays[name], not pays[name]) if name in pays else (False, False))


@pytest.mark.parametrize("name", LENGTH_REWARDS)
def test_strictly_shorter_is_strictly_better_at_ordinary_lengths(name):
    scores = shape(name, [True] * 4, [21, 25, 40, 59])
    if name in ("laser",):
        scores = shape(name, [True] * 2, [19, 21])
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(scores)


@pytest.mark.parametrize("name", LENGTH_REWARDS)
def test_order_in_the_group_does_not_matter(name):
    draws = random.Random(1)
    for correct, lengths in groups():
        order = draws.sample(range(len(correct)), len(correct))
        scores = shape(name, correct, lengths)
        shuffled = shape(name, [correct[i] for i in order], [lengths[i] for i in order])
        assert shuffled == pytest.approx([scores[i] for i in order], abs=1e-12)


@pytest.mark.parametrize("name", LENGTH_REWARDS)
def test_edges(name):
    assert shape(name, [], []) == []
    low, high, _ = BOUNDS[name]
    for correct, lengths in (
        ([False] * 3, [3, 9, 0]),  # all wrong
        ([True] * 3, [3, 9, 0]),  # all correct
        ([True], [8]),  # a group of one
        ([False], [8]),
        ([True, False], [0, 0]),  # nothing said
    ):
        scores = shape(name, correct, lengths)
        assert all(math.isfinite(score) and low <= score <= high for score in scores)
        if name != "l1_exact":
            assert all((score > 0) == right for score, right in zip(scores, correct, strict=True))
    assert relative([True, False], [8, 1], weight=0.0, sigma_min=1.0) == [1.0, 0.0]
    assert relative([True, True], [8, 8], **SETTINGS) == [0.75, 0.75]


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LENGTH_REWARDS)
def test_the_config_knows_every_reward_and_its_settings(name):
    assert set(LENGTHS) == set(LENGTH_REWARDS)
    parameters = inspect.signature(LENGTH_REWARDS[name]).parameters.values()
    takes = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
    assert takes == set(LENGTHS[name])
    needed = {setting: GIVEN[setting] for setting, value in LENGTHS[name].items() if value is None}
    config = LengthConfig(use=name, **needed)
    assert config.model_dump() == {"use": name, "count": "all", **settings(name)}
    assert config.settings() == settings(name)
    assert LengthConfig.model_validate(config.model_dump(mode="json")) == config
    assert len(LENGTH_REWARDS[name]([True], [1], **config.settings())) == 1


def test_the_default_and_its_plain_form():
    assert LengthConfig().model_dump() == {"use": "relative", "count": "all", **SETTINGS}
    assert LengthConfig(use="relative", weight=0.4, sigma_min=1.0) == LengthConfig(weight=0.4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"use": "shortest"}, "no length reward 'shortest'; there are relative, arora_zanette, kimi, l1_exact"),
        ({"use": "cosine"}, r"'cosine' takes max_length, all of them and no other, got \[\]"),
        ({"use": "gr3", "weight": 0.1}, r"'gr3' takes alpha, all of them and no other, got \['alpha', 'weight'\]"),
        ({"use": "laser", "target": 0}, "greater than or equal to 1"),
        ({"use": ["gr3"]}, "valid string"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(given, message):
    with pytest.raises(ValidationError, match=message):
        LengthConfig(**given)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("relative", {"weight": 1.0, "sigma_min": 1.0}),
        ("relative", {"weight": -0.1, "sigma_min": 1.0}),
        ("relative", {"weight": 0.5, "sigma_min": 0}),
        ("arora_zanette", {"alpha": 1.0}),
        ("kimi", {"weight": 2.0}),
        ("l1_exact", {"target": 1, "alpha": -1.0, "max_penalty": 1.0}),
        ("l1_max", {"target": 1, "alpha": 1.0, "delta": 1.1}),
        ("dapo", {"max_length": 10, "buffer": 11}),
        ("alp", {"max_length": 10, "beta": 1.0}),
        ("gr3", {"alpha": -0.1}),
        ("shorter_better", {"alpha": 1.0, "beta": 0.1, "max_penalty": 1.0}),
        ("laser", {"target": 10, "alpha": -0.1}),
        ("cosine", {"max_length": 0}),
        ("linear", {"max_length": 10, "weight": 1.0}),
    ],
)
def test_bad_settings_are_refused(name, given):
    with pytest.raises(ValueError, match=r"expected .*, got "):
        LENGTH_REWARDS[name]([True], [1], **given)


def test_sizes_are_checked():
    for name in LENGTH_REWARDS:
        with pytest.raises(ValueError, match="2 correctness flags for 1 lengths"):
            shape(name, [True, False], [1])
