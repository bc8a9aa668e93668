"""How many programs the code reward judges a second, and what it survives.

    OMP_NUM_THREADS=1 python benchmarks/code_rewards.py [--workers 2] [--simple 400] [--mixed 10000] [--data FOLDER]
                                                       [--level bubblewrap]

``known``: reference solutions of HumanEval and MBPP, which have to pass, and empty bodies, which have to fail.
``simple``: one-line functions under two assertions. ``mixed``: right, wrong, crashing, endless and greedy programs
while processes of the sandbox are killed at random, its server among them; every call has to be answered, or be
counted as not judged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from reward.base import Verdict
from reward.code import sandbox
from reward.code.program import code_verdicts, parse_tests

TESTS = ["assert f(1) == 2", "assert f(5) == 6"]
RIGHT = "def f(x): return x + 1"
# Programs and how often each is drawn.
MIXED = {
    RIGHT: 60,
    "def f(x): return x": 15,
    "def f(x): return x / 0": 5,
    "def f(x:": 5,
    "import os; os._exit(0)": 3,
    "import os\ndef f(x): os.kill(os.getpid(), 9)": 3,
    "import ctypes; ctypes.string_at(0)": 2,
    "def f(x): return bytearray(10**9)": 2,
    "import os, time\nfor _ in range(5):\n    if os.fork() == 0: time.sleep(60)\ndef f(x): return 0": 2,
    "import sys\nwhile True: sys.stderr.write('x' * 10**6)": 2,
    "def f(x):\n    while True: pass": 1,
}


# --- known solutions -----------------------------------------------------------------------------


def known(data: Path, workers: int) -> None:
    rows = [json.loads(line) for line in (data / "humaneval/HumanEval.jsonl").read_text().splitlines()]
    columns = {name: [row[name] for row in rows] for name in ("entry_point", "prompt")}
    columns["tests"] = [row["test"] for row in rows]
    _known("HumanEval", [row["canonical_solution"] for row in rows], ["    pass\n"] * len(rows), columns, workers)
    rows = [json.loads(line) for line in (data / "mbpp/mbpp.jsonl").read_text().splitlines()]
    columns = {"tests": [row["test_list"] for row in rows], "setup": [row["test_setup_code"] for row in rows]}
    names = [_entry_point(row) for row in rows]
    _known("MBPP", [row["code"] for row in rows], [f"def {name}(*_): pass" for name in names], columns, workers)


def _entry_point(row: dict[str, Any]) -> str:
    return parse_tests(row["test_list"], None, row["test_setup_code"], row["text"]).entry_point  # type: ignore[union-attr]


def _known(name: str, right: list[str], empty: list[str], columns: dict[str, Any], workers: int) -> None:
    for kind, programs, wanted in (("reference", right, 1.0), ("empty", empty, 0.0)):
        start = time.perf_counter()
        verdicts = code_verdicts([""] * len(programs), programs, workers=workers, wall_s=60.0, **columns)
        taken = time.perf_counter() - start
        good = sum(verdict.score == wanted for verdict in verdicts)
        rate = len(programs) / taken
        print(f"{name:10} {kind:10} {good} of {len(programs)} score {wanted:g}, {taken:.1f} s, {rate:.1f} a second")
        odd = Counter(str(verdict.error) for verdict in verdicts if verdict.score != wanted)
        if odd:
            print(f"{'':10} otherwise: {dict(odd)}")


# --- simple programs -----------------------------------------------------------------------------


def simple(count: int, workers: int) -> float:
    """Programs judged a second; all are different, and right."""
    start = time.perf_counter()
    verdicts = _judge([f"{RIGHT}  # {number}" for number in range(count)], workers)
    assert all(verdict.score == 1.0 for verdict in verdicts)
    return count / (time.perf_counter() - start)


def _judge(programs: list[str], workers: int, wall_s: float = 10.0) -> list[Verdict]:
    return code_verdicts([""] * len(programs), programs, tests=[TESTS] * len(programs), workers=workers, wall_s=wall_s)


# --- survival ------------------------------------------------------------------------------------


@dataclass
class Survived:
    calls: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)  # "right" or the kind of error
    unjudged: int = 0
    wrongly_right: int = 0  # programs that are wrong and scored
    seconds: float = 0.0
    descriptors: list[int] = field(default_factory=list)  # before and after
    resident_mib: list[float] = field(default_factory=list)  # of this process, after each batch
    processes_left: int = 0


def survive(
    calls: int,
    workers: int,
    kills_a_second: float,
    seed: int = 0,
    batch: int = 100,
    progress: Callable[[Survived], object] = lambda found: None,
) -> Survived:
    """Judge ``calls`` programs drawn from ``MIXED`` while processes of the sandbox are killed."""
    draws, found, done = random.Random(seed), Survived(), threading.Event()
    simple(workers, workers)  # what is started once is there
    found.descriptors.append(_descriptors())
    killer = threading.Thread(target=_kill, args=(found.kills, kills_a_second, random.Random(seed), done))
    killer.start()
    start = time.perf_counter()
    try:
        while found.calls < calls:
            size = min(batch, calls - found.calls)
            programs = draws.choices(list(MIXED), list(MIXED.values()), k=size)
            verdicts = _judge(
                [f"{text}\n# {found.calls + row}" for row, text in enumerate(programs)], workers, wall_s=2.0
            )
            found.calls += len(verdicts)
            for program, verdict in zip(programs, verdicts, strict=True):
                found.outcomes["right" if verdict.score else str(verdict.error)] += 1
                found.unjudged += verdict.score is None
                found.wrongly_right += program != RIGHT and verdict.score == 1.0
            found.resident_mib.append(psutil.Process().memory_info().rss / 2**20)
            found.seconds = time.perf_counter() - start
            progress(found)
    finally:
        done.set()
        killer.join()
    simple(workers, workers)  # every slot still works
    found.processes_left = _left()
    found.descriptors.append(_descriptors())
    return found


def _kill(kills: Counter[str], a_second: float, draws: random.Random, done: threading.Event) -> None:
    """Kill the sandbox's server, or one of the processes below it, again and again."""
    while not done.wait(draws.expovariate(a_second)):
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            server = psutil.Process(sandbox._server()._process.pid)
            below = server.children(recursive=True)
            victim = draws.choice(below) if below and draws.random() < 0.8 else server
            kills["server" if victim == server else "keeper" if victim.ppid() == server.pid else "inside"] += 1
            victim.kill()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _left() -> int:
    """Processes of sandboxes that are still there, the server aside, after a little while to end in."""
    until = time.monotonic() + 10
    server = psutil.Process(sandbox._server()._process.pid)
    while (count := len(server.children(recursive=True))) and time.monotonic() < until:
        time.sleep(0.05)
    return count


def _tell(found: Survived) -> None:
    if found.calls % 1000 == 0:
        mixed = f"{found.calls} calls in {found.seconds:.0f} s, {found.calls / found.seconds:.1f} a second"
        print(f"mixed      {mixed}, {sum(found.kills.values())} kills, {found.resident_mib[-1]:.1f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("workers", 2), ("simple", 400), ("mixed", 10_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--level", choices=sandbox.LEVELS, help="in place of the best that works")
    args = parser.parse_args()
    if args.level:
        sandbox.level_in_force = lambda: args.level
    print(f"sandbox level {sandbox.level_in_force()}, {args.workers} workers, {os.cpu_count()} cores", flush=True)
    if args.simple:
        simple(20, args.workers)
        print(f"simple     {simple(args.simple, args.workers):.1f} a second", flush=True)
        known(args.data, args.workers)
    if args.mixed:
        found = survive(args.mixed, args.workers, kills_a_second=2.0, progress=_tell)
        print(f"killed     {dict(found.kills)}")
        print(f"outcomes   {dict(found.outcomes.most_common())}; not judged {found.unjudged}")
        print(f"wrong programs that scored: {found.wrongly_right}; processes left: {found.processes_left}")
        first, *_, last = found.resident_mib
        print(f"descriptors {found.descriptors}, resident {first:.1f} MiB after the first batch, {last:.1f} at the end")


if __name__ == "__main__":
    main()
