"""Do the tests bite? Makes each mistake of ``table.txt`` in a copy of the tree and runs the tests that have to notice.

    python tests/mutants/mutate.py [--only TEXT ...] [--jobs 2]

A mistake is *killed* when one of its tests fails. Exit status 1: one survived, its text is not there exactly once, or
the tests fail without any mistake.

The table is written by hand. Tools that make mutants by rule (mutmut, cosmic-ray) start an interpreter for each, which
here is ten seconds of importing torch, choose tests by coverage, under which a run of the RL stage is a test of
everything, and leave hundreds of equivalent mutants to look at. An entry here is a mistake that somebody might make,
with the test that is there for it. What is heavy is imported once; each mistake has a fork of that process.
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
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("table.txt")
PACKAGES = ("fbt_rl", "pretrain", "sft", "rl", "reward")
WARM = (
    "torch",
    "transformers",
    "datasets",
    "peft",
    "accelerate",
    "deepspeed",
    "trl.trainer.grpo_trainer",
    "scipy.stats",
)
PASSED, FAILED, FOREIGN = 0, 1, 90  # exit statuses: pytest's, and ours where tests do not import what was changed
LONGEST_S = 300  # a mistake may well lead into an endless loop


class Mutant(NamedTuple):
    file: str
    original: str
    replacement: str
    tests: tuple[str, ...]
    reason: str  # why it is equivalent; then it has no tests

    def __str__(self) -> str:
        before, after = (" / ".join(map(str.strip, text.splitlines())) for text in (self.original, self.replacement))
        return f"{self.file}: {before}  ->  {after or '(nothing)'}"


class Job(NamedTuple):
    """Tests to be run on a copy of the tree, perhaps with a mistake in it."""

    name: str
    tests: list[str]
    mutant: Mutant | None = None


Told = Callable[[Job, int, str, float], None]  # of a job: exit status, output, seconds


def read_table(text: str) -> list[Mutant]:
    mutants, file = [], ""
    for block in filter(None, map(str.strip, text.split("\n\n"))):
        lines = {sign: [line[2:] for line in block.splitlines() if line[0] == sign] for sign in "-+>="}
        if lines["-"]:
            texts = ("\n".join(lines[sign]) for sign in "-+")
            mutants.append(Mutant(file, *texts, tuple(" ".join(lines[">"]).split()), " ".join(lines["="])))
        elif block[0] != "#":
            file = block
    return mutants


def faults_of(mutants: list[Mutant]) -> list[str]:
    """What is wrong with the table itself."""
    faults = [f"listed twice: {mutant}" for mutant, times in Counter(mutants).items() if times > 1]
    for mutant in mutants:
        path = ROOT / mutant.file
        times = path.read_text(encoding="utf-8").count(mutant.original) if path.is_file() else 0
        if times != 1:
            faults.append(f"its text is there {times} times, not once: {mutant}")
        if bool(mutant.tests) == bool(mutant.reason):
            faults.append(f"needs tests, or a reason why there are none: {mutant}")
    return faults


def copy_tree(target: Path) -> Path:
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "mutants"))
    shutil.copy(ROOT / "pyproject.toml", target)
    # Told from their sources by content: a mistake can be as long as the truth, and made in the same second.
    compileall.compile_dir(target, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    return target


def start(job: Job, copy: Path) -> int:
    """The process id of a fork that runs the job's tests on ``copy``."""
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
        status = int(pytest.main(["-x", "-p", "no:cacheprovider", f"--rootdir={copy}", *job.tests]))
        files = {name: str(getattr(found, "__file__", "")) for name, found in sys.modules.items()}
        ours = {name: file for name, file in files.items() if name.split(".")[0] in PACKAGES}
        wrong = [name for name, file in ours.items() if not file.startswith(str(copy))]
        if job.mutant and str(copy / job.mutant.file) not in ours.values():
            wrong.append(job.mutant.file)
        if wrong:
            print(f"not imported from the copy: {', '.join(wrong)}")
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


def run_all(jobs: list[Job], copies: list[Path], told: Told) -> None:
    """Run the jobs, one at a time on each copy."""
    free, running, waiting = list(copies), {}, list(reversed(jobs))
    while waiting or running:
        while waiting and free:
            job, copy, text = waiting.pop(), free.pop(), ""
            if job.mutant:
                text = (copy / job.mutant.file).read_text(encoding="utf-8")
                wrong = text.replace(job.mutant.original, job.mutant.replacement)
                (copy / job.mutant.file).write_text(wrong, encoding="utf-8")
            running[start(job, copy)] = job, copy, text, time.monotonic()
        pid, status = os.wait()
        job, copy, text, began = running.pop(pid)
        status = finish(pid, status)
        if job.mutant:
            (copy / job.mutant.file).write_text(text, encoding="utf-8")
        told(job, status, (copy / "output.txt").read_text(errors="replace"), time.monotonic() - began)
        free.append(copy)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="mistakes whose file, text or tests hold one of these"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side (default 2)")
    options = parser.parse_args()
    began = time.monotonic()

    table = read_table(TABLE.read_text(encoding="utf-8"))
    table = [mutant for mutant in table if any(text in " ".join((*mutant[:3], *mutant.tests)) for text in options.only)]
    mutants = [mutant for mutant in table if mutant.tests]
    if faults := faults_of(table):
        print("\n".join(faults))
        return 1

    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() not in (ROOT, TABLE.parent)]
    for name in WARM:
        importlib.import_module(name)
    assert not {name.split(".")[0] for name in sys.modules}.intersection(PACKAGES), (
        "imported before any mistake is made"
    )

    failures: list[str] = []

    def told_without(job: Job, status: int, output: str, seconds: float) -> None:
        print(f"{'passed' if status == PASSED else 'FAILED':8} {seconds:4.0f} s  {job.name} as it is", flush=True)
        if status != PASSED:
            failures.append(f"{job.name} fails as it is\n{output[-3000:]}")

    def told(job: Job, status: int, output: str, seconds: float) -> None:
        what = {FAILED: "killed", PASSED: "SURVIVED"}.get(status, "BROKEN")
        print(f"{what:8} {seconds:4.0f} s  {job.name} {job.mutant}", flush=True)
        if what != "killed":
            failures.append(f"{what}: {job.mutant}\n    {' '.join(job.tests)}")
        if what == "BROKEN":
            failures.append(f"exit status {status}\n{output[-3000:]}")

    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copies = [copy_tree(Path(scratch) / str(number)) for number in range(options.jobs)]
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        files = sorted({test.partition("::")[0] for test in tests})
        run_all([Job(file, [test for test in tests if test.startswith(file)]) for file in files], copies, told_without)
        if not failures:
            names = (f"{number}/{len(mutants)}" for number in range(1, len(mutants) + 1))
            run_all([Job(next(names), list(mutant.tests), mutant) for mutant in mutants], copies, told)

    print("", *failures, sep="\n")
    print(
        f"{len(mutants)} mistakes, {len(failures)} failures, {len(table) - len(mutants)} known to be equivalent; "
        f"{(time.monotonic() - began) / 60:.1f} minutes"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
