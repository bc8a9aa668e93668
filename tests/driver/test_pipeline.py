"""Which stages run, are skipped, go on or are refused; what a run folder says; errors. No Ray here."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import fake_stages
import pipeline_helpers as helpers
import pytest

import fbt_rl.driver.cluster
import fbt_rl.report
from fbt_rl.artifacts import RunFolder
from fbt_rl.config.file import dump_config, load_config
from fbt_rl.driver import pipeline
from fbt_rl.driver.inputs import Digests, stage_inputs
from fbt_rl.driver.lock import Locked, lock
from fbt_rl.driver.plan import RunRefused
from fbt_rl.driver.preflight import PreflightError
from fbt_rl.driver.progress import Display


@pytest.fixture
def go(tmp_path, monkeypatch, capsys):
    """Run a config in ``tmp_path/run``; returns what was printed."""
    monkeypatch.setattr(fbt_rl.driver.cluster, "Cluster", helpers.InProcess)
    monkeypatch.setattr(fbt_rl.report, "write_report", helpers.write_report)
    monkeypatch.setattr(helpers.InProcess, "started", 0)
    monkeypatch.setenv("FAKE_STAGES", str(tmp_path / "switches.json"))

    def run(config, switches=None, **options):
        (tmp_path / "switches.json").write_text(json.dumps(switches or {}))
        capsys.readouterr()
        pipeline.run(config, tmp_path / "run", functions=fake_stages.FUNCTIONS, display=Display(), **options)
        return capsys.readouterr().out

    return run


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"


def result(run_dir, name):
    return RunFolder(run_dir).stage(name).read_result()


def test_all_in_this_process_whatever_the_resources(go, run_dir):
    config = helpers.make_config(resources__workers=64, resources__grading="ray")
    with pytest.raises(pipeline.StageFailed, match="stage 'tuned' failed on rank 0: ValueError: no more"):
        go(config, {"fail_at": ["tuned", 3, "no more"]}, in_process=True)
    assert RunFolder(run_dir).read_state()["stages"]["tuned"]["status"] == "failed"
    out = go(config, in_process=True)
    assert helpers.InProcess.started == 0  # neither Ray nor what stands for it
    assert [line for line in out.splitlines() if line.startswith("[")] == [
        "[2/3] tuned (sft, 4 steps)",
        "[3/3] check (eval)",
    ]
    assert result(run_dir, "base") == {"loss": helpers.expected(6)}
    assert result(run_dir, "tuned") == {"loss": helpers.expected(4)}
    assert RunFolder(run_dir).read_state()["status"] == "finished"
    assert "nothing to do" in go(helpers.make_config())  # to the command it is a run like any other


def test_a_reward_file_travels_with_the_modules_that_it_imports(go, run_dir, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import helper\ndef good(completions, **columns): return helper.given(completions)"
    )
    (tmp_path / "helper.py").write_text("def given(completions): return [0.5] * len(completions)")
    config = helpers.make_config(stages__check__reward={"use": f"{tmp_path}/mine.py:good"})
    go(config)
    sent = run_dir / "user_code"
    assert sorted(path.name for path in sent.rglob("*.py")) == ["helper.py", "mine.py"]
    (tmp_path / "helper.py").write_text("def given(completions): return [1.0] * len(completions)")
    with pytest.raises(RunRefused, match=r"stages.check.reward.use: mine.py@\w+:good -> mine.py@\w+:good"):
        go(config)


def test_stages_run_in_order_and_the_folder_says_so(go, run_dir):
    config = helpers.make_config()
    out = go(config)
    assert result(run_dir, "base") == {"loss": helpers.expected(6)}
    assert result(run_dir, "tuned") == {"loss": helpers.expected(4)}
    assert [line for line in out.splitlines() if line.startswith("[")] == [
        "[1/3] base (pretrain, 6 steps)",
        "[2/3] tuned (sft, 4 steps)",
        "[3/3] check (eval)",
    ]
    state = RunFolder(run_dir).read_state()
    assert state["status"] == "finished"
    assert {name: stage["status"] for name, stage in state["stages"].items()} == dict.fromkeys(
        config.stages, "finished"
    )
    assert state["seed"] == config.seed
    assert {"torch", "ray", "deepspeed", "python"} <= set(state["versions"])
    assert load_config(run_dir / "config.yaml") == config
    said = json.loads(RunFolder(run_dir).stage("tuned").stage_json.read_text())
    assert said["hash"] == state["stages"]["tuned"]["hash"]
    assert said["inputs"]["source"].startswith("base@")
    source = (RunFolder(run_dir).stage("tuned").path / "source.txt").read_text()
    assert source == str(RunFolder(run_dir).stage("base").model_dir)


def test_a_finished_run_starts_nothing(go, run_dir):
    config = helpers.make_config()
    go(config)
    out = go(config)
    assert "is finished, nothing to do" in out
    assert helpers.InProcess.started == 1
    assert helpers.starts(run_dir, "base") == [0]


def test_a_finished_run_is_known_quickly_and_without_torch_or_ray(go, run_dir, tmp_path):
    config = helpers.make_config()
    go(config)
    (tmp_path / "config.yaml").write_text(dump_config(config))
    command = [sys.executable, "-X", "importtime", "-m", "fbt_rl.cli", "run", "config.yaml", "--run-dir", "run"]
    began = time.monotonic()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert time.monotonic() - began < 10
    assert "is finished" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "fbt_rl.driver.pipeline" in imported
    assert not imported & {"torch", "ray", "transformers", "deepspeed"}


def test_a_lost_report_is_written_again_without_workers(go, run_dir):
    config = helpers.make_config()
    go(config)
    shutil.rmtree(run_dir / "report")
    go(config)
    assert (run_dir / "report" / "index.html").is_file()
    assert helpers.InProcess.started == 1


def test_a_failed_stage_goes_on_from_its_checkpoint(go, run_dir):
    config = helpers.make_config()
    with pytest.raises(pipeline.StageFailed, match=r"stage 'tuned' failed on rank 0: ValueError: no more"):
        go(config, {"fail_at": ["tuned", 4, "no more"]})
    state = RunFolder(run_dir).read_state()
    assert state["status"] == "failed"
    assert "no more" in state["error"]
    assert [stage["status"] for stage in state["stages"].values()] == ["finished", "failed", "pending"]
    assert "Traceback" in (RunFolder(run_dir).stage("tuned").path / "error.log").read_text()

    out = go(config)
    assert helpers.starts(run_dir, "base") == [0]
    assert helpers.starts(run_dir, "tuned") == [0, 2]
    assert result(run_dir, "tuned") == {"loss": helpers.expected(4)}
    steps = [row["step"] for row in RunFolder(run_dir).stage("tuned").read_metrics()]
    assert steps == [1, 2, 3, 4]
    assert "tuned  sft       go on from its checkpoint" in out
    assert RunFolder(run_dir).read_state()["error"] is None


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"stages__tuned__steps": 5}, "stages.tuned.steps: 4 -> 5"),
        ({"stages__tuned__optimizer__learning_rate": 0.5}, "stages.tuned.optimizer.learning_rate: 0.001 -> 0.5"),
        ({"seed": 4}, "seed: 0 -> 4"),
        ({"deepspeed__zero_stage": 1}, "deepspeed.zero_stage: 2 -> 1"),
        ({"model__hidden_size": 64}, "model.hidden_size: 32 -> 64"),
    ],
)
def test_a_change_behind_a_finished_stage_is_refused_by_name(go, run_dir, change, line):
    go(helpers.make_config())
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}
    with pytest.raises(RunRefused, match=line.replace(".", r"\.")) as refused:
        go(helpers.make_config(**change))
    assert "--fresh" in str(refused.value)
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()} == before


def test_what_a_stage_starts_from_is_an_input():
    before = stage_inputs(helpers.make_config(), Digests({}))
    after = stage_inputs(helpers.make_config(stages__base__steps=9), Digests({}))
    assert all(before[name] != after[name] for name in ("base", "tuned", "check"))


def test_a_digest_is_kept_as_long_as_size_and_time_are_the_same(tmp_path):
    path, digests = tmp_path / "data.jsonl", Digests({})
    path.write_text("{}")
    before = digests.of(path)
    path.write_text("{} ")
    assert digests.of(path) != before
    kept = {str(path): digests.known[str(path)] | {"sha256": "as remembered"}}
    assert Digests(kept).of(path) == "as remembered"


def test_what_does_not_change_results_may_change(go):
    go(helpers.make_config())
    changed = helpers.make_config(
        resources__workers=2,
        resources__max_failures=0,
        stages__base__log_every=1,
        stages__base__keep_checkpoints=5,
        stages__tuned__micro_batch_rows=1,
        stages__check__batch_size=3,
        stages__tuned__init_from="base",
    )
    assert "is finished" in go(changed)


def test_half_done_work_of_another_config_is_refused(go):
    with pytest.raises(pipeline.StageFailed):
        go(helpers.make_config(), {"fail_at": ["base", 5, "stop"]})
    with pytest.raises(RunRefused, match=r"'base' is half done"):
        go(helpers.make_config(stages__base__steps=8))
    with pytest.raises(RunRefused, match=r"half done by 1 workers, now there would be 2: set resources.workers=1"):
        go(helpers.make_config(resources__workers=2))


def test_work_without_a_checkpoint_is_redone_with_a_new_config(go, run_dir):
    with pytest.raises(pipeline.StageFailed):
        go(helpers.make_config(), {"fail_at": ["base", 1, "stop"]})
    go(helpers.make_config(stages__base__steps=3))
    assert result(run_dir, "base") == {"loss": helpers.expected(3)}
    assert helpers.starts(run_dir, "base") == [0]  # the first try's file went with its folder


def test_a_stage_added_later_is_all_that_runs(go, run_dir):
    go(helpers.make_config())
    go(helpers.make_config(stages__arm={**helpers.training(3), "kind": "extend", "rope_theta_full": 5e4}))
    assert helpers.starts(run_dir, "base") == helpers.starts(run_dir, "tuned") == [0]
    assert helpers.starts(run_dir, "arm") == [0]


def test_data_counts_by_content_not_by_place_or_time(go, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"q": "1+1", "a": "2"}\n')

    def config(path):
        return helpers.make_config(
            stages__tuned__data={"kind": "files", "paths": [str(path)], "prompt": "q", "completion": "a"}
        )

    go(config(rows))
    rows.touch()
    assert "is finished" in go(config(rows))
    moved = tmp_path / "elsewhere" / "rows.jsonl"
    moved.parent.mkdir()
    rows.rename(moved)
    assert "is finished" in go(config(moved))
    moved.write_text('{"q": "1+2", "a": "3"}\n')
    with pytest.raises(RunRefused, match=r"stages\.tuned\.data\.paths\.0: rows\.jsonl@\w+ -> rows\.jsonl@\w+"):
        go(config(moved))


def test_a_reward_file_reaches_the_workers_by_content(go, run_dir, tmp_path):
    reward = tmp_path / "mine.py"
    reward.write_text("def good(prompts, completions, completion_ids, **columns):\n    return [1.0] * len(prompts)\n")
    config = helpers.make_config(stages__check__reward={"use": f"{reward}:good"})
    seen = []
    work = pipeline.work
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "work", lambda assignment: (seen.append(assignment), work(assignment)))
        go(config)
    copy, _, function = seen[0].config.stages["check"].reward.use.rpartition(":")
    assert function == "good"
    assert copy.startswith(str(run_dir))
    assert Path(copy).read_text() == reward.read_text()
    reward.write_text(reward.read_text().replace("1.0", "0.5"))
    with pytest.raises(RunRefused, match=r"stages\.check\.reward\.use: mine\.py@"):
        go(config)


def test_fresh_keeps_the_old_run_aside(go, run_dir):
    go(helpers.make_config())
    go(helpers.make_config(seed=7), fresh=True)
    kept = list(run_dir.parent.glob("run.before-*"))
    assert len(kept) == 1
    assert result(kept[0], "base") == result(run_dir, "base")
    assert RunFolder(kept[0]).read_state()["seed"] == 0
    assert RunFolder(run_dir).read_state()["seed"] == 7


def test_a_folder_of_something_else_is_left_alone(go, run_dir):
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text("precious: true")
    for fresh in (False, True):
        with pytest.raises(RunRefused, match=r"is not a run folder \(it holds config\.yaml\)"):
            go(helpers.make_config(), fresh=fresh)
    assert (run_dir / "config.yaml").read_text() == "precious: true"


def test_a_second_process_is_refused(go, run_dir):
    run_dir.mkdir()
    with lock(run_dir / ".lock"), pytest.raises(Locked, match=r"another fbt-rl run is at work"):
        go(helpers.make_config())
    go(helpers.make_config())


def test_a_full_disk_ends_with_its_message_and_keeps_what_is_finished(go, run_dir, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    config = helpers.make_config(stages__base__checkpoint_every=6, stages__base__steps=5)
    save = fake_stages._save
    monkeypatch.setattr(fake_stages, "_save", full)
    with pytest.raises(pipeline.StageFailed, match=r"'tuned' failed .* No space left on device"):
        go(config)
    assert result(run_dir, "base") == {"loss": helpers.expected(5)}
    monkeypatch.setattr(fake_stages, "_save", save)
    go(config)
    assert result(run_dir, "tuned") == {"loss": helpers.expected(4)}


def test_nothing_is_made_where_preflight_fails(go, run_dir):
    with pytest.raises(PreflightError, match=r"5 workers x 1 CPU = 5 CPUs"):
        go(helpers.make_config(resources__workers=5))
    assert not run_dir.exists()


def test_a_job_of_ray_does_not_write_into_its_passing_folder(tmp_path, monkeypatch):
    config = helpers.make_config()
    passing = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    passing.mkdir(parents=True)
    monkeypatch.chdir(passing)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert pipeline.choose_run_dir(config) == tmp_path / "home" / "fbt-rl" / "runs" / "count"
    assert pipeline.choose_run_dir(config, tmp_path / "x") == tmp_path / "x"
    monkeypatch.chdir(tmp_path)
    assert pipeline.choose_run_dir(config) == tmp_path / "runs" / "count"
