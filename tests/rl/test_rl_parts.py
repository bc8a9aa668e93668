"""Advantages, monitors, the layout and the record of rollouts, each by hand."""

import math

import pyarrow.parquet as pq
import pytest
import torch
from rl_cases import rl_context

from fbt_rl.decoding import Completion
from rl import record, rollout
from rl.advantage import group_advantages, importance_weights
from rl.monitor import Outcomes, gradient_cosines, mismatch_metrics, mismatch_sums, payload_sums, swapped_latents
from rl.rollout import sample_rollouts, sampling_seed

NAN = math.nan


# --- advantages ----------------------------------------------------------------------------------


def test_advantages_by_hand():
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 1.0])
    centred = torch.tensor([0.5, -0.5, -0.5, 0.5, 0, 0, 0, 0, -0.25, -0.25, -0.25, 0.75])
    deviation = rewards.std()
    torch.testing.assert_close(group_advantages(rewards, 4), centred / (deviation + 1e-4))
    torch.testing.assert_close(group_advantages(rewards, 4, "none"), centred)
    by_group = torch.cat(
        [group / (group.std() + 1e-4) for group in rewards.view(3, 4) - rewards.view(3, 4).mean(1)[:, None]]
    )
    torch.testing.assert_close(group_advantages(rewards, 4, "group"), by_group)


def test_equal_rewards_give_exactly_nothing():
    rewards = torch.tensor([0.7, 0.7, 0.7, 0.1, 0.1, 0.1])
    assert group_advantages(rewards, 3).eq(0).all()
    assert group_advantages(rewards[:3], 3, "group").eq(0).all()


def test_what_was_not_judged_takes_no_part():
    rewards = torch.tensor([1.0, NAN, 0.0, NAN, NAN, NAN])
    deviation = torch.tensor([1.0, 0.0]).std()
    expected = torch.tensor([0.5, 0, -0.5, 0, 0, 0]) / (deviation + 1e-4)
    torch.testing.assert_close(group_advantages(rewards, 3), expected)
    assert group_advantages(torch.tensor([NAN, 1.0]), 2).eq(0).all()
    with pytest.raises(ValueError, match="whole groups of 4"):
        group_advantages(torch.zeros(6), 4)


# --- importance weights --------------------------------------------------------------------------


def test_importance_weights_by_hand():
    proximal = torch.tensor([[-1.0, -1.0, -0.5, 9.0], [-200.0, -1.0, -1.0, -2.0]], requires_grad=True)
    rollout = torch.tensor([[-1.0, -1.4, -3.0, 0.0], [-1.0, -1.0, -1.0, -200.0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    weights = importance_weights(proximal, rollout, mask, cap=2.0)
    expected = torch.tensor([[1.0, math.exp(0.4), 2.0, 1.0], [0.0, 1.0, 1.0, 1.0]])
    torch.testing.assert_close(weights, expected)
    assert weights.max() == 2.0  # exactly, so that those at the cap can be counted
    assert not weights.requires_grad

    by_row = importance_weights(proximal, rollout, mask, cap=2.0, level="sequence")
    mean = math.exp((0.0 + 0.4 + 2.5) / 3)
    assert mean > 2.0
    torch.testing.assert_close(by_row, torch.tensor([[2.0, 2.0, 2.0, 1.0], [math.exp(-99.5)] * 2 + [1.0, 1.0]]))
    wider = importance_weights(proximal, rollout, mask, cap=3.0, level="sequence")
    torch.testing.assert_close(wider[0], torch.tensor([mean, mean, mean, 1.0]))
    assert importance_weights(proximal, rollout, torch.zeros(2, 4), 2.0, "sequence").eq(1).all()


# --- what is watched -----------------------------------------------------------------------------


def test_mismatch_by_hand():
    rollout_log_probs = torch.tensor([[-1.0, -2.0], [-0.5, 9.0]])
    training = torch.tensor([[-1.0, -1.5], [-0.75, -9.0]])  # ratios that are not their own inverses
    mask = torch.tensor([[1, 1], [1, 0]])
    latents = torch.ones(2, 2, 4)
    states = latents + torch.tensor([[0.0, 0.5], [0.0, 99.0]])[..., None]
    metrics = mismatch_metrics(
        torch.stack(
            [
                mismatch_sums(rollout_log_probs[:1], training[:1], mask[:1], latents[:1], states[:1]),
                mismatch_sums(rollout_log_probs[1:], training[1:], mask[1:], latents[1:], states[1:]),
            ]
        )
    )
    ratios = [1.0, math.exp(0.5), math.exp(-0.25)]
    assert metrics["logprob_mismatch_mean"] == pytest.approx(0.75 / 3)
    assert metrics["logprob_mismatch_max"] == pytest.approx(0.5)
    assert metrics["kl_rollout_train"] == pytest.approx(sum(r - 1 - math.log(r) for r in ratios) / 3)
    assert metrics["ratio_outside"] == pytest.approx((ratios[1] + ratios[2]) / sum(ratios))
    assert metrics["effective_sample_size"] == pytest.approx(sum(ratios) ** 2 / (3 * sum(r * r for r in ratios)))
    assert metrics["residual"] == pytest.approx(math.sqrt(4 * 0.25 / 12))


def test_mismatch_of_nothing_and_of_the_impossible():
    nothing = mismatch_metrics(mismatch_sums(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2))[None])
    assert nothing["logprob_mismatch_max"] == 0
    assert math.isnan(nothing["residual"])
    impossible = mismatch_sums(torch.full((1, 1), -1e4), torch.zeros(1, 1), torch.ones(1, 1))
    assert impossible.isfinite().all()


def test_outcomes_by_hand():
    outcomes = Outcomes(
        rewards=torch.tensor([0.5, NAN, 0.0, 1.0]),
        correct=torch.tensor([1.0, NAN, 0.0, 1.0]),
        lengths=torch.tensor([2.0, 4.0, 6.0, 9.0]),
        truncated=torch.tensor([0.0, 0.0, 1.0, 0.0]),
        not_finite=torch.tensor([0.0, 1.0, 0.0, 0.0]),
        out_of_bounds=torch.tensor([0.0, 1.0, 0.0, 0.0]),
        raised=torch.tensor([0.0, 1.0, 0.0, 0.0]),
        timed_out=torch.tensor([0.0, 1.0, 1.0, 0.0]),
        attempts=torch.tensor([0.0, 0.0, 2.0, 2.0]),
        first_correct=torch.tensor([1.0, NAN, 0.0, 0.0]),
    )
    expected = {
        "reward": 0.5,
        "accuracy": 2 / 3,
        "length_mean": 5.25,
        "length_correct_mean": 5.5,
        "truncated": 0.25,
        "unjudged": 1,
        "unjudged_share": 0.25,
        "not_finite": 1,
        "out_of_bounds": 1,
        "raised": 1,
        "timed_out": 2,
        "degenerate_groups": 3 / 4,  # of groups of two: two that were replaced, and one of the two that are there
        "resamples": 1,
        "accuracy_first": 1 / 3,
    }
    assert outcomes.metrics(torch.tensor([True, True, False, False])) == pytest.approx(expected)


def test_payload_by_hand():
    latents = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])[..., None]
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    sums = payload_sums(lambda states: states[..., 0] * 10, latents, mask)
    zeroed = 10 * (2 + 3 + 5)  # the first token of a row, and padding, do not count
    swapped = 10 * ((2 - 5) + (3 - 5) + (5 - 2))
    assert sums.tolist() == [zeroed, swapped, 3]


def test_gradient_cosines_by_hand():
    cosines = gradient_cosines([torch.tensor([1.0, 0.0]), torch.tensor([3.0, 4.0]), torch.zeros(2)])
    assert list(cosines) == ["gradient_cosine_0_1", "gradient_cosine_0_2", "gradient_cosine_1_2"]
    assert cosines["gradient_cosine_0_1"] == pytest.approx(0.6)
    assert math.isnan(cosines["gradient_cosine_0_2"])


def test_swapped_latents_repeat_the_other_rows_last():
    latents = torch.arange(6.0).view(2, 3, 1)
    assert swapped_latents(latents, torch.tensor([3, 2]))[..., 0].tolist() == [[3, 4, 4], [0, 1, 2]]


# --- layout of rollouts --------------------------------------------------------------------------


class _Model:
    device = torch.device("cpu")


def _completion(ids, reason):
    count = len(ids)
    return Completion(0, 0, ids, -torch.arange(1.0, count + 1), torch.full((count, 2), float(ids[0])), reason)


@pytest.mark.parametrize("pad", [0, 1])  # 1: padding with the very EOS hides no end
def test_layout_of_immediate_and_missing_ends(tmp_path, monkeypatch, pad):
    seen = {}

    def decode(model, prompts, params, **settings):
        seen.update(settings, params=params)
        return [
            _completion([1], "stop"),  # ends at once
            _completion([5, 6, 7], "length"),  # never ends
            _completion([8, 1], "stop"),
            _completion([9, 2], "stop"),  # a second end token
        ]

    monkeypatch.setattr(rollout, "decode", decode)
    stage = rl_context(tmp_path, tmp_path, group_size=2, max_new_tokens=3, temperature=0.5).config.stages["rl"]
    laid = sample_rollouts(
        _Model(), [[3, 4, 5], [6]], stage, eos_token_ids=[1, 2], pad_token_id=pad, seed=7, first_row=4
    )
    assert laid["prompt_ids"].tolist() == [[3, 4, 5], [3, 4, 5], [pad, pad, 6], [pad, pad, 6]]
    assert laid["prompt_mask"].tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 1], [0, 0, 1]]
    assert laid["completion_ids"].tolist() == [[1, pad, pad], [5, 6, 7], [8, 1, pad], [9, 2, pad]]
    assert laid["completion_mask"].tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0]]
    assert laid["rollout_log_probs"].tolist() == [[-1, 0, 0], [-1, -2, -3], [-1, -2, 0], [-1, -2, 0]]
    assert laid["latents"][..., 0].tolist() == [[1, 0, 0], [5, 5, 5], [8, 8, 0], [9, 9, 0]]
    assert laid["latents"].device.type == "cpu"
    assert list(seen["row_keys"]) == [4, 5, 6, 7]
    assert seen["seed"] == 7
    assert seen["return_latents"]
    params = seen["params"]
    assert (params.mode, params.temperature, params.num_samples, params.eos_token_ids) == ("soft", 0.5, 2, (1, 2))
    assert params.top_k is None
    assert params.top_p is None


def test_sampling_seeds_differ_by_batch_and_run():
    seeds = {sampling_seed(seed, batch) for seed in range(3) for batch in range(50)}
    assert len(seeds) == 150
    assert sampling_seed(1, 2) == sampling_seed(1, 2, 0)
    assert len({sampling_seed(1, 2, attempt) for attempt in range(9)}) == 9


# --- rollouts.parquet ----------------------------------------------------------------------------


def _rows(step):
    row = dict.fromkeys(record.SCHEMA.names) | {
        "step": step,
        "sample": 0,
        "mode": "soft",
        "correct": None,
        "reward": 1.0,
    }
    return [row, row | {"sample": 1}]


def test_record_survives_a_resume_without_duplicates(tmp_path):
    path = tmp_path / "stage" / "rollouts.parquet"
    record.truncate_rollouts(path, 3)  # nothing there yet
    for step in (1, 3, 5):
        record.append_rollouts(path, _rows(step))
    record.append_rollouts(path, _rows(3))  # run again from step 2
    assert pq.read_table(path)["step"].to_pylist() == [1, 1, 3, 3]
    record.truncate_rollouts(path, 2)
    table = pq.read_table(path)
    assert table["step"].to_pylist() == [1, 1]
    assert table.schema == record.SCHEMA
    assert [entry.name for entry in path.parent.iterdir()] == ["rollouts.parquet"]
