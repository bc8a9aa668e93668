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


def sections(text):
    """(name, code) of each, which begins with its name in a comment."""
    for section in text.strip().removeprefix("# ").split("\n# "):
        name, _, code = section.partition("\n")
        yield name, code


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

PLACES = r"""
# if
if f(1) != 2:
    FAIL
# if else
if f(1) == 2:
    pass
else:
    FAIL
# elif
if f(1) == 2:
    pass
elif f(1) == 3:
    FAIL
else:
    FAIL
# try
try:
    f(-1)
    FAIL
except ValueError:
    pass
# try else
try:
    f(-1)
except ValueError:
    pass
else:
    FAIL
# try except
try:
    assert f(1) == 2
except Exception:
    FAIL
# try finally
raised = False
try:
    f(-1)
except ValueError:
    raised = True
finally:
    if not raised:
        FAIL
# nested try
try:
    try:
        f(-1)
    except KeyError:
        FAIL
    else:
        FAIL
except ValueError as error:
    assert str(error) == 'negative'
# for
for given, wanted in ((1, 2), (2, 3)):
    if f(given) != wanted:
        FAIL
# for else
for given in range(5):
    if f(given) == 5:
        break
else:
    FAIL
# for else, raising
for given in (0, 1, -1):
    try:
        assert f(given) == given + 1
    except ValueError:
        break
else:
    FAIL
# while else
n = 0
while n < 5:
    if f(n) == 5:
        break
    n += 1
else:
    FAIL
# while
n = 5
while f(n) != n + 1:
    FAIL
# with suppress
import contextlib
with contextlib.suppress(ValueError):
    f(-1)
    FAIL
# match
match f(1):
    case 2:
        pass
    case _:
        FAIL
# function
def test():
    try:
        f(-1)
    except ValueError:
        return
    FAIL
test()
# nested function
def outer():
    def inner(given):
        if f(given) == given + 1:
            return
        FAIL
    inner(1)
    inner(2)
outer()
# method
class Test:
    def test(self):
        if f(3) != 4:
            FAIL
Test().test()
# generator
def steps():
    yield 1
    if f(1) != 2:
        FAIL
    yield 2
assert list(steps()) == [1, 2]
# check
def check(candidate):
    assert True, 'first'
    try:
        candidate(-1)
    except ValueError:
        pass
    else:
        FAIL

# main
if __name__ == '__main__':
    if f(1) != 2:
        FAIL
# finally after return
def test():
    good = False
    try:
        good = f(1) == 2
        return good
    finally:
        if not good:
            FAIL
test()
"""


def failing():
    """Every third way at every place; the wrong program is the one that gets there."""
    for number, (place, source) in enumerate(sections(PLACES)):
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

AROUND = r'''
# top
ASSERT
# function
def test():
    ASSERT
test()
# if
if True:
    ASSERT
# while
while True:
    ASSERT
    break
# for
for _ in range(2):
    ASSERT
# try finally
try:
    ASSERT
finally:
    said.clear()
# try except
try:
    ASSERT
except (ValueError, OSError):
    raise
# method
class Test:
    kind = 'test'
    @staticmethod
    def test():
        ASSERT
Test.test()
# class body
class Test:
    ASSERT
# decorated
import functools
def twice(test):
    @functools.wraps(test)
    def run():
        test()
        test()
    return run
@twice
def test():
    ASSERT
test()
# run where it is defined
def run(test):
    test()
    return test
@run
def test():
    ASSERT
# generator
def tests():
    ASSERT
    yield
list(tests())
# context manager
import contextlib
@contextlib.contextmanager
def block():
    yield
with block():
    ASSERT
# closed generator
def tests():
    try:
        yield
    finally:
        ASSERT
g = tests()
next(g)
g.close()
# async
import asyncio
async def test():
    await asyncio.sleep(0)
    ASSERT
asyncio.run(test())
# async gather
import asyncio
async def test():
    ASSERT
async def main():
    await asyncio.gather(test(), test())
asyncio.run(main())
# thread
import threading
errors = []
def test():
    try:
        ASSERT
    except Exception as error:
        errors.append(error)
thread = threading.Thread(target=test)
thread.start()
thread.join()
assert not errors
# pool
from concurrent.futures import ThreadPoolExecutor
def test(_):
    ASSERT
with ThreadPoolExecutor(2) as pool:
    list(pool.map(test, range(3)))
# unittest
import unittest
class Test(unittest.TestCase):
    def test(self):
        ASSERT
unittest.main()
# main
def main():
    ASSERT
if __name__ == '__main__':
    main()
# main with status
import sys
def main():
    ASSERT
    return 0
if __name__ == '__main__':
    sys.exit(main())
# check
def check(candidate):
    ASSERT
# test functions in turn
def test_one():
    ASSERT
def test_two():
    ASSERT
for name, test in list(globals().items()):
    if name.startswith('test_'):
        test()
# caught and counted
failures = 0
try:
    ASSERT
except AssertionError:
    failures += 1
assert failures == 0
# deeper
def deep(n):
    if n:
        return deep(n - 1)
    ASSERT
deep(50)
# global
def test():
    global said
    ASSERT
    said = []
test()
# nonlocal
def outer():
    count = 0
    def test():
        nonlocal count
        ASSERT
        count += 1
    test()
    return count
assert outer() == 1
# exec
exec("""ASSERT""")
# list of functions
def one():
    ASSERT
for test in [one, lambda: one()]:
    test()
# walrus
if (n := 1):
    ASSERT
# star
from math import *
assert floor(2.5) == 2
ASSERT
# annotated
from typing import *
def test(said: List[int]) -> None:
    ASSERT
test(said)
# dataclass
from dataclasses import dataclass
@dataclass
class Case:
    given: int
    def test(self):
        ASSERT
Case(1).test()
'''


def surrounded():
    """Every condition, every message and everything around them, in turns."""
    rows = zip(itertools.cycle(CONDITIONS), itertools.cycle(MESSAGES), itertools.cycle(sections(AROUND)), strict=False)
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
    for name, tests in sections(BLOCKS):
        yield Style(name, tests, PROGRAM, WRONG["returns"], "f" if name in ONLY_IN_TEXT else None)


def of_programs():
    for name, (right, wrong, tests) in blocks(PROGRAMS):
        yield Style(name, tests, right, wrong)


def scripts():
    for name, (right, wrong, given, wanted) in blocks(SCRIPTS):
        yield Style(name, [{"input": given.lstrip("\n"), "output": wanted}], right, wrong)


def styles():
    return [*failing(), *surrounded(), *caught(), *by_hand(), *of_programs(), *scripts()]
