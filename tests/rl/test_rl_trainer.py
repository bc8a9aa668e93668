"""The RL stage as it runs: metrics, masks, resuming, ranks, and the seams into TRL."""

import dataclasses
import inspect
import json
import math
import shutil

import pyarrow.parquet as pq
import pytest
import torch
from rl_cases import rl_context, run_rl, save_source, timeless
from safetensors.torch import load_file
from stage_helpers import assert_adapter_is_the_model, finish_ranks, start_ranks
from trl.trainer.grpo_trainer import GRPOTrainer

from fbt_rl.config import RLStage
from fbt_rl.config.file import ConfigError
from fbt_rl.model import load_model
from fbt_rl.training.deepspeed import split_batch
from rl.record import SCHEMA
from rl.rollout import sample_completions
from rl.scoring import scoring_inputs

ROW = {
    *("step", "reward", "accuracy", "length_mean", "length_correct_mean", "truncated", "unjudged", "seconds"),
    *("logprob_mismatch_max", "logprob_mismatch_mean", "kl_rollout_train", "residual", "effective_sample_size"),
    *("ratio_outside", "learning_rate", "grad_norm", "loss"),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return save_source(tmp_path_factory.mktemp("source"))


def weights(folder):
    return load_file(folder / "model.safetensors")


def unmoved(source, folder):
    before, after = weights(source), weights(folder.model_dir)
    return all(torch.equal(value, after[name]) for name, value in before.items())


@pytest.fixture(scope="module")
def finished(source, tmp_path_factory):
    changes = {"steps": 6, "checkpoint_every": 2, "keep_checkpoints": 3, "save_rollouts_every": 2}
    return *run_rl(source, tmp_path_factory.mktemp("finished"), **changes), changes


# --- a whole run ---------------------------------------------------------------------------------


def test_every_step_has_every_metric(finished, source):
    folder, result, _ = finished
    rows = folder.read_metrics()
    assert [row["step"] for row in rows] == list(range(1, 7))
    assert all(set(row) >= ROW for row in rows)
    assert all(row["logprob_mismatch_max"] <= 1e-4 and row["residual"] < 1e-5 for row in rows)
    assert all(row["effective_sample_size"] == pytest.approx(1.0) and row["ratio_outside"] == 0 for row in rows)
    assert 0 < rows[0]["truncated"] < 1  # some end, some do not
    assert abs(rows[0]["payload_swapped"]) > 1e-3  # the first batch is probed
    assert set(rows[0]) >= {"norm_value", "norm_gate"}
    assert result["logprob_mismatch_max"] == max(row["logprob_mismatch_max"] for row in rows)
    assert "seconds" not in result
    assert not unmoved(source, folder)
    assert load_model(folder.model_dir).config.model_type == "fbt"


def test_rollouts_are_kept(finished):
    table = pq.read_table(finished[0].rollouts_path)
    assert table.schema.names == SCHEMA.names
    rows = table.to_pylist()
    assert sorted({row["step"] for row in rows}) == [1, 3, 5]
    assert len(rows) == 3 * 8
    for row in rows:
        # Truncated is wrong, whatever the reward says of it.
        assert row["correct"] == (row["num_tokens"] % 2 == 1 and row["finish_reason"] == "stop")
        assert (row["reward"] > 0) == row["correct"]
        assert row["finish_reason"] == "stop" or row["num_tokens"] == 8
        assert row["problem_id"] == f"arithmetic:{row['prompt']}"
    groups = [rows[start : start + 4] for start in range(0, len(rows), 4)]
    assert all(len({row["prompt"] for row in group}) == 1 for group in groups)
    assert all([row["sample"] for row in group] == [0, 1, 2, 3] for group in groups)
    assert all(sum(row["advantage"] for row in group) == pytest.approx(0, abs=1e-5) for group in groups)


def test_a_killed_run_goes_on_as_if_it_had_not_been(finished, source, tmp_path):
    folder, result, changes = finished
    shutil.copytree(folder.path, tmp_path, dirs_exist_ok=True)  # metrics and rollouts reach past the checkpoint
    shutil.rmtree(tmp_path / "model")
    for step in (4, 6):
        shutil.rmtree(tmp_path / "checkpoints" / f"step-{step:06d}")
    resumed, again = run_rl(source, tmp_path, **changes)
    assert timeless(resumed) == timeless(folder)
    assert again == result
    assert pq.read_table(resumed.rollouts_path) == pq.read_table(folder.rollouts_path)
    first, second = weights(folder.model_dir), weights(resumed.model_dir)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_two_updates_a_batch_resume_between_batches(source, tmp_path):
    changes = {"steps": 4, "updates_per_batch": 2, "checkpoint_every": 2, "micro_batch_rows": 4}
    whole, _ = run_rl(source, tmp_path / "a", **changes)
    rows = timeless(whole)
    assert [rows[0]["reward"], rows[2]["reward"]] == [rows[1]["reward"], rows[3]["reward"]]  # one batch for two steps
    shutil.copytree(whole.path, tmp_path / "b")
    shutil.rmtree(tmp_path / "b" / "checkpoints" / "step-000004")
    assert timeless(run_rl(source, tmp_path / "b", **changes)[0]) == rows
    with pytest.raises(ValueError, match=r"checkpoint_every 3 is not a multiple of updates_per_batch 2"):
        rl_context(source, tmp_path, **changes | {"checkpoint_every": 3})


# --- the loss ------------------------------------------------------------------------------------


REPLAY, JACOBI, SEQUENTIAL = {"use": "replay", "passes": 1}, {"use": "jacobi", "passes": 8}, {"use": "sequential"}


@pytest.mark.parametrize(
    ("mode", "scorer", "checkpointing"),
    [
        ("standard", REPLAY, False),
        ("standard", SEQUENTIAL, False),
        ("soft", REPLAY | {"passes": 0}, False),
        ("soft", REPLAY | {"passes": 2}, True),
        ("soft", JACOBI, True),  # as many passes as tokens
        ("soft", SEQUENTIAL, True),
        ("fused", REPLAY, False),
        ("fused", JACOBI | {"detach": True}, True),
        ("fused", SEQUENTIAL, False),
    ],
)
def test_training_scores_what_was_sampled(source, tmp_path, mode, scorer, checkpointing):
    changes = {"mode": mode, "scorer": scorer, "temperature": 0.7, "gradient_checkpointing": checkpointing}
    folder, _ = run_rl(source, tmp_path, steps=1, **changes)
    (row,) = folder.read_metrics()
    assert row["logprob_mismatch_max"] <= 1e-4
    assert row["residual"] is None if mode == "standard" else row["residual"] < 1e-5
    moved = weights(folder.model_dir)
    same = torch.equal(moved["model.feedback.value_proj.weight"], weights(source)["model.feedback.value_proj.weight"])
    assert same == (mode == "standard")


def test_too_few_jacobi_passes_are_noticed(source, tmp_path):
    limits = {"logprob_mismatch_mean": {"stop": None}}
    folder, _ = run_rl(source, tmp_path, steps=1, scorer=JACOBI | {"passes": 2}, limits=limits)
    (row,) = folder.read_metrics()
    assert row["logprob_mismatch_max"] > 1e-2
    assert row["residual"] > 1e-2


def test_accumulation_does_not_change_the_gradient(source, tmp_path):
    whole, _ = run_rl(source, tmp_path / "whole", steps=1)
    parts, _ = run_rl(source, tmp_path / "parts", steps=1, micro_batch_rows=2)
    one, other = timeless(whole)[0], timeless(parts)[0]
    for key in ("loss", "grad_norm", "reward", "length_mean"):
        assert one[key] == pytest.approx(other[key], rel=1e-5), key


def test_scoring_in_parts_changes_nothing(source, tmp_path, monkeypatch):
    whole, _ = run_rl(source, tmp_path / "whole", mode="fused", steps=1)
    monkeypatch.setattr("rl.scoring._PART_ROWS", 2)
    calls = []
    original = scoring_inputs
    monkeypatch.setattr("rl.scoring.scoring_inputs", lambda *a, **k: calls.append(a[3]) or original(*a, **k))
    parts, _ = run_rl(source, tmp_path / "parts", mode="fused", steps=1)
    assert len(calls) % 4 == 0
    assert calls[-4:] == sorted(calls[-4:])  # short ones first, each part as long as it has to be
    assert calls[-4] < calls[-1]
    one, other = timeless(whole)[0], timeless(parts)[0]
    for key in ("loss", "grad_norm", "payload_swapped", "entropy"):
        assert one[key] == pytest.approx(other[key], rel=1e-4), key
    assert other["logprob_mismatch_max"] <= 1e-4
    assert other["residual"] < 1e-5


# --- rewards that say nothing --------------------------------------------------------------------


@pytest.mark.parametrize("reward", ["undecided", "always_one"])
def test_nothing_to_learn_moves_nothing(source, tmp_path, monkeypatch, reward):
    def untruncated(*args, **kwargs):
        return [dataclasses.replace(row, finish_reason="stop") for row in sample_completions(*args, **kwargs)]

    monkeypatch.setattr("rl.collector.sample_completions", untruncated)
    folder, result = run_rl(source, tmp_path, rewards=[{"use": f"reward_functions:{reward}"}], length=None)
    rows = folder.read_metrics()
    assert unmoved(source, folder)
    assert [row["loss"] for row in rows] == [0.0, 0.0]
    assert [row["unjudged"] for row in rows] == [8 if reward == "undecided" else 0] * 2
    assert [row["reward"] for row in rows] == [None if reward == "undecided" else 1.0] * 2
    assert all(math.isfinite(value) for value in result.values())


# --- adapters, ranks -----------------------------------------------------------------------------


def test_standard_mode_leaves_the_feedback_alone(source, tmp_path):
    optimizer = {"learning_rate": 1e-3, "warmup_steps": 1, "weight_decay": 0.5}
    folder, _ = run_rl(source, tmp_path, mode="standard", lora={"r": 2}, optimizer=optimizer)
    before, after = weights(source), weights(folder.model_dir)
    names = [name for name in before if "feedback" in name]
    assert len(names) == 2
    assert all(torch.equal(before[name], after[name]) for name in names)
    assert not unmoved(source, folder)


@pytest.mark.parametrize("scorer", [REPLAY, JACOBI, SEQUENTIAL], ids=lambda scorer: scorer["use"])
def test_adapters_are_merged_into_the_exported_model(source, tmp_path, scorer):
    folder, _ = run_rl(source, tmp_path, lora={"r": 2, "dropout": 0.1}, scorer=scorer)
    assert all(row["logprob_mismatch_max"] <= 1e-4 for row in folder.read_metrics())
    before, after = weights(source), weights(folder.model_dir)
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"model.feedback.value_proj.weight", "model.text_model.layers.0.mlp.up_proj.weight"} <= changed
    assert "model.text_model.embed_tokens.weight" not in changed
    assert_adapter_is_the_model(source, folder)


RANK = """
import json
import sys
from pathlib import Path
import torch.distributed as dist
import rl.scoring
from rl_cases import run_rl
rl.scoring._PART_ROWS = 2  # several forward passes before one backward pass
dist.init_process_group("gloo")  # as Ray's workers do
changes = json.loads(sys.argv[4])
run_rl(Path(sys.argv[1]), Path(sys.argv[2]), deepspeed={"zero_stage": int(sys.argv[3])}, **changes)
"""


@pytest.mark.parametrize(
    ("zero_stage", "changes"),
    [
        # Ranks whose longest completions differ have to run equally many passes; plain replay: test_rl_gradients.py.
        (3, {"latents": "recompute"}),
    ],
)
def test_two_ranks_are_one(source, tmp_path, zero_stage, changes):
    processes = start_ranks(RANK, str(source), str(tmp_path / "two"), str(zero_stage), json.dumps(changes))
    one, _ = run_rl(source, tmp_path / "one", **changes)
    for code, output in finish_ranks(processes):
        assert code == 0, output[-3000:]
    two = rl_context(source, tmp_path / "two").folder
    for alone, together in zip(timeless(one), timeless(two), strict=True):
        for key in ("loss", "grad_norm", "reward", "accuracy", "length_mean", "truncated", "unjudged"):
            assert alone[key] == pytest.approx(together[key], rel=1e-4), key
        assert together["logprob_mismatch_max"] <= 1e-4
    columns = ["problem_id", "sample", "completion", "reward"]
    rows = [pq.read_table(folder.rollouts_path).select(columns) for folder in (one, two)]
    assert rows[0] == rows[1]


# --- what is refused -----------------------------------------------------------------------------


def test_groups_stay_whole_on_every_rank(source, tmp_path):
    stage = rl_context(source, tmp_path, prompts_per_step=3, group_size=4).config.stages["rl"]
    assert isinstance(stage, RLStage)
    with pytest.raises(ConfigError, match=r"prompts_per_step is 3.*2 ranks needs whole groups of 4"):
        split_batch(stage, 2)
    assert split_batch(stage, 3).micro_batch_rows == 4


def test_feedback_modes_need_feedback(tmp_path):
    plain = save_source(tmp_path / "plain", fusion="none")
    with pytest.raises(ConfigError, match=r"mode is 'soft'.*no latent feedback.*only mode 'standard'"):
        run_rl(plain, tmp_path / "out", mode="soft")
    run_rl(plain, tmp_path / "standard", mode="standard", steps=1)


def test_prompts_that_do_not_fit(source, tmp_path, caplog):
    with pytest.raises(ConfigError, match=r"all prompts with max_new_tokens 31 are longer than .* 32 tokens"):
        run_rl(source, tmp_path / "none", max_new_tokens=31)
    folder, _ = run_rl(source, tmp_path / "some", max_new_tokens=25, steps=1, save_rollouts_every=1)
    assert all(len(row["prompt"]) <= 5 for row in pq.read_table(folder.rollouts_path).to_pylist())
    assert "prompts are passed over" in caplog.text


# --- the seams into TRL --------------------------------------------------------------------------

CHANGED = "TRL's GRPOTrainer has changed: look at what rl/trainer.py replaces before raising its version bound"


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("_generate_and_score_completions", ["self", "inputs"]),
        ("_compute_loss", ["self", "model", "inputs"]),
        ("log", ["self", "logs", "start_time"]),
    ],
)
def test_replaced_methods_keep_their_signature(method, parameters):
    assert list(inspect.signature(getattr(GRPOTrainer, method)).parameters) == parameters, CHANGED


@pytest.mark.parametrize(
    ("method", "fragments"),
    [
        (
            "_prepare_inputs",
            ["self._step % generate_every == 0", "split_tensor_dict(", "% self.args.steps_per_generation"],
        ),
        ("compute_loss", ["self._compute_loss(model, inputs)"]),
        ("training_step", ["self._step += 1"]),
    ],
)
def test_what_is_relied_on_is_still_there(method, fragments):
    text = inspect.getsource(inspect.unwrap(getattr(GRPOTrainer, method)))
    missing = [fragment for fragment in fragments if fragment not in text]
    assert not missing, f"{CHANGED} ({method} no longer has {missing})"
