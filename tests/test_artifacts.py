"""The run folder: whole or absent, also after a kill."""

import json

import pytest

from fbt_rl.artifacts import RunFolder, StageFolder, checkpoint_step, write_json


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["value.json"]


def test_a_write_that_the_disk_refuses_leaves_nothing_of_its_own(tmp_path, monkeypatch):
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["value.json"]


def test_finished_only_with_a_result(tmp_path):
    stage = RunFolder(tmp_path).stage("sft")
    stage.append_metrics({"step": 1})
    assert not stage.finished()
    stage.write_result({"loss": 1.0})
    assert stage.finished()
    assert stage.read_result() == {"loss": 1.0}


def test_metrics_survive_a_cut_line_and_are_truncated_for_a_resume(tmp_path):
    stage = StageFolder(tmp_path)
    for step in (1, 2, 3):
        stage.append_metrics({"step": step})
    with stage.metrics_path.open("a") as file:
        file.write('{"step": 4, "lo')
    assert [row["step"] for row in stage.read_metrics()] == [1, 2, 3]
    stage.truncate_metrics(2)
    stage.append_metrics({"step": 3, "again": True})
    assert stage.read_metrics() == [{"step": 1}, {"step": 2}, {"step": 3, "again": True}]


def test_checkpoints_are_whole_ordered_and_pruned(tmp_path):
    stage = StageFolder(tmp_path)
    assert stage.latest_checkpoint() is None
    for step in (5, 20, 999_999, 1_000_000):  # the last two are not in the order of their names
        stage.checkpoint_dir(step).mkdir(parents=True)
    (stage.checkpoints_dir / ".step-000200.tmp").mkdir()  # a save that was killed
    assert [checkpoint_step(path) for path in stage.checkpoints()] == [5, 20, 999_999, 1_000_000]
    stage.prune_checkpoints(keep=2)
    assert [path.name for path in sorted(stage.checkpoints_dir.iterdir())] == ["step-1000000", "step-999999"]
    with pytest.raises(ValueError, match="not a checkpoint folder"):
        checkpoint_step(tmp_path)
