"""What a rank does around a stage: order, errors, output, and leaving nothing to the next stage."""

import os
import subprocess
import sys

import fake_stages
import pipeline_helpers as helpers
import pytest
import torch.distributed

from fbt_rl.artifacts import RunFolder, StageFolder
from fbt_rl.driver import worker
from fbt_rl.driver.lock import Locked, lock
from fbt_rl.driver.progress import MetricsTail, duration


def assignment(run_dir, config=None):
    config = config or helpers.make_config()
    functions = {name: fake_stages.FUNCTIONS[stage.kind] for name, stage in config.stages.items()}
    run_dir.mkdir(exist_ok=True)
    return worker.Assignment(config, run_dir, functions, threads=1)


def test_a_group_started_again_passes_over_finished_stages(tmp_path):
    worker.work(assignment(tmp_path))
    (RunFolder(tmp_path).stage("tuned").result_path).unlink()
    worker.work(assignment(tmp_path))
    assert helpers.starts(tmp_path, "base") == [0]
    assert helpers.starts(tmp_path, "tuned") == [0, 4]


def test_workers_hold_the_lock_together_and_keep_a_new_driver_out(tmp_path):
    path = worker.workers_lock(tmp_path)
    with lock(path, shared=True), lock(path, shared=True), pytest.raises(Locked), lock(path):
        pass
    with lock(path):
        pass


def test_the_source_is_the_stage_above_or_the_given_model(tmp_path):
    config = helpers.make_config()
    assert worker.source_model(config, tmp_path, "base") is None
    assert worker.source_model(config, tmp_path, "check") == tmp_path / "stages" / "tuned" / "model"
    given = helpers.make_config(model={"path": "/some/model"}, stages={"check": config.stages["check"].model_dump()})
    assert str(worker.source_model(given, tmp_path, "check")) == "/some/model"


def test_output_goes_to_the_file_also_from_child_processes(tmp_path, capfd):
    with worker.output_to(tmp_path / "deep" / "log.txt"):
        subprocess.run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr)"], check=True)
    subprocess.run(["echo", "after"], check=True)
    assert (tmp_path / "deep" / "log.txt").read_text().split() == ["out", "err"]
    assert capfd.readouterr().out.strip() == "after"


def test_what_is_no_unicode_text_does_not_end_a_stage(tmp_path):
    code = "import sys, fbt_rl.driver.worker as w\nwith w.output_to(w.Path(sys.argv[1])): print('\\ud800')"
    subprocess.run([sys.executable, "-c", code, tmp_path / "log.txt"], check=True)
    assert (tmp_path / "log.txt").read_text() == "\\ud800\n"


def test_the_first_error_is_kept_whole_with_its_message_apart(tmp_path):
    folder = StageFolder(tmp_path)
    assert worker.failure(folder) is None
    for rank, text in ((1, "first \ud800\n\nwith a gap"), (0, "second")):
        try:
            raise ValueError(text)
        except ValueError as error:
            worker.record_failure(error, folder, rank)
    assert worker.failure(folder) == "rank 1: ValueError: first \\ud800\nwith a gap"
    assert "Traceback" in worker.error_log(folder).read_text()


def test_a_lost_peer_is_told_from_an_error_of_this_rank():
    gloo = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4242")
    wrapped = OSError("could not save step-000004")
    wrapped.__cause__ = gloo
    assert worker._peer_lost(gloo)
    assert worker._peer_lost(wrapped)
    assert worker._peer_lost(torch.distributed.DistNetworkError("timed out"))
    assert not worker._peer_lost(RuntimeError("loss is not finite"))
    assert not worker._peer_lost(ValueError("Connection closed by peer"))


def test_nothing_of_a_stage_is_left_in_the_process(monkeypatch):
    from accelerate.state import AcceleratorState, PartialState

    before = dict(os.environ)
    PartialState(cpu=True)
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    os.environ.pop("PATH")
    worker._clean_slate(before)
    assert dict(os.environ) == before
    assert not PartialState._shared_state
    assert not AcceleratorState._shared_state


def test_a_metrics_file_is_followed_through_half_lines_and_cuts(tmp_path):
    folder = StageFolder(tmp_path)
    tail = MetricsTail(folder.metrics_path)
    assert tail.new_rows() == []
    folder.append_metrics({"step": 1})
    with folder.metrics_path.open("a") as file:
        file.write('{"step": ')
    assert tail.new_rows() == [{"step": 1}]
    with folder.metrics_path.open("a") as file:
        file.write("2}\n")
    assert tail.new_rows() == [{"step": 2}]
    folder.truncate_metrics(1)
    assert tail.new_rows() == [{"step": 1}]
    folder.append_metrics({"step": 2})
    assert tail.new_rows() == [{"step": 2}]


def test_durations_are_readable():
    assert [duration(s) for s in (0.2, 59, 61, 3_700)] == ["0 s", "59 s", "1 min 1 s", "1 h 1 min"]
