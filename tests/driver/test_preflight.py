"""Every fault that can be known before workers start ends there, with a message that names it."""

import json
import os
import shutil
from contextlib import nullcontext

import pipeline_helpers as helpers
import pytest

from fbt_rl.config.file import ConfigError, load_config
from fbt_rl.driver.preflight import PreflightError, check_run
from fbt_rl.driver.resources import Available, GroupSize, ResourceError, plan_group

MACHINE = Available(cpus=2, gpus=0, where="this machine")
TABLE = {"kind": "files", "prompt": "q", "completion": "a", "answer": "a"}


def check(config, folder, available=MACHINE):
    check_run(config, folder / "run", list(config.stages), available)


def rl(**more):
    return {
        "kind": "rl",
        "data": {"kind": "arithmetic", "size": 20},
        "steps": 2,
        "prompts_per_step": 4,
        "group_size": 4,
        "max_new_tokens": 8,
        "optimizer": {"learning_rate": 1e-3},
        **more,
    }


def test_a_sound_config_passes(tmp_path):
    check(helpers.make_config(stages__rl=rl()), tmp_path)
    for name in ("tiny", "smoke"):
        check(load_config(name), tmp_path)


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (None, r"stages.tuned.data: no data file .*rows.jsonl"),
        ("", r"stages.tuned.data: .*rows.jsonl is empty"),
        ('{"q": "1+1"}\n', r"stages.tuned.data: .*rows.jsonl, row 1: no column 'a'; its columns are q"),
    ],
)
def test_data(tmp_path, rows, fault):
    path = tmp_path / "rows.jsonl"
    if rows is not None:
        path.write_text(rows)
    with pytest.raises(PreflightError, match=fault):
        check(helpers.make_config(stages__tuned__data={**TABLE, "paths": [str(path)]}), tmp_path)


def test_data_of_the_guard(tmp_path):
    guard = {"data": {**TABLE, "paths": [str(tmp_path / "heldout.jsonl")]}}
    with pytest.raises(PreflightError, match=r"stages.rl.guard.data: no data file .*heldout.jsonl"):
        check(helpers.make_config(stages__rl=rl(guard=guard)), tmp_path)


def test_trackers_that_are_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr("fbt_rl.driver.preflight.find_spec", lambda name: name == "mlflow" or None)
    with pytest.raises(PreflightError, match=r"trackers: wandb, trackio cannot be imported: pip install wandb trackio"):
        check(helpers.make_config(trackers=["wandb", "mlflow", "trackio"]), tmp_path)
    check(helpers.make_config(trackers=["mlflow"]), tmp_path)


def test_rewards(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("1 +")
    for use, fault in (
        ("nothing", "stages.check: no reward 'nothing'"),
        (f"{tmp_path}/none.py:f", "no reward file"),
        (f"{broken}:f", "cannot be imported: SyntaxError"),
    ):
        with pytest.raises(PreflightError, match=fault):
            check(helpers.make_config(stages__check__reward={"use": use}), tmp_path)


def test_a_reward_is_tried_on_one_row_of_the_data(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"q": "1+1", "a": "two"}\n{"q": "1+2", "a": "3"}\n')
    reward = tmp_path / "mine.py"
    reward.write_text(
        "def number(prompts, completions, completion_ids, *, answer, **columns):\n"
        "    return [float(int(gold)) for gold in answer]\n"
        "def graded(prompts, completions, completion_ids, *, grade, **columns):\n"
        "    return grade\n"
        "def twice(prompts, completions, completion_ids, **columns):\n"
        "    return [0.0, 0.0]\n"
    )
    data = {**TABLE, "paths": [str(tmp_path / "rows.jsonl")]}
    for use, source, fault in (
        ("number", data, r"stages.rl: reward '.*:number' raised ValueError: invalid literal .* 'two'; it was tried on"),
        ("graded", data, r"stages.rl: reward '.*:graded' needs the column grade; given: prompts, .*answer"),
        ("twice", rl()["data"], r"stages.rl: reward '.*:twice' returned 2 results for 1 completions"),
        ("number", data | {"offset": 1}, None),
        ("number", rl()["data"], None),
    ):
        config = helpers.make_config(stages__rl=rl(data=source, rewards=[{"use": "math"}, {"use": f"{reward}:{use}"}]))
        with pytest.raises(PreflightError, match=fault) if fault else nullcontext():
            check(config, tmp_path)


def test_more_ranks_than_cores_shows_the_sum(tmp_path):
    with pytest.raises(PreflightError, match=r"3 workers x 2 CPU = 6 CPUs, this machine has 2: lower"):
        check(helpers.make_config(resources__workers=3, resources__cpus_per_worker=2), tmp_path)
    with pytest.raises(PreflightError, match=r"1 workers x 1 GPU = 1 GPUs, this machine has 0"):
        check(helpers.make_config(resources__gpus_per_worker=1), tmp_path)


def test_batches_that_do_not_divide(tmp_path):
    with pytest.raises(PreflightError, match=r"stages.base: batch_rows is 3, which does not divide over 2 ranks"):
        check(helpers.make_config(resources__workers=2, stages__base__batch_rows=3), tmp_path)
    with pytest.raises(PreflightError, match=r"stages.rl: prompts_per_step is 3"):
        check(helpers.make_config(resources__workers=2, stages__rl=rl(prompts_per_step=3)), tmp_path)


def test_a_model_without_feedback_serves_standard_mode_only(tmp_path):
    folder = tmp_path / "foreign"
    stages = {"check": {"kind": "eval", "data": {"kind": "arithmetic", "size": 5}, "max_new_tokens": 8}}
    config = helpers.make_config(model={"path": str(folder)}, stages=stages)
    with pytest.raises(PreflightError, match=r"model.path: .* is not a model folder"):
        check(config, tmp_path)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(PreflightError, match=r"no latent feedback .*'llama'.*, which stages check use"):
        check(config, tmp_path)
    check(helpers.make_config(model={"path": str(folder)}, stages=stages, stages__check__modes=["standard"]), tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": "fbt", "fusion": "gate"}))
    check(config, tmp_path)


def test_room_and_rights(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 9 * 10**8, 10**8))
    with pytest.raises(PreflightError, match=r"needs about .* GiB, .* has 0.1 GiB free: make room"):
        check(helpers.make_config(), tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PreflightError, match=f"cannot write into {tmp_path}: choose another --run-dir"):
        check(helpers.make_config(), tmp_path)


def test_all_faults_are_told_at_once(tmp_path):
    config = helpers.make_config(
        resources__workers=9,
        stages__tuned__data={**TABLE, "paths": ["nowhere.jsonl"]},
        stages__check__reward={"use": "nothing"},
    )
    with pytest.raises(PreflightError) as found:
        check(config, tmp_path)
    told = str(found.value).splitlines()
    assert len(told) == 3
    assert sum("9 workers" in line for line in told) == 1


def test_out_of_range_and_unknown_keys_name_the_path():
    with pytest.raises(ConfigError, match=r"stages.base.steps: .*greater than or equal to 1"):
        helpers.make_config(stages__base__steps=0)
    with pytest.raises(ConfigError, match=r"stages.base.stepz: unknown key; did you mean 'steps'"):
        helpers.make_config(stages__base__stepz=1)


@pytest.mark.parametrize(
    ("resources", "there", "size"),
    [
        ({}, (2, 0), GroupSize(2, 1, 0.0, 1)),
        ({}, (1, 0), GroupSize(1, 1, 0.0, 1)),
        ({}, (64, 0), GroupSize(2, 1, 0.0, 1)),
        ({}, (64, 8), GroupSize(8, 1, 1.0, 1)),
        ({"gpus_per_worker": 0.5}, (64, 2), GroupSize(4, 1, 0.5, 1)),
        ({"workers": 3, "cpus_per_worker": 2, "threads": 2}, (6, 0), GroupSize(3, 2, 0.0, 2)),
        ({"workers": 4}, (8, 2), GroupSize(4, 1, 0.0, 1)),
        ({"grading": "ray"}, (2, 0), GroupSize(1, 1, 0.0, 1)),
        ({"grading": "ray"}, (3, 0), GroupSize(2, 1, 0.0, 1)),
    ],
)
def test_worker_groups(resources, there, size):
    wanted = helpers.make_config(resources=resources).resources
    assert plan_group(wanted, Available(*there, where="here")) == size


def test_a_group_that_does_not_fit_is_an_error():
    wanted = helpers.make_config(resources={"cpus_per_worker": 4}).resources
    with pytest.raises(ResourceError, match=r"1 workers x 4 CPU = 4 CPUs, here has 2"):
        plan_group(wanted, Available(2, 0, "here"))
    wanted = helpers.make_config(resources={"workers": 2, "grading": "ray"}).resources
    with pytest.raises(ResourceError, match=r"2 workers take all 2 CPUs of here, and resources.grading ray needs"):
        plan_group(wanted, Available(2, 0, "here"))
