"""What runs inside the two sandboxes of a code test: the host of the program, and the judge of its answers.

The judge holds the tests and never runs the program; the host runs the program and never sees the tests. A
call in a test goes to the host as one line of JSON and comes back as one line, in which only plain data can
stand, so nothing the program defines (its ``__eq__``, its patched builtins) takes part in a comparison. What
is no plain data comes back as a reference, good for handing back and nothing else.

Both sides stand on the standard library only; the sandbox's server loads this file once for all programs.
"""

from __future__ import annotations

import ast
import builtins
import collections.abc
import fractions
import json
import os
import sys
import types
from typing import Any

MAX_ITEMS = 100_000  # taken of an iterator that a program returns


# --- plain data, as JSON -------------------------------------------------------------------------


def encode(value: Any, refer: Any) -> Any:
    """``value`` in JSON, types kept apart; ``refer(value)`` gives the number of what is no plain data."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return ["i", hex(int(value))]
    if isinstance(value, float):
        return ["f", float(value).hex()]
    if isinstance(value, complex):
        return ["c", value.real.hex(), value.imag.hex()]
    if isinstance(value, bytes | bytearray):
        return ["b", bytes(value).hex()]
    if isinstance(value, fractions.Fraction):
        return ["q", hex(value.numerator), hex(value.denominator)]
    if isinstance(value, range):
        return ["n", value.start, value.stop, value.step]
    if isinstance(value, type) and _builtin_type(value.__name__) is value:
        return ["y", value.__name__]
    if isinstance(value, dict):
        return ["d", *([encode(key, refer), encode(item, refer)] for key, item in value.items())]
    for kind, tag in (
        (list, "l"),
        (tuple, "t"),
        (frozenset, "z"),
        ((set, collections.abc.KeysView), "s"),
        ((collections.abc.Iterator, collections.abc.ValuesView, collections.abc.ItemsView), "g"),
    ):
        if isinstance(value, kind):
            items: list[Any] = [tag]
            for item in value:
                if len(items) > MAX_ITEMS:
                    raise ValueError("too many items")
                items.append(encode(item, refer))
            return items
    return ["r", refer(value)]


def decode(value: Any, resolve: Any) -> Any:
    """The inverse; ``resolve(number)`` gives what a reference stands for. Raises ValueError on anything odd."""
    if value is None or isinstance(value, bool | str):
        return value
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise ValueError("not a value")
    tag, *parts = value
    if tag in "ltzsg":
        items = [decode(part, resolve) for part in parts]
        return {"l": list, "t": tuple, "z": frozenset, "s": set, "g": iter}[tag](items)
    if tag == "d":
        return {decode(key, resolve): decode(item, resolve) for key, item in parts}
    if tag == "i":
        return int(parts[0], 16)
    if tag == "f":
        return float.fromhex(parts[0])
    if tag == "c":
        return complex(float.fromhex(parts[0]), float.fromhex(parts[1]))
    if tag == "b":
        return bytes.fromhex(parts[0])
    if tag == "q":
        return fractions.Fraction(int(parts[0], 16), int(parts[1], 16))
    if tag == "n":
        return range(*parts)
    if tag == "y" and (found := _builtin_type(parts[0])) is not None:
        return found
    if tag == "r":
        return resolve(int(parts[0]))
    raise ValueError("not a value")


def _builtin_type(name: str) -> type | None:
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) else None


# --- the host: it runs the program ---------------------------------------------------------------


def host(program: str) -> None:
    """Load the program, say so, then answer calls until there are no more."""
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)  # what the program prints goes nowhere
    objects: list[Any] = []

    def refer(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    def send(answer: Any) -> None:
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()

    module = types.ModuleType("program")  # not __main__: what stands under that condition is not run
    sys.modules["program"] = module
    exec(compile(program, "program.py", "exec", dont_inherit=True), module.__dict__)
    send("loaded")
    for line in calls:
        what, name, *given = json.loads(line)
        try:
            target = objects[name] if isinstance(name, int) else getattr(module, name)
            if what == "call":
                positional, named = (decode(part, objects.__getitem__) for part in given)
                value = encode(target(*positional, **named), refer)
            elif what == "make":  # as call, but whatever comes of it stays here
                positional, named = (decode(part, objects.__getitem__) for part in given)
                value = ["r", refer(target(*positional, **named))]
            elif what == "get":
                value = ["r", refer(getattr(target, given[0]))]
            else:
                setattr(target, given[0], decode(given[1], objects.__getitem__))
                value = None
            send({"value": value})
        except Exception as error:
            send({"error": [type(error).__name__, str(error)[:200]]})


# --- the judge: it runs the tests ----------------------------------------------------------------


class Gone(BaseException):
    """The program's process has ended, or talks nonsense."""


class Reference:
    """An object of the program's process: handed back in calls, its attributes set; never compared.

    As the answer of the function under test it is true, as most objects are (``assert match(...)``); made by
    anything else in the program it is not asked.
    """

    def __init__(self, link: Link, number: int | str, answer: bool = False):
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_answer", answer)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._link.call("make", self._number, list(args), named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._link.ask("get", self._number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("set", self._number, name, encode(value, _number_of))

    def __bool__(self) -> bool:
        return object.__getattribute__(self, "_answer") or self._never()

    def _never(self, *_: Any) -> Any:
        raise TypeError("an object of the program is no plain value")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __len__ = __iter__ = __contains__ = _never
    __hash__ = None  # type: ignore[assignment]


def _number_of(value: Any) -> int:
    if isinstance(value, Reference):
        return object.__getattribute__(value, "_number")
    raise TypeError(f"a test cannot hand a {type(value).__name__} to the program")


class Link:
    """The judge's end of the line to the host."""

    def __init__(self) -> None:
        self._answers, self._calls = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        self.gone = False

    def loaded(self) -> bool:
        return self._answers.readline() == b'"loaded"\n'

    def call(self, what: str, name: int | str, args: list[Any], named: dict[str, Any]) -> Any:
        return self.ask(what, name, encode(args, _number_of), encode(named, _number_of))

    def ask(self, *message: Any) -> Any:
        try:
            self._calls.write(json.dumps(message).encode() + b"\n")
            self._calls.flush()
            answer = json.loads(self._answers.readline())
            if "error" not in answer:
                return decode(answer["value"], lambda number: Reference(self, number, message[0] == "call"))
            kind, text = answer["error"]
        except Exception as error:
            self.gone = True  # a test may catch everything
            raise Gone(str(error)) from error
        raise _exception(str(kind))(text)


def _exception(kind: str) -> type[Exception]:
    """A builtin exception that can be made of a text, and that no loop takes for its end."""
    found = getattr(builtins, kind, None)
    if not isinstance(found, type) or not issubclass(found, Exception):
        return RuntimeError
    return RuntimeError if kind.startswith(("Unicode", "Stop", "ExceptionGroup")) else found


class _Enough(BaseException):
    """A test has failed, and no more is asked."""


class Tally(ast.NodeTransformer):
    """Counts the assertions of the tests it transforms as they pass and fail."""

    def __init__(self, go_on: bool):
        self.passed = self.failed = 0
        self.error: str | None = None
        self._go_on = go_on

    def passes(self) -> None:
        self.passed += 1

    def fails(self, error: Exception) -> None:
        self.failed += 1
        self.error = self.error or type(error).__name__
        if not self._go_on:
            raise _Enough

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if isinstance(node.test, ast.Constant):
            return ast.Pass()
        caught = ast.parse(
            "try:\n    __tally__.passes()\nexcept __tally__.Exception as __error__:\n    __tally__.fails(__error__)\n"
        )
        attempt = caught.body[0]
        assert isinstance(attempt, ast.Try)
        attempt.body.insert(0, node)
        return attempt

    Exception = Exception  # by a name that no test can have changed


def judge(sources: list[str], entry_point: str, others: list[str], modules: list[str], go_on: bool) -> None:
    """Run the tests and print the verdict, one line of JSON, on what was standard error.

    ``sources`` are run one after another in one namespace, in which ``entry_point`` and ``others`` are the
    program's and ``modules`` the standard library's.
    """
    verdict = os.fdopen(os.dup(2), "w")
    link = Link()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)  # tests may print
    tally = Tally(go_on)
    finished = False
    try:
        if not link.loaded():
            tally.error = "gone"
        else:
            names: dict[str, Any] = {"__name__": "tests", "__tally__": tally}
            names |= {name: Reference(link, name) for name in others}
            names |= {name: __import__(name) for name in modules}
            setup, *tests = sources
            exec(setup, names)
            names[entry_point] = lambda *args, **named: link.call("call", entry_point, list(args), named)
            for source in tests:
                tree = ast.fix_missing_locations(tally.visit(ast.parse(source)))
                exec(compile(tree, "tests.py", "exec"), names)
            finished = not link.gone
    except _Enough:
        pass
    except Gone:
        tally.error = "gone"
    except Exception as error:
        tally.error = type(error).__name__
    json.dump({"passed": tally.passed, "failed": tally.failed, "finished": finished, "error": tally.error}, verdict)
    verdict.flush()
    os._exit(0)
