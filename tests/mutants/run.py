"""Do the tests bite? Runs every mutation of ``table.py`` against the tests that have to notice it.

    python tests/mutants/run.py [--only TEXT ...] [--jobs 2]

Each mutation is made in a temporary copy of the tree, and is *killed* when one of its tests fails. Exit status 1: one
survived, its text is not there exactly once, or the tests fail without any mutation.

The table is written by hand. Tools that make mutants by rule (mutmut, cosmic-ray) start an interpreter for each, which
here is ten seconds of importing torch, choose tests by coverage, under which a run of the RL stage is a test of
everything, and leave hundreds of equivalent mutants to look at. A hand-written one is a mistake that somebody might
make, beside the test that is there for it. What is heavy is imported once; each mutation has a fork of that process.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import importlib
import os
import py_compile
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from table import EQUIVALENT, MUTANTS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fbt_rl", "pretrain", "sft", "rl", "reward")
COPIED = (*PACKAGES, "tests", "pyproject.toml")
WARM = (
    "torch",
    "transformers",
    "datasets",
    "peft",
    "accelerate",
    "trl.trainer.grpo_trainer",
    "deepspeed",
    "scipy.stats",
)
PASSED, FAILED, FOREIGN = 0, 1, 90  # exit statuses: pytest's, and ours where the tests do not import the copy
LONGEST_S = 300  # a mutation may well lead into an endless loop


class Mutant(NamedTuple):
    file: str
    original: str
    replacement: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {_line(self.original)}  ->  {_line(self.replacement)}"


def _line(text: str) -> str:
    return " / ".join(line.strip() for line in text.strip().splitlines()) or "(nothing)"


def copy_tree(target: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "mutants"))
        else:
            shutil.copy(source, target / name)
    # Told from their sources by content: a mutation can be as long as the original and made in the same second.
    compileall.compile_dir(target, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    return target


def start(copy: Path, tests: list[str], module: str | None) -> int:
    """The process id of a fork that runs ``tests`` on ``copy``; ``module``: what they have to import from there."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    status = 3
    try:
        os.setsid()  # so that what it starts can be ended with it
        signal.alarm(LONGEST_S)
        output = os.open(copy / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = str(copy)  # for processes that tests start
        status = int(pytest.main(["-x", "-p", "no:cacheprovider", f"--rootdir={copy}", *tests]))
        ours = {name: found for name, found in sys.modules.items() if name.split(".")[0] in PACKAGES}
        foreign = [
            name for name, found in ours.items() if not str(getattr(found, "__file__", "")).startswith(str(copy))
        ]
        if foreign or (module is not None and module not in ours):
            print(f"not imported from the copy: {foreign or module}")
            status = FOREIGN
    finally:
        sys.stdout.flush()
        os._exit(status)


def finish(pid: int, status: int) -> int:
    """The exit status of a fork, after whatever it has left running is ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    return FAILED if code == -signal.SIGALRM else code


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def run_all(jobs: list[tuple[str, Mutant | None, list[str]]], copies: list[Path], told) -> None:
    """Run ``jobs`` (name, mutation, tests), one a copy at a time; ``told(name, mutation, status, output, seconds)``."""
    free, running = list(copies), {}
    waiting = list(reversed(jobs))
    while waiting or running:
        while waiting and free:
            name, mutant, tests = waiting.pop()
            copy, text = free.pop(), ""
            if mutant is not None:
                text = (copy / mutant.file).read_text(encoding="utf-8")
                (copy / mutant.file).write_text(text.replace(mutant.original, mutant.replacement), encoding="utf-8")
            pid = start(copy, tests, module_of(mutant.file) if mutant else None)
            running[pid] = name, mutant, text, copy, time.monotonic()
        pid, status = os.wait()
        name, mutant, text, copy, began = running.pop(pid)
        status = finish(pid, status)
        if mutant is not None:
            (copy / mutant.file).write_text(text, encoding="utf-8")
        output = (copy / "output.txt").read_text(encoding="utf-8", errors="replace")
        told(name, mutant, status, output, time.monotonic() - began)
        free.append(copy)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="mutations whose file, text or tests hold one of these"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side (default 2)")
    options = parser.parse_args()
    began = time.monotonic()

    mutants = [Mutant(file, *given[:2], tuple(given[2:])) for file, rows in MUTANTS.items() for given in rows]
    mutants = [
        mutant for mutant in mutants if any(text in " ".join((*mutant[:3], *mutant.tests)) for text in options.only)
    ]
    bad = [f"listed twice: {mutant}" for mutant, times in Counter(mutants).items() if times > 1]
    for file, original, *_ in [*mutants, *((file, text, why) for file, text, _, why in EQUIVALENT)]:
        times = (ROOT / file).read_text(encoding="utf-8").count(original) if (ROOT / file).is_file() else 0
        if times != 1:
            bad.append(f"found {times} times in {file}, once is needed: {_line(original)}")
    if bad or not mutants:
        print("\n".join(bad) or f"no mutation holds any of {options.only}")
        return 1

    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() not in (ROOT, Path(__file__).parent)]
    for name in WARM:
        importlib.import_module(name)
    imported = [name for name in sys.modules if name.split(".")[0] in PACKAGES]
    assert not imported, f"imported before any mutation is made: {imported}"

    failures: list[str] = []
    killed = 0

    def told_of_original(name, mutant, status, output, seconds):
        print(
            f"without any mutation, {name}: {'passed' if status == PASSED else 'FAILED'} ({seconds:.0f} s)", flush=True
        )
        if status != PASSED:
            failures.append(f"{name}\n{output[-3000:]}")

    def told_of_mutant(name, mutant, status, output, seconds):
        nonlocal killed
        what = {FAILED: "killed", PASSED: "SURVIVED"}.get(status, f"BROKEN ({status})")
        print(f"[{name}] {what:8} {seconds:4.0f} s  {mutant}", flush=True)
        killed += status == FAILED
        if status != FAILED:
            failures.append(f"{what}: {mutant}\n    {' '.join(mutant.tests)}")
            if status != PASSED:
                failures.append(output[-2000:])

    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copies = [copy_tree(Path(scratch) / str(job)) for job in range(options.jobs)]
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        files = sorted({test.partition("::")[0] for test in tests})
        groups = [(file, None, [test for test in tests if test.partition("::")[0] == file]) for file in files]
        run_all(groups, copies, told_of_original)
        if not failures:
            width = len(str(len(mutants)))
            rows = [(f"{n:{width}}/{len(mutants)}", mutant, list(mutant.tests)) for n, mutant in enumerate(mutants, 1)]
            run_all(rows, copies, told_of_mutant)
    print()
    print("\n".join(failures))
    print(
        f"{killed} of {len(mutants)} mutations killed, {len(EQUIVALENT)} more are equivalent; "
        f"{(time.monotonic() - began) / 60:.1f} minutes"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
