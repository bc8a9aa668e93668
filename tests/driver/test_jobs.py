"""Ray Jobs against a real head on this machine; and, without one, what a job carries."""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pipeline_helpers as helpers
import psutil
import pytest

from fbt_rl.artifacts import RunFolder
from fbt_rl.config.file import ConfigError, dump_config, load_config
from fbt_rl.driver import jobs

BIN = Path(sys.executable).parent
WAIT_S = 300  # on a busy machine


def one_stage(steps, **more):
    """A real pretraining stage of some steps, with a report of nothing but its losses."""
    return helpers.make_config(resources__workers=1, stages={"base": helpers.training(steps, log_every=1, **more)})


# --- what a job carries --------------------------------------------------------------------------


def test_a_job_carries_code_config_and_the_files_named_by_relative_path(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    rows = tmp_path / "data" / "rows.jsonl"
    rows.write_text('{"q": "1+1", "a": "2"}\n')
    reward = tmp_path / "mine.py"
    reward.write_text("def good(prompts, completions, completion_ids, **columns):\n    return [1.0]\n")
    monkeypatch.chdir(tmp_path)
    data = {"kind": "files", "prompt": "q", "completion": "a"}
    config = helpers.make_config(
        stages__base__data=[{"kind": "files", "paths": ["/far/away.txt"]}],
        stages__tuned__data={**data, "paths": ["data/rows.jsonl"]},
        stages__check__reward={"use": f"{reward}:good"},
    )
    folder = tmp_path / "packed"
    folder.mkdir()
    jobs.pack(config, folder)
    packed = load_config(folder / "config.yaml")
    assert packed.stages["base"].data[0].paths == ["/far/away.txt"]
    sent = packed.stages["tuned"].data.paths[0]
    assert (folder / sent).read_text() == rows.read_text()
    use, _, function = packed.stages["check"].reward.use.rpartition(":")
    assert (folder / use).read_text() == reward.read_text()
    assert function == "good"
    names = {path.name for path in folder.iterdir()}
    assert names == {"fbt_rl", "pretrain", "sft", "rl", "reward", "config.yaml", "inputs"}
    assert (folder / "fbt_rl" / "configs" / "tiny.yaml").is_file()
    assert not list(folder.rglob("__pycache__"))
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 2 * 2**20


def test_missing_and_big_files_are_told_before_anything_is_sent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = helpers.make_config(stages__base__data=[{"kind": "files", "paths": ["text.txt"]}])
    (tmp_path / "a").mkdir()
    with pytest.raises(ConfigError, match=r"no data file text\.txt \(looked from "):
        jobs.pack(config, tmp_path / "a" / "1")
    with (tmp_path / "text.txt").open("wb") as file:
        file.truncate(jobs._MAX_BYTES + 1)
    with pytest.raises(ConfigError, match=r"the job would carry 100 MiB, at most 100 are sent"):
        jobs.pack(config, tmp_path / "a" / "2")


@pytest.mark.parametrize(
    ("ray", "exit_code", "run", "good"),
    [
        ("PENDING", None, None, True),
        ("RUNNING", None, "running", True),
        ("SUCCEEDED", 0, "finished", True),
        ("SUCCEEDED", 0, None, True),
        ("SUCCEEDED", 0, "failed", False),
        ("SUCCEEDED", 1, "finished", False),
        ("SUCCEEDED", None, None, False),
        ("FAILED", 1, "failed", False),
        ("STOPPED", None, "interrupted", False),
    ],
)
def test_a_job_is_good_by_every_account_or_not_at_all(ray, exit_code, run, good):
    assert jobs.JobStatus("job", ray, exit_code, run, "").good is good


@pytest.mark.parametrize(
    ("refusals", "wait_s", "reason"),
    [
        (["No available agent to submit job"] * 2, 60, None),
        (["No available agent to submit job"] * 2, 0, "No available agent.* is its --dashboard-agent-listen-port"),
        (["the disk is full"], 60, "the disk is full"),
    ],
)
def test_a_head_that_is_not_all_up_is_waited_for(monkeypatch, refusals, wait_s, reason):
    answers = iter([*map(RuntimeError, refusals), "raysubmit_1"])

    class Client:
        def submit_job(self, **_):
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", lambda address: Client())
    monkeypatch.setattr(jobs, "_AGENT_WAIT_S", wait_s)
    monkeypatch.setattr(jobs.time, "sleep", lambda _: None)
    if reason is None:
        assert jobs.submit(one_stage(1), "http://head:8265") == "raysubmit_1"
    else:
        with pytest.raises(jobs.JobError, match=f"Ray Jobs at http://head:8265: {reason}"):
            jobs.submit(one_stage(1), "http://head:8265")


# --- a head --------------------------------------------------------------------------------------


def free_port():
    """One outside the range that Ray keeps for its workers."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if not 10_002 <= port <= 19_999:
            return port


@pytest.fixture(scope="module")
def cluster():
    """A Ray head of two CPUs with its own token: environment, Ray address, Jobs address."""
    folder = Path(tempfile.mkdtemp(prefix="fbt-head-", dir="/tmp"))
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "OMP_NUM_THREADS": "1",
    }
    # Of its own: another Ray on this machine, or a test that stands for one, may hold the usual ones.
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
    ports = {name: free_port() for name in names}
    options = [f"--{name}={port}" for name, port in ports.items()]
    options += ["--num-cpus=2", "--object-store-memory=100000000", f"--temp-dir={folder}", "--dashboard-host=127.0.0.1"]
    with (folder / "head.log").open("w") as log:
        head = subprocess.Popen(
            [BIN / "ray", "start", "--head", "--block", "--disable-usage-stats", *options],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{ports['dashboard-port']}"
    try:
        deadline = time.monotonic() + 120
        while fbt(environment, "status", "none", "--address", address)[2].find("does not exist") < 0:
            assert head.poll() is None, (folder / "head.log").read_text()
            assert time.monotonic() < deadline, fbt(environment, "status", "none", "--address", address)
            time.sleep(0.5)
        yield environment, address
    finally:
        left = psutil.Process(head.pid).children(recursive=True)
        head.send_signal(signal.SIGTERM)
        head.wait(timeout=60)
        _, alive = psutil.wait_procs(left, timeout=20)
        for process in alive:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def fbt(environment, *arguments, cwd="/"):
    done = subprocess.run(
        [str(BIN / "fbt-rl"), *map(str, arguments)],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    return done.returncode, done.stdout, done.stderr


def workers(run_dir):
    """Processes of worker groups that serve a run: they hold its lock open."""
    held = str(Path(run_dir) / ".workers.lock")
    found = []
    for process in psutil.process_iter():
        try:
            if any(file.path == held for file in process.open_files()):
                found.append(process.pid)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return found


@pytest.mark.timeout(900)
def test_submit_status_logs_stop_and_plain_ray_job_submit(cluster, tmp_path):
    environment, address = cluster
    at = ("--address", address)
    long, short, wrong = (tmp_path / f"{name}.yaml" for name in ("long", "short", "wrong"))
    long.write_text(dump_config(one_stage(100_000)))
    short.write_text(dump_config(one_stage(2)))
    wrong.write_text(dump_config(one_stage(2, micro_batch_rows=3)))

    # A long run is followed until it trains, then stopped: no worker is left.
    long_dir = tmp_path / "long"
    code, out, err = fbt(environment, "submit", long, "--run-dir", long_dir, *at)
    assert code == 0, err
    job = out.strip()
    # Meanwhile one that cannot work: its own exit code and message are told.
    code, out, err = fbt(environment, "submit", wrong, "--run-dir", tmp_path / "wrong", *at)
    failed = out.strip()
    code, out, err = fbt(environment, "logs", failed, "-f", *at)
    assert code == 1
    assert "not a multiple of micro_batch_rows 3" in out
    code, out, _ = fbt(environment, "status", failed, *at)
    assert code == 1
    assert out.startswith(f"{failed}: failed, exit code 2")

    metrics = RunFolder(long_dir).stage("base")
    deadline = time.monotonic() + WAIT_S
    while not metrics.read_metrics():
        assert time.monotonic() < deadline, fbt(environment, "logs", job, *at)
        time.sleep(0.2)
    code, out, err = fbt(environment, "status", job, *at)
    assert code == 0, err
    assert workers(long_dir)
    code, out, _ = fbt(environment, "logs", job, *at)
    assert code == 0
    assert "[1/1] base (pretrain, 100000 steps)" in out
    code, out, err = fbt(environment, "stop", job, *at)
    assert code == 0, err
    assert out.startswith(f"{job}: stopped")
    assert "run.json: interrupted" in out
    deadline = time.monotonic() + 20
    while workers(long_dir):
        assert time.monotonic() < deadline
        time.sleep(0.2)

    # Plain Ray: the job's driver finds the cluster it runs in.
    short_dir = tmp_path / "short"
    command = [BIN / "ray", "job", "submit", "--address", address, "--submission-id", "plain", "--"]
    done = subprocess.run(
        [str(part) for part in [*command, "fbt-rl", "run", short, "--run-dir", short_dir]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"connecting to Ray at \S+:\d+", done.stdout)
    assert RunFolder(short_dir).read_state()["status"] == "finished"
    assert (short_dir / "report" / "index.html").is_file()
    code, out, _ = fbt(environment, "status", "plain", *at)
    assert code == 0
    assert out.startswith("plain: succeeded, exit code 0")
