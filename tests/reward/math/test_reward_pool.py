"""The math grader's workers: limits, blame, deaths, and the contexts that calls come from."""

import asyncio
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil
import pytest

from reward import Reward, RewardError, math_reward
from reward.math import pool
from reward.math.answer import math_verdicts
from reward.math.pool import Pool

COMPLETIONS = ["\\boxed{1+x}", "\\boxed{\\sqrt{8}}", "\\boxed{x}", "\\boxed{3}", "none"]
ANSWERS = ["x+1", "2\\sqrt{2}", "x^2", "3", "3"]
SCORES = [1.0, 1.0, 0.0, 1.0, 0.0]


def scores(*_):
    return math_reward([""] * 5, COMPLETIONS, answer=ANSWERS)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A pool whose workers do what a row's prediction says: exit, sleep, take memory; or agree."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, os, signal, sys, time\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    seconds, rows = json.loads(line)\n"
        "    for prediction, answer, _ in rows:\n"
        "        for text in (prediction, answer):\n"
        "            if text.startswith('kill'): os.kill(os.getpid(), int(text[4:]))\n"
        "            if text == 'memory': os._exit(3)\n"
        "            if text == 'once' and not os.path.exists(sys.argv[0] + '.seen'):\n"
        "                open(sys.argv[0] + '.seen', 'w'); os.kill(os.getpid(), 9)\n"
        "            if text == 'sleep': time.sleep(100)\n"
        "        print(json.dumps([prediction == answer, None]), flush=True)\n"
    )
    monkeypatch.setattr(pool, "command", lambda memory_mb: [sys.executable, str(script)])
    made = Pool(1024)
    yield lambda *rows, workers=1, seconds=5.0: made.run([(*row, {}) for row in rows], workers, seconds), made
    made.close()


def test_each_kind_of_ending_is_told_apart_and_blames_one_row(fake):
    run, made = fake
    others = [("a", "a"), ("b", "c")]
    expected = {
        f"kill{signal.SIGPROF.value}": (False, "timeout"),
        f"kill{signal.SIGSEGV.value}": (False, "crash"),
        "memory": (False, "memory"),
        f"kill{signal.SIGKILL.value}": (None, "grader"),
        "once": (False, None),  # done again
    }
    for prediction, outcome in expected.items():
        rows = [*others, (prediction, "x"), *others]
        assert run(*rows) == [(True, None), (False, None), outcome, (True, None), (False, None)], prediction
    assert made.counters == {
        "started": 8, "replaced": 7, "timeout": 1, "crash": 1, "memory": 1, "killed": 4
    }  # fmt: skip


def test_an_answer_that_cannot_be_graded_is_nobodys_fault(fake):
    run, made = fake
    bad = "memory"
    assert run(("a", bad), ("b", bad), ("c", "c")) == [(None, "bad_answer"), (None, "bad_answer"), (True, None)]
    assert made.counters["memory"] == 2  # the row and its probe; the next row with that answer was not tried


def test_a_worker_that_hangs_is_ended_by_the_clock(fake, monkeypatch):
    run, made = fake
    monkeypatch.setattr(pool, "WALL_FACTOR", 1)
    assert run(("sleep", "x"), ("a", "a"), seconds=0.5) == [(False, "timeout"), (True, None)]
    assert made.counters["timeout"] == 1


def test_no_worker_means_not_judged(monkeypatch, caplog):
    monkeypatch.setattr(pool, "command", lambda memory_mb: [sys.executable, "-c", "raise SystemExit(5)"])
    made = Pool(1024)
    assert made.run([("a", "a", {})] * 3, 2, 5.0) == [(None, "grader")] * 3
    assert "exit status 5" in caplog.text
    assert pool.START_ATTEMPTS <= made.counters["no start"] <= pool.START_ATTEMPTS + 1  # two at a time
    made.close()


def test_real_limits_of_time_and_memory(monkeypatch):
    program = (
        "import reward.math.worker as worker\n"
        "def compare(prediction, answer, conventions=None):\n"
        "    if prediction == 'time':\n"
        "        while True: pass\n"
        "    if prediction == 'one operation':\n"
        "        9 ** (9 ** 9)\n"  # holds the interpreter's lock
        "    if prediction == 'memory':\n"
        "        return bytearray(2**31)\n"
        "    return True, None\n"
        "worker.equivalent = compare\n"
        "worker.main()\n"
    )
    monkeypatch.setattr(pool, "command", lambda memory_mb: [sys.executable, "-c", program, str(memory_mb)])
    made = Pool(1024)
    rows = [(kind, "x", {}) for kind in ("time", "ok", "one operation", "memory", "ok")]
    kinds = [error for _, error in made.run(rows, 2, 0.3)]
    made.close()
    assert kinds == ["timeout", None, "timeout", "memory", None]


def test_bad_settings_are_refused():
    for settings in ({"workers": 0}, {"time_limit_s": 0}, {"memory_mb": 10}, {"percent": "often"}, {"digits": -1}):
        with pytest.raises(RewardError, match=next(iter(settings))):
            math_verdicts([""], ["\\boxed{1}"], answer=["1"], **settings)


# --- contexts ------------------------------------------------------------------------------------


def test_in_threads_and_in_asyncio():
    async def both():
        return [scores(), *await asyncio.gather(*(asyncio.to_thread(scores) for _ in range(3)))]

    assert asyncio.run(both()) == [SCORES] * 4
    results = []
    threads = [threading.Thread(target=lambda: results.append(scores())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [SCORES] * 4
    assert len(workers_of(os.getpid())) <= 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_children(method):
    """A forked child has workers of its own, a spawned one does not run this file's main part in them."""
    assert scores() == SCORES
    mine = workers_of(os.getpid())
    with multiprocessing.get_context(method).Pool(1) as children:
        assert children.map(scores, [0], chunksize=1) == [SCORES]
    assert workers_of(os.getpid()) == mine
    assert scores() == SCORES


def test_in_a_ray_actor():
    """Where the actor ends, so do its workers."""
    import ray

    from fbt_rl.driver.cluster import Cluster

    with Cluster():
        actor = ray.remote(num_cpus=0)(Reward).remote("math", math_verdicts)
        verdicts = ray.get(actor.verdicts.remote([""] * 5, COMPLETIONS, answer=ANSWERS))
        started = workers_of(*ray_workers())
    assert [verdict.score for verdict in verdicts] == SCORES
    assert started
    assert gone([worker.pid for worker in started])


@pytest.mark.parametrize("ending", ["exit", "kill"])
def test_nothing_is_left_when_the_parent_ends(ending):
    program = (
        "import sys; from reward import math_reward; from reward.math.pool import _pools\n"
        f"assert math_reward([''], {COMPLETIONS[:1]!r}, answer={ANSWERS[:1]!r}) == [1.0]\n"
        "print(*(worker.process.pid for pool in _pools.values() for worker in pool._all), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert pids
        if ending == "kill":
            parent.kill()
    assert gone(pids)


def test_the_worker_does_not_import_what_lies_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "sympy.py").write_text("raise SystemExit('wrong sympy')")
    monkeypatch.chdir(tmp_path)
    pool.close()
    assert scores() == SCORES
    modules = "import sys, reward.math.worker; print(json.dumps(sorted({'torch', 'ray'} & set(sys.modules))))"
    printed = subprocess.run([sys.executable, "-P", "-c", f"import json; {modules}"], capture_output=True, check=True)
    assert json.loads(printed.stdout) == []


def test_workers_killed_at_random_cost_no_row():
    """Every call gets its answer, however often a worker dies; none is left over."""
    draws = random.Random(0)
    stop = threading.Event()
    killed = []

    def kill():
        while not stop.wait(draws.uniform(0.0, 0.4)) and len(killed) < 4:
            for process in workers_of(os.getpid())[:1]:
                process.kill()
                killed.append(process.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    rows = [(f"\\boxed{{x+{i}+{i % 3}}}", f"{2 * (i // 2)}+x") for i in range(400)]
    try:
        for start in range(0, 400, 100):
            batch = rows[start : start + 100]
            verdicts = math_verdicts([""] * 100, [p for p, _ in batch], answer=[a for _, a in batch])
            right = [i + i % 3 == 2 * (i // 2) for i in range(start, start + 100)]
            assert [verdict.correct for verdict in verdicts] == right
    finally:
        stop.set()
        killer.join()
    assert killed
    assert len(workers_of(os.getpid())) <= 2


def workers_of(*pids):
    """The graders' workers among the children of processes."""
    found = []
    for process in (child for pid in pids for child in psutil.Process(pid).children()):
        with suppress(psutil.NoSuchProcess):
            if "reward.math.worker" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def ray_workers():
    return [child.pid for child in psutil.Process().children(recursive=True) if "ray::" in child.name()]


def gone(pids):
    until = time.monotonic() + 30
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(psutil.pid_exists, pids))
