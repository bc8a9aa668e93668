"""The math reward: speed, gold answers, and workers killed at random.

    OMP_NUM_THREADS=1 python benchmarks/rewards.py [speed] [gold] [kills] [--data ../shared/data] [--calls 10000]

``speed``: answers of MATH, half of them a neighbour's, by the pool of two workers, by a bare loop of Math-Verify's
``parse`` and ``verify`` without limits in one process, and by a process a call; taking turns on the same
pairs. ``formulas`` are the pairs that numbers and texts alone do not decide. ``gold``: each gold answer of
GSM8K and MATH under its own reward and a neighbour's. ``kills``: many small calls while workers are killed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from math_verify import parse, verify

from reward.base import Verdict
from reward.math import pool
from reward.math.answer import DEFAULT, _prepare, math_verdicts
from reward.math.extraction import extract_answer

Pair = tuple[str, str]  # completion, gold answer
BY_PROCESS = "import sys; from math_verify import parse, verify; verify(parse(sys.argv[2]), parse(sys.argv[1]))"


def answers(data: Path, name: str) -> list[str]:
    rows = [json.loads(line) for line in (data / name).read_text().splitlines()]
    found = [row["answer"] for row in rows]
    return [extract_answer(answer) or answer for answer in found if answer.strip()]


def by_pool(pairs: list[Pair]) -> None:
    math_verdicts([""] * len(pairs), [given for given, _ in pairs], answer=[gold for _, gold in pairs], workers=2)


def by_bare_loop(pairs: list[Pair]) -> None:
    for given, gold in pairs:
        verify(
            parse(f"\\boxed{{{gold}}}", parsing_timeout=None),  # type: ignore[arg-type]
            parse(given, parsing_timeout=None),  # type: ignore[arg-type]
            timeout_seconds=None,
        )


def by_process(pairs: list[Pair]) -> None:
    for given, gold in pairs:
        subprocess.run([sys.executable, "-c", BY_PROCESS, given, f"\\boxed{{{gold}}}"], check=True)


def speed(data: Path, repeats: int, size: int) -> None:
    golds = list(dict.fromkeys(answers(data, "math_train/train_answers.jsonl")))
    draws = random.Random(0)
    draws.shuffle(golds)
    every = [(f"\\boxed{{{golds[i - i % 2]}}}", gold) for i, gold in enumerate(golds)]
    formulas = [pair for pair in every if not isinstance(_prepare(*pair, ("boxed",), False, DEFAULT), Verdict)]
    by_pool(formulas[:4])  # the workers start
    by_bare_loop(formulas[:4])
    print(
        "| pairs | pool of two, pairs/s | bare loop, pairs/s | pool / loop | process a call, pairs/s | pool / process |"
    )
    print("|---|---|---|---|---|---|")
    for name, pairs in (("all", every), ("formulas", formulas)):
        rates: dict[str, list[float]] = {"pool": [], "loop": [], "process": []}
        size = min(size, len(pairs) // repeats)
        for turn in range(repeats):  # other pairs each time: nothing is answered from a cache
            part = pairs[turn * size : (turn + 1) * size]
            ways = [("pool", by_pool, part), ("loop", by_bare_loop, part), ("process", by_process, part[:2])]
            for way, run, given in ways if turn % 2 else ways[::-1]:
                started = time.perf_counter()
                run(given)
                rates[way].append(len(given) / (time.perf_counter() - started))
        to_loop, to_process = (
            statistics.median(ours / other for ours, other in zip(rates["pool"], rates[way], strict=True))
            for way in ("loop", "process")
        )
        ours, loop, process = (statistics.median(values) for values in rates.values())
        print(f"| {name} ({repeats} × {size}) | {ours:.0f} | {loop:.0f} | {to_loop:.2f}", end="")
        print(f" | {process:.2f} | {to_process:.0f} |")


def gold(data: Path) -> None:
    print("| gold answers | own: 1 / not | neighbour's: 0 / not | pairs/s |\n|---|---|---|---|")
    for name in ("gsm8k/train", "gsm8k/test", "math500/test", "math_train/train_answers"):
        golds = answers(data, f"{name}.jsonl")
        boxed = [f"\\boxed{{{answer}}}" for answer in golds]
        started = time.perf_counter()
        own = math_verdicts(boxed, boxed, answer=golds)
        neighbours = math_verdicts(boxed, boxed, answer=[*golds[1:], golds[0]])
        rate = 2 * len(golds) / (time.perf_counter() - started)
        others = [
            (verdict, answer)
            for verdict, mine, answer in zip(neighbours, golds, [*golds[1:], golds[0]], strict=True)
            if mine != answer
        ]
        wrong = [(verdict, answer) for verdict, answer in others if verdict.score != 0]
        failed = sum(verdict.score != 1 for verdict in own)
        print(f"| {name} | {len(own) - failed} / {failed} | {len(others) - len(wrong)} / {len(wrong)} | {rate:.0f} |")
        for verdict, answer in wrong:
            print(f"  neighbour: {verdict.extracted!r} against {answer!r}: {verdict.score}")


def kills(calls: int) -> None:
    draws = random.Random(0)
    killed: list[int] = []
    kinds: Counter[str] = Counter()
    started, memory = time.perf_counter(), 0
    for call in range(calls):
        if draws.random() < 0.01:  # at a moment within one of the next calls
            threading.Timer(draws.uniform(0, 0.1), kill_one, [killed]).start()
        rows = [mixed_row(draws, 1000 * call + i) for i in range(draws.randint(1, 6))]
        verdicts = math_verdicts([""] * len(rows), [row[0] for row in rows], answer=[row[1] for row in rows])
        for verdict, (_, _, expected) in zip(verdicts, rows, strict=True):
            kinds["as expected" if verdict.score == expected else f"error {verdict.error}"] += 1
        if call == calls // 10:
            memory = resident_kb()
    taken = time.perf_counter() - started
    print(f"{calls} calls, {sum(kinds.values())} rows in {taken:.0f} s; {len(killed)} workers killed; {dict(kinds)}")
    print(f"workers left {len(pool.worker_pids())}; counters {pool.counters()}")
    print(f"resident memory: {memory} kB after a tenth, {resident_kb()} kB at the end")


def kill_one(killed: list[int]) -> None:
    for pid in pool.worker_pids()[:1]:
        os.kill(pid, 9)
        killed.append(pid)


def mixed_row(draws: random.Random, number: int) -> tuple[str, str, float]:
    """A completion, a gold answer, the score that is right."""
    kind = draws.randrange(6)
    if kind == 0:
        return f"\\boxed{{{number}}}", f"{number}", 1.0
    if kind == 1:
        return f"\\boxed{{x+{number}}}", f"{number}+x", 1.0
    if kind == 2:
        return f"\\boxed{{\\frac{{\\sqrt{{{number + 2}}}}}{{2}}}}", f"\\sqrt{{{number + 3}}}", 0.0
    if kind == 3:
        return f"\\boxed{{({number}, y)}}", f"({number}.0, y)", 1.0
    if kind == 4:
        return f"\\boxed{{9^{{9^{{{number + 9}}}}}}}", f"{number}x", 0.0
    return f"no answer but {number}", f"{number}", 0.0


def resident_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["speed", "gold", "kills"], help="speed, gold, kills (all)")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--size", type=int, default=300)
    parser.add_argument("--calls", type=int, default=10_000)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    if "speed" in args.parts:
        speed(args.data, args.repeats, args.size)
    if "gold" in args.parts:
        gold(args.data)
    if "kills" in args.parts:
        kills(args.calls)


if __name__ == "__main__":
    main()
