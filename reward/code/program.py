"""Does the program in a completion pass its tests?

Three kinds of tests: a ``check(candidate)`` function (HumanEval), assert statements (MBPP), and inputs with
the output expected (competitions). The program runs in a sandbox (:mod:`reward.code.sandbox`); its tests run in
another, or, for outputs, here. So the verdict is made where the program cannot reach: ending early,
patching builtins or looking for the expected values gains nothing (:mod:`reward.code.code_harness`).
"""

from __future__ import annotations

import ast
import builtins
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from reward.base import Completion, RewardError, Verdict, completion_text
from reward.code import sandbox
from reward.code.sandbox import Level, Limits, SandboxError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CallTests:
    """Tests that call the program's functions. ``sources``: a setting, then what is run and asserts."""

    sources: tuple[str, ...]
    entry_point: str
    others: tuple[str, ...]  # further names that only the program can define
    modules: tuple[str, ...]  # of the standard library, which tests use without importing them


@dataclass(frozen=True)
class ReadTests:
    """Tests that run the program as a script: ``(standard input, expected standard output)``."""

    cases: tuple[tuple[str, str], ...]


def code_reward(
    prompts: Sequence[Any], completions: Sequence[Completion], completion_ids: Any = None, **columns: Any
) -> list[float | None]:
    """The scores of :func:`code_verdicts`."""
    return [verdict.score for verdict in code_verdicts(prompts, completions, completion_ids, **columns)]


def code_verdicts(
    prompts: Sequence[Any],
    completions: Sequence[Completion],
    completion_ids: Any = None,
    *,
    tests: Sequence[Any] | None = None,
    answer: Sequence[Any] | None = None,
    entry_point: Sequence[str | None] | None = None,
    setup: Sequence[str | None] | None = None,
    prompt: Sequence[str] | None = None,
    partial: bool = False,
    workers: int = 2,
    wall_s: float = 10.0,
    memory_mb: int = 512,
    require: Level = "namespaces",
    **columns: Any,
) -> list[Verdict]:
    """Judge each completion by its row's tests; equal programs under equal tests are run once.

    ``tests``, else ``answer``: text with a ``check`` function or assert statements; a list of assert
    statements; a list of ``{"input": ..., "output": ...}`` or ``{"inputs": [...], "outputs": [...]}``; or
    ``{"tests": one of these, "entry_point": ..., "setup": ...}``. Lists and mappings may come as JSON text.
    ``entry_point`` names the function tested (default: what the tests call first), ``setup`` is code that
    tests need, ``prompt`` (default: ``prompts``) is what a completion without a code block continues.

    ``partial`` scores the share of assertions or cases passed, 0 where the tests did not come to an
    end; ``correct`` is all of them in any case. ``wall_s`` and ``memory_mb`` limit one run of one
    program, ``workers`` run at a time. Not judged (None) is a row without usable tests
    (``bad_tests``) and a program that could not be run (``sandbox``). Wrong ones carry the kind of error: an
    ending of :class:`reward.code.sandbox.Result`, ``failed_test``, ``wrong_output``, or an exception's name.
    Raises :class:`reward.base.RewardError` where the sandbox does not reach the level ``require``.
    """
    given_tests = tests if tests is not None else answer
    if given_tests is None:
        raise RewardError("reward 'code' needs a column 'tests', or tests in the column 'answer'")
    _require_level(require)
    limits = Limits(wall_s=wall_s, cpu_s=max(1, round(wall_s)), memory_bytes=memory_mb * 2**20)
    runs: dict[Any, Future[Verdict]] = {}
    results: list[Future[Verdict] | Verdict] = []
    with ThreadPoolExecutor(workers, "code-tests") as pool:
        for row, completion in enumerate(completions):
            asked = _text(prompt[row] if prompt is not None else prompts[row])
            task = parse_tests(
                given_tests[row], entry_point[row] if entry_point else None, setup[row] if setup else None, asked
            )
            if task is None:
                results.append(Verdict(None, None, error="bad_tests"))
                continue
            name = task.entry_point if isinstance(task, CallTests) else None
            key = extract_program(completion_text(completion), asked, name), task
            if key not in runs:
                runs[key] = pool.submit(judge_program, *key, partial=partial, limits=limits, require=require)
            results.append(runs[key])
        return [result if isinstance(result, Verdict) else result.result() for result in results]


def judge_program(
    program: str, task: CallTests | ReadTests, *, partial: bool, limits: Limits, require: Level
) -> Verdict:
    """Run one program under its tests."""
    try:
        judged = _judge_calls if isinstance(task, CallTests) else _judge_outputs
        passed, asked, error = judged(program, task, partial, limits, require)  # type: ignore[arg-type]
    except (SandboxError, OSError) as fault:
        logger.warning("a program could not be judged: %s", str(fault))  # a record must not keep its frames
        return Verdict(None, None, program, "sandbox")
    correct = passed == asked > 0
    return Verdict(correct, passed / max(asked, 1) if partial else float(correct), program, None if correct else error)


@lru_cache(maxsize=1)
def self_test() -> None:
    """Judge programs of known worth. Raises :class:`reward.base.RewardError` where one comes out otherwise."""
    level = _require_level("rlimits")
    logger.info("programs run at sandbox level %r%s", level, _why())
    rows = (("def f(x): return x + 1", 1.0), ("def f(x): return x", 0.0), ("import os; os._exit(0)", 0.0))
    programs = [program for program, _ in rows]
    scores = code_reward([""] * 3, programs, tests=[["assert f(1) == 2"]] * 3, require="rlimits", wall_s=60.0)
    if scores != [score for _, score in rows]:
        raise RewardError(f"the code grader's self-test failed at sandbox level {level!r}: {scores} for {programs}")


def _require_level(require: Level) -> Level:
    if require not in sandbox.LEVELS:
        raise RewardError(f"reward 'code': require: {require!r} is no sandbox level; one of {sandbox.LEVELS}")
    try:
        level = sandbox.level_in_force()
    except SandboxError as error:
        raise RewardError(f"reward 'code' cannot run programs: {error}") from error
    if not sandbox.reaches(level, require):
        raise RewardError(
            f"reward 'code' has only sandbox level {level!r} here, not {require!r}: programs could read and write "
            f"files of this user. Allow it with args: {{require: {level}}}, or run as root, with user namespaces, or "
            f"with bubblewrap installed{_why()}"
        )
    return level


def _why() -> str:
    return f" ({why})" if (why := sandbox.why_not_better()) else ""


# --- the program ---------------------------------------------------------------------------------

_FENCE = r"^[ \t]*(?:```|~~~)[ \t]*"
_BLOCK = re.compile(rf"{_FENCE}(\w*)[^\n]*\n(.*?)(?:{_FENCE}$|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = ("", "python", "py", "python3")


def extract_program(completion: str, prompt: str, entry_point: str | None) -> str:
    """The program a completion stands for.

    The last code block that defines ``entry_point``, else the last one; without a block the whole
    text. Where the prompt is itself code that opens ``entry_point``, the text continues it, unless it
    defines the function anew; what stands before the function in the prompt stays.
    """
    blocks = [body for language, body in _BLOCK.findall(completion) if language.lower() in _PYTHON]
    opening = re.compile(rf"^(?:async )?def {re.escape(entry_point)}\b", re.MULTILINE) if entry_point else None
    defining = [body for body in blocks if opening and opening.search(body)]
    text = (defining or blocks or [completion])[-1]
    stub = opening.search(prompt) if opening else None
    if opening is None or stub is None:
        return text
    return prompt[: stub.start()] + text if opening.search(text) else prompt + text


def _text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else completion_text(prompt or "")


# --- the tests -----------------------------------------------------------------------------------


def parse_tests(tests: Any, entry_point: str | None, setup: str | None, prompt: str) -> CallTests | ReadTests | None:
    """The tests meant by a row (see :func:`code_verdicts`), or None where there are none to run."""
    if isinstance(tests, str) and tests.lstrip()[:1] in ("[", "{"):
        try:
            tests = json.loads(tests)
        except ValueError:
            return None
    if isinstance(tests, dict) and "tests" in tests:
        given = (tests.get("entry_point", entry_point), tests.get("setup", setup))
        return parse_tests(tests["tests"], *given, prompt)
    if isinstance(tests, dict):
        inputs, outputs = tests.get("inputs"), tests.get("outputs")
        if not inputs or not outputs or len(inputs) != len(outputs):
            return None
        tests = [{"input": given, "output": wanted} for given, wanted in zip(inputs, outputs, strict=True)]
    if isinstance(tests, str):
        tests = [tests]
    if not isinstance(tests, Sequence) or not tests:
        return None
    if all(isinstance(case, dict) and {"input", "output"} <= set(case) for case in tests):
        return ReadTests(tuple((str(case["input"]), str(case["output"])) for case in tests))
    if not all(isinstance(case, str) for case in tests):
        return None
    try:
        return _call_tests(tuple(tests), entry_point or None, setup or "", prompt)
    except (SyntaxError, ValueError):
        return None


def _call_tests(tests: tuple[str, ...], entry_point: str | None, setup: str, prompt: str) -> CallTests | None:
    asked = [node for source in tests for node in ast.walk(ast.parse(source))]
    nodes = [*ast.walk(ast.parse(setup)), *asked]
    if not any(isinstance(node, ast.Assert) for node in asked):
        return None
    functions = _functions(prompt)
    if any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in asked):
        entry_point = entry_point or (functions[-1] if functions else None)
        tests = (*tests, f"check({entry_point})")
    free = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)} - _bound(nodes)
    outside = free - set(dir(builtins)) - sys.stdlib_module_names
    called = [node.func.id for node in asked if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    called = [name for name in called if name in free]
    # A builtin's name can be what is tested ("assert sum(10, 15) == 6"), but only if nothing else is.
    entry_point = entry_point or next((name for name in called if name in outside), called[0] if called else None)
    if entry_point is None or not entry_point.isidentifier():
        return None
    helpers = prompt if entry_point in functions else ""
    return CallTests(
        sources=(helpers, setup, *tests),
        entry_point=entry_point,
        others=tuple(sorted(outside - {entry_point} - set(functions if helpers else ()))),
        modules=tuple(sorted((free & sys.stdlib_module_names) - {entry_point})),
    )


def _bound(nodes: Sequence[ast.AST]) -> set[str]:
    """The names that code gives a meaning to, in whatever scope."""
    names = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    names |= {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    return names | {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}


def _functions(prompt: str) -> list[str]:
    """The functions that a prompt defines, if it is code."""
    try:
        return [node.name for node in ast.parse(prompt).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError):
        return []


# --- the verdict ---------------------------------------------------------------------------------


def _judge_calls(
    program: str, task: CallTests, partial: bool, limits: Limits, require: Level
) -> tuple[int, int, str | None]:
    """Assertions passed, assertions asked, and the kind of error, from a judge and a host talking to each other."""
    given = json.dumps([task.sources, task.entry_point, task.others, task.modules, partial])
    judging = f"import code_harness, json; code_harness.judge(*json.loads({given!r}))"
    hosting = f"import code_harness; code_harness.host({program!r})"
    calls_read, calls_write = os.pipe()
    answers_read, answers_write = os.pipe()
    verdict_read, verdict_write = os.pipe()
    complaints = sandbox.memory_file(b"")
    jobs: list[sandbox.Job] = []
    try:
        try:
            jobs.append(sandbox.Job(judging, (answers_read, calls_write, verdict_write), limits, require))
            jobs.append(sandbox.Job(hosting, (calls_read, answers_write, complaints), limits, require))
        finally:
            for descriptor in (calls_read, calls_write, answers_read, answers_write, verdict_write):
                os.close(descriptor)
        until = time.monotonic() + limits.wall_s + sandbox.GRACE_S
        (verdict,), _ = sandbox.read_all([verdict_read], 65536, until)
        counts = json.loads(verdict) if verdict else None
        if counts is None or counts["error"] != "gone":  # a program that is gone ends by itself, and that tells why
            jobs[1].cancel()
        judge, host = (job.wait() for job in jobs)
        said = os.fstat(complaints).st_size
        os.lseek(complaints, max(said - 4096, 0), os.SEEK_SET)
        stderr = os.read(complaints, 4096)
    finally:
        for job in jobs:
            job.close()
        os.close(verdict_read)
        os.close(complaints)
    if counts is None:
        if judge["status"] == -signal.SIGKILL and judge["ending"] is None:
            raise SandboxError("its judge was killed")  # by none of our limits: by somebody else, or for want of memory
        return 0, 1, sandbox.classify(judge, b"")
    error = "failed_test" if counts["error"] == "AssertionError" else counts["error"]
    if error == "gone":
        error = "output" if said > limits.output_bytes else _why_gone(host, stderr)
    broken_off = not counts["finished"] and not counts["failed"]
    return counts["passed"], counts["passed"] + counts["failed"] + broken_off, error


def _why_gone(host: dict[str, Any], stderr: bytes) -> str:
    kind = sandbox.classify(host, stderr)
    exception = re.match(rb"([A-Z]\w{0,40})(?::|$)", stderr.rstrip().rpartition(b"\n")[2])
    return exception[1].decode() if kind == "exit" and exception else kind


def _judge_outputs(
    program: str, task: ReadTests, partial: bool, limits: Limits, require: Level
) -> tuple[int, int, str | None]:
    """Cases passed, cases asked, and the first one's kind of error; without ``partial`` up to the first failure."""
    passed, error = 0, None
    for given, wanted in task.cases:
        result = sandbox.run(program, given.encode("utf-8", "surrogateescape"), limits, require)
        if result.kind == "ok" and _lines(result.stdout.decode("utf-8", "replace")) == _lines(wanted):
            passed += 1
            continue
        error = error or ("wrong_output" if result.kind == "ok" else result.kind)
        if not partial:
            break
    return passed, len(task.cases), error


def _lines(output: str) -> list[str]:
    """Lines without blanks at their ends, and without empty lines at the end."""
    return [line.rstrip() for line in output.rstrip().splitlines()]
