"""The code reward from threads, from asyncio, and in forked and spawned processes; in Ray: test_cluster."""

import asyncio
import multiprocessing
import threading

import pytest

from reward import code_reward
from reward.code.sandbox import SandboxError, level_in_force

PROGRAMS = ["def f(x): return x + 1", "def f(x): return x", "import os; os._exit(0)"]
SCORES = [1.0, 0.0, 0.0]


def best():
    try:
        return level_in_force()
    except SandboxError:
        return None


pytestmark = pytest.mark.skipif(best() is None, reason="no sandbox level works here")


def scores():
    return code_reward([""] * 3, PROGRAMS, tests=[["assert f(1) == 2"]] * 3, require="rlimits", wall_s=60.0)


def put(queue):
    queue.put(scores())


def test_in_threads_and_in_asyncio():
    found = []
    threads = [threading.Thread(target=lambda: found.append(scores())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [SCORES] * 3

    async def both():
        return [scores(), await asyncio.to_thread(scores)]

    assert asyncio.run(both()) == [SCORES] * 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_a_child(method):
    assert scores() == SCORES  # a forked child must not use its parent's server
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=put, args=(queue,))
    child.start()
    assert queue.get(timeout=120) == SCORES
    child.join(timeout=60)
    assert child.exitcode == 0
