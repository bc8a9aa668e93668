"""Code rewards while processes of the sandbox are killed at random; for longer: ``benchmarks/code_rewards.py``."""

import importlib.util
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from sandbox_levels import CHAINS, assert_nothing_runs, children_of, contained, processes

from reward.code import sandbox
from reward.code.program import code_verdicts


def load_benchmark():
    path = Path(__file__).parents[3] / "benchmarks" / "code_rewards.py"
    spec = importlib.util.spec_from_file_location("benchmark_code_rewards", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@contained
def test_every_call_is_answered_and_nothing_is_lost(level):
    kills_a_second = 5.0 if level == "namespaces" else 2.0  # under bubblewrap a call takes longer
    found = load_benchmark().survive(calls=150, workers=2, kills_a_second=kills_a_second, batch=50)
    assert found.calls == sum(found.outcomes.values()) == 150
    assert found.wrongly_right == 0
    assert found.outcomes["right"] > 45  # of about 90
    assert found.kills["server"] > 0
    assert found.unjudged == found.outcomes["sandbox"] < 75
    assert found.outcomes.keys() >= {"failed_test", "ZeroDivisionError", "SyntaxError"}
    assert found.descriptors[0] == found.descriptors[1]
    assert found.processes_left == 0
    assert_nothing_runs()


@contained
@pytest.mark.parametrize("victim", ["program", "first process", "bwrap", "keeper"])
def test_a_judge_that_was_killed_is_no_verdict(level, victim):
    """Sandboxes are chains of processes; the judge's is started first."""
    if victim not in CHAINS[level]:
        pytest.skip("not at this level")

    def kill():
        server = sandbox._server()._process.pid
        deadline = time.monotonic() + 20
        while len(processes()) < 2 * len(CHAINS[level]) and time.monotonic() < deadline:
            time.sleep(0.01)
        chain = [min(children_of(server))]
        while children := children_of(chain[-1]):
            chain += children
        os.kill(dict(zip(CHAINS[level], chain, strict=True))[victim], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    slow = "import time\ndef f(x):\n    time.sleep(20)\n    return x"
    (verdict,) = code_verdicts([""], [slow], tests=[["assert f(1) == 1"]], wall_s=30.0)
    killer.join()
    assert (verdict.score, verdict.error) == (None, "sandbox")
    assert_nothing_runs()
