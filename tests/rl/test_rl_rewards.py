"""The rewards of an RL stage: totals, shaping, what could not be judged, when each is asked."""

import json
import math
import threading

import pytest
import torch

from fbt_rl.config import LengthConfig, RewardConfig
from fbt_rl.decoding import Completion
from reward.base import Reward, RewardError, Verdict
from reward.length import relative
from rl import record
from rl.dynamic import Groups
from rl.rewards import StageRewards

NAN = math.nan


def odd(prompts, completions, completion_ids, **columns):
    return [float(len(ids) % 2) for ids in completion_ids]


def answered(prompts, completions, completion_ids, *, answer, **columns):
    return [None if gold == "?" else float(text == gold) for text, gold in zip(completions, answer, strict=True)]


def strange(prompts, completions, completion_ids, *, value, **columns):
    return value


def half(prompts, completions, completion_ids, **columns):
    return [0.5] * len(completions)


def inverse(prompts, completions, completion_ids, **columns):
    return [1 / int(text) for text in completions]


def unlike(prompts, completions, completion_ids, *, group, **columns):
    """1 where the group's answers differ."""
    answers = {
        label: {text for text, other in zip(completions, group, strict=True) if other == label} for label in group
    }
    return [float(len(answers[label]) > 1) for label in group]


def test_total_is_weighted_and_correctness_shaped_by_length():
    configs = [
        RewardConfig(use="test_rl_rewards:odd", weight=2.0),
        RewardConfig(use="test_rl_rewards:half", weight=-1.0),
    ]
    rewards = StageRewards(configs, LengthConfig(weight=0.5, sigma_min=1.0), group_size=4)
    ids = [[0], [0, 0, 0], [0, 0], [0, 0, 0, 0, 0]] * 2
    truncated = [False] * 7 + [True]
    judged = rewards(["p"] * 8, ["c"] * 8, ids, truncated)
    assert [judgement.correct for judgement in judged] == [1, 1, 0, 1, 1, 1, 0, 0]  # the last is cut, so wrong
    first = relative([True, True, False, True], [1, 3, 2, 5], weight=0.5, sigma_min=1.0)
    second = relative([True, True, False, False], [1, 3, 2, 5], weight=0.5, sigma_min=1.0)
    assert [judgement.reward for judgement in judged] == pytest.approx([2 * value - 0.5 for value in first + second])


def test_some_rewards_are_asked_for_groups_that_are_complete():
    asked = []

    def told(prompts, completions, completion_ids, *, group, **columns):
        asked.append((threading.current_thread() is threading.main_thread(), completions, group))
        return [float(text == "a") for text in completions]

    rewards = StageRewards([RewardConfig(use="test_rl_rewards:odd")] * 2, LengthConfig(), group_size=2)
    rewards._rewards = [Reward("beside", told, concurrent=True), Reward("after", told)]
    texts, ids = ["a", "b", "b", "a"], [[1], [1, 2], [1], [1, 2, 3]]
    rows = {"prompts": ["p"] * 4, "completions": texts, "completion_ids": ids}
    parts = [rewards.ask(**{name: values[i : i + 2] for name, values in rows.items()}) for i in (0, 2)]
    found = rewards(**rows, truncated=[False] * 4, asked=parts)
    assert asked == [(False, ["a", "b"], [0, 0]), (False, ["b", "a"], [0, 0]), (True, texts, [0, 0, 1, 1])]
    assert found == rewards(**rows, truncated=[False] * 4)  # as when all are asked at once
    assert asked[3:] == [(False, texts, [0, 0, 1, 1]), (True, texts, [0, 0, 1, 1])]
    assert [judgement.correct for judgement in found] == [1, 0, 0, 1]


def test_what_cannot_be_judged_has_no_reward():
    configs = [RewardConfig(use="test_rl_rewards:answered"), RewardConfig(use="test_rl_rewards:half")]
    rewards = StageRewards(configs, LengthConfig(), group_size=3)
    columns = {"answer": ["a", "?", "b"], "problem_id": ["x"] * 3}
    judged = rewards(["p"] * 3, ["a", "a", "a"], [[1], [1, 2], [1]], [False] * 3, **columns)
    totals, correct, errors, *_ = zip(*judged, strict=True)
    assert not any(errors)
    assert [correct[0], correct[2]] == [1.0, 0.0]
    assert math.isnan(correct[1])
    assert math.isnan(totals[1])
    shaped = relative([True, False], [1, 1], weight=0.5, sigma_min=1.0)  # the two that were judged
    assert [totals[0], totals[2]] == pytest.approx([value + 0.5 for value in shaped])


def test_any_length_reward_can_be_named():
    configs, length = [RewardConfig(use="test_rl_rewards:odd")], LengthConfig(use="l1_max", target=2, alpha=0.25)
    ids = [[0], [0, 0, 0], [0, 0], [0, 0, 0, 0]]
    judged = StageRewards(configs, length, group_size=4)(["p"] * 4, ["c"] * 4, ids, [False] * 4)
    assert [judgement.reward for judgement in judged] == pytest.approx([0.75, 0.25, 0.0, 0.0])
    with pytest.raises(RewardError, match="length reward 'dapo': expected 0 < buffer <= max_length, got 9, 4"):
        StageRewards(configs, LengthConfig(use="dapo", max_length=4, buffer=9), group_size=4)


def test_numbers_that_cannot_be_meant_are_not_judged():
    configs = [RewardConfig(use="test_rl_rewards:strange"), RewardConfig(use="test_rl_rewards:odd", weight=0.5)]
    rewards = StageRewards(configs, LengthConfig(), group_size=4, bound=10.0)
    ids = [[1], [1], [1], [1]]
    judged = rewards(["p"] * 4, ["c"] * 4, ids, [False] * 4, value=[1.0, 1e9, NAN, -math.inf])
    assert [judgement.errors for judgement in judged] == [
        (), ("out_of_bounds",), ("not_finite",), ("not_finite",)
    ]  # fmt: skip
    assert judged[0].reward == pytest.approx(relative([True], [1], weight=0.5, sigma_min=1.0)[0] + 0.5)
    assert all(math.isnan(judgement.reward) and math.isnan(judgement.correct) for judgement in judged[1:])
    configs = [RewardConfig(use="test_rl_rewards:odd"), RewardConfig(use="test_rl_rewards:strange")]
    plain = StageRewards(configs, None, group_size=2, bound=10.0)
    judged = plain(["p"] * 2, ["c"] * 2, ids[:2], [False, True], value=[10.0, -10.1])
    assert judged[0][:3] == (11.0, 1.0, ())  # the bound itself is allowed
    assert (judged[1].correct, judged[1].errors) == (0.0, ("out_of_bounds",))  # truncated is wrong at once
    assert math.isnan(judged[1].reward)


def test_each_score_is_told_apart_and_what_raises_is_no_score():
    def scores(judgement):
        return {name.partition(":")[2] or name: score for name, score in judgement.scores}

    weights = {"odd": 2.0, "half": 0.1, "answered": 1.0}
    configs = [RewardConfig(use=f"test_rl_rewards:{use}", weight=weight) for use, weight in weights.items()]
    rewards = StageRewards(configs, LengthConfig(use="linear", max_length=10, weight=0.5), group_size=2)
    ids, columns = [[0], [0, 0, 0], [0, 0], [0]], {"answer": ["c", "", "c", "?"]}
    judged = rewards(["p"] * 4, ["c"] * 4, ids, [False] * 4, **columns)
    assert [scores(judgement) for judgement in judged] == [
        {"odd": 1.0, "half": 0.5, "answered": 1.0, "length": pytest.approx(-0.05)},
        {"odd": 1.0, "half": 0.5, "answered": 0.0, "length": pytest.approx(-0.15)},
        {"odd": 0.0, "half": 0.5, "answered": 1.0, "length": 0.0},
        {"odd": 1.0, "half": 0.5, "answered": None, "length": pytest.approx(-0.05)},
    ]
    assert [judgement.reward for judgement in judged[:3]] == pytest.approx([2.95, 1.75, 1.05])  # weighted sums of these
    judged = rewards(["p"] * 4, ["c"] * 4, ids, [False] * 4, answer=["c"] * 4, lengths=[0, 2, 0, 0])
    assert [dict(judgement.scores)["length"] for judgement in judged] == pytest.approx([0, -0.1, 0, 0])

    raising = StageRewards([*configs[:1], RewardConfig(use="test_rl_rewards:inverse")], None, group_size=2)
    judged = raising(["p"] * 4, ["4", "2", "0", "4"], ids, [False] * 4)
    assert [judgement.errors for judgement in judged] == [(), (), ("raised",), ()]
    assert [judgement.reward for judgement in judged[:2]] == [2.25, 2.5]
    assert math.isnan(judged[2].reward)
    assert scores(judged[2]) == {"odd": 0.0, "inverse": None}


def test_group_aware_rewards_get_the_stage_s_groups():
    rewards = StageRewards([RewardConfig(use="test_rl_rewards:unlike")], None, group_size=2)
    same_prompt = rewards(["p"] * 4, ["a", "a", "a", "b"], [[1]] * 4, [False] * 4)
    assert [judgement.reward for judgement in same_prompt] == [0.0, 0.0, 1.0, 1.0]


def test_correctness_of_completions_that_are_no_groups():
    rewards = StageRewards([RewardConfig(use="test_rl_rewards:strange")], LengthConfig(), group_size=4, bound=10.0)
    value = [1.0, 0.0, 1.0, NAN, 11.0]
    cut = [False, False, True, False, False]
    assert rewards.correctness(["p"] * 5, ["c"] * 5, [[1]] * 5, cut, value=value) == [True, False, False, None, None]


def test_partial_credit_is_not_shaped():
    rewards = StageRewards([RewardConfig(use="test_rl_rewards:half")], LengthConfig(), group_size=2)
    with pytest.raises(RewardError, match=r"gave 0.5; shaping by length needs a correctness of 0 or 1.*length to null"):
        rewards(["p"] * 2, ["c"] * 2, [[1]] * 2, [False] * 2)
    plain = StageRewards([RewardConfig(use="test_rl_rewards:half")], None, group_size=2)
    judged = plain(["p"] * 2, ["c"] * 2, [[1]] * 2, [False, True])
    assert [judgement[:2] for judgement in judged] == [(0.5, 0), (0, 0)]


def termed(prompts, completions, completion_ids, *, value, **columns):
    return [Verdict(True, 1.0, terms={"style": 0.25, "form": 0.75}, metadata={"words": number}) for number in value]


def test_terms_and_metadata_are_recorded_and_not_read():
    rewards = StageRewards([RewardConfig(use="test_rl_rewards:termed", weight=2.0)], None, group_size=2)
    judged = rewards(["p"] * 2, ["c"] * 2, [[1]] * 2, [False] * 2, value=[3, None])
    name = "test_rl_rewards:termed"
    assert [judgement.reward for judgement in judged] == [2.0, 2.0]
    assert judged[0].scores == ((name, 1.0), (f"{name}/style", 0.25), (f"{name}/form", 0.75))
    assert [judgement.metadata for judgement in judged] == [((name, {"words": 3}),), ((name, {"words": None}),)]
    completions = [Completion(0, 0, [1], torch.zeros(1), None, "stop")] * 2
    groups = Groups([{"problem_id": "x", "prompt": "p", "answer": "a"}], completions, judged, [0], [1.0, 1.0])
    rows = record.rollout_rows(1, "soft", groups, ["c", "c"], [1, 1], [0.0, 0.0])
    assert [json.loads(row["metadata"]) for row in rows] == [{name: {"words": 3}}, {name: {"words": None}}]


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        (Verdict(True, 1.0, terms={"style": "good"}), r"gave the terms {'style': 'good'} for completion 0: expected"),
        (Verdict(True, 1.0, metadata={(1, 2): 3}), r"gave metadata for completion 0 that is no JSON: keys must be"),
    ],
)
def test_what_cannot_be_recorded_is_refused(verdict, message):
    rewards = StageRewards([RewardConfig(use="test_rl_rewards:strange")], None, group_size=2)
    with pytest.raises(RewardError, match=message):
        rewards(["p"] * 2, ["c"] * 2, [[1]] * 2, [False] * 2, value=[verdict] * 2)
