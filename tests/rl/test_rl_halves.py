"""Rollouts alone, and training alone on a saved batch."""

import json

import pytest
import torch
from rl_cases import rl_context, run_rl, save_source, timeless
from safetensors.torch import load_file

from fbt_rl.config.file import ConfigError
from fbt_rl.driver.inputs import absolute_paths
from fbt_rl.driver.preflight import PreflightError, check_run
from fbt_rl.driver.resources import Available

CHANGES = {"steps": 2, "updates_per_batch": 2, "checkpoint_every": 2, "kl_weight": 0.05, "standard_weight": 0.1}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return save_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def sampled(source, tmp_path_factory):
    folder, result = run_rl(source, tmp_path_factory.mktemp("sampled"), **CHANGES, only_rollouts=True)
    return folder, result


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_only_rollouts_leaves_a_batch_and_the_model_as_it_was(sampled, source):
    folder, result = sampled
    assert 0 < result["accuracy"] < 1
    assert folder.read_metrics() == []
    assert folder.checkpoints() == []
    assert folder.rollouts_path.is_file()
    batch = load_file(folder.batch_dir / "rank-0.safetensors")
    assert batch["completion_ids"].shape[0] == 8
    assert batch["latents"].shape == (*batch["completion_ids"].shape, 32)
    facts = json.loads((folder.batch_dir / "batch.json").read_text())["sampled"]
    assert (facts["mode"], facts["temperature"], facts["ranks"]) == ("soft", 1.0, 1)
    before, after = weights(source), weights(folder.model_dir)
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_saved_batch_trains_as_the_stage_that_samples_it(sampled, source, tmp_path):
    whole, _ = run_rl(source, tmp_path / "whole", **CHANGES)
    parts = [run_rl(source, tmp_path / name, **CHANGES, saved_batch=str(sampled[0].batch_dir))[0] for name in "ab"]
    assert timeless(parts[0]) == timeless(parts[1]) == timeless(whole)
    assert len({row["loss"] for row in timeless(whole)}) == 2
    for part in parts:
        other = weights(part.model_dir)
        assert all(torch.equal(value, other[name]) for name, value in weights(whole.model_dir).items())
        assert not part.rollouts_path.exists()  # nothing was sampled


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"mode": "fused"}, "mode: soft -> fused"),
        ({"temperature": 0.7}, "temperature: 1.0 -> 0.7"),
        ({"group_size": 2}, "group_size: 4 -> 2"),
    ],
)
def test_a_batch_sampled_otherwise_is_refused(sampled, source, tmp_path, changes, names):
    with pytest.raises(ConfigError, match=rf"was not sampled as this stage would \(saved -> now\): {names}"):
        run_rl(source, tmp_path, **CHANGES | changes, saved_batch=str(sampled[0].batch_dir))


def test_a_batch_of_another_model_is_refused(sampled, tmp_path):
    other = save_source(tmp_path / "other", num_hidden_layers=1)
    with pytest.raises(ConfigError, match=r"saved_batch: .* model: "):
        run_rl(other, tmp_path / "run", **CHANGES, saved_batch=str(sampled[0].batch_dir))


def test_what_cannot_be_meant_is_refused(source, tmp_path):
    with pytest.raises(ValueError, match="one batch, good for updates_per_batch 1 steps, but steps is 2"):
        rl_context(source, tmp_path, saved_batch="somewhere")
    with pytest.raises(ValueError, match="set one of them"):
        rl_context(source, tmp_path, steps=1, saved_batch="somewhere", only_rollouts=True)
    config = rl_context(source, tmp_path, steps=1, saved_batch="nowhere").config
    assert absolute_paths(config).stages["rl"].saved_batch.startswith("/")
    with pytest.raises(PreflightError, match=r"saved_batch: nowhere is not a saved batch"):
        check_run(config, tmp_path, ["rl"], Available(2, 0, "this machine"))
