"""The verdict on a program is what its tests say under plain Python: compared style for style."""

import json
import subprocess
import sys

import pytest
from code_styles import styles
from test_sandbox import best

from reward.code_tests import _lines, code_verdicts

pytestmark = pytest.mark.skipif(best() is None, reason="no sandbox level works here")

# Runs each script in a process of its own, forked from an interpreter that is warm; what comes back is the exit
# status and the output. Reads and writes JSON.
PLAIN = r"""
import atexit, json, os, sys, signal, tempfile, threading, types
import argparse, ast, asyncio, concurrent.futures, contextlib, dataclasses, decimal, doctest, unittest.mock

def run(source, given):
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout:
        stdin.write(given.encode())
        stdin.seek(0)
        child = os.fork()
        if child == 0:
            os.dup2(stdin.fileno(), 0)
            os.dup2(stdout.fileno(), 1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            signal.alarm(60)
            become(source)
        _, status = os.waitpid(child, 0)
        stdout.seek(0)
        return status, stdout.read().decode("utf-8", "replace")

def become(source):
    sys.argv = ["-c"]
    sys.stdin = open(0)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    status = 0
    try:
        exec(compile(source, "<string>", "exec", dont_inherit=True), main.__dict__)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else end.code is not None
    except BaseException:
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status & 255)

print(json.dumps([run(source, given) for source, given in json.load(sys.stdin)]))
"""


def plainly(rows):
    """(passed, output) of each (script, standard input)."""
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", PLAIN], input=json.dumps(rows), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [(status == 0, output) for status, output in json.loads(done.stdout)]


def script(style, program):
    """What plain Python is to run: the program and its tests, one after the other."""
    given = ""
    parts = [program, style.setup or ""]
    if isinstance(style.tests, str):
        parts.append(style.tests)
    elif isinstance(style.tests[0], str):
        parts += style.tests
    else:
        given = style.tests[0]["input"]
    if "def check(candidate)" in style.tests:
        parts.append(f"check({style.entry_point})")
    return "\n".join(parts), given


def harness(rows):
    """True, False, or the kind of error where there is no verdict."""
    found = code_verdicts(
        [""] * len(rows),
        [program for _, program in rows],
        tests=[style.tests for style, _ in rows],
        entry_point=[style.entry_point for style, _ in rows],
        setup=[style.setup for style, _ in rows],
        require="rlimits",
        wall_s=60.0,
    )
    return [verdict.error if verdict.correct is None else verdict.correct for verdict in found]


def expected(rows):
    outcomes = plainly([script(*row) for row in rows])
    for (style, _), (passed, output) in zip(rows, outcomes, strict=True):
        outputs = isinstance(style.tests, list) and isinstance(style.tests[0], dict)
        yield passed and (not outputs or _lines(output) == _lines(style.tests[0]["output"]))


def test_every_style():
    rows = [(style, program) for style in styles() for program in (style.right, style.wrong)]
    wanted = list(expected(rows))
    found = harness(rows)
    different = {
        (style.name, "right" if program == style.right else "wrong"): (said, verdict)
        for (style, program), said, verdict in zip(rows, wanted, found, strict=True)
        if said != verdict
    }
    assert different == {}
    assert len({(style.tests if isinstance(style.tests, str) else style.name) for style, _ in rows}) >= 300
