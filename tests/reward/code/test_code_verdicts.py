"""The verdict on a program is what its tests say under plain Python: compared style for style."""

import json
import subprocess
import sys

import pytest
from code_styles import Style, styles
from sandbox_levels import best

from reward.code.program import _lines, code_verdicts

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
    told_apart = {str(row[0].tests) for row, right, wrong in zip(rows[::2], wanted[::2], wanted[1::2], strict=True)
                  if right and not wrong}  # fmt: skip
    assert len(told_apart) >= 400


def test_the_warm_interpreter_is_plain_python():
    rows = [(style, program) for style in styles()[::40] for program in (style.right, style.wrong)]
    for row, (passed, output) in zip(rows, plainly([script(*row) for row in rows]), strict=True):
        source, given = script(*row)
        done = subprocess.run([sys.executable, "-X", "utf8", "-c", source], input=given, capture_output=True, text=True)
        assert (done.returncode == 0, done.stdout) == (passed, output), row[0].name


# --- where the verdict is not what plain Python says ----------------------------------------------

PLUS_ONE = "def f(x):\n    return x + 1\n"
ASK = "assert f(1) == 2"
UNITTEST = "import unittest\nclass Test(unittest.TestCase):\n    def test(self):\n        self.assertEqual(f(1), 2)\n"
OVER_EVERYTHING = "class E:\n    def __eq__(self, other):\n        return True\n"
POINT = "class Point:\n    def __init__(self, x): self.x = x\n    def __eq__(self, other): return self.x == other.x\n"
RANDOM = "import random\ndef f(x):\n    return random.random()\n"
STEP = "import os\ndef f(x):\n    return x + int(os.environ['STEP'])\n"

# why: [(tests, program, what plain Python says, the verdict)]; docs/rewards.md has the same list.
INTENDED = {
    "a program that ends has not passed": [
        (ASK, "raise SystemExit(0)", True, False),
        (ASK, "import os; os._exit(0)", True, False),
        (ASK, "import os\ndef f(x): os._exit(0)", True, False),
        (ASK, "def f(x): raise SystemExit(0)", True, False),
        ("try: f(1)\nexcept: pass\nelse: assert False", "import os\ndef f(x): os._exit(0)", True, False),
        (UNITTEST + "unittest.main()", "import unittest\ndef f(x): raise unittest.SkipTest", True, False),
    ],
    "no comparison is the program's": [
        (ASK, OVER_EVERYTHING + "def f(x): return E()", True, False),
        (ASK, OVER_EVERYTHING.replace("E:", "E(int):") + "def f(x): return E(0)", True, False),
        ("assert 2 in f(1)", "class E:\n    def __contains__(self, x): return True\ndef f(x): return E()", True, False),
        ("assert close(f(1), 2)", "def f(x): return 0\ndef close(a, b): return True", True, False),
        ("assert half(f(1)) == 1", PLUS_ONE + "def half(x): return x // 2", True, False),
        ("assert Point(1) == Point(1)", POINT, True, False),
        (
            "assert all(f(n) == 2 for n in range(3))",
            "import builtins\nbuiltins.all = bool\ndef f(x): return 0",
            True,
            False,
        ),
    ],
    "a failed assertion is not the program's to swallow": [
        (
            "with f(1) as y:\n    assert y == 2",
            "class f:\n    def __init__(self, x): pass\n    __enter__ = __exit__ = lambda *_: True",
            True,
            False,
        ),
    ],
    "what unittest finds counts, whatever becomes of it": [
        (UNITTEST + "unittest.main(exit=False)", "def f(x): return x", True, False),
        (
            UNITTEST + "unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(Test))",
            "def f(x): return x",
            True,
            False,
        ),
    ],
    "tests that ask nothing of the program, or cannot say that it is wrong, are none": [
        ("def test_f():\n    assert f(1) == 2", "def f(x): return x", True, "bad_tests"),
        ("def test_f():\n    assert f(1) == 2", PLUS_ONE, True, "bad_tests"),
        (UNITTEST, PLUS_ONE, True, "bad_tests"),
        ("f(1)", PLUS_ONE, True, "bad_tests"),
        ("if f(1) != 2:\n    1 / 0", PLUS_ONE, True, "bad_tests"),
        (
            "import doctest\nassert doctest.testmod().failed == 0",
            "def f(x):\n    '''>>> f(1)\n    3\n    '''",
            False,
            "bad_tests",
        ),
    ],
    "tests have to come to their end": [
        (f"{ASK}\n__import__('os')._exit(0)", PLUS_ONE, True, False),
    ],
    "the program is imported, not run": [
        (ASK, PLUS_ONE + "if __name__ == '__main__':\n    raise SystemExit(1)", False, True),
    ],
    "neither reaches the other's names, modules and files": [
        ("STEP = 1\n" + ASK, "def f(x): return x + STEP", True, False),
        ("import random\nrandom.seed(5)\na = f(1)\nrandom.seed(5)\nassert a == f(1)", RANDOM, True, False),
        ("import os\nos.environ['STEP'] = '1'\n" + ASK, STEP, True, False),
        ("f.__globals__['STEP'] = 1\n" + ASK, "def f(x): return x + STEP", True, False),
    ],
    "what tests use without importing it is the standard library's": [
        ("assert math.isclose(f(1), 2)", PLUS_ONE, False, True),
    ],
    "a class cannot be continued, nor a type be looked at, on the other side": [
        ("class Mine(f):\n    pass\nassert Mine().x == 1", "class f:\n    x = 1", True, False),
        ("assert type(f(1)).__name__ == 'Made'", "class Made: pass\ndef f(x): return Made()", True, False),
        ("import inspect\nassert list(inspect.signature(f).parameters) == ['x'] and f(1) == 2", PLUS_ONE, True, False),
    ],
}


def test_where_the_verdict_is_another():
    cases = [(why, *case) for why, cases in INTENDED.items() for case in cases]
    rows = [
        (Style(why, tests, program, program, "f" if "(f(1)" in tests else None), program)
        for why, tests, program, _, _ in cases
    ]  # what is called in a call of another is under test
    wanted = [(why, program, said, verdict) for why, _, program, said, verdict in cases]
    found = [
        (row[0].name, row[1], said, verdict)
        for row, said, verdict in zip(rows, expected(rows), harness(rows), strict=True)
    ]
    assert found == wanted
