"""Programs in many styles, right and wrong, and tests of them: see :mod:`code_styles`."""

# ## name, the right program, --- the wrong one, --- tests
PROGRAMS = r"""
## a class
class Stack:
    def __init__(self):
        self.items = []
    def push(self, item):
        self.items.append(item)
    def pop(self):
        return self.items.pop()
    def __len__(self):
        return len(self.items)
---
class Stack:
    def __init__(self):
        self.items = []
    def push(self, item):
        self.items.insert(0, item)
    def pop(self):
        return self.items.pop()
    def __len__(self):
        return len(self.items)
---
s = Stack()
assert not s
s.push(1)
s.push(2)
assert len(s) == 2 and s.items == [1, 2]
assert s.pop() == 2
assert s.pop() == 1
try:
    s.pop()
except IndexError:
    pass
else:
    assert False
## a class in unittest
class Account:
    def __init__(self, balance=0):
        self.balance = balance
    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("too much")
        self.balance -= amount
        return self.balance
---
class Account:
    def __init__(self, balance=0):
        self.balance = balance
    def withdraw(self, amount):
        self.balance -= amount
        return self.balance
---
import unittest
class Test(unittest.TestCase):
    def setUp(self):
        self.account = Account(10)
    def test_withdraw(self):
        self.assertEqual(self.account.withdraw(3), 7)
        self.assertEqual(self.account.balance, 7)
    def test_too_much(self):
        with self.assertRaises(ValueError) as caught:
            self.account.withdraw(11)
        self.assertEqual(str(caught.exception), "too much")
unittest.main()
## methods that return the object
class Builder:
    def __init__(self):
        self.parts = []
    def add(self, part):
        self.parts.append(part)
        return self
    def build(self):
        return "-".join(self.parts)
---
class Builder:
    def __init__(self):
        self.parts = []
    def add(self, part):
        self.parts = [part]
        return self
    def build(self):
        return "-".join(self.parts)
---
b = Builder()
assert b.add("a") is b
assert b.add("b").add("c").build() == "a-b-c"
## class methods and properties
class Temperature:
    count = 0
    def __init__(self, celsius):
        self.celsius = celsius
        Temperature.count += 1
    @classmethod
    def from_fahrenheit(cls, value):
        return cls((value - 32) * 5 / 9)
    @property
    def kelvin(self):
        return self.celsius + 273.15
    @staticmethod
    def boils():
        return 100
---
class Temperature:
    count = 0
    def __init__(self, celsius):
        self.celsius = celsius
    @classmethod
    def from_fahrenheit(cls, value):
        return cls((value - 32) * 5 / 9)
    @property
    def kelvin(self):
        return self.celsius + 273.15
    @staticmethod
    def boils():
        return 100
---
assert Temperature.boils() == 100
t = Temperature.from_fahrenheit(212)
assert abs(t.kelvin - 373.15) < 1e-6
assert isinstance(t, Temperature)
assert Temperature.count == 1
## operators
class Vector:
    def __init__(self, *parts):
        self.parts = list(parts)
    def __add__(self, other):
        return Vector(*(a + b for a, b in zip(self.parts, other.parts)))
    def __mul__(self, k):
        return Vector(*(k * part for part in self.parts))
    __rmul__ = __mul__
    def __getitem__(self, n):
        return self.parts[n]
    def __str__(self):
        return f"<{', '.join(map(str, self.parts))}>"
    def __repr__(self):
        return f"Vector{tuple(self.parts)}"
    def __neg__(self):
        return self * -1
    def __iter__(self):
        return iter(self.parts)
---
class Vector:
    def __init__(self, *parts):
        self.parts = list(parts)
    def __add__(self, other):
        return Vector(*(a - b for a, b in zip(self.parts, other.parts)))
    def __mul__(self, k):
        return Vector(*(k * part for part in self.parts))
    __rmul__ = __mul__
    def __getitem__(self, n):
        return self.parts[n]
    def __str__(self):
        return f"<{', '.join(map(str, self.parts))}>"
    __repr__ = __str__
    def __neg__(self):
        return self * -1
    def __iter__(self):
        return iter(self.parts)
---
v = Vector(1, 2) + Vector(3, 4)
assert v.parts == [4, 6] and v[1] == 6 and list(v) == [4, 6]
assert str(v) == "<4, 6>" and f"{v}" == "<4, 6>" and repr(v) == "Vector(4, 6)"
assert (2 * v)[0] == (v * 2)[0] == 8 and (-v).parts == [-4, -6]
x, y = v
assert (x, y) == (4, 6)
## truth of an object
class Box:
    def __init__(self, *items):
        self.items = items
    def __bool__(self):
        return bool(self.items)
---
class Box:
    def __init__(self, *items):
        self.items = items
---
assert Box(1)
assert not Box()
## an iterator class
class Countdown:
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        return self
    def __next__(self):
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n + 1
---
class Countdown:
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        return self
    def __next__(self):
        if self.n < 0:
            raise StopIteration
        self.n -= 1
        return self.n + 1
---
assert list(Countdown(3)) == [3, 2, 1]
c = Countdown(2)
assert next(c) == 2 and c.n == 1
assert [n for n in c] == [1]
try:
    next(c)
except StopIteration:
    pass
else:
    assert False
## a generator
def f(n):
    for k in range(n):
        yield k * k
---
def f(n):
    for k in range(n):
        yield k
---
assert list(f(4)) == [0, 1, 4, 9]
assert sum(f(3)) == 5
g = f(2)
assert iter(g) is g
assert (next(g), next(g), next(g, None)) == (0, 1, None)
## an endless generator
def f():
    a, b = 0, 1
    while True:
        yield a
        a, b = b, a + b
---
def f():
    a, b = 1, 2
    while True:
        yield a
        a, b = b, a + b
---
import itertools
import types
g = f()
assert isinstance(g, types.GeneratorType)
assert [next(g) for _ in range(6)] == [0, 1, 1, 2, 3, 5]
assert list(itertools.islice(f(), 100))[-1] > 10 ** 18
for n in f():
    if n > 50:
        break
assert n == 55
## a generator that is sent to
def f():
    total = 0
    while True:
        new = yield total
        if new is None:
            return
        total += new
---
def f():
    total = 0
    while True:
        new = yield total
        if new is None:
            return
        total = new
---
g = f()
assert next(g) == 0
assert g.send(5) == 5
assert g.send(6) == 11
try:
    g.send(None)
except StopIteration:
    pass
else:
    assert 0
## a generator that cleans up
def f(log):
    try:
        yield 1
        yield 2
    except KeyError:
        log.append("thrown")
        yield 3
    finally:
        log.append("closed")
---
def f(log):
    try:
        yield 1
        yield 2
    except KeyError:
        yield 4
---
log = []
g = f(log)
assert next(g) == 1
assert g.throw(KeyError("x")) == 3
g.close()
## a generator that fails in between
def f(n):
    for k in range(n):
        if k == 3:
            raise LookupError(k)
        yield k
---
def f(n):
    for k in range(n):
        yield k
---
seen = []
try:
    for k in f(9):
        seen.append(k)
except LookupError as error:
    assert error.args == (3,)
else:
    assert False
assert seen == [0, 1, 2]
## an error when it is closed
def f():
    try:
        yield 1
    finally:
        raise RuntimeError("closing")
---
def f():
    yield 1
---
g = f()
next(g)
try:
    g.close()
except RuntimeError as error:
    assert "closing" in str(error)
else:
    assert False, "no error"
## what a generator returns
def f():
    yield 1
    return "end"
---
def f():
    yield 1
---
def outer():
    result = yield from f()
    yield result
assert list(outer()) == [1, "end"]
## an exception class
class TooSmall(ValueError):
    pass
def f(x):
    if x < 0:
        raise TooSmall(f"{x} is too small")
    return x
---
class TooSmall(ValueError):
    pass
def f(x):
    if x < 0:
        raise ValueError(f"{x} is too small")
    return x
---
assert f(1) == 1
try:
    f(-1)
except TooSmall as error:
    assert isinstance(error, ValueError)
    assert str(error) == "-1 is too small"
    assert type(error).__name__ == "TooSmall"
else:
    assert False
## a derived exception by its builtin
class TooSmall(ValueError):
    pass
def f(x):
    if x < 0:
        raise TooSmall(x)
    return x
---
class TooSmall(TypeError):
    pass
def f(x):
    if x < 0:
        raise TooSmall(x)
    return x
---
assert f(1) == 1
try:
    f(-1)
    assert False
except ValueError as error:
    assert error.args == (-1,)
## a tree of exceptions
class Base(Exception):
    pass
class Child(Base):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code
def f(code):
    raise Child(code)
---
class Base(Exception):
    pass
class Child(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code
def f(code):
    raise Child(code)
---
try:
    f(7)
except Base as error:
    assert error.code == 7 and str(error) == "code 7"
else:
    assert False
## an exception with words of its own
class Odd(Exception):
    def __str__(self):
        return f"odd: {self.args[0]}"
def f(n):
    if n % 2:
        raise Odd(n)
    return n
---
class Odd(Exception):
    pass
def f(n):
    if n % 2:
        raise Odd(n)
    return n
---
assert f(2) == 2
try:
    f(3)
except Exception as error:
    assert str(error) == "odd: 3"
else:
    assert False
## the cause of an exception
def f(x):
    try:
        return {}[x]
    except KeyError as error:
        raise ValueError("not there") from error
---
def f(x):
    raise ValueError("not there")
---
try:
    f(1)
except ValueError as error:
    assert isinstance(error.__cause__, KeyError)
else:
    assert False
## a key error's text
def f(d, k):
    return d[k]
---
def f(d, k):
    return d.get(k)
---
try:
    f({}, "a")
except KeyError as error:
    assert str(error) == "'a'" and error.args == ("a",)
else:
    assert False
## a system error
def f(path):
    return open(path).read()
---
def f(path):
    return ""
---
try:
    f("/no/such/file")
except FileNotFoundError as error:
    assert error.errno == 2
    assert error.filename == "/no/such/file"
else:
    assert False
## an error of decoding
def f(data):
    return data.decode("utf-8")
---
def f(data):
    return data.decode("latin-1")
---
assert f(b"a") == "a"
try:
    f(b"\xff")
except UnicodeDecodeError as error:
    assert error.start == 0
else:
    assert False
## a group of errors
def f(values):
    errors = [ValueError(value) for value in values if value < 0]
    if errors:
        raise ExceptionGroup("bad", errors)
    return len(values)
---
def f(values):
    for value in values:
        if value < 0:
            raise ValueError(value)
    return len(values) + 1
---
assert f([1, 2]) == 2
try:
    f([-1, 2, -3])
except* ValueError as group:
    assert [error.args for error in group.exceptions] == [(-1,), (-3,)]
else:
    assert False
## exits with a status
import sys
def f(code):
    sys.exit(code)
---
def f(code):
    return code
---
try:
    f(3)
except SystemExit as error:
    assert error.code == 3
else:
    assert False
## exits, in unittest
import sys
def main(argv):
    if not argv:
        sys.exit("usage")
    return 0
---
def main(argv):
    return 0
---
import unittest
class Test(unittest.TestCase):
    def test(self):
        self.assertEqual(main(["x"]), 0)
        with self.assertRaises(SystemExit) as caught:
            main([])
        self.assertEqual(caught.exception.code, "usage")
unittest.main()
## asserts by itself
def f(x):
    assert x >= 0, "negative"
    return x
---
def f(x):
    return x
---
assert f(1) == 1
try:
    f(-1)
except AssertionError as error:
    assert str(error) == "negative"
else:
    raise RuntimeError
## raises AssertionError where it should not
def f(x):
    return x
---
def f(x):
    raise AssertionError
---
try:
    f(1)
except ValueError:
    pass
assert True
## deep recursion
def f(n):
    return f(n + 1)
---
def f(n):
    return n
---
try:
    f(0)
except RecursionError:
    pass
else:
    assert False
## in place
def f(items):
    items.sort()
---
def f(items):
    return sorted(items)
---
x = [3, 1, 2]
assert f(x) is None
assert x == [1, 2, 3]
## in place, deeper
def f(grid):
    for row in grid:
        row[0] = 9
    grid.append([9])
---
def f(grid):
    for row in [*grid]:
        row = [9]
    grid.append([9])
---
row = [1, 2]
grid = [row, [3, 4]]
f(grid)
assert grid == [[9, 2], [9, 4], [9]]
assert row == [9, 2] and grid[0] is row
## nothing changed
def f(items):
    return items + [1]
---
def f(items):
    items.append(1)
    return items
---
x = [0]
y = f(x)
assert y == [0, 1]
assert x == [0]
assert y is not x
## a copy
def f(items):
    return [row[:] for row in items]
---
def f(items):
    return items[:]
---
x = [[1], [2]]
y = f(x)
assert y == x and y is not x
assert y[0] is not x[0]
## the same object
def f(items):
    items.reverse()
    return items
---
def f(items):
    return items[::-1]
---
x = [1, 2]
assert f(x) is x
assert x == [2, 1]
## a dict and a set in place
def f(d, s):
    d["n"] = d.get("n", 0) + 1
    s.add(d["n"])
    del d["old"]
---
def f(d, s):
    d["n"] = d.get("n", 0) + 1
    s.add(d["n"])
---
d, s = {"old": 1}, set()
f(d, s)
assert d == {"n": 1} and s == {1}
## a mutable default
def f(x, seen=[]):
    seen.append(x)
    return seen
---
def f(x, seen=None):
    return [x]
---
assert f(1) == [1]
assert f(2) == [1, 2]
assert f(3, [0]) == [0, 3]
## a function of the tests
def f(function, items):
    return [function(item) for item in items]
---
def f(function, items):
    return [function(item) for item in items[1:]]
---
assert f(lambda x: x * 2, [1, 2]) == [2, 4]
assert f(str, [1]) == ["1"]
assert f(len, ["ab"]) == [2]
calls = []
f(calls.append, (1, 2))
assert calls == [1, 2]
## a key
def f(items, key=None):
    return max(items, key=key)
---
def f(items, key=None):
    return max(items)
---
assert f(["aaa", "b"], key=len) == "aaa"
assert f([(1, 5), (2, 3)], key=lambda pair: pair[1]) == (1, 5)
## composition
def compose(*functions):
    def composed(x):
        for function in reversed(functions):
            x = function(x)
        return x
    return composed
---
def compose(*functions):
    def composed(x):
        for function in functions:
            x = function(x)
        return x
    return composed
---
assert compose()(3) == 3
assert compose(lambda x: x + 1, lambda x: x * 2)(3) == 7
## a closure
def make():
    count = 0
    def counter():
        nonlocal count
        count += 1
        return count
    return counter
---
count = 0
def make():
    def counter():
        global count
        count += 1
        return count
    return counter
---
a, b = make(), make()
assert (a(), a(), b()) == (1, 2, 1)
assert callable(a)
## a decorator
import functools
def memoize(function):
    cache = {}
    @functools.wraps(function)
    def wrapped(*args):
        if args not in cache:
            cache[args] = function(*args)
        return cache[args]
    wrapped.cache = cache
    return wrapped
---
import functools
def memoize(function):
    @functools.wraps(function)
    def wrapped(*args):
        return function(*args)
    wrapped.cache = {(2,): 4}
    return wrapped
---
calls = 0
@memoize
def square(n):
    global calls
    calls += 1
    return n * n
assert square(2) == square(2) == 4
assert square.cache == {(2,): 4}
assert square.__name__ == "square"
assert calls == 1
## a decorator with arguments
def retry(times, errors=Exception):
    def decorate(function):
        def wrapped(*args):
            for left in range(times)[::-1]:
                try:
                    return function(*args)
                except errors:
                    if not left:
                        raise
        return wrapped
    return decorate
---
def retry(times, errors=Exception):
    def decorate(function):
        def wrapped(*args):
            return function(*args)
        return wrapped
    return decorate
---
class Flaky(Exception):
    pass
tries = []
@retry(3, errors=Flaky)
def flaky(until):
    tries.append(1)
    if len(tries) < until:
        raise Flaky(len(tries))
    return "done"
assert flaky(3) == "done"
tries.clear()
try:
    flaky(9)
except Flaky as error:
    assert error.args == (3,)
else:
    assert False
## a decorator that changes nothing
def register(function, registry={}):
    registry[function.__name__] = function
    return function
---
def register(function, registry={}):
    def other(*args):
        return function(*args)
    return other
---
def g(x):
    return x
assert register(g) is g
assert register(g)(3) == 3
## an error from a function of the tests
def f(function):
    try:
        return function()
    except ZeroDivisionError:
        return "divided"
---
def f(function):
    return function()
---
assert f(lambda: 1) == 1
assert f(lambda: 1 / 0) == "divided"
try:
    f(lambda: {}["a"])
except KeyError:
    pass
else:
    assert False
## objects of the tests
def total(node):
    result = 0
    while node:
        result += node.val
        node.seen = True
        node = node.next
    return result
---
def total(node):
    return node.val
---
class Node:
    def __init__(self, val, next=None):
        self.val = val
        self.next = next
head = Node(1, Node(2, Node(3)))
assert total(head) == 6
assert head.seen and head.next.next.seen
## lists of nodes turned round
def reverse(head):
    before = None
    while head:
        head.next, before, head = before, head, head.next
    return before
---
def reverse(head):
    return head
---
class Node:
    def __init__(self, val, next=None):
        self.val, self.next = val, next
a = Node(1)
b = Node(2, a)
new = reverse(b)
assert new is a and new.next is b and b.next is None
assert (new.val, new.next.val) == (1, 2)
## methods of objects of the tests
def f(shapes):
    return sum(shape.area() for shape in shapes)
---
def f(shapes):
    return sum(shape.side for shape in shapes)
---
class Square:
    def __init__(self, side):
        self.side = side
    def area(self):
        return self.side ** 2
assert f([Square(2), Square(3)]) == 13
## an iterator of the tests
def f(items):
    return sum(items)
---
def f(items):
    return sum(items[:])
---
assert f(n for n in range(4)) == 6
assert f(iter([1])) == 1
assert f(map(int, "12")) == 3
## an endless iterator of the tests
def f(items, n):
    return [next(items) for _ in range(n)]
---
def f(items, n):
    return [item for item, _ in zip(items, range(n + 1))]
---
import itertools
assert f(itertools.count(5), 3) == [5, 6, 7]
numbers = iter(range(9))
assert f(numbers, 2) == [0, 1]
assert next(numbers) == 2
## prints
def f(name):
    print("hello", name)
---
def f(name):
    print("hello")
---
import contextlib
import io
out = io.StringIO()
with contextlib.redirect_stdout(out):
    f("you")
assert out.getvalue() == "hello you\n"
## prints, with a patched sys.stdout
def f(n):
    for k in range(n):
        print(k, end=" ")
---
def f(n):
    print(n)
---
import io
import sys
from unittest.mock import patch
with patch("sys.stdout", new_callable=io.StringIO) as out:
    f(3)
assert out.getvalue().split() == ["0", "1", "2"]
## prints in turns with the tests
def f(function):
    print("a")
    function()
    print("c")
---
def f(function):
    function()
    print("a")
    print("c")
---
import contextlib
import io
with contextlib.redirect_stdout(io.StringIO()) as out:
    f(lambda: print("b"))
assert out.getvalue() == "a\nb\nc\n"
## reads what the tests patch in
def f():
    return int(input("a? ")) + int(input())
---
def f():
    return int(input("a? "))
---
from unittest.mock import patch
with patch("builtins.input", side_effect=["1", "2"]):
    assert f() == 3
## reads a patched sys.stdin
import sys
def f():
    n = int(input())
    return n + sum(map(int, sys.stdin))
---
def f():
    return int(input())
---
import io
import sys
sys.stdin = io.StringIO("1\n2\n3\n")
assert f() == 6
## reads all
import sys
def f():
    return sys.stdin.read().split()
---
import sys
def f():
    return sys.stdin.readline().split()
---
import io
import sys
sys.stdin = io.StringIO("1 2\n3\n")
assert f() == ["1", "2", "3"]
## nothing to read
def f():
    try:
        return input()
    except EOFError:
        return "nothing"
---
def f():
    return input()
---
assert f() == "nothing"
## warns
import warnings
def f(x):
    if x < 0:
        warnings.warn("negative", UserWarning)
    return abs(x)
---
def f(x):
    return abs(x)
---
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert f(-1) == 1
assert [str(warning.message) for warning in caught] == ["negative"]
assert caught[0].category is UserWarning
## warns, as an error
import warnings
def f(x):
    return x
---
import warnings
def f(x):
    warnings.warn("old", DeprecationWarning)
    return x
---
import warnings
warnings.simplefilter("error")
assert f(1) == 1
## warns of a kind of its own
import warnings
class Old(DeprecationWarning):
    pass
def f(x):
    warnings.warn("old", Old)
    return x
---
import warnings
class Old(DeprecationWarning):
    pass
def f(x):
    warnings.warn("old", UserWarning)
    return x
---
import unittest
class Test(unittest.TestCase):
    def test(self):
        with self.assertWarns(Old):
            self.assertEqual(f(1), 1)
unittest.main()
## a context manager
import contextlib
@contextlib.contextmanager
def section(log, name):
    log.append(f"<{name}>")
    yield name.upper()
    log.append(f"</{name}>")
---
import contextlib
@contextlib.contextmanager
def section(log, name):
    yield name
    log.append(f"</{name}>")
---
log = []
with section(log, "a") as name:
    assert name == "A"
assert name == "A"
## a context manager's class
class Keeper:
    def __init__(self):
        self.errors = []
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        if kind is not None:
            self.errors.append(kind.__name__)
        return kind is not None and issubclass(kind, ValueError)
---
class Keeper:
    def __init__(self):
        self.errors = []
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        return True
---
keeper = Keeper()
with keeper as same:
    assert same is keeper
    raise ValueError
assert keeper.errors == ["ValueError"]
try:
    with keeper:
        raise KeyError
except KeyError:
    pass
else:
    assert False
## async
import asyncio
async def f(x):
    await asyncio.sleep(0)
    if x < 0:
        raise ValueError
    return x + 1
---
import asyncio
async def f(x):
    await asyncio.sleep(0)
    return x
---
import asyncio
assert asyncio.run(f(1)) == 2
async def main():
    assert await asyncio.gather(f(1), f(2)) == [2, 3]
    try:
        await f(-1)
    except ValueError:
        return "raised"
assert asyncio.run(main()) == "raised"
## an async generator
async def f(n):
    for k in range(n):
        yield k
---
async def f(n):
    for k in range(n):
        yield k + 1
---
import asyncio
async def main():
    return [k async for k in f(3)]
assert asyncio.run(main()) == [0, 1, 2]
## decimals
from decimal import Decimal
def f(a, b):
    return Decimal(a) + Decimal(b)
---
from decimal import Decimal
def f(a, b):
    return Decimal(float(a) + float(b))
---
from decimal import Decimal
assert f("0.1", "0.2") == Decimal("0.3")
assert isinstance(f("1", "2"), Decimal)
## dates
import datetime
def f(day, n):
    return day + datetime.timedelta(days=n)
---
import datetime
def f(day, n):
    return day
---
import datetime
assert f(datetime.date(2024, 2, 28), 2) == datetime.date(2024, 3, 1)
assert f(datetime.datetime(2024, 1, 1, 5, tzinfo=datetime.timezone.utc), 1).hour == 5
## collections
import collections
def f(text):
    groups = collections.defaultdict(list)
    for letter in text:
        groups[letter].append(1)
    return collections.Counter(text), collections.deque(text, 2), groups, collections.OrderedDict.fromkeys(text)
---
import collections
def f(text):
    return collections.Counter(text), collections.deque(text, 3), collections.defaultdict(list), {}
---
import collections
counter, last, groups, order = f("aab")
assert counter.most_common(1) == [("a", 2)] and counter == collections.Counter(a=2, b=1)
assert last == collections.deque("ab") and last.maxlen == 2
assert groups == {"a": [1, 1], "b": [1]} and groups["c"] == []
assert list(order) == ["a", "b"] and isinstance(order, collections.OrderedDict)
## a named tuple
from collections import namedtuple
Point = namedtuple("Point", "x y")
def f(x):
    return Point(x, y=x + 1)
---
from collections import namedtuple
Point = namedtuple("Point", "y x")
def f(x):
    return Point(x, x + 1)
---
p = f(1)
assert p.x == 1 and p.y == 2 and p == (1, 2) and p._asdict() == {"x": 1, "y": 2}
x, y = p
assert (x, y) == (1, 2)
## a dataclass
from dataclasses import dataclass, field
@dataclass
class Item:
    name: str
    tags: list = field(default_factory=list)
def f(name):
    return Item(name, [name[0]])
---
from dataclasses import dataclass, field
@dataclass
class Item:
    name: str
    tags: list = field(default_factory=list)
def f(name):
    return Item(name)
---
item = f("ab")
assert item.name == "ab"
assert item.tags == ["a"]
## an enumeration
import enum
class Color(enum.Enum):
    RED = 1
    BLUE = 2
def f(name):
    return Color[name.upper()]
---
import enum
class Color(enum.Enum):
    RED = 2
    BLUE = 1
def f(name):
    return Color[name.upper()]
---
assert f("red").name == "RED" and f("red").value == 1
try:
    f("green")
except KeyError:
    pass
else:
    assert False
## views of a dict
def f(d):
    return d.keys(), d.values(), d.items()
---
def f(d):
    return d.keys(), d.keys(), d.items()
---
keys, values, items = f({"a": 1, "b": 2})
assert keys == {"a", "b"} and list(keys) == ["a", "b"] and len(keys) == 2
assert sorted(values) == [1, 2] and ("a", 1) in items and dict(items) == {"a": 1, "b": 2}
## types kept apart
def f(x):
    same = [x, float(x), str(x), bytes([x]), bytearray([x]), {x}, frozenset([x]), (x,)]
    return [*same, x == 1, complex(x), range(x), None]
---
def f(x):
    return [x, x, str(x), bytes([x]), bytes([x]), [x], {x}, [x], 1, x, list(range(x)), 0]
---
kinds = [type(item) for item in f(1)]
assert kinds == [int, float, str, bytes, bytearray, set, frozenset, tuple, bool, complex, range, type(None)]
## a match
import re
def f(text):
    return re.fullmatch(r"(\d+)-(\d+)", text)
---
import re
def f(text):
    return re.search(r"(\d+)-(\d+)", text)
---
assert f("1-2")
assert f("1-2").group(1) == "1" and f("1-2").groups() == ("1", "2")
assert f("x1-2") is None
## a lot of data
def f(n):
    return {k: [k] * 3 for k in range(n)}
---
def f(n):
    return {k: [k] * 3 for k in range(n - 1)}
---
d = f(20000)
assert len(d) == 20000 and d[19999] == [19999] * 3
## a circle
def f():
    x = [1]
    x.append(x)
    return x
---
def f():
    return [1, [1]]
---
x = f()
assert x[1] is x and x[1][1][0] == 1
## functions as values
def f(op):
    return {"+": lambda a, b: a + b, "max": max}[op]
---
def f(op):
    return {"+": lambda a, b: a - b, "max": max}[op]
---
assert f("+")(2, 3) == 5
assert f("max")(2, 3) == 3 and f("max") is max
## state between calls
cache = {}
def f(n):
    cache[n] = cache.get(n, 0) + 1
    return cache[n]
---
def f(n):
    return 1
---
assert [f(1), f(1), f(2)] == [1, 2, 1]
## a main block that does nothing to the tests
def f(x):
    return x + 1
if __name__ == "__main__":
    print(f(1))
---
def f(x):
    return x
if __name__ == "__main__":
    print(f(1))
---
assert f(1) == 2
## from threads
import threading
lock, total = threading.Lock(), 0
def add(n):
    global total
    for _ in range(n):
        with lock:
            total += 1
    return total
---
total = 0
def add(n):
    global total
    total = n
    return total
---
import threading
threads = [threading.Thread(target=add, args=(50,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert add(0) == 200
## threads of the program and a function of the tests
from concurrent.futures import ThreadPoolExecutor
def f(function, items):
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(function, items))
---
def f(function, items):
    return list(map(function, items[1:]))
---
assert f(lambda x: x * x, list(range(20))) == [n * n for n in range(20)]
## a missing function
def f(x):
    return x
---
def g(x):
    return x
---
assert f(1) == 1
## an error at the start
def f(x):
    return x
---
def f(x):
    return x
1 / 0
---
assert f(1) == 1
## a program that does not parse
def f(x):
    return x
---
def f(x) return x
---
assert f(1) == 1
## wrong number of arguments
def f(a, b=2, *args, c=3, **named):
    return a, b, args, c, named
---
def f(a, b=2, c=3):
    return a, b, (), c, {}
---
assert f(1) == (1, 2, (), 3, {})
assert f(1, 5, 6, c=7, d=8) == (1, 5, (6,), 7, {"d": 8})
try:
    f()
except TypeError:
    pass
else:
    assert False
## a tree of the program's
class Node:
    def __init__(self, value):
        self.value, self.left, self.right = value, None, None
def insert(root, value):
    if root is None:
        return Node(value)
    side = "left" if value < root.value else "right"
    setattr(root, side, insert(getattr(root, side), value))
    return root
---
class Node:
    def __init__(self, value):
        self.value, self.left, self.right = value, None, None
def insert(root, value):
    root.left = Node(value)
    return root
---
root = Node(5)
assert insert(root, 3) is root
insert(root, 8)
assert root.left.value == 3
assert root.right.value == 8 and root.left.left is None
## an int that is more
class Money(int):
    pass
def f(x):
    return Money(x)
---
def f(x):
    return x - 1
---
assert f(3) == 3 and f(3) + 1 == 4
## nan and infinity
def f(x):
    return float(x)
---
def f(x):
    return 0.0
---
import math
assert math.isnan(f("nan")) and f("inf") == math.inf and f("-0.0") == 0 and math.copysign(1, f("-0.0")) == -1
"""

# ## name, the right program, --- the wrong one, --- standard input, --- standard output
SCRIPTS = r"""
## lines
a = int(input())
b = int(input())
print(a + b)
---
print(input())
---
1
2
---
3
## all of the input
import sys
print(sum(int(word) for word in sys.stdin.read().split()))
---
import sys
print(len(sys.stdin.read().split()))
---
1 2
5
---
8
## lines of sys.stdin
import sys
for line in sys.stdin:
    print(line.strip()[::-1])
---
import sys
for line in sys.stdin:
    print(line.strip())
---
abc
de
---
cba
ed
## main
def main():
    n = int(input())
    print(*range(n))
if __name__ == "__main__":
    main()
---
def main():
    n = int(input())
    print(*range(n))
---
4
---
0 1 2 3
## ends with status 0
import sys
print(input())
sys.exit(0)
---
import sys
print(input())
sys.exit(1)
---
x
---
x
## ends with a message
print(input())
exit()
---
print(input())
exit("done")
---
x
---
x
## fails after it has printed
print(input())
---
print(input())
1 / 0
---
x
---
x
## asserts
x = input()
assert x == "x"
print(x)
---
x = input()
print(x)
assert x == "y"
---
x
---
x
## raises AssertionError
print(input())
---
print(input())
raise AssertionError
---
x
---
x
## blanks and empty lines at the ends
print(input(), " \n\n")
---
print("", input())
---
x
---
x
## until there is no more
total = 0
try:
    while True:
        total += int(input())
except EOFError:
    print(total)
---
total = 0
while True:
    total += int(input())
print(total)
---
4
5
---
9
## a format
print(f"{float(input()):.2f}")
---
print(float(input()))
---
1.005
---
1.00
## at exit
import atexit
atexit.register(lambda: print("bye"))
print("hello")
---
print("hello")
---

---
hello
bye
## without a newline at the end
import sys
sys.stdout.write("a\nb")
---
import sys
sys.stdout.write("a b")
---

---
a
b
## a thread
import threading
thread = threading.Thread(target=lambda: print("in", input()))
thread.start()
thread.join()
print("out")
---
print("out")
---
1
---
in 1
out
## a thread that is not waited for
import threading
import time
threading.Thread(target=lambda: (time.sleep(0.2), print("late"))).start()
---
import threading
import time
threading.Thread(target=lambda: (time.sleep(0.2), print("late")), daemon=True).start()
---

---
late
## standard error aside
import sys
print("note", file=sys.stderr)
print(1)
---
import sys
print(1, file=sys.stderr)
---

---
1
## warnings as errors
import warnings
warnings.warn("only a warning")
print(1)
---
import warnings
warnings.simplefilter("error")
print(1)
warnings.warn("an error")
---

---
1
"""


def blocks(text):
    """(name, parts) of each."""
    for block in text.strip().removeprefix("## ").split("\n## "):
        name, _, body = block.partition("\n")
        yield name, [part.strip("\n") + "\n" for part in ("\n" + body + "\n").split("\n---\n")]
