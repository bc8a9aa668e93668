"""What steers an RL stage: the accuracy guard, dynamic sampling and the limits, each by hand."""

import logging
import math

import pytest
from pydantic import ValidationError
from rl_cases import RL

from fbt_rl.config import RLStage, RunConfig
from fbt_rl.config.rl import Ceiling, Floor, GuardConfig, LimitsConfig
from fbt_rl.decoding import Completion
from fbt_rl.driver.inputs import Digests, stage_inputs
from fbt_rl.training.trainer import TrainingError
from rl.dynamic import degenerate, draw_groups
from rl.guard import AccuracyGuard
from rl.limits import LimitWatch, crossed
from rl.rewards import Judgement

NAN = math.nan
HELDOUT = {"kind": "arithmetic", "split": "heldout", "size": 10}


def stage(**changes):
    return RLStage.model_validate(RL | changes)


# --- the guard -----------------------------------------------------------------------------------


def guard(**changes):
    settings = {"data": HELDOUT, "every": 5, "margin": 0.02, "factor": 0.5}
    return AccuracyGuard(GuardConfig.model_validate(settings | changes), configured=0.4)


def test_the_weight_falls_and_comes_back():
    controller = guard()
    steps = [
        (0.90, 0.4),  # before RL
        (0.89, 0.4),  # within the margin
        (0.88, 0.4),  # at its edge
        (0.87, 0.2),
        (0.80, 0.1),
        (NAN, 0.1),  # nothing could be judged
        (0.89, 0.2),
        (0.95, 0.4),
        (0.99, 0.4),  # never above what was configured
        (0.87, 0.2),  # still measured against the value before RL
    ]
    for accuracy, weight in steps:
        controller.update(accuracy)
        assert controller.weight == pytest.approx(weight), accuracy
    assert controller.before == 0.90


def test_measured_before_the_first_step_and_every_so_often():
    assert [step for step in range(12) if guard().is_due(step)] == [0, 5, 10]


def test_the_guard_goes_on_where_it_was():
    first, second = guard(), guard()
    first.update(0.9)
    first.update(0.5)
    second.load_state(first.state())
    for accuracy in (0.5, 0.9):
        first.update(accuracy)
        second.update(accuracy)
        assert second.weight == first.weight


def test_without_a_value_before_rl_there_is_nothing_to_guard():
    with pytest.raises(ValueError, match=r"no held-out answer could be judged before RL"):
        guard().update(NAN)


# --- dynamic sampling ----------------------------------------------------------------------------


def test_degenerate_goes_by_correctness_alone():
    correct = [1, 1, 1, 0, 0, 0, 1, 0, 0, NAN, 1, 1, NAN, NAN, NAN, 1, NAN, 0]
    assert degenerate(correct, 3) == [True, True, False, True, True, False]


def test_groups_are_replaced_up_to_the_bound():
    verdicts = {(1, 0): [1, 1], (1, 1): [0, 0], (1, 2): [1, 0], (2, 0): [0, 0], (2, 1): [0, 0], (2, 2): [0, 0]}
    asked = []

    def roll_out(problems, places, attempt):
        asked.append((attempt, list(places), [problem["id"] for problem in problems]))
        completions, judgements = [], []
        for place in places:
            for number, correct in enumerate(verdicts.get((place, attempt), [0, 1])):
                completions.append(Completion(0, number, [place, attempt, number], None, None, "stop"))
                # Equal correctness, different rewards: a shaped reward keeps no group.
                judgements.append(Judgement(correct + number / 10, float(correct)))
        return completions, judgements

    groups = draw_groups(
        [{"id": place} for place in range(3)],
        roll_out,
        lambda place, attempt: {"id": f"{place} again {attempt}"},
        group_size=2,
        max_resamples=2,
    )
    assert asked == [
        (0, [0, 1, 2], [0, 1, 2]),
        (1, [1, 2], ["1 again 1", "2 again 1"]),
        (2, [1, 2], ["1 again 2", "2 again 2"]),
    ]
    assert groups.attempts == [0, 2, 2]
    assert [problem["id"] for problem in groups.problems] == [0, "1 again 2", "2 again 2"]
    assert [row.token_ids[:2] for row in groups.completions] == [[0, 0], [0, 0], [1, 2], [1, 2], [2, 2], [2, 2]]
    assert [row.correct for row in groups.judgements] == [0, 1, 1, 0, 0, 0]
    assert groups.first_correct == [0, 1, 1, 1, 0, 0]
    assert [row[-1] for row in groups.table()] == groups.first_correct
    assert groups.table()[2] == [1, 1, 3, False, False, False, False, 2, 1]


def test_no_round_is_run_for_nothing():
    rounds = []

    def roll_out(problems, places, attempt):
        rounds.append(attempt)
        completions = [Completion(0, number, [number], None, None, "stop") for number in (0, 1)]
        return completions, [Judgement(0.0, float(row.token_ids[0])) for row in completions]

    draw_groups([{}], roll_out, lambda place, attempt: {}, group_size=2, max_resamples=5)
    assert rounds == [0]


# --- limits --------------------------------------------------------------------------------------


def test_limits_by_hand():
    limits = LimitsConfig(
        truncated=Ceiling(warn=0.1, stop=0.5), accuracy=Floor(warn=0.5, stop=0.2), residual=Ceiling(stop=1.0)
    )
    row = {"truncated": 0.3, "accuracy": 0.1, "residual": NAN, "loss": 99.0}
    assert crossed(limits, row, "warn") == {
        "truncated": "truncated is 0.3 (limits.truncated.warn: 0.1)",
        "accuracy": "accuracy is 0.1 (limits.accuracy.warn: 0.5)",
    }
    assert list(crossed(limits, row, "stop")) == ["accuracy"]
    assert not crossed(limits, {"truncated": 0.1, "accuracy": 0.5}, "warn")  # the bound itself is allowed


def test_a_warning_is_given_once_until_it_is_over(caplog):
    watch = LimitWatch(LimitsConfig(truncated=Ceiling(warn=0.1, stop=0.5)), "rl")
    other = LimitWatch(LimitsConfig(truncated=Ceiling(warn=0.1, stop=0.5)), "rl", quiet=True)
    told = []
    with caplog.at_level(logging.WARNING):
        for step, share in enumerate([0.2, 0.3, None, 0.2, 0.0, 0.2], start=1):
            watch.check({} if share is None else {"truncated": share}, step)
            other.check({} if share is None else {"truncated": share}, step)
            told.append(len(caplog.records))
    assert told == [1, 1, 1, 1, 1, 2]
    assert "stage rl, step 1: truncated is 0.2 (limits.truncated.warn: 0.1)" in caplog.text
    with pytest.raises(TrainingError, match=r"stage rl, step 7: truncated is 0.6 \(limits.truncated.stop: 0.5\)"):
        other.check({"truncated": 0.6}, 7)  # every rank ends


def test_a_limit_that_is_moved_leaves_the_others():
    limits = stage(limits={"truncated": {"stop": 0.9}}).limits
    assert limits.truncated == Ceiling(warn=None, stop=0.9)
    assert limits.logprob_mismatch_mean.stop == LimitsConfig().logprob_mismatch_mean.stop


def test_data_of_the_guard_is_an_input_and_limits_are_not(tmp_path):
    path = tmp_path / "heldout.jsonl"

    def inputs(**changes):
        data = {"kind": "files", "paths": [str(path)], "prompt": "q", "answer": "a"}
        stages = {"rl": RL | {"guard": {"data": data}} | changes}
        config = RunConfig.model_validate({"name": "x", "model": {"path": "m"}, "stages": stages})
        return stage_inputs(config, Digests({}))["rl"]

    path.write_text("{}")
    before = inputs()
    assert inputs(limits={"truncated": {"stop": 0.5}}, probe_every=3) == before
    assert inputs(entropy_bonus=0.1) != before
    path.write_text("{} ")
    assert inputs() != before


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"guard": {"data": HELDOUT}, "length": None}, "guard lowers length.weight .* set a length reward"),
        ({"guard": {"data": HELDOUT}, "length": {"weight": 0.0}}, "guard lowers length.weight"),
        (
            {"guard": {"data": HELDOUT, "every": 5}, "updates_per_batch": 2, "checkpoint_every": 2},
            "guard.every 5 is not a multiple of updates_per_batch 2",
        ),
        ({"max_resamples": 1}, "max_resamples replaces degenerate groups: set degenerate_groups to drop"),
        ({"standard_weight": 0.1, "mode": "standard"}, "standard_weight protects mode 'standard'"),
        ({"limits": {"truncated": {"warn": 0.5, "stop": 0.1}}}, "warn 0.5 lies beyond stop 0.1"),
        ({"limits": {"accuracy": {"warn": 0.1, "stop": 0.5}}}, "warn 0.1 lies beyond stop 0.5"),
        ({"limits": {"tuncated": {}}}, "Extra inputs"),
        ({"guard": {"data": HELDOUT, "factor": 1.0}}, "less than 1"),
        ({"rewards": [{"weight": math.inf}]}, "finite"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        stage(**changes)
