"""Real Ray on this machine: a killed worker, errors, Ctrl-C; nothing is left running. Killed drivers: end to end."""

import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

import pipeline_helpers as helpers
import psutil
import pyarrow.parquet as pq
import pytest
from pipeline_helpers import assert_all_gone
from rl_cases import save_source

from fbt_rl.artifacts import RunFolder, StageFolder
from fbt_rl.config import RewardConfig
from fbt_rl.driver import reaper
from fbt_rl.driver.cluster import Cluster, ClusterError, remote_verdicts
from fbt_rl.driver.evaluate import RankJob, evaluate_on_ray, evaluate_tasks, evaluation_config, parse_tasks
from fbt_rl.grading import load_stage_reward
from reward.base import RewardError

WAIT_S = 240  # on a busy machine; idle, a start takes about 15 s

pytestmark = pytest.mark.timeout(600)


def until(condition, driver):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def at_step(run_dir, name, step):
    return lambda: any(row["step"] >= step for row in RunFolder(run_dir).stage(name).read_metrics())


@pytest.fixture
def driver(tmp_path):
    driver = helpers.Driver(tmp_path, helpers.make_config(resources__workers=2))
    started = []
    start = driver.start

    def keep(*overrides, **switches):
        started.append(start(*overrides, **switches))
        return started[-1]

    driver.start = keep
    with ExitStack() as stack:
        for port in (6379, 8265, 52365):  # Ray's usual ones: in use, as with another Ray on this machine
            taken = stack.enter_context(socket.socket())
            with suppress(OSError):
                taken.bind(("", port))
                taken.listen()
        yield driver
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_killed_worker_then_an_error(driver):
    run_dir, stages = driver.run_dir, RunFolder(driver.run_dir)
    process = driver.start(die_at=["base", 5], fail_at=["tuned", 3, "the data are wrong"])
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert err.splitlines()[0].startswith("error: stage 'tuned' failed on rank")
    assert "ValueError: the data are wrong" in err
    assert "Traceback (most recent call last)" not in err
    assert len(err.splitlines()) == 2
    assert stages.stage("base").read_result() == {"loss": helpers.expected(6)}
    assert helpers.starts(run_dir, "base") == [0, 4]  # the worker's death cost one step
    assert [row["step"] for row in stages.stage("base").read_metrics()] == [1, 2, 3, 4, 5, 6]
    assert "base from step 4" in (stages.stage("base").path / "worker-1.log").read_text()
    assert helpers.starts(run_dir, "tuned") == [0]  # a stage's own error is not tried again
    assert not (run_dir / ".ray").exists()


def test_a_rank_that_is_always_killed_is_one_sentence(driver):
    process = driver.start("resources.max_failures=0", die_with=["base", 300])
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert re.fullmatch(
        r"error: stage 'base' failed, rank 1 (ended without an error, as by|was killed by) signal 9.*: it had "
        r"(0\.[3-9]|[1-9]\.)\d+ GiB at its peak, when its node held [\d.]+ of [\d.]+ GiB; .*"
        rf"resources.max_failures 0 is used up; Ray's own account is in {driver.run_dir}/ray.log\n",
        err,
    )
    assert "raylet" not in out
    account = (driver.run_dir / "ray.log").read_text()
    assert "SYSTEM_ERROR" in account
    assert "Traceback" in account
    assert not (driver.run_dir / ".ranks").exists()


def test_ctrl_c(driver):
    run_dir = driver.run_dir
    first = driver.start(step_s=0.3)
    until(at_step(run_dir, "base", 1), first)
    processes = psutil.Process(first.pid).children(recursive=True)
    first.send_signal(signal.SIGINT)
    time.sleep(0.2)
    first.send_signal(signal.SIGINT)  # impatience changes nothing
    out, err = first.communicate(timeout=60)
    assert first.returncode == 130
    assert set(err.splitlines()) == {"stopping; the same command goes on where this one stops"}
    assert "Traceback" not in out
    assert_all_gone(processes, within_s=5)
    state = RunFolder(run_dir).read_state()
    assert (state["status"], state["stages"]["base"]["status"]) == ("interrupted", "interrupted")


REWARD = """
import os, signal, threading

def own(prompts, completions, completion_ids, *, answer, **columns):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # works in a main thread only
    from beside import ONE
    return [ONE / int(text) if text.isdigit() else float(text == gold) for text, gold in zip(completions, answer)]

def few(prompts, completions, completion_ids, **columns):
    return [1.0]

def deadly(prompts, completions, completion_ids, **columns):
    os._exit(1)
"""


def test_ray_tasks_grade_as_this_process_would(tmp_path, caplog):
    (tmp_path / "own.py").write_text(REWARD)
    (tmp_path / "beside.py").write_text("ONE = 1")
    columns = {"prompts": ["p"] * 3, "completions": ["a", "0", "2"], "completion_ids": [[1]] * 3, "answer": ["a"] * 3}
    boxed = columns | {"completions": ["\\boxed{a}", "a", "\\boxed{\\frac{2}{4}}"], "answer": ["a", "a", "0.5"]}

    def reward(use, remote=remote_verdicts):
        return load_stage_reward(RewardConfig(use=use), remote)

    with Cluster():
        assert reward("math").verdicts(**boxed) == reward("math", None).verdicts(**boxed)
        assert [verdict.score for verdict in reward("math").verdicts(**boxed)] == [1.0, 0.0, 1.0]
        programs = {"completions": ["def f(x): return x + 1", "import os; os._exit(0)", "def f(x: 1"]}
        code = reward("code").verdicts(**columns | programs, tests=[["assert f(1) == 2"]] * 3)
        assert [(verdict.score, verdict.error) for verdict in code] == [(1.0, None), (0.0, "ok"), (0.0, "SyntaxError")]
        own = reward(f"{tmp_path}/own.py:own").verdicts(**columns)
        assert [(verdict.score, verdict.error) for verdict in own] == [(1.0, None), (None, "raised"), (0.5, None)]
        assert "own' raised on 1 of 3 completions" in caplog.text
        assert "ZeroDivisionError" in caplog.text
        with pytest.raises(RewardError, match="returned 1 results for 3 completions"):
            reward(f"{tmp_path}/own.py:few").verdicts(**columns)
        lost = reward(f"{tmp_path}/own.py:deadly").verdicts(**columns)
        assert [(verdict.score, verdict.error) for verdict in lost] == [(None, "grader")] * 3
        del columns["answer"]
        with pytest.raises(RewardError, match="needs the column answer"):
            reward(f"{tmp_path}/own.py:own").verdicts(**columns)


def test_an_evaluation_on_ray_workers_is_the_same(tmp_path, capsys):
    model = save_source(tmp_path / "model")
    tasks = parse_tasks("arithmetic", limit=30)
    config = evaluation_config(model, tasks, {"max_new_tokens": 8, "modes": ["standard", "soft"]}, workers=2)
    (_, alone), *_ = evaluate_tasks(model, config, [0.7], 3, tmp_path / "alone")
    job = RankJob(model, config, [0.7], 3, tmp_path / "shared")
    assert dict(evaluate_on_ray(job, None)) == {"arithmetic": alone}
    tables = [
        pq.read_table(tmp_path / name / "generations.parquet").drop_columns("seconds") for name in ("alone", "shared")
    ]
    assert tables[0].equals(tables[1])
    assert len(tables[0]) == 60
    assert "workers: 2 x" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == [
        "fbt-rl.sha256", "generations.parquet", "result.json", "worker-0.log", "worker-1.log"
    ]  # fmt: skip
    assert StageFolder(tmp_path / "shared").read_result() == alone


def test_the_reaper_kills_what_bears_the_mark_and_nothing_else(tmp_path):
    folder = tmp_path / "ray"
    folder.mkdir()
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    marked = subprocess.Popen(sleep, env={reaper.MARK: str(folder)})
    other = subprocess.Popen(sleep, env={reaper.MARK: f"{folder}2"})
    guard = subprocess.Popen([sys.executable, "-S", reaper.__file__, str(folder)], stdin=subprocess.PIPE)
    time.sleep(0.5)
    assert marked.poll() is None
    guard.communicate(timeout=30)
    assert marked.wait(timeout=5) == -signal.SIGKILL
    assert other.poll() is None
    assert not folder.exists()
    other.kill()
    other.wait()


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("http://127.0.0.1:8265", "expected HOST:PORT or auto, got 'http://127.0.0.1:8265'; to send a job, use"),
    ],
)
def test_a_wrong_address_is_one_message(address, reason):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ClusterError, match=f"cannot reach the Ray cluster at {address}: .*{reason}"), Cluster(address):
        pass
    assert signal.getsignal(signal.SIGTERM) is before
