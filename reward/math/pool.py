"""Answers compared in warm worker processes with hard limits.

A worker that takes too much time or memory, hangs or dies is replaced; only the row it worked at is
blamed, and the others of its chunk are done again. Works from any thread and from within asyncio (a
call blocks, so ``await asyncio.to_thread(...)``), in Ray actors, and after a fork, where the child
starts workers of its own. Workers do not import the caller's ``__main__``, and end with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

Row = tuple[str, str, dict[str, Any]]  # prediction, answer, conventions
Outcome = tuple[bool | None, str | None]  # equal, kind of error

MAX_ROW_CHARS = 2000  # of prediction and answer: a chunk fits into a pipe, so that sending never waits
CHUNK_CHARS = 10_000  # written out at most six times as long
CHUNK_ROWS = 32
START_S = 120.0  # to import sympy, on a busy machine
WALL_FACTOR = 6  # the limit is on processor time; this much of it by the clock is the end in any case
OUT_OF_MEMORY = 3  # the exit status of a worker that met its limit
PROBE = "x+\\sqrt{7}"  # compared with an answer, to see whether that can be graded at all
ATTEMPTS = 3  # of a row whose worker was killed from outside
START_ATTEMPTS = 6  # in a row, without any worker that comes up


def command(memory_mb: int) -> list[str]:
    # -P: a file called sympy.py in the working directory is not imported
    return [sys.executable, "-P", "-m", "reward.math.worker", str(memory_mb)]


class _Worker:
    def __init__(self, memory_mb: int) -> None:
        root = str(Path(__file__).parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            command(memory_mb),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        self.ready = False
        self.rows: deque[int] = deque()  # indices of the rows sent and not yet answered, the first under work
        self.deadline = time.monotonic() + START_S
        self._wall_s = START_S
        self._received = b""

    def send(self, indices: Sequence[int], rows: Sequence[Row], seconds: float) -> None:
        """Raises OSError where the worker is gone."""
        assert self.process.stdin is not None
        self.rows = deque(indices)
        self._wall_s = seconds * WALL_FACTOR
        self.touch()
        os.write(self.process.stdin.fileno(), json.dumps([seconds, rows]).encode() + b"\n")

    def touch(self) -> None:
        self.deadline = time.monotonic() + self._wall_s

    def receive(self) -> list[Any] | None:
        """The replies that have come; None at the end of the stream."""
        assert self.process.stdout is not None
        part = os.read(self.process.stdout.fileno(), 65536)
        if not part:
            return None
        *lines, self._received = (self._received + part).split(b"\n")
        if lines and not self.ready:
            self.ready = True
            lines.pop(0)
        return [tuple(json.loads(line)) for line in lines]

    def end(self) -> None:
        self.process.kill()
        self.let_go()
        self.process.wait()

    def let_go(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class Pool:
    """At most as many workers as calls ask for, started when first needed, kept for later calls."""

    def __init__(self, memory_mb: int) -> None:
        self.memory_mb = memory_mb
        self.counters: Counter[str] = Counter()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._free = threading.Condition()

    def run(self, rows: Sequence[Row], workers: int, seconds: float) -> list[Outcome]:
        """Compare each row's prediction with its answer.

        ``(False, "timeout" | "memory" | "crash")`` where the comparison was ended by its limits;
        ``(None, "grader")`` where no worker could be had, or was killed from outside again and again.
        """
        return _Call(self, rows, workers, seconds).run()

    def take(self, workers: int, wait: bool) -> _Worker | None:
        """A worker that nobody uses, or None if all ``workers`` are in use and ``wait`` is false."""
        with self._free:
            while True:
                while self._idle:
                    worker = self._idle.pop()
                    if worker.process.poll() is None:
                        return worker
                    self._forget(worker)
                    self.counters.update(["replaced", "killed"])
                if len(self._all) < workers:
                    worker = _Worker(self.memory_mb)
                    self._all.add(worker)
                    self.counters["started"] += 1
                    return worker
                if not wait:
                    return None
                self._free.wait()

    def give_back(self, worker: _Worker) -> None:
        with self._free:
            self._idle.append(worker)
            self._free.notify()

    def discard(self, worker: _Worker) -> None:
        with self._free:
            self._forget(worker)
            self._free.notify()

    def count(self, kind: str) -> None:
        """One more worker to be replaced, and why."""
        with self._free:
            self.counters["replaced"] += 1
            self.counters[kind] += 1
            first = self.counters[kind] == 1
        if first:
            logger.warning("a worker of the math grader was replaced (%s); further ones are only counted", kind)

    def pids(self) -> list[int]:
        with self._free:
            return [worker.process.pid for worker in self._all if worker.process.poll() is None]

    def _forget(self, worker: _Worker) -> None:
        worker.end()
        self._all.discard(worker)

    def close(self) -> None:
        with self._free:
            for worker in list(self._all):
                self._forget(worker)
            self._idle.clear()
        if self.counters["replaced"]:
            logger.info("workers of the math grader: %s", dict(self.counters))

    def abandon(self) -> None:
        """In a forked child: the workers are the parent's, and must not outlive it because of this process."""
        for worker in self._all:
            worker.let_go()


class _Call:
    """One call of :meth:`Pool.run`, driven by the caller's thread."""

    def __init__(self, pool: Pool, rows: Sequence[Row], workers: int, seconds: float) -> None:
        self.pool, self.workers, self.seconds = pool, workers, seconds
        self.rows, self.asked = list(rows), len(rows)
        self.outcomes: list[Outcome | None] = [None] * len(rows)
        self.waiting: deque[int] = deque(range(len(rows)))
        self.kills: Counter[int] = Counter()  # by row: times that its worker was killed from outside
        self.probes: dict[int, int] = {}  # row of a probe: the row it was made for
        self.answer_is_bad: dict[str, bool] = {}  # where a probe told
        self.failed_starts = 0
        self.busy: set[_Worker] = set()
        self.selector = selectors.DefaultSelector()

    def run(self) -> list[Outcome]:
        try:
            while self.waiting or self.busy:
                self._hand_out()
                if self.busy:
                    self._collect()
        finally:
            for worker in self.busy:  # left only where an exception passes, KeyboardInterrupt among them
                self.pool.discard(worker)
            self.selector.close()
        return [outcome or (None, "grader") for outcome in self.outcomes[: self.asked]]

    def _hand_out(self) -> None:
        while self.waiting and len(self.busy) < self.workers:
            worker = self.pool.take(self.workers, wait=not self.busy)
            if worker is None:
                return
            self.busy.add(worker)
            self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
            if worker.ready:
                self._send(worker)

    def _send(self, worker: _Worker) -> None:
        if not self.waiting:
            self._release(worker)
            return
        share = min(CHUNK_ROWS, -(-len(self.waiting) // (2 * self.workers)))
        chunk: list[int] = []
        size = 0
        while self.waiting and len(chunk) < share and size < CHUNK_CHARS - MAX_ROW_CHARS:
            row = self.waiting.popleft()
            if self.answer_is_bad.get(self.rows[row][1]):
                self.outcomes[row] = (None, "bad_answer")
                continue
            chunk.append(row)
            size += len(self.rows[row][0]) + len(self.rows[row][1])
        if not chunk:
            self._release(worker)
            return
        with contextlib.suppress(OSError):  # it died while idle: its stream ends, and the rows are done again
            worker.send(chunk, [self.rows[row] for row in chunk], self.seconds)

    def _collect(self) -> None:
        now = time.monotonic()
        nearest = min(worker.deadline for worker in self.busy)
        for key, _ in self.selector.select(max(0.0, nearest - now)):
            worker: _Worker = key.data
            replies = worker.receive()
            if replies is None:
                self._ended(worker, late=False)
                continue
            worker.touch()
            self.failed_starts = 0
            for reply in replies:
                self._answered(worker.rows.popleft(), reply)
            if not worker.rows:
                self._send(worker)
        for worker in [worker for worker in self.busy if worker.deadline < time.monotonic()]:
            self._ended(worker, late=True)

    def _release(self, worker: _Worker) -> None:
        self.busy.discard(worker)
        self.selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        self.pool.give_back(worker)

    def _ended(self, worker: _Worker, late: bool) -> None:
        """A worker died or is to be killed; the rows that are not to blame wait again."""
        self.busy.discard(worker)
        self.selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        status = None if late else worker.process.wait()
        self.pool.discard(worker)
        if not worker.ready:
            self.pool.count("no start")
            self.failed_starts += 1
            if self.failed_starts == START_ATTEMPTS:
                self.waiting.clear()
                logger.error(
                    "no worker of the math grader starts (exit status %s); to see why: %s",
                    *(status, " ".join(command(self.pool.memory_mb))),
                )
            return
        if not worker.rows:  # it had given its last answer
            self.pool.count("killed")
            return
        row = worker.rows.popleft()
        self.waiting.extendleft(reversed(worker.rows))
        if late or status == -signal.SIGPROF:
            kind = "timeout"
        elif status == OUT_OF_MEMORY:
            kind = "memory"
        elif status in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL):
            kind = "crash"
        else:
            kind = "killed"
        self.pool.count(kind)
        if kind == "killed":  # by somebody else: it says nothing of the row
            self.kills[row] += 1
            if self.kills[row] < ATTEMPTS:
                self.waiting.appendleft(row)
        else:
            self._blame(row, kind)

    def _blame(self, row: int, kind: str) -> None:
        """The prediction is wrong, unless it is the answer that cannot be graded: a probe tells."""
        answer = self.rows[row][1]
        if row in self.probes:
            self._answered(row, (None, "bad_answer"))
            return
        self.outcomes[row] = (None, "bad_answer") if self.answer_is_bad.get(answer) else (False, kind)
        if answer not in self.answer_is_bad:
            self.probes[len(self.rows)] = row
            self.waiting.appendleft(len(self.rows))
            self.rows.append((PROBE, *self.rows[row][1:]))
            self.outcomes.append(None)

    def _answered(self, row: int, outcome: Outcome) -> None:
        self.outcomes[row] = outcome
        if row in self.probes:
            self.answer_is_bad[self.rows[row][1]] = outcome[0] is None
            if outcome[0] is None:
                self.outcomes[self.probes[row]] = outcome


# --- this process's pools ------------------------------------------------------------------------

_lock = threading.Lock()
_pools: dict[int, Pool] = {}


def compare_all(rows: Sequence[Row], workers: int, seconds: float, memory_mb: int) -> list[Outcome]:
    """:meth:`Pool.run` in this process's pool of workers with that memory limit."""
    if not rows:
        return []
    with _lock:
        pool = _pools.setdefault(memory_mb, Pool(memory_mb))
    return pool.run(rows, workers, seconds)


def counters() -> dict[str, int]:
    """Workers ``started`` and ``replaced`` so far; why: ``timeout``, ``memory``, ``crash``, ``killed``,
    ``no start``.
    """
    with _lock:
        return dict(sum((pool.counters for pool in _pools.values()), Counter()))


def worker_pids() -> list[int]:
    """The process ids of all workers of this process."""
    with _lock:
        return [pid for pool in _pools.values() for pid in pool.pids()]


@atexit.register
def close() -> None:
    """End all workers; later calls start new ones."""
    with _lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.close()


def _forked() -> None:
    global _lock
    _lock = threading.Lock()
    for pool in _pools.values():
        pool.abandon()
    _pools.clear()


os.register_at_fork(after_in_child=_forked)
