"""Small tests in many styles, each with a program that is right and one that is wrong: made by rules, and by hand."""

import itertools
import textwrap
from dataclasses import dataclass
from typing import Any

from code_programs import PROGRAMS, SCRIPTS, blocks


@dataclass(frozen=True)
class Style:
    name: str
    tests: Any  # as in a row
    right: str
    wrong: str
    entry_point: str | None = None
    setup: str | None = None


def indent(text, depth=1):
    return textwrap.indent(text, "    " * depth)


PROGRAM = """
def f(x):
    if x < 0:
        raise ValueError("negative")
    return x + 1
"""
WRONG = {
    "returns": "def f(x):\n    return x\n",  # a wrong value, and where it should raise
    "raises": "def f(x):\n    if x < 0:\n        raise TypeError('negative')\n    raise ValueError('always')\n",
}


# --- ways to say that something failed, wherever it can be said -------------------------------------

FAILS = {
    "assert False": "assert False",
    "assert 0": "assert 0",
    "assert None": "assert None",
    "assert ''": "assert ''",
    "assert ()": "assert ()",
    "assert not True": "assert not True",
    "assert 0.0, message": "assert 0.0, 'it did not'",
    "assert False, call": "assert False, print('it did not')",
    "assert False, error": "assert False, 1 / 0",
    "raise AssertionError": "raise AssertionError",
    "raise AssertionError(text)": "raise AssertionError('it did not')",
    "raise an error": "raise LookupError('it did not')",
    "sys.exit(1)": "__import__('sys').exit(1)",
    "sys.exit(text)": "__import__('sys').exit('it did not')",
    "constant in a function": "fail()",
}
FAIL = "def fail():\n    assert False, 'failed'\n\n"

PLACES = {
    "if": "if f(1) != 2:\n    FAIL",
    "if else": "if f(1) == 2:\n    pass\nelse:\n    FAIL",
    "elif": "if f(1) == 2:\n    pass\nelif f(1) == 3:\n    FAIL\nelse:\n    FAIL",
    "try": "try:\n    f(-1)\n    FAIL\nexcept ValueError:\n    pass",
    "try else": "try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    FAIL",
    "try except": "try:\n    assert f(1) == 2\nexcept Exception:\n    FAIL",
    "try finally": "raised = False\ntry:\n    f(-1)\nexcept ValueError:\n    raised = True\nfinally:\n"
    "    if not raised:\n        FAIL",
    "nested try": "try:\n    try:\n        f(-1)\n    except KeyError:\n        FAIL\n    else:\n        FAIL\n"
    "except ValueError as error:\n    assert str(error) == 'negative'",
    "for": "for given, wanted in ((1, 2), (2, 3)):\n    if f(given) != wanted:\n        FAIL",
    "for else": "for given in range(5):\n    if f(given) == 5:\n        break\nelse:\n    FAIL",
    "for else, raising": "for given in (0, 1, -1):\n    try:\n        assert f(given) == given + 1\n"
    "    except ValueError:\n        break\nelse:\n    FAIL",
    "while else": "n = 0\nwhile n < 5:\n    if f(n) == 5:\n        break\n    n += 1\nelse:\n    FAIL",
    "while": "n = 5\nwhile f(n) != n + 1:\n    FAIL",
    "with suppress": "import contextlib\nwith contextlib.suppress(ValueError):\n    f(-1)\n    FAIL",
    "match": "match f(1):\n    case 2:\n        pass\n    case _:\n        FAIL",
    "function": "def test():\n    try:\n        f(-1)\n    except ValueError:\n        return\n    FAIL\ntest()",
    "nested function": "def outer():\n    def inner(given):\n        if f(given) == given + 1:\n            return\n"
    "        FAIL\n    inner(1)\n    inner(2)\nouter()",
    "method": "class Test:\n    def test(self):\n        if f(3) != 4:\n            FAIL\nTest().test()",
    "generator": "def steps():\n    yield 1\n    if f(1) != 2:\n        FAIL\n    yield 2\nassert list(steps()) == [1, 2]",
    "check": "def check(candidate):\n    assert True, 'first'\n    try:\n        candidate(-1)\n    except ValueError:\n"
    "        pass\n    else:\n        FAIL\n",
    "main": "if __name__ == '__main__':\n    if f(1) != 2:\n        FAIL",
    "finally after return": "def test():\n    good = False\n    try:\n        good = f(1) == 2\n        return good\n    finally:\n"
    "        if not good:\n            FAIL\ntest()",
}


def failing():
    """Every third way at every place; the wrong program is the one that gets there."""
    for number, (place, source) in enumerate(PLACES.items()):
        for name, fail in itertools.islice(FAILS.items(), number % 3, None, 3):
            test = (FAIL if fail == "fail()" else "") + source.replace("FAIL", fail)
            yield Style(f"{place}: {name}", test, PROGRAM, WRONG["returns"], "f" if place == "check" else None)


# --- conditions, messages, and what stands around them ----------------------------------------------

CONDITIONS = [
    "f(1) == 2",
    "f(1) == 2 and f(5) == 6",
    "f(1) == 7 or f(1) == 2",
    "not f(1) != 2",
    "1 < f(1) < 3",
    "1 < f(1) <= 2 != f(2)",
    "(y := f(1)) == 2 and y + 1 == 3",
    "f(1) in (2, 9)",
    "f(1) not in {1, 3}",
    "f(1) is not None and f(1) - 2 == 0",
    "isinstance(f(1), int) and f(f(1)) == 3",
    "type(f(1)) is int and not f(1) - 2",
    "abs(f(0.1) - 1.1) < 1e-9",
    "__import__('math').isclose(f(0.1), 1.1, rel_tol=1e-9)",
    "round(f(0.123456), 3) == 1.123",
    "f(1.0) == 2",
    "[f(n) for n in range(4)] == [1, 2, 3, 4]",
    "{n: f(n) for n in (1, 2)} == {1: 2, 2: 3}",
    "all(f(n) == n + 1 for n in range(5))",
    "any(f(n) == 5 for n in range(5))",
    "list(map(f, (1, 2))) == [2, 3]",
    "sorted(f(n) for n in (3, 1, 2)) == [2, 3, 4]",
    "(lambda n: f(n) == n + 1)(4)",
    "sum(map(f, [1, 2, 3])) == 9",
    "max(1, 2, key=f) == 2 and f(2) == 3",
    "str(f(1)) == '2' and f'{f(1)}' == '2'",
    "f(x=1) == 2",
    "f(*[1]) == 2",
    "f(**{'x': 1}) == 2",
    "f(True) == 2",
    "f(10 ** 30) == 10 ** 30 + 1",
    "f(1) == 2 if f(0) == 1 else False",
    "[1, 2, 3].pop() == 3 and f(1) == 2",
    "__debug__ and f(1) == 2",
    "f(1) ** 2 == 4 and -f(1) == -2 and f(1) // 2 == 1",
    "__import__('functools').reduce(lambda total, n: total + f(n), [1, 2], 0) == 5",
]

MESSAGES = ["", "'said'", "f'{f(1)} is not it'", "print('said')", "said.append(1)", "1 / 0", "f(-1)"]

AROUND = {
    "top": "ASSERT",
    "function": "def test():\n    ASSERT\ntest()",
    "if": "if True:\n    ASSERT",
    "while": "while True:\n    ASSERT\n    break",
    "for": "for _ in range(2):\n    ASSERT",
    "try finally": "try:\n    ASSERT\nfinally:\n    said.clear()",
    "try except": "try:\n    ASSERT\nexcept (ValueError, OSError):\n    raise",
    "method": "class Test:\n    kind = 'test'\n    @staticmethod\n    def test():\n        ASSERT\nTest.test()",
    "class body": "class Test:\n    ASSERT",
    "decorated": "import functools\ndef twice(test):\n    @functools.wraps(test)\n    def run():\n        test()\n        test()\n"
    "    return run\n@twice\ndef test():\n    ASSERT\ntest()",
    "run where it is defined": "def run(test):\n    test()\n    return test\n@run\ndef test():\n    ASSERT",
    "generator": "def tests():\n    ASSERT\n    yield\nlist(tests())",
    "context manager": "import contextlib\n@contextlib.contextmanager\ndef block():\n    yield\nwith block():\n    ASSERT",
    "closed generator": "def tests():\n    try:\n        yield\n    finally:\n        ASSERT\ng = tests()\nnext(g)\ng.close()",
    "async": "import asyncio\nasync def test():\n    await asyncio.sleep(0)\n    ASSERT\nasyncio.run(test())",
    "async gather": "import asyncio\nasync def test():\n    ASSERT\nasync def main():\n    await asyncio.gather(test(), test())\n"
    "asyncio.run(main())",
    "thread": "import threading\nerrors = []\ndef test():\n    try:\n        ASSERT\n    except Exception as error:\n"
    "        errors.append(error)\nthread = threading.Thread(target=test)\nthread.start()\nthread.join()\nassert not errors",
    "pool": "from concurrent.futures import ThreadPoolExecutor\ndef test(_):\n    ASSERT\nwith ThreadPoolExecutor(2) as pool:\n"
    "    list(pool.map(test, range(3)))",
    "unittest": "import unittest\nclass Test(unittest.TestCase):\n    def test(self):\n        ASSERT\nunittest.main()",
    "main": "def main():\n    ASSERT\nif __name__ == '__main__':\n    main()",
    "main with status": "import sys\ndef main():\n    ASSERT\n    return 0\nif __name__ == '__main__':\n    sys.exit(main())",
    "check": "def check(candidate):\n    ASSERT",
    "test functions in turn": "def test_one():\n    ASSERT\ndef test_two():\n    ASSERT\n"
    "for name, test in list(globals().items()):\n    if name.startswith('test_'):\n        test()",
    "caught and counted": "failures = 0\ntry:\n    ASSERT\nexcept AssertionError:\n    failures += 1\nassert failures == 0",
    "deeper": "def deep(n):\n    if n:\n        return deep(n - 1)\n    ASSERT\ndeep(50)",
    "global": "def test():\n    global said\n    ASSERT\n    said = []\ntest()",
    "nonlocal": "def outer():\n    count = 0\n    def test():\n        nonlocal count\n        ASSERT\n        count += 1\n    test()\n"
    "    return count\nassert outer() == 1",
    "exec": 'exec("""ASSERT""")',
    "list of functions": "def one():\n    ASSERT\nfor test in [one, lambda: one()]:\n    test()",
    "walrus": "if (n := 1):\n    ASSERT",
    "star": "from math import *\nassert floor(2.5) == 2\nASSERT",
    "annotated": "from typing import *\ndef test(said: List[int]) -> None:\n    ASSERT\ntest(said)",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass Case:\n    given: int\n    def test(self):\n        ASSERT\n"
    "Case(1).test()",
}


def surrounded():
    """Every condition, every message and everything around them, in turns."""
    rows = zip(itertools.cycle(CONDITIONS), itertools.cycle(MESSAGES), itertools.cycle(AROUND.items()), strict=False)
    for condition, message, (name, around) in itertools.islice(rows, 120):
        statement = f"assert {condition}" + (f", {message}" if message else "")
        source = "said = []\n" + around.replace("ASSERT", statement)
        entry = "f" if name in ("check", "exec") else None
        yield Style(f"{name}: {statement}", source, PROGRAM, WRONG["returns"], entry)


def caught():
    """An assertion whose error a handler takes is none that failed; otherwise it is."""
    handlers = ["ValueError", "(ValueError, KeyError)", "Exception", "AssertionError", "BaseException", "TypeError", ""]
    asserts = ["assert f(-1) == 0", "assert f(1) == 2", "assert f(-1)", "assert not f(-1), 'x'", "assert f(1) == 1"]
    for number, (handler, source) in enumerate(itertools.product(handlers, asserts)):
        test = f"done = []\ntry:\n    {source}\nexcept {handler}:\n    done.append(1)\nelse:\n    done.append(2)\n"
        wrong = [*WRONG.values()][number % 2]
        yield Style(f"{source} except {handler}", test, PROGRAM, wrong)
        yield Style(f"{source} except {handler}, told", test + "assert done == [1], 'not raised'", PROGRAM, wrong)


# --- by hand --------------------------------------------------------------------------------------

BLOCKS = r'''
# unittest: assertRaises
import unittest
class Test(unittest.TestCase):
    def test(self):
        with self.assertRaises(ValueError):
            f(-1)
        self.assertRaises(ValueError, f, -2)
        with self.assertRaisesRegex(ValueError, "neg"):
            f(-1)
unittest.main()
# unittest: only named
import unittest
class Test(unittest.TestCase):
    def test(self):
        self.assertRaises(ValueError, f, -2)
unittest.main()
# unittest: equal
import unittest
class Test(unittest.TestCase):
    def test(self):
        self.assertEqual(f(1), 2)
        self.assertAlmostEqual(f(0.1), 1.1)
        self.assertIn(f(1), [2])
        self.assertTrue(f(1) == 2, "said")
if __name__ == "__main__":
    unittest.main()
# unittest: no exit
import unittest
class Test(unittest.TestCase):
    def test(self):
        self.assertEqual(f(1), 2)
assert unittest.main(exit=False).result.wasSuccessful()
# unittest: sub-tests
import unittest
class Test(unittest.TestCase):
    def test(self):
        for given in range(3):
            with self.subTest(given=given):
                self.assertEqual(f(given), given + 1)
unittest.main(verbosity=2)
# unittest: setUp
import unittest
class Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.given = 3
    def setUp(self):
        self.wanted = self.given + 1
    def tearDown(self):
        assert self.wanted == 4
    def test(self):
        self.assertEqual(f(self.given), self.wanted)
unittest.main()
# unittest: set-up fails
import unittest
class Test(unittest.TestCase):
    def setUp(self):
        assert f(1) == 2
    def test(self):
        pass
unittest.main()
# unittest: expected failure
import unittest
class Test(unittest.TestCase):
    @unittest.expectedFailure
    def test(self):
        self.assertEqual(f(1), 1)
unittest.main()
# unittest: skipped beside another
import unittest
class Test(unittest.TestCase):
    @unittest.skip("not now")
    def test_not(self):
        self.fail()
    @unittest.skipIf(False, "never")
    def test(self):
        self.assertEqual(f(1), 2)
unittest.main()
# unittest: skipped by itself
import unittest
class Test(unittest.TestCase):
    def test(self):
        if f(1) == 2:
            self.skipTest("right")
        self.fail("wrong")
unittest.main()
# unittest: fail
import unittest
class Test(unittest.TestCase):
    def test(self):
        try:
            f(-1)
        except ValueError:
            return
        self.fail("not raised")
unittest.main()
# unittest: a suite
import unittest
class Test(unittest.TestCase):
    def test(self):
        self.assertEqual(f(1), 2)
suite = unittest.TestLoader().loadTestsFromTestCase(Test)
result = unittest.TextTestRunner().run(suite)
assert result.wasSuccessful(), result.failures
# unittest: status
import sys
import unittest
class Test(unittest.TestCase):
    def test(self):
        self.assertEqual(f(1), 2)
result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(Test))
sys.exit(not result.wasSuccessful())
# unittest: module
import unittest
def setUpModule():
    global base
    base = f(0)
class Test(unittest.TestCase):
    def test(self):
        self.assertEqual(base, 1)
unittest.main()
# unittest: functions
import unittest
def test():
    assert f(1) == 2
result = unittest.TestResult()
unittest.FunctionTestCase(test).run(result)
assert result.wasSuccessful()
# unittest: async
import unittest
class Test(unittest.IsolatedAsyncioTestCase):
    async def test(self):
        self.assertEqual(f(1), 2)
unittest.main()
# unittest: clean-up
import unittest
class Test(unittest.TestCase):
    def test(self):
        self.addCleanup(self.after)
    def after(self):
        self.assertEqual(f(1), 2)
unittest.main()
# a fixture
import contextlib
@contextlib.contextmanager
def fixture():
    state = {"given": 1}
    yield state
    assert f(state["given"]) == 2
with fixture() as state:
    assert state
# fixtures by decorator
def with_numbers(test):
    def run():
        for n in range(3):
            test(n)
    return run
@with_numbers
def test(n):
    assert f(n) == n + 1
test()
# assert of a tuple, then another
assert (f(1) == 99, "always true")
assert f(1) == 2
# exits with 0 when done
import sys
assert f(1) == 2
sys.exit(0)
# exits with the failures
import sys
failures = sum(f(n) != n + 1 for n in range(5))
sys.exit(failures)
# exits early
import sys
if f(1) == 2:
    sys.exit()
raise RuntimeError
# exit by name
assert f(1) == 2
exit(0)
# quit by name
if f(1) != 2:
    quit(3)
# SystemExit of its own
if f(1) != 2:
    raise SystemExit(2)
# exit in a function that is caught
import sys
def leave():
    sys.exit(1)
try:
    leave()
except SystemExit as error:
    assert error.code == 1
assert f(1) == 2
# warnings as errors
import warnings
warnings.simplefilter("error")
assert f(1) == 2
# own warning as an error
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("error")
    try:
        if f(1) == 2:
            warnings.warn("good")
    except UserWarning:
        pass
    else:
        assert False
# two errors at once
try:
    raise ExceptionGroup("both", [ValueError(f(1)), TypeError()])
except* ValueError as group:
    assert group.exceptions[0].args == (2,)
except* TypeError:
    pass
# an error group that gets out
errors = []
for n in range(3):
    try:
        assert f(n) == n + 1
    except AssertionError as error:
        errors.append(error)
if errors:
    raise ExceptionGroup("failed", errors)
# a class of errors
class Failed(Exception):
    pass
try:
    if f(1) == 2:
        raise Failed
except Failed:
    pass
else:
    raise Failed("wrong")
# a name that both have
def helper(x):
    return x + 1
assert f(1) == helper(1)
# globals
counter = 0
def count():
    global counter
    counter += f(1)
count()
count()
assert counter == 4
# an assertion with effects
items = [1, 2, 3]
assert items.pop() == 3
assert f(items.pop()) == 3
assert items == [1]
# an effect in a message
said = []
try:
    assert f(1) == 1, said.append("no")
except AssertionError:
    pass
assert said == ["no"]
# text of an error
try:
    f(-1)
except ValueError as error:
    assert str(error) == "negative"
    assert error.args == ("negative",)
else:
    raise AssertionError("no error")
# type of an error
kind = None
try:
    f(-1)
except Exception as error:
    kind = type(error).__name__
assert kind == "ValueError"
# raised again
try:
    try:
        f(-1)
    except ValueError as error:
        raise KeyError("other") from error
except KeyError as error:
    assert isinstance(error.__cause__, ValueError)
else:
    assert None
# recursion
def deep(n):
    return deep(n + 1)
try:
    deep(0)
except RecursionError:
    assert f(1) == 2
# lines over lines
assert (
    f(1)
    == 2
), (
    "said"
)
assert f(2) == \
    3
# several on a line
assert f(1) == 2; assert f(2) == 3; x = f(3); assert x == 4
# doctest of the tests
import doctest
def test():
    """
    >>> f(1)
    2
    >>> f(-1)
    Traceback (most recent call last):
    ValueError: negative
    """
assert doctest.testmod().failed == 0
# doctest raising
import doctest
def test():
    """
    >>> [f(n) for n in range(3)]
    [1, 2, 3]
    """
doctest.run_docstring_examples(test, globals())
if doctest.testmod()[0]:
    raise SystemExit("failed")
# a mock
from unittest.mock import Mock
mock = Mock(side_effect=f)
assert mock(1) == 2
mock.assert_called_once_with(1)
# partial
import functools
g = functools.partial(f, 1)
assert g() == 2
# cached
import functools
g = functools.lru_cache(f)
assert g(1) == g(1) == 2
# under another name
candidate = f
assert candidate(1) == 2
# random tests
import random
random.seed(5)
for _ in range(20):
    n = random.randrange(100)
    assert f(n) == n + 1
# an own implementation
def reference(x):
    if x < 0:
        raise ValueError
    return 1 + x
def outcome(function, x):
    try:
        return function(x)
    except Exception as error:
        return type(error)
for n in range(-3, 4):
    assert outcome(f, n) == outcome(reference, n)
# an operator module
import operator as o
assert o.eq(f(1), 2)
# a closure
def make(n):
    def test():
        assert f(n) == n + 1
    return test
for test in [make(n) for n in range(3)]:
    test()
# assert in a lambda
def check(good):
    assert good
    return True
(lambda: check(f(1) == 2))()
# in a comprehension
def same(a, b):
    assert a == b, (a, b)
    return 1
assert sum([same(f(n), n + 1) for n in range(3)]) == 3
# a property
class Test:
    @property
    def good(self):
        assert f(1) == 2
        return True
assert Test().good
# __init__
class Test:
    def __init__(self, n):
        assert f(n) == n + 1
Test(1)
Test(2)
# __enter__ and __exit__
class Must:
    def __init__(self, kind):
        self.kind = kind
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        assert kind is not None, "not raised"
        return issubclass(kind, self.kind)
with Must(ValueError):
    f(-1)
# a metaclass
class Meta(type):
    def __new__(meta, name, bases, body):
        for part in body.values():
            if callable(part):
                part()
        return super().__new__(meta, name, bases, body)
class Test(metaclass=Meta):
    def test():
        assert f(1) == 2
# of a generator that is thrown into
def tests():
    try:
        yield
    except KeyError:
        assert f(1) == 2
        yield "done"
g = tests()
next(g)
assert g.throw(KeyError) == "done"
# delayed
import atexit
results = [f(n) == n + 1 for n in range(3)]
assert all(results), results
# a table of cases
cases = """
1 2
2 3
10 11
"""
for line in cases.strip().splitlines():
    given, wanted = map(int, line.split())
    assert f(given) == wanted, f"f({given}) = {f(given)!r}"
# time
import time
started = time.perf_counter()
assert f(1) == 2
assert time.perf_counter() - started < 100
# time limit
import signal
signal.alarm(100)
assert f(1) == 2
signal.alarm(0)
# a file
import os
import tempfile
with tempfile.TemporaryDirectory() as folder:
    with open(os.path.join(folder, "x"), "w") as file:
        file.write(str(f(1)))
    assert open(os.path.join(folder, "x")).read() == "2"
# parsed
import json
assert json.loads(json.dumps({"a": f(1)})) == {"a": 2}
# strings of code
assert eval("f(1)") == 2
# finally overrides
def test():
    try:
        assert f(1) == 1
    finally:
        return "swallowed"
assert test() == "swallowed"
assert f(1) == 2
# not raised is fine
try:
    value = f(1)
except ValueError:
    assert False, "raised"
assert value == 2
# a loop that ends early
for n in [1, 2, 3]:
    if f(n) != n + 1:
        break
    assert True
else:
    n = "all"
assert n == "all"
# assert after return
def test():
    if f(1) == 2:
        return True
    assert False
    return False
test()
# negative conditions
assert not (f(1) != 2 or f(2) != 3)
# a deleted name
x = f(1)
del x
try:
    x
except NameError:
    assert f(2) == 3
# bytes and sets
assert {f(1), f(1)} == {2} and bytes([f(1)]) == b"\x02"
# an async one with a time limit
import asyncio
async def test():
    return f(1)
async def main():
    assert await asyncio.wait_for(test(), 60) == 2
asyncio.run(main())
# a task that fails
import asyncio
async def test():
    assert f(1) == 2
async def main():
    task = asyncio.create_task(test())
    (result,) = await asyncio.gather(task, return_exceptions=True)
    if result is not None:
        raise result
asyncio.run(main())
# a task group
import asyncio
async def test(n):
    assert f(n) == n + 1
async def main():
    async with asyncio.TaskGroup() as group:
        for n in range(3):
            group.create_task(test(n))
asyncio.run(main())
# an exception in a thread that nobody sees, then another
import threading
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
assert f(1) == 2
'''


ONLY_IN_TEXT = ("doctest of the tests", "doctest raising", "strings of code")  # does the function's name stand


def by_hand():
    name, lines = "", []
    for line in [*BLOCKS.strip().splitlines(), "# end"]:
        if line.startswith("# "):
            if lines:
                entry = "f" if name in ONLY_IN_TEXT else None
                yield Style(name, "\n".join(lines), PROGRAM, WRONG["returns"], entry)
            name, lines = line[2:], []
        else:
            lines.append(line)


def of_programs():
    for name, (right, wrong, tests) in blocks(PROGRAMS):
        yield Style(name, tests, right, wrong)


def scripts():
    for name, (right, wrong, given, wanted) in blocks(SCRIPTS):
        yield Style(name, [{"input": given.lstrip("\n"), "output": wanted}], right, wrong)


def styles():
    return [*failing(), *surrounded(), *caught(), *by_hand(), *of_programs(), *scripts()]
