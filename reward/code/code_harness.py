"""What runs inside the two sandboxes of a code test: the host of the program, and the judge of its answers.

The judge holds the tests and never runs the program; the host runs the program and never sees the tests. Each
asks the other by one line of JSON and is answered by one. Plain data are copied, and what a call changes in its
arguments is changed in the originals; so nothing the program defines (its ``__eq__``, its patched builtins)
takes part in a comparison. What is no plain data stays where it is, and the other side has something that
stands for it. Of the tests the program can call the functions that they hand it, and use the public attributes
of objects of their own classes; no more.

Both sides stand on the standard library only; the sandbox's server loads this file once for all programs.
"""

from __future__ import annotations

import ast
import builtins
import collections
import collections.abc
import contextlib
import datetime
import decimal
import fractions
import io
import json
import operator
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

MAX_PRINTED = 2**20  # bytes between two messages; what is beyond is dropped
MAX_TEXT = 10_000  # characters of what an exception says

# Builtin functions that stand for themselves on both sides; others would let one side act in the other.
# fmt: off
FUNCTIONS = {
    "abs", "all", "any", "ascii", "bin", "callable", "chr", "divmod", "format", "hash", "hex", "isinstance",
    "issubclass", "iter", "len", "max", "min", "next", "oct", "ord", "pow", "print", "repr", "round", "sorted", "sum",
}
# fmt: on
# Classes of the standard library whose objects are plain data, and what makes an equal one.
VALUES: dict[type, Callable[[Any], tuple]] = {
    decimal.Decimal: lambda value: (str(value),),
    collections.deque: lambda value: (list(value), value.maxlen),
    collections.OrderedDict: lambda value: (list(value.items()),),
    collections.Counter: lambda value: (dict(value),),
    collections.defaultdict: lambda value: (value.default_factory, dict(value)),
    **{
        kind: lambda value: value.__reduce_ex__(2)[1]
        for kind in (datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone)
    },
}
_VALUES_BY_NAME = {kind.__name__: kind for kind in VALUES}


# --- plain data, as JSON -------------------------------------------------------------------------


class Containers:
    """The lists, dicts and sets of a message and of its answer, in the order in which both sides meet them."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._numbers: dict[int, int] = {}

    def add(self, value: Any) -> Any:
        self._numbers[id(value)] = len(self.all)
        self.all.append(value)
        return value

    def number(self, value: Any) -> int | None:
        return self._numbers.get(id(value))

    def forget(self, count: int) -> None:
        """All but the first ``count``."""
        for value in self.all[count:]:
            del self._numbers[id(value)]
        del self.all[count:]


def encode(value: Any, refer: Any, containers: Containers | None = None) -> Any:
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
    if isinstance(value, bytes):
        return ["b", bytes(value).hex()]
    if isinstance(value, bytearray):
        return ["w", bytes(value).hex()]
    if isinstance(value, fractions.Fraction):
        return ["q", hex(value.numerator), hex(value.denominator)]
    if isinstance(value, range):
        return ["n", *(hex(part) for part in (value.start, value.stop, value.step))]
    name = getattr(value, "__name__", "") if isinstance(value, type | types.BuiltinFunctionType) else ""
    if name and _builtin(name) is value:
        return ["y", name]
    if isinstance(value, type) and issubclass(value, BaseException):
        return ["x", _lineage(value)]
    if isinstance(value, BaseException):
        args = OSError.__reduce__(value)[1] if isinstance(value, OSError) else value.args  # with its file's name
        given = [list(args), dict(vars(value)), value.__cause__]
        said = str(value)[:MAX_TEXT]
        return ["e", _lineage(type(value)), said, *(encode(part, refer, containers) for part in given)]
    if type(value) in VALUES:
        return ["o", type(value).__name__, encode(VALUES[type(value)](value), refer, containers)]
    if isinstance(value, tuple) and (fields := getattr(type(value), "_fields", None)):
        return ["m", type(value).__name__, list(fields), *_items(value, refer, containers)]
    for kind, tag in ((list, "l"), (dict, "d"), (set, "s")):
        if isinstance(value, kind):
            if containers is not None:
                if (number := containers.number(value)) is not None:
                    return ["a", number]
                containers.add(value)
            return [tag, *_items(value, refer, containers)]
    for kind, tag in (
        (tuple, "t"),
        (frozenset, "z"),
        (collections.abc.KeysView, "k"),
        (collections.abc.ItemsView, "j"),
        (collections.abc.ValuesView, "v"),
    ):
        if isinstance(value, kind):
            return [tag, *_items(value, refer, containers)]
    return ["r", refer(value), _manner(value)]


def _items(value: Any, refer: Any, containers: Containers | None) -> list[Any]:
    if isinstance(value, dict):
        return [[encode(key, refer, containers), encode(item, refer, containers)] for key, item in value.items()]
    return [encode(item, refer, containers) for item in value]


def _manner(value: Any) -> str:
    """How what stands for ``value`` has to behave."""
    if isinstance(value, types.CoroutineType):
        return "coroutine"
    if isinstance(value, types.AsyncGeneratorType):
        return "async generator"
    # An iterator of a class of the program's or the tests' own may have other methods, too.
    own = type(value).__module__ in ("program", "__main__")
    return "iterator" if isinstance(value, collections.abc.Iterator) and not own else "object"


def decode(value: Any, resolve: Any, containers: Containers | None = None) -> Any:
    """The inverse; ``resolve(number, manner)`` gives what stands for an object. Raises ValueError on anything odd."""
    if value is None or isinstance(value, bool | str):
        return value
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise ValueError("not a value")
    tag, *parts = value
    if tag in ("l", "d", "s"):
        made: Any = {"l": list, "d": dict, "s": set}[tag]()
        if containers is not None:
            containers.add(made)
        return _fill(made, parts, resolve, containers)
    if tag in ("t", "z", "k", "j", "v"):
        items = [decode(part, resolve, containers) for part in parts]
        if tag == "k":
            return dict.fromkeys(items).keys()
        if tag == "j":
            return dict(items).items()
        return tuple(items) if tag == "t" else frozenset(items) if tag == "z" else dict(enumerate(items)).values()
    if tag == "a" and containers is not None:
        return containers.all[parts[0]]
    if tag == "i":
        return int(parts[0], 16)
    if tag == "f":
        return float.fromhex(parts[0])
    if tag == "c":
        return complex(float.fromhex(parts[0]), float.fromhex(parts[1]))
    if tag == "b":
        return bytes.fromhex(parts[0])
    if tag == "w":
        return bytearray.fromhex(parts[0])
    if tag == "q":
        return fractions.Fraction(int(parts[0], 16), int(parts[1], 16))
    if tag == "n":
        return range(*(int(part, 16) for part in parts))
    if tag == "y" and (found := _builtin(parts[0])) is not None:
        return found
    if tag == "x":
        return exception_class(parts[0])
    if tag == "e":
        names, said, *given = parts
        return _exception(names, said, *(decode(part, resolve, containers) for part in given))
    if tag == "o" and (kind := _VALUES_BY_NAME.get(parts[0])) is not None:
        return kind(*decode(parts[1], resolve, containers))
    if tag == "m":
        name, fields, *items = parts
        return collections.namedtuple(name, fields)(*(decode(part, resolve, containers) for part in items))
    if tag == "r":
        return resolve(*parts)
    raise ValueError("not a value")


def _fill(made: Any, parts: list[Any], resolve: Any, containers: Containers | None) -> Any:
    """Put the items into an empty list, dict or set."""
    if isinstance(made, dict):
        for key, item in parts:
            key = decode(key, resolve, containers)  # before the item, as it was encoded
            made[key] = decode(item, resolve, containers)
    else:
        put = made.append if isinstance(made, list) else made.add
        for part in parts:
            put(decode(part, resolve, containers))
    return made


def _builtin(name: str) -> Any:
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) or name in FUNCTIONS else None


# --- exceptions ----------------------------------------------------------------------------------

_classes: dict[str, type[BaseException]] = {}  # that are no builtins, by name
_exits: list[BaseException] = []  # that came from the other side


def _lineage(kind: type[BaseException]) -> list[str]:
    if kind.__module__ in ("program", "__main__"):
        _classes.setdefault(kind.__name__, kind)
    return [base.__name__ for base in kind.__mro__ if issubclass(base, BaseException)]


def exception_class(lineage: list[str]) -> type[BaseException]:
    """The class of that name here, made where there is none."""
    name, *bases = lineage
    if name in _classes:
        return _classes[name]
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        return found
    if not bases:
        raise ValueError("no exception")
    _classes[name] = type(name, (exception_class(bases),), {})
    return _classes[name]


def _exception(
    lineage: list[str], said: str, args: list[Any], attributes: dict[str, Any], cause: BaseException | None
) -> BaseException:
    kind = exception_class(lineage)
    try:
        made = kind(*args)
        if str(made)[:MAX_TEXT] != said:  # the class has words of its own
            made = type(kind.__name__, (kind,), {"__str__": lambda _: said})(*args)
        vars(made).update(attributes)
        made.__cause__ = cause
    except Exception:
        return RuntimeError(said)
    if isinstance(made, SystemExit):
        _exits.append(made)
    return made


# --- the line between the two --------------------------------------------------------------------


class Gone(BaseException):
    """The program's process has ended, or talks nonsense."""


class Peer:
    """One end: asks, answers while it waits, and keeps what the other side has something to stand for."""

    sign = 1  # of the numbers of this side's objects

    def __init__(self) -> None:
        """Speaks by what was standard input and output."""
        self._hears, self._says = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        self._kept: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._stand_ins: dict[Any, Any] = {}
        self._lock = threading.RLock()
        self.waiting = 0  # for answers

    def ask(self, what: str, *given: Any) -> Any:
        """What the other side makes of it; raises what is raised there."""
        with self._lock:
            containers = Containers()
            question = [encode(part, self._refer, containers) for part in given]
            self.waiting += 1
            try:
                kind, value = self._exchange(["ask", self._news(), what, *question], containers)
            finally:
                self.waiting -= 1
        if kind == "error":
            if isinstance(value, StopIteration | StopAsyncIteration):  # no loop may take it for its end
                value = RuntimeError(str(value))
            raise value
        return value

    def _exchange(self, message: list[Any], containers: Containers) -> tuple[str, Any]:
        self.say(message)
        while (answer := self.hear())[0] == "ask":
            self.reply(answer)
        kind, _, value, changes = answer
        value = decode(value, self._resolve, containers)
        for number, content in changes:
            changed = containers.all[number]
            content = _fill(type(changed)(), content, self._resolve, containers)
            changed.clear()
            changed.extend(content) if isinstance(changed, list) else changed.update(content)
        return kind, value

    def reply(self, question: list[Any]) -> None:
        """Do as asked, and say what came of it and what it has changed in what was given."""
        containers = Containers()
        given = [decode(part, self._resolve, containers) for part in question[3:]]
        count = len(containers.all)
        before = [_items(part, self._refer, containers) for part in containers.all]
        try:
            kind, value = "value", self.perform(question[2], *given)
            encoded = encode(value, self._refer, containers)
        except Gone:
            raise
        except BaseException as error:
            containers.forget(count)
            kind, encoded = "error", self._encode_error(error, containers, count)
        changes = []
        for number, old in enumerate(before):
            new = _items(containers.all[number], self._refer, containers)
            if new != old:
                changes.append([number, new])
        self.say([kind, self._news(), encoded, changes])

    def _encode_error(self, error: BaseException, containers: Containers, count: int) -> Any:
        try:
            return encode(error, self._refer, containers)
        except Exception:
            containers.forget(count)
            return encode(RuntimeError(type(error).__name__), self._refer, containers)

    def say(self, message: list[Any]) -> None:
        self._says.write(json.dumps(message).encode() + b"\n")
        self._says.flush()

    def hear(self) -> list[Any]:
        """The next message. Raises :class:`Gone` where there is none to come."""
        line = self._hears.readline()
        if not line:
            raise Gone
        message = json.loads(line)
        self._hear_news(message[1])
        return message

    def perform(self, what: str, *given: Any) -> Any:
        raise NotImplementedError

    def stand_in(self, number: int) -> Any:
        raise NotImplementedError

    def _news(self) -> Any:
        return None

    def _hear_news(self, news: Any) -> None:
        pass

    def _refer(self, value: Any) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self.sign * (len(self._kept) + 1)
            self._kept[number] = value
            self._numbers[id(value)] = number
        return number

    def _resolve(self, number: int, manner: str = "object") -> Any:
        if not isinstance(number, int):
            raise ValueError("not a value")
        if number * self.sign > 0:
            return self._kept[number]
        if manner == "iterator":
            return relay(self, number)
        if manner == "coroutine":
            return relay_coroutine(self, number)
        if manner == "async generator":
            return relay_async(self, number)
        if number not in self._stand_ins:
            self._stand_ins[number] = self.stand_in(number)
            self._numbers[id(self._stand_ins[number])] = number
        return self._stand_ins[number]


def relay(peer: Peer, number: int) -> Any:
    """A generator that stands for an iterator of the other side."""
    how, given, taken = "next", None, 0
    while True:
        # Ahead by no more than an eighth: what makes an item may also print, fail, or never end.
        items, state, value = peer.ask("resume", number, how, given, 1 + taken // 8 if how == "next" else 1)
        how = "next"
        for item in items:
            try:
                given = yield item
            except GeneratorExit:
                if not peer.waiting:  # else it was dropped while something else is asked
                    state, value = peer.ask("resume", number, "close", None, 0)[1:]
                    if state == "raise":
                        raise value from None
                raise
            except BaseException as error:
                how, given = "throw", error
                break
            taken += 1
            if given is not None:
                how = "send"
                break
        if how == "next":
            if state == "raise":
                raise value
            if state == "return":
                return value


async def relay_coroutine(peer: Peer, number: int) -> Any:
    return peer.ask("await", number)


async def relay_async(peer: Peer, number: int) -> Any:
    while items := peer.ask("anext", number):
        yield items[0]


def resume(target: Any, how: str, given: Any, count: int) -> tuple[list[Any], str, Any]:
    """Up to ``count`` items of an iterator, and how it goes on: ``more``, ``return`` or ``raise``, with a value."""
    items: list[Any] = []
    try:
        if how == "close":
            getattr(target, "close", lambda: None)()
        elif how == "next":
            for _ in range(count):
                items.append(next(target))
        else:
            items.append(getattr(target, how)(given))
    except StopIteration as end:
        return items, "return", end.value
    except BaseException as error:
        return items, "raise", error
    return items, "more", None


# --- the host: it runs the program ---------------------------------------------------------------


def host(program: str) -> None:
    """Load the program, say so, then answer until there are no more questions."""
    peer = Host()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)  # what the program prints while it loads goes nowhere
    sys.modules["program"] = peer.module
    exec(compile(program, "program.py", "exec", dont_inherit=True), peer.module.__dict__)
    peer.say(["loaded"])
    peer.take_over()
    with contextlib.suppress(Gone):
        while True:
            peer.reply(peer.hear())


class _Printed(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() < MAX_PRINTED:
            super().write(data)
        return len(data)


class _Input(io.TextIOBase):
    """Standard input that the tests may have replaced."""

    def __init__(self, peer: Host):
        self._peer = peer

    def read(self, size: int | None = -1) -> str:
        return self._peer.ask("read", "read", size)

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        return self._peer.ask("read", "readline", size)


class Borrowed:
    """A function of the tests, or an object of one of their classes."""

    def __init__(self, peer: Peer, number: int):
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._peer.ask("call", self._number, list(args), named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name not in ("__name__", "__qualname__"):
            raise AttributeError(name)
        return self._peer.ask("get", self._number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("set", self._number, name, value)


class Host(Peer):
    def __init__(self) -> None:
        super().__init__()
        self.module = types.ModuleType("program")  # not __main__: what stands under that condition is not run
        self._printed = _Printed()
        self._warned: list[Any] = []

    def take_over(self) -> None:
        """From now on the tests get what is printed and warned of, and give what is read."""
        for value in list(vars(self.module).values()):
            if isinstance(value, type) and issubclass(value, BaseException):
                _lineage(value)
        sys.stdout = io.TextIOWrapper(self._printed, "utf-8", "replace", newline="", write_through=True)
        sys.stdin = _Input(self)
        builtins.input = lambda prompt="": self.ask("input", str(prompt))  # type: ignore[assignment]
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, category, *_: self._warned.append([_lineage(category), str(message)])

    def _news(self) -> Any:
        printed, warned = self._printed.getvalue().decode("utf-8", "replace"), self._warned[:]
        self._printed.seek(0)
        self._printed.truncate()
        self._warned.clear()
        return [printed, warned]

    def stand_in(self, number: int) -> Borrowed:
        return Borrowed(self, number)

    def perform(self, what: str, name: Any, *given: Any) -> Any:
        if what == "class":  # the lineage of an exception's
            found = getattr(self.module, name, None)
            return _lineage(found) if isinstance(found, type) and issubclass(found, BaseException) else None
        target = self._resolve(name)
        if what in ("call", "make"):
            value = target(*given[0], **given[1])
        elif what in ("get", "reach"):
            value = getattr(target, given[0])
        elif what == "set":
            return setattr(target, *given)
        elif what == "operate":
            return _operate(target, *given)
        elif what == "is a":
            return given[0] in type(target).__mro__
        elif what == "resume":
            return resume(target, *given)
        elif what == "await":
            return self._await(target)
        else:
            return self._await(_next_of(target))
        return _Kept(value) if what in ("make", "reach") else value

    def _resolve(self, number: int | str, manner: str = "object") -> Any:
        return getattr(self.module, number) if isinstance(number, str) else super()._resolve(number, manner)

    def _refer(self, value: Any) -> int:
        return super()._refer(value.value if isinstance(value, _Kept) else value)

    def _await(self, awaitable: Any) -> Any:
        import asyncio

        if not hasattr(self, "_loop"):
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(awaitable)


class _Kept:
    """Whatever it is, it stays here."""

    def __init__(self, value: Any):
        self.value = value


async def _next_of(target: Any) -> list[Any]:
    async for item in target:
        return [item]
    return []


def _operate(target: Any, name: str, args: list[Any]) -> Any:
    if name in ("__enter__", "__exit__"):
        return getattr(type(target), name)(target, *args)
    if name.startswith("__r") and hasattr(operator, f"__{name[3:]}"):
        return getattr(operator, f"__{name[3:]}")(*args, target)
    short = name.strip("_")
    function = vars(operator).get(name) or getattr(builtins, short)
    return function(target, *args)


# --- the judge: it runs the tests ----------------------------------------------------------------


class Reference:
    """An object of the program's process.

    The function or class under test, and what comes of it (``answer``), can be used; it is true, as most objects are
    (``assert match(...)``). Of what else the program defines, objects can be made, changed and handed back, and
    are not asked. No comparison is ever the program's to make.
    """

    def __init__(self, peer: Judge, number: int | str, answer: bool = False):
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_answer", answer)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._peer.of_program("call" if self._answer else "make", self, list(args), named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__qualname__", "__wrapped__"):
            raise AttributeError(name)
        made = isinstance(self._number, int)  # of the program's other names only the attributes of objects are data
        return self._peer.of_program("get" if self._answer or made else "reach", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("set", self._number, name, value)

    def __next__(self) -> Any:
        items, state, value = self._peer.ask("resume", self._asked()._number, "next", None, 1)
        if state == "raise":
            raise value
        if state == "return":
            raise StopIteration(value)
        return items[0]

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Reference) and self._peer.ask("is a", instance._number, self)

    def __exit__(self, kind: Any, error: Any, _: Any) -> bool:
        """A failed assertion is not the program's to swallow."""
        swallowed = self._peer.ask("operate", self._asked()._number, "__exit__", [kind, error, None])
        return bool(swallowed) and not isinstance(error, AssertionError)

    def __mro_entries__(self, bases: Any) -> Any:
        raise TypeError("a test cannot inherit from a class of the program")

    def _asked(self) -> Reference:
        return self if object.__getattribute__(self, "_answer") else self._never()

    def _never(self, *_: Any) -> Any:
        raise TypeError("an object of the program is no plain value")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _never
    __hash__ = None  # type: ignore[assignment]


def _operator(name: str) -> Any:
    def operate(self: Reference, *args: Any) -> Any:
        return self._peer.of_program("operate", self._asked(), name, list(args))

    return operate


# fmt: off
_UNARY = ("bool", "len", "iter", "getitem", "setitem", "delitem", "str", "repr", "enter", "neg", "pos", "abs", "invert",
          "int", "float")
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
# fmt: on
for _name in (*_UNARY, *_BINARY, *(f"r{name}" for name in _BINARY)):
    setattr(Reference, f"__{_name}__", _operator(f"__{_name}__"))


class Judge(Peer):
    sign = -1

    def __init__(self) -> None:
        super().__init__()
        self.gone = self.asked = False
        self._warnings: list[Any] = []

    def loaded(self) -> bool:
        self.gone = self._hears.readline() != b'["loaded"]\n'
        return not self.gone

    def of_program(self, what: str, target: Reference, *given: Any) -> Any:
        """As :meth:`ask`; objects that come of an answer are answers, too."""
        self.asked = True
        value = self.ask(what, target._number, *given)
        if what in ("make", "reach") and not isinstance(value, Reference):
            self._lose("a value where none was asked for")
        if what not in ("make", "reach") and target._answer and isinstance(value, Reference):
            object.__setattr__(value, "_answer", True)
        return value

    def _exchange(self, message: list[Any], containers: Containers) -> tuple[str, Any]:
        try:
            found = super()._exchange(message, containers)
        except Exception as error:
            self._lose(str(error))
        except Gone:
            self.gone = True
            raise
        warned, self._warnings = self._warnings, []
        for lineage, text in warned:
            warnings.warn(text, exception_class(lineage), stacklevel=4)  # type: ignore[arg-type]
        return found

    def _lose(self, why: str) -> Any:
        self.gone = True  # a test may catch everything
        raise Gone(why)

    def _hear_news(self, news: Any) -> None:
        printed, warned = news
        if printed:
            sys.stdout.write(printed)
        self._warnings += warned

    def stand_in(self, number: int) -> Reference:
        return Reference(self, number)

    def _refer(self, value: Any) -> Any:
        """Raises TypeError where the program may not have it."""
        if isinstance(value, Reference):
            return value._number
        acts = isinstance(value, types.BuiltinFunctionType) and getattr(builtins, value.__name__, None) is value
        # A builtin that does not stand for itself acts here: getattr, exec, open.
        if acts or not (callable(value) or isinstance(value, collections.abc.Iterator) or _is_tests_own(value)):
            raise TypeError(f"a test cannot hand a {type(value).__name__} to the program")
        return super()._refer(value)

    def perform(self, what: str, name: Any, *given: Any) -> Any:
        """What the program may ask of the tests."""
        if what == "input":
            return builtins.input(name)
        if what == "read" and name in ("read", "readline"):
            return getattr(sys.stdin, name)(*given)
        target = self._kept[name]
        if what == "call":
            return target(*given[0], **given[1])
        if what == "resume" and isinstance(target, collections.abc.Iterator):
            return resume(target, *given)
        if what == "get" and (given[0] in ("__name__", "__qualname__") or _is_public(target, given[0])):
            return getattr(target, given[0])
        if what == "set" and _is_public(target, given[0]):
            return setattr(target, *given)
        raise TypeError(f"a program cannot {what} this of a test")


def _is_tests_own(value: Any) -> bool:
    return type(value).__module__ == "__main__"


def _is_public(target: Any, name: str) -> bool:
    return _is_tests_own(target) and not name.startswith("_")


class Tally(ast.NodeTransformer):
    """Counts the assertions of the tests it transforms as they pass; those that cannot fail do not count.

    The tests stay what they are. Only ``go_on`` has them go on after an assertion that fails, and counts it.
    """

    def __init__(self, go_on: bool):
        self.passed = self.failed = 0
        self._go_on = go_on

    def passes(self) -> None:
        self.passed += 1

    def fails(self) -> None:
        self.failed += 1

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        if isinstance(node.test, ast.Constant) and node.test.value:
            return [node]
        counted = [node, *ast.parse("__tally__.passes()").body]
        if not self._go_on:
            return counted
        attempt = ast.parse("try:\n    pass\nexcept __tally__.Exception:\n    __tally__.fails()\n").body[0]
        assert isinstance(attempt, ast.Try)
        attempt.body = counted
        return [attempt]

    Exception = Exception  # by a name that no test can have changed


class Tests:
    """``sources`` are run one after another in one namespace, in which ``entry_point`` and ``others`` are the
    program's and ``modules`` the standard library's.
    """

    def __init__(self, sources: list[str], entry_point: str, others: list[str], modules: list[str]):
        self._helpers, *self._sources = sources
        self._entry_point, self._others, self._modules = entry_point, others, modules
        self._suites_failed = 0
        if any("unittest" in source for source in sources):
            self._watch_unittest()

    def run(self, peer: Judge, tally: Tally) -> str | None:
        """None where they come to their end, as a script that ends with status 0; else the kind of error."""
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        names = main.__dict__
        names |= {"__builtins__": builtins, "__tally__": tally}
        self._suites_failed = 0
        try:
            names |= {name: self._of_program(peer, name) for name in self._others}
            names |= {name: __import__(name) for name in self._modules}
            exec(compile(self._helpers, "tests.py", "exec", dont_inherit=True), names)
            names[self._entry_point] = self._of_program(peer, self._entry_point, answer=True)
            for source in self._sources:
                tree = ast.fix_missing_locations(tally.visit(ast.parse(source)))
                exec(compile(tree, "tests.py", "exec", dont_inherit=True), names)
        except SystemExit as error:
            if any(error is other for other in _exits):
                return "SystemExit"
            if error.code not in (None, 0):
                return "AssertionError"
        except BaseException as error:
            return type(error).__name__[:40]
        if peer.gone:
            return "Gone"
        return "AssertionError" if self._suites_failed else None

    def _of_program(self, peer: Judge, name: str, answer: bool = False) -> Any:
        lineage = peer.ask("class", name)
        if lineage is None:
            return Reference(peer, name, answer)
        peer.asked |= answer
        return exception_class(lineage)  # for tests to catch

    def _watch_unittest(self) -> None:
        """What a run of unittest finds counts, whatever becomes of its result."""
        import unittest

        run = unittest.TextTestRunner.run

        def watched(runner: Any, suite: Any) -> Any:
            result = run(runner, suite)
            self._suites_failed += not result.wasSuccessful()
            return result

        unittest.TextTestRunner.run = watched  # type: ignore[method-assign]


def judge(sources: list[str], entry_point: str, others: list[str], modules: list[str], partial: bool) -> None:
    """Run the tests and print the verdict, one line of JSON, on what was standard error.

    With ``partial`` tests that fail are run again, going on after each assertion that fails, for the share of
    those that pass.
    """
    verdict = os.fdopen(os.dup(2), "w")
    peer = Judge()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)  # tests may print
    tally, error = Tally(go_on=False), "Gone"
    if peer.loaded():
        tests = Tests(sources, entry_point, others, modules)
        error = tests.run(peer, tally)
        if error and partial and not peer.gone:
            tally = Tally(go_on=True)
            tests.run(peer, tally)
    found = {"passed": tally.passed, "failed": tally.failed, "asked": peer.asked, "error": error}
    json.dump({**found, "gone": peer.gone}, verdict)
    verdict.flush()
    os._exit(0)
