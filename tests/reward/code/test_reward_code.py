"""The code reward: kinds of tests, extraction, errors, and programs that try to pass without being right."""

import ast
import json
import os
import socket
import uuid
from pathlib import Path

import pytest
from sandbox_levels import assert_nothing_runs, at_each_level, best, contained

from reward import RewardError, load_reward
from reward.code import sandbox
from reward.code.code_harness import Containers, Judge, Reference, Tally, decode, encode, relay, resume
from reward.code.program import CallTests, ReadTests, code_verdicts, extract_program, parse_tests

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_sandbox = pytest.mark.skipif(best() is None, reason="no sandbox level works here")
PLUS_ONE = "def f(x):\n    return x + 1\n"


def verdicts(programs, tests, **given):
    given = {"require": "rlimits", "wall_s": 60.0} | given
    return code_verdicts([""] * len(programs), programs, tests=[tests] * len(programs), **given)


def errors(programs, tests, **given):
    return [verdict.error if verdict.score != 1.0 else "right" for verdict in verdicts(programs, tests, **given)]


# --- what is asked -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "prompt", "entry_point", "expected"),
    [
        ("    return 1\n", "def f(x):\n", "f", "def f(x):\n    return 1\n"),
        ("def f(x): return 1", "Write f.", "f", "def f(x): return 1"),
        ("def f(x): return 1", "def g(): pass\ndef f(x):\n", "f", "def g(): pass\ndef f(x): return 1"),
        ("Sure:\n```python\na = 1\n```\nor\n```py\ndef f(x): pass\n```\n", "", "f", "def f(x): pass\n"),
        ("```\ndef f(x): pass\n```\nUse it:\n```python\nprint(f(1))\n```", "", "f", "def f(x): pass\n"),
        ("```python\nfirst\n```\n```python\nlast\n```", "", None, "last\n"),
        ("```bash\nls\n```\n```python\nx = '```'\n```", "", None, "x = '```'\n"),
        ("```python\ncut = 1\n", "", None, "cut = 1\n"),
        ("text without code", "", None, "text without code"),
    ],
)
def test_extraction(completion, prompt, entry_point, expected):
    assert extract_program(completion, prompt, entry_point) == expected


def parsed(tests, entry_point=None, setup=None, prompt=""):
    return parse_tests(tests, entry_point, setup, prompt)


def test_forms_of_tests():
    asserts = parsed(["assert f(1) == 2", "assert f(2) == 3"])
    assert asserts == CallTests(("", "", "assert f(1) == 2", "assert f(2) == 3"), "f", (), ())
    assert parsed('["assert f(1) == 2", "assert f(2) == 3"]') == asserts
    assert parsed({"tests": ["assert f(1) == 2", "assert f(2) == 3"]}) == asserts
    assert parsed("assert f(1) == 2\nassert f(2) == 3").sources == ("", "", "assert f(1) == 2\nassert f(2) == 3")
    check = "def check(candidate):\n    assert candidate(1) == helper(1)"
    prompt = "def helper(x): return x\ndef f(x):\n    '''.'''\n"
    assert parsed(check, "f", None, prompt) == CallTests((prompt, "", check, "check(f)"), "f", (), ())
    assert parsed(check, None, None, prompt).entry_point == "f"
    assert parsed(json.dumps({"tests": check, "entry_point": "f"})).others == ("helper",)
    cases = ReadTests((("1\n", "2"), ("2", "3")))
    assert parsed([{"input": "1\n", "output": "2"}, {"input": "2", "output": "3"}]) == cases
    assert parsed({"inputs": ["1\n", "2"], "outputs": ["2", "3"]}) == cases
    for unusable in (
        None,
        "",
        [],
        "[",
        "def check(:",
        "x = 1",
        "f(1)",  # asserts nothing
        [1],
        {"inputs": ["1"], "outputs": []},
        {},
        [{"input": 1}],
    ):
        assert parsed(unusable) is None


def test_names_of_the_program_and_of_the_tests():
    assert parsed(["assert sum(10, 15) == 25"]).entry_point == "sum"
    assert parsed(["assert set(f(1)) == set([2])"]).entry_point == "f"
    size = parsed(["assert f((1,)) == sys.getsizeof((1,))"])
    assert (size.entry_point, size.others, size.modules) == ("f", (), ("sys",))
    pairs = parsed(["assert chain([Pair(1, 2)]) == 1"])
    assert (pairs.entry_point, pairs.others) == ("chain", ("Pair",))
    tree = parsed(["assert height(root) == 2"], setup="root = Node(1)\nroot.left = Node(2)")
    assert (tree.entry_point, tree.others) == ("height", ("Node",))


# --- between judge and host ----------------------------------------------------------------------


def refuse(value):
    raise TypeError(f"a reference to {value!r}")


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(10**30), 0.1, float("inf"), 1 + 2j, "a\u20ac\ud800", b"\x00", [], [1, [2]], (1,), {1, 2},
        frozenset({1}), {(1, 2): [3], None: {}}, range(3), int, ValueError,
    ],
)  # fmt: skip
def test_plain_data_survives_with_its_type(value):
    back = decode(json.loads(json.dumps(encode(value, refuse))), refuse)
    assert back == value
    assert type(back) is type(value)


def test_what_is_no_plain_data():
    class Sly(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    assert decode(encode(Sly(3), refuse), refuse) == 3
    assert decode(encode(Sly(3), refuse), refuse) != 4
    assert encode(object(), lambda value: 5) == ["r", 5, "object"]
    assert encode(iter(int, 1), lambda value: 5) == ["r", 5, "iterator"]
    for odd in (3, 0.5, {}, [], [1], ["?"], ["y", "exec"]):
        with pytest.raises(ValueError, match="not a value"):
            decode(odd, refuse)


class Beside:
    """The other side, in this process."""

    waiting = 0

    def __init__(self, target=None):
        self.target, self.asked = target, []

    def ask(self, what, number, *given):
        self.asked.append(given)
        return resume(self.target, *given)

    def of_program(self, what, target, *given):
        self.asked.append((what, *given))
        return True


def test_iterators_are_asked_as_they_are_needed():
    numbers = relay(Beside(iter(range(10**9))), 1)
    assert [next(numbers) for _ in range(1000)] == list(range(1000))
    taken = []
    ahead = Beside(taken.append(n) or n for n in range(10**9))
    numbers = relay(ahead, 1)
    assert [next(numbers) for _ in range(80)] == list(range(80))
    assert 80 <= len(taken) <= 90
    numbers.close()
    assert next(ahead.target, "closed") == "closed"

    def average():
        total, count, new = 0, 0, 0
        while True:
            new = yield total / max(count, 1)
            total, count = total + new, count + 1

    means = relay(Beside(average()), 1)
    assert [next(means), means.send(4), means.send(8)] == [0, 4, 6]
    with pytest.raises(KeyError):
        means.throw(KeyError)
    fails = relay(Beside(1 / (3 - n) for n in range(9)), 1)
    assert [next(fails) for _ in range(3)] == [1 / 3, 1 / 2, 1]
    with pytest.raises(ZeroDivisionError):
        next(fails)


def test_what_is_the_same_and_what_has_changed():
    there, back = Containers(), Containers()
    inner = [1]
    given = [inner, (inner, {"k": inner})]
    given.append(given)
    copy = decode(json.loads(json.dumps(encode(given, refuse, there))), refuse, back)
    assert copy[0] is copy[1][0] is copy[1][1]["k"]
    assert copy[2] is copy
    assert decode(encode(copy[0], refuse, back), refuse, there) is inner


def test_what_a_program_may_have_of_the_tests():
    own = {"__name__": "__main__"}
    exec("class Node:\n    kept = 1\n    _kept = 2\n    def meet(self): return self", own)
    judge = object.__new__(Judge)
    function, node = (lambda x: x + 1), own["Node"]()
    judge._kept = {-1: function, -2: node, -3: iter([5])}
    assert judge.perform("call", -1, [2], {}) == 3
    assert judge.perform("get", -2, "kept") == 1
    assert judge.perform("resume", -3, "next", None, 2) == ([5], "return", None)
    for asked in (("get", -1, "__globals__"), ("get", -1, "__code__"), ("set", -1, "x", 1), ("get", -2, "_kept"),
                  ("get", -2, "__class__"), ("set", -2, "__class__", int), ("resume", -1, "next", None, 1),
                  ("operate", -2, "__str__", []), ("exec", -1)):  # fmt: skip
        with pytest.raises(TypeError, match="a program cannot"):
            judge.perform(*asked)
    for asked in (("call", -4, [], {}), ("call", "open", [], {}), ("read", "close"), ("class", "Node")):
        with pytest.raises(KeyError):
            judge.perform(*asked)
    for secret in (getattr, exec, open, globals, os, test_forms_of_tests.__code__, object()):
        with pytest.raises(TypeError, match="a test cannot hand"):
            judge._refer(secret)


def test_a_reference_is_never_equal_to_anything():
    beside = Beside()
    for answer in (False, True):
        reference = Reference(beside, 1, answer)  # type: ignore[arg-type]
        for attempt in (lambda r: r == 1, lambda r: r != 1, lambda r: 1 in r, lambda r: r < 1,
                        lambda r: {r}, lambda r: r == True):  # noqa: E712  # fmt: skip
            with pytest.raises(TypeError):
                attempt(reference)
    reference = Reference(beside, "close")  # type: ignore[arg-type]
    for attempt in (bool, list, len, str, next, lambda r: r + 1, lambda r: r[0]):
        with pytest.raises(TypeError):
            attempt(reference)
    assert beside.asked == []
    assert bool(Reference(beside, 1, answer=True))  # type: ignore[arg-type]
    assert beside.asked == [("operate", "__bool__", [])]


def test_assertions_are_counted():
    def count(source, go_on):
        tally = Tally(go_on)
        tree = ast.fix_missing_locations(tally.visit(ast.parse(source)))
        error = None
        try:
            exec(compile(tree, "t", "exec"), {"__tally__": tally})
        except Exception as raised:
            error = type(raised).__name__
        return tally.passed, tally.failed, error

    source = "assert True, 'said'\nfor n in (1, 2, 3):\n    assert n != 2\nassert 1 / 0\nassert 1 + 1 == 2"
    assert count(source, go_on=True) == (3, 2, None)
    assert count(source, go_on=False) == (1, 0, "AssertionError")
    caught = "try:\n    {}\nexcept Exception: pass"
    for never in ("assert False", "assert 0, 'said'", "assert None", "assert ''", "assert not True", "assert 1 / 0"):
        assert count(never, go_on=False) == (0, 0, "ZeroDivisionError" if "/" in never else "AssertionError")
        assert count(never, go_on=True) == (0, 1, None)
        assert count(caught.format(never), go_on=False) == (0, 0, None)
    for always in ("assert True", "assert 1, 1 / 0", "assert ..."):
        assert count(always, go_on=True) == (0, 0, None)


# --- verdicts ------------------------------------------------------------------------------------


@needs_sandbox
def test_assertions_that_are_never_reached_do_not_fail():
    """As in plain Python; but tests that never call the program say nothing of it."""
    tests = ["for n in f(1):\n    assert n == 1", "for n in ():\n    assert f(n) == 1"]
    judged = [verdicts(["def f(x): return []"], [test])[0] for test in tests]
    assert [verdict.score for verdict in judged] == [1.0, None]
    assert judged[1].error == "bad_tests"


@at_each_level
def test_each_kind_of_error(level):
    programs = {
        PLUS_ONE: "right",
        "def f(x): return x": "failed_test",
        "def f(x): return None + x": "TypeError",
        "def g(x): return x": "AttributeError",
        "def f(x:": "SyntaxError",
        "import nothing_such": "ModuleNotFoundError",
        "import os; os._exit(0)": "ok",
        "import ctypes; ctypes.string_at(0)": "crash",
        "def f(x): return bytearray(10**9)": "MemoryError",
        "x = bytearray(10**9)": "memory",
        "import sys\nwhile True: sys.stderr.write('x' * 10**6)": "output",
        "": "AttributeError",
    }
    assert dict(zip(programs, errors(list(programs), ["assert f(1) == 2"]), strict=True)) == programs
    assert errors(["def f(x):\n    while True: pass"], ["assert f(1) == 2"], wall_s=2.0) == ["timeout"]


@at_each_level
def test_objects_of_the_program(level):
    tree = "class Node:\n    def __init__(self, value): self.value = value\n"
    tree += "def total(node): return node.value + node.left.value"
    setup = ["root = Node(1)\nroot.left = Node(5)\nroot.left.value = 2"]
    assert [v.score for v in verdicts([tree], ["assert total(root) == 3"], setup=setup)] == [1.0]
    match = "import re\ndef f(text): return re.search('a', text)"
    assert errors([match], ["assert f('a')", "assert not f('b')"]) == ["right"]
    assert errors([match], ["assert f('a') == 1"]) == ["TypeError"]
    # A comparison that only the program defines is not for the program to make.
    assert errors(
        ["def f(x): return 0\ndef close(a, b): return True"], ["assert close(f(1), 2)"], entry_point=["f"]
    ) == ["TypeError"]


@needs_sandbox
def test_exceptions_reach_the_tests_but_end_no_loop():
    assert errors(["def f(x): raise KeyError(x)"], ["try: f(1)\nexcept KeyError: found = True\nassert found"]) == [
        "right"
    ]
    ends_loops = "def f(x): raise StopIteration"
    assert errors([ends_loops], ["assert all(map(lambda x: f(x) == x, [1, 2]))"]) == ["RuntimeError"]


@needs_sandbox
def test_partial_credit():
    tests = ["assert f(1) == 2", "assert f(2) == 0", "assert f(3) == 4", "assert f('') == 0"]
    (verdict,) = verdicts([PLUS_ONE], tests, partial=True)
    assert (verdict.score, verdict.correct, verdict.error) == (0.5, False, "failed_test")
    assert [v.score for v in verdicts([PLUS_ONE], tests)] == [0.0]
    cases = [{"input": "1", "output": "1"}, {"input": "2", "output": "4"}, {"input": "3", "output": "9"}]
    assert [v.score for v in verdicts(["print(input())"], cases, partial=True)] == [pytest.approx(1 / 3)]


@at_each_level
def test_input_and_output(level):
    cases = [{"input": "1 2\n", "output": "3\n"}, {"input": "4 5", "output": "9"}]
    programs = {
        "print(sum(map(int, input().split())))": "right",
        "print(sum(map(int, input().split())), end='  \\n\\n')": "right",
        "print(3)": "wrong_output",
        "print(sum(map(int, input().split()))); raise SystemExit(1)": "exit",
        "import os; os._exit(0)": "wrong_output",
        "while True: print(1)": "output",
    }
    assert dict(zip(programs, errors(list(programs), cases), strict=True)) == programs


@needs_sandbox
def test_by_name_with_columns_and_equal_programs_once(monkeypatch):
    from reward.code import program

    started = []
    judge = program.judge_program
    monkeypatch.setattr(program, "judge_program", lambda *args, **named: started.append(1) or judge(*args, **named))
    reward = load_reward("code", {"require": best(), "wall_s": 60.0})
    started.clear()
    check = "def check(candidate):\n    assert candidate(1) == 2"
    chat = [{"role": "assistant", "content": f"```python\n{PLUS_ONE}```"}]
    found = reward.verdicts(
        ["def f(x):\n"] * 4,
        ["    return x + 1\n", "    return x + 1\n", chat, "    return 2 * x\n"],
        answer=[check, check, check, "no tests at all"],
        entry_point=["f"] * 4,
    )
    assert [verdict.score for verdict in found] == [1.0, 1.0, 1.0, None]
    assert found[3].error == "bad_tests"
    assert len(started) == 1  # the three are the same program
    with pytest.raises(RewardError, match="needs a column 'tests'"):
        reward([""], [""])


def test_too_weak_a_sandbox_is_refused(monkeypatch):
    monkeypatch.setattr(sandbox, "level_in_force", lambda: "rlimits")
    with pytest.raises(RewardError, match=r"only sandbox level 'rlimits' here.*args: \{require: rlimits\}"):
        code_verdicts([""], [""], tests=[["assert f(1)"]])


@needs_sandbox
def test_a_program_that_could_not_be_run_is_not_wrong(monkeypatch):
    def lost(*_):
        raise sandbox.SandboxError("its keeper was lost")

    monkeypatch.setattr(sandbox.Job, "wait", lost)
    monkeypatch.setattr("reward.code.program._require_level", lambda _: "rlimits")
    (verdict,) = verdicts([PLUS_ONE], ["assert f(1) == 2"])
    assert (verdict.score, verdict.correct, verdict.error) == (None, None, "sandbox")


# --- programs that try to pass without being right -----------------------------------------------

# They are asked for f(x) == x + 1. One that reaches what it must not gives the right answer.
TRY = "def f(x):\n    try:\n        {}\n    except BaseException:\n        return 0\n    return x + 1\n"
EVERYWHERE = "('/tmp', '/var/tmp', '/dev/shm', '/root', '/', '/usr', '/mnt', '.')"
HOSTILE = {
    "exit at once": "import os; os._exit(0)",
    "exit politely": "import sys; sys.exit(0)",
    "exit when asked": "import os\ndef f(x): os._exit(0)",
    "leave by exception": "def f(x): raise SystemExit(0)",
    "raise what tests might catch": "def f(x): raise StopIteration",
    "equal to everything": "class E:\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(x): return E()",
    "an int equal to everything": "class E(int):\n    def __eq__(self, o): return True\ndef f(x): return E(0)",
    "a list equal to everything": "class E(list):\n    def __eq__(self, o): return True\ndef f(x): return E()",
    "a false class": "class E:\n    __class__ = int\n    def __int__(self): return 0\ndef f(x): return E()",
    "patched builtins": "import builtins\nbuiltins.AssertionError = builtins.Exception = BaseException\n"
    "builtins.isinstance = builtins.all = lambda *a: True\ndef f(x): return 0",
    "patched harness": "import code_harness\ncode_harness.judge = code_harness.encode = lambda *a: True\n"
    "code_harness.Tally.fails = lambda *a: None\ndef f(x): return 0",
    "answers written ahead": "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'{\"value\": true}\\n' * 9)\n"
    "    except OSError: pass\ndef f(x): return 0",
    "answers of the line written ahead": "import os\nfor fd in range(3, 64):\n"
    '    try: os.write(fd, b\'["value", ["", []], true, []]\\n\' * 9)\n    except OSError: pass\ndef f(x): return 0',
    "answers that do not fit": "import os\nfor fd in range(3, 64):\n"
    '    try: os.write(fd, b\'["value", [7, 7], true, [[5, []]]]\\n{}\\n[]\\n["ask"]\\n\')\n'
    "    except OSError: pass\ndef f(x): return 0",
    **{
        f"{value} for an answer": f"import code_harness\ncode_harness.encode = lambda *a: {value}\ndef f(x): return 0"
        for value in (
            "['r', -1, 'object']",
            "['r', 'f', 'object']",
            "['a', 0]",
            "['y', 'exit']",
            "['x', ['Any']]",
            "['e', ['SystemExit'], '', ['l'], ['d'], None]",
            "['m', 'x', ['a b'], 1]",
            "['o', 'Any', []]",
            "['d', [True, True]]",
            "['r', 1, 'iterator']",
            "['r', 1, 'coroutine']",
        )
    },
    "questions of its own": "import gc\nhost = [o for o in gc.get_objects() if type(o).__name__ == 'Host'][0]\n"
    "def f(x):\n    for what in ('call', 'get', 'set', 'resume', 'read', 'input', 'class', 'await'):\n"
    "        for given in ((-1, [], {}), (-1, '__globals__'), (-1, '__dict__', 1), (1, 'next', None, 1),\n"
    "                      ('read', -1), ('__class__',), ('',)):\n"
    "            try: found = host.ask(what, *given)\n            except BaseException: continue\n"
    "            if found: return x + 1\n    return 0",
    "is an exception": "class f(Exception):\n    def __eq__(self, other): return True",
    "is a class": "class f:\n    def __init__(self, x): pass\n    def __eq__(self, other): return True",
    "is awaited": "async def f(x): return x + 1",
    "raise each exception": "n = 0\ndef f(x):\n    global n\n    n += 1\n"
    "    raise (SystemExit, KeyboardInterrupt, GeneratorExit, AssertionError)[n % 4](0)",
    "an exception that is a string's end": "class gone(Exception): pass\ndef f(x): raise gone",
    "warn and print": "import warnings\ndef f(x):\n    for n in range(10**4): print('x' * 10**4); warnings.warn('x')\n"
    "    return 0",
    "a verdict of its own": "import os\nfor fd in range(0, 64):\n"
    '    try: os.write(fd, b\'{"passed": 9, "failed": 0, "finished": true, "error": null}\\n\')\n'
    "    except OSError: pass\nos._exit(0)",
    "looking for the tests in memory": "import gc, sys\ndef f(x):\n    frame, seen = sys._getframe(), []\n"
    "    while frame: seen += [frame.f_locals, frame.f_globals]; frame = frame.f_back\n"
    "    seen += [thing for thing in gc.get_objects() if type(thing) is list]\n"
    "    return x + 1 if 'assert f(' + '3)' in repr(seen) else 0",
    "looking for the tests in all that can be reached": "import gc, sys\ndef f(x):\n"
    "    try: raise KeyError\n    except KeyError as error: trace = error.__traceback__\n"
    "    frame, todo, seen = trace.tb_frame, [*gc.get_objects()], set()\n"
    "    while frame: todo += [frame, frame.f_locals, frame.f_globals]; frame = frame.f_back\n"
    "    while todo:\n"
    "        thing = todo.pop()\n"
    "        if isinstance(thing, str) and ')3(f tressa' in thing[::-1]: return x + 1\n"
    "        if id(thing) not in seen: seen.add(id(thing)); todo += gc.get_referents(thing)\n"
    "    return 0",
    "looking for the tests in raw memory": "import ctypes\ndef f(x):\n"
    "    here = id(object()) & ~0xFFFFF\n"
    "    return x + 1 if b')3(f tressa' in ctypes.string_at(here, 1 << 16)[::-1] else 0",
    "looking for the tests in files": TRY.format(
        "import glob as g; assert any('assert f(' + '3)' in open(p, errors='replace').read() for p in "
        f"[*g.glob('{Path(__file__).parents[2]}/**/*.py', recursive=True), "
        "*g.glob('/tmp/**/*.py', recursive=True), *g.glob('/proc/*/fd/*')])"
    ),
    "the memory of others": TRY.format("import os; open(f'/proc/{os.getppid()}/mem', 'rb').read(1)"),
    "the environment of others": TRY.format("assert 'CODE_SECRET' in open('/proc/1/environ').read()"),
    "its environment": TRY.format("import os; os.environ['CODE_SECRET']"),
    "ptrace": TRY.format("import ctypes, os; assert ctypes.CDLL(None).ptrace(16, os.getppid(), None, None) == 0"),
    "the network": TRY.format("import socket; socket.create_connection(('127.0.0.1', PORT), 2)"),
    "netlink": TRY.format("import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"),
    "an abstract socket": TRY.format("import socket; socket.socket(socket.AF_UNIX).bind(chr(0) + 'here')"),
    "a datagram to anywhere": TRY.format(
        "import socket as s; s.socketpair(s.AF_UNIX, s.SOCK_DGRAM)[0].sendto(b'x', '/dev/log')"
    ),
    "an address for one of a pair": TRY.format("import socket; socket.socketpair()[0].bind(chr(0) + 'here')"),
    "a user namespace": TRY.format("import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0"),
    "a mount": TRY.format("import ctypes; assert ctypes.CDLL(None).mount(b'n', b'/tmp', b'tmpfs', 0, None) == 0"),
    "root": TRY.format("import os; os.setuid(0)"),
    "more memory": TRY.format("import resource as r; r.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY, r.RLIM_INFINITY))"),
    "a symbolic link": TRY.format("import os; os.symlink('/etc/shadow', '/tmp/s'); open('/tmp/s').read()"),
    "a signal to everyone": "import os\nfor pid in (1, os.getppid(), -1):\n"
    "    try: os.kill(pid, 9)\n    except OSError: pass\ndef f(x): return 0",
    "every signal to its first process": "import os\nfor number in range(1, 65):\n"
    "    try: os.kill(1, number)\n    except OSError: pass\ndef f(x): return 0",
    "a signal to its group": "import os; os.kill(0, 9)",
    "limits for its first process": TRY.format("import resource as r; r.prlimit(1, r.RLIMIT_NOFILE, (0, 0))"),
    "the word of its first process": TRY.format(
        "import ctypes, os; assert ctypes.CDLL(None).syscall(438, os.pidfd_open(1), 0, 0) >= 0"
    ),
    "files everywhere": f"for place in {EVERYWHERE}:\n"
    "    try: open(place + '/MARK', 'w').write('x')\n    except OSError: pass\ndef f(x): return 0",
    "a daemon that writes later": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    f"        time.sleep(5)\n        for place in {EVERYWHERE}:\n            try: open(place + '/MARK', 'w')\n"
    "            except OSError: pass\n    os._exit(0)\ndef f(x): return 0",
    "a million files": "try:\n    for n in range(10**6): open(f'/tmp/{n}', 'w')\nexcept OSError: pass\n"
    "def f(x): return 0",
    "a large file": "def f(x):\n    with open('/tmp/large', 'wb') as file:\n"
    "        while True: file.write(bytes(10**6))",
    "a fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "threads": "import threading, time\ntry:\n    while True: threading.Thread(target=time.sleep, args=(99,)).start()\n"
    "except RuntimeError: pass\ndef f(x): return 0",
    "memory": "def f(x):\n    kept = []\n    while True: kept.append(bytearray(10**7))",
    "a flood of output": "import sys\nwhile True: sys.stderr.write('x' * 10**6)",
    "an endless loop": "def f(x):\n    while True: pass",
    "sleep behind signal handlers": "import signal, time\nfor n in range(1, 32):\n"
    "    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\ndef f(x): time.sleep(999)",
    "an endless answer": "def f(x):\n    while True: yield x + 1",
    "a deep answer": "def f(x):\n    a = []\n    for _ in range(10**5): a = [a]\n    return a",
    "a huge number": "def f(x): return 1 << 10**8",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return f(x)",
    "a crash in C": "import ctypes\ndef f(x): return ctypes.string_at(0)",
    "a compression bomb": "import zlib\ndef f(x):\n    data = zlib.compress(bytes(10**8))\n"
    "    return [zlib.decompress(data) for _ in range(50)]",
    "a null byte": "def f(x): return x + 1\0",
}


@needs_sandbox
def test_no_host_can_say_what_its_functions_return_to_the_tests():
    """``close`` is the program's, and no test rests on its word; so its host must not put a value in its place."""
    says_true = (
        "import json\nplain = json.dumps\n"
        "json.dumps = lambda answer: plain({'value': True} if type(answer) is dict else answer)\n"
        "def f(x): return 0\nclass close:\n    def __init__(*_): pass\n    same = True\n"
    )
    for test in ("assert close(f(1), 2)", "assert close.same"):
        assert verdicts([says_true], [test], entry_point=["f"])[0].score == 0.0, test


@contained
def test_hostile_programs_gain_nothing_and_leave_nothing(level, monkeypatch):
    mark = f"sandbox-leftover-{uuid.uuid4().hex}"
    monkeypatch.setenv("CODE_SECRET", "1")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        programs = [program.replace("MARK", mark).replace("PORT", port) for program in HOSTILE.values()]
        found = verdicts([*programs, PLUS_ONE], ["assert f(3) == 4", "assert f(5) == 6"], wall_s=6.0)
    outcome = dict(zip(HOSTILE, found, strict=False))
    assert {name: verdict for name, verdict in outcome.items() if verdict.score != 0.0} == {}
    assert found[-1].score == 1.0
    assert_nothing_runs()
    places = ["/tmp", "/var/tmp", "/dev/shm", "/root", "/", "/usr", "/mnt", os.getcwd()]
    assert [place for place in places if os.path.exists(f"{place}/{mark}")] == []


# --- known solutions -----------------------------------------------------------------------------


def rows_of(name, count=40):
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"no data {path}")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return rows[:: max(len(rows) // count, 1)][:count]


@needs_sandbox
def test_humaneval():
    rows = rows_of("humaneval/HumanEval.jsonl")
    columns = {name: [row[name] for row in rows] for name in ("entry_point", "prompt")}
    columns |= {"tests": [row["test"] for row in rows], "require": best(), "wall_s": 60.0}
    prompts = ["Complete the function."] * len(rows)
    right = code_verdicts(prompts, [row["canonical_solution"] for row in rows], **columns)
    empty = code_verdicts(prompts, ["    pass\n"] * len(rows), **columns)
    assert [row["task_id"] for row, verdict in zip(rows, right, strict=True) if verdict.score != 1.0] == []
    assert [row["task_id"] for row, verdict in zip(rows, empty, strict=True) if verdict.score != 0.0] == []


@needs_sandbox
def test_mbpp():
    rows = rows_of("mbpp/mbpp.jsonl")
    columns = {"tests": [row["test_list"] for row in rows], "setup": [row["test_setup_code"] for row in rows]}
    columns |= {"require": best(), "wall_s": 60.0}
    prompts = [row["text"] for row in rows]
    right = code_verdicts(prompts, [f"Here:\n```python\n{row['code']}\n```" for row in rows], **columns)
    names = [parse_tests(row["test_list"], None, row["test_setup_code"], row["text"]).entry_point for row in rows]
    empty = code_verdicts(prompts, [f"def {name}(*args):\n    pass" for name in names], **columns)
    assert [row["task_id"] for row, verdict in zip(rows, right, strict=True) if verdict.score != 1.0] == []
    assert [row["task_id"] for row, verdict in zip(rows, empty, strict=True) if verdict.score != 0.0] == []
