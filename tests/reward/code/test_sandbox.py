"""The sandbox: how programs end, what they may not reach, and that nothing of them stays."""

import contextlib
import os
import shutil
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from reward import RewardError
from reward.code import sandbox
from reward.code.program import code_verdicts
from reward.code.sandbox import Limits, SandboxError, classify, run

LIMITS = Limits(wall_s=20.0, memory_bytes=256 * 2**20, disk_bytes=2**20, files=50, processes=8, output_bytes=10_000)


def best():
    try:
        return sandbox.level_in_force()
    except SandboxError:
        return None


pytestmark = pytest.mark.skipif(best() is None, reason="no sandbox level works here")
FAULTS = {level: sandbox.fault_of(level) for level in sandbox.LEVELS}


def at(*levels):
    """Run a test at each of these levels that works here."""
    marks = {
        level: pytest.mark.skipif(FAULTS[level] is not None, reason=f"{level}: {FAULTS[level]}") for level in levels
    }
    return pytest.mark.parametrize("level", [pytest.param(name, marks=marks[name]) for name in levels], indirect=True)


at_each_level = at(*sandbox.LEVELS)
contained = at("bubblewrap", "namespaces")
with_bubblewrap = at("bubblewrap")


CHAINS = {  # what runs of one sandbox
    "rlimits": ["keeper", "program"],
    "namespaces": ["keeper", "first process", "program"],
    "bubblewrap": ["keeper", "bwrap", "first process", "program"],
}


def processes():
    """Processes of sandboxes, bubblewrap's among them, the server itself aside."""
    server = sandbox._server()._process.pid
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != server:
            try:
                if b"/sandbox_in" in (entry / "cmdline").read_bytes() and descends(int(entry.name), server):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def descends(pid, ancestor):
    parent = parent_of(pid)
    if parent == 1:  # an orphan that got away
        return True
    while parent not in (0, 1, ancestor):
        parent = parent_of(parent)
    return parent == ancestor


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def assert_nothing_runs():
    deadline = time.monotonic() + 20
    while processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes() == []


# --- endings -------------------------------------------------------------------------------------

FORK_AND_SEE = "import os\nfor _ in range(100):\n    if os.fork() == 0:\n        import time; time.sleep(60)\n"
ENDINGS = [
    ("print('hello')", "ok", 0),
    ("import sys; print(sys.stdin.read().upper())", "ok", 0),
    ("exit(0)", "ok", 0),
    ("raise SystemExit(3)", "exit", 3),
    ("1 / 0", "exit", 1),
    ("def f(:", "exit", 1),
    ("import ctypes; ctypes.string_at(0)", "crash", -11),
    ("import os; os.abort()", "crash", -6),
    ("x = bytearray(10**9)", "memory", 1),
    ("while True: print('x' * 1000)", "output", None),
    ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output", None),
    ("open('/tmp/big' if __import__('os').access('/tmp', 2) else '/dev/full', 'w').write('x' * 10**7)", "output", 1),
    ("import threading, time\nfor _ in range(99): threading.Thread(target=time.sleep, args=(60,)).start()", None, None),
]


@at_each_level
@pytest.mark.parametrize(("program", "kind", "status"), ENDINGS)
def test_endings(level, program, kind, status):
    if level == "rlimits" and ("/tmp" in program or "threading" in program):
        pytest.skip("of this level only the user's own limits hold")
    limits = LIMITS if kind else replace(LIMITS, wall_s=3.0)
    result = run(program, b"some text", limits, require=level)
    if kind is None:  # the threads that did start hold the process until they end or time does
        assert result.kind in ("processes", "timeout")
        return
    assert result.kind == kind, result
    if kind != "output":
        assert result.status == status
    if "hello" in program:
        assert result.stdout == b"hello\n"
    if "stdin" in program:
        assert result.stdout == b"SOME TEXT\n"
    assert len(result.stdout) + len(result.stderr) <= 2 * (LIMITS.output_bytes + 1)


@at_each_level
@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(600)",
        "import signal, time\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\ntime.sleep(600)",
    ],
)
def test_time_is_up(level, program):
    started = time.monotonic()
    result = run(program, limits=Limits(wall_s=1.0), require=level)
    assert result.kind == "timeout"
    assert time.monotonic() - started < 1.0 + sandbox.GRACE_S
    assert_nothing_runs()


@at_each_level
def test_processor_time_is_up(level):
    assert run("while True: pass", limits=Limits(wall_s=60.0, cpu_s=1), require=level).kind == "timeout"


@contained
def test_the_memory_of_all_its_processes_counts(level):
    program = (
        "import os, time\n"
        "for _ in range(6):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(10**8); x[::4096] = b'x' * len(x[::4096]); time.sleep(60); os._exit(0)\n"
        "time.sleep(60)\n"
    )
    assert run(program, limits=Limits(wall_s=60.0, memory_bytes=200 * 2**20)).kind == "memory"
    assert_nothing_runs()


def test_endings_by_what_was_reported():
    def kind(status, last=b"", ending=None, flooded=False):
        return classify({"status": status, "ending": ending}, b"Traceback\n" + last + b"\n", flooded)

    assert kind(0) == "ok"
    assert kind(0, flooded=True) == "output"
    assert kind(None, ending="timeout") == "timeout"
    assert kind(-9, ending="memory") == "memory"
    assert kind(-24) == "timeout"
    assert kind(-9) == "crash"
    assert kind(None, ending="cancelled") == "crash"
    assert kind(1, b"ValueError: MemoryError") == "exit"
    assert kind(1, b"MemoryError") == "memory"
    assert kind(1, b"RuntimeError: can't start new thread") == "processes"
    assert kind(1, b"BlockingIOError: [Errno 11] Resource temporarily unavailable") == "processes"
    assert kind(1, b"OSError: [Errno 28] No space left on device") == "output"


# --- what stays ----------------------------------------------------------------------------------


@at_each_level
def test_children_die_with_the_program(level):
    daemon = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
    )
    assert run(daemon, limits=Limits(wall_s=20.0), require=level).kind == "ok"
    assert_nothing_runs()


@contained
def test_fork_bomb(level):
    result = run("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", limits=Limits(wall_s=2.0))
    assert result.kind in ("timeout", "memory")
    assert run(FORK_AND_SEE, limits=LIMITS).kind == "processes"
    assert_nothing_runs()


@contained
def test_a_file_system_of_its_own(level, tmp_path):
    (tmp_path / "secret").write_text("secret")
    program = f"""
import os
print(os.path.exists({str(tmp_path)!r}), os.path.exists('/etc/passwd'), os.path.exists('/proc/self'))
for place in ('/', '/usr', '/dev', os.path.dirname(os.__file__)):
    try:
        open(place + '/leftover', 'w'); print('written', place)
    except OSError:
        pass
open('/tmp/mine', 'w').write('x'); print(os.listdir('/tmp'), os.getcwd())
"""
    assert run(program, limits=LIMITS).stdout.decode().splitlines() == ["False False False", "['mine'] /tmp"]
    assert run("import os; print(os.listdir('/tmp'))", limits=LIMITS).stdout == b"[]\n"


@contained
def test_no_network_no_privileges_no_other_processes(level):
    program = """
import ctypes, os, resource, socket
libc = ctypes.CDLL(None, use_errno=True)
print(os.getuid() != 0, os.getppid() == 1, sorted(os.environ), [name for _, name in socket.if_nameindex()])
print(libc.unshare(0x10000000), libc.ptrace(16, 1, 0, 0), libc.mount(b'none', b'/tmp', b'tmpfs', 0, b''))
for attempt in (lambda: os.setuid(0), lambda: os.kill(1, 9), lambda: socket.create_connection(('1.1.1.1', 53), 1),
                lambda: resource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6))):
    try:
        attempt(); print('done')
    except (OSError, ValueError):
        print('refused')
"""
    lines = run(program, limits=LIMITS).stdout.decode().splitlines()
    assert lines[0].startswith("True True")
    assert "LANG" in lines[0]
    assert lines[0].endswith("['lo']")
    assert "HOME" not in lines[0]
    assert lines[1] == "-1 -1 -1"
    assert lines[2] == "refused"
    assert lines[3] in ("refused", "done")  # a signal to process 1 has no effect
    assert lines[4:] == ["refused", "refused"]


@contained
def test_many_files_fill_only_its_own_folder(level):
    program = "for n in range(10**6):\n    open(f'/tmp/{n}', 'w')"
    assert run(program, limits=LIMITS).kind == "output"
    assert run("open('/tmp/a', 'w')", limits=LIMITS).kind == "ok"


@contained
def test_many_small_files_count_together(level):
    program = "for n in range(40): open(f'/tmp/{n}', 'w').write('x' * 100_000)\nimport time; time.sleep(60)"
    assert run(program, limits=LIMITS).kind == "output"


@contained
def test_its_first_process_is_out_of_reach(level):
    """Also where both are of one user; a program that could break it off would not be judged."""
    everything = "import os\nfor n in range(1, 65):\n    try: os.kill(1, n)\n    except OSError: pass\nexit(4)"
    assert run(everything, limits=LIMITS).status == 4
    assert run("import os; os.kill(0, 9)", limits=LIMITS).status == -9
    assert run("import os; os.kill(-1, 9)", limits=LIMITS).kind in ("ok", "exit")  # which spares its sender
    limit = "import resource as r; r.prlimit(0, r.RLIMIT_CORE, (0, 0)); r.prlimit(1, r.RLIMIT_AS, (0, 0))"
    assert b"PermissionError" in run(limit, limits=LIMITS).stderr
    descriptor = "import ctypes, os; print(ctypes.CDLL(None).syscall(438, os.pidfd_open(1), 0, 0))"  # pidfd_getfd
    assert run(descriptor, limits=LIMITS).stdout == b"-1\n"


@contained
def test_no_capabilities_and_no_way_to_them(level):
    program = """
import ctypes
header, held = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
print(ctypes.CDLL(None).capget(header, held), list(held), ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))
"""
    assert run(program, limits=LIMITS).stdout == b"0 [0, 0, 0, 0, 0, 0] 1\n"


# --- bubblewrap ----------------------------------------------------------------------------------

REAL = shutil.which("bwrap")


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Puts a script in bwrap's place."""

    def put(script):
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bwrap").chmod(0o755)
        tmp_path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return put


REFUSALS = [
    ("echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1", "bwrap: setting up uid map: Permission denied"),
    ("exit 0", "its start ended with status 0"),
    ('while [ "$1" != -- ]; do shift; done; shift; exec "$@"', "can't open file '/sandbox/sandbox_inside.py'"),
    ("kill -9 $$", "its start ended with status -9"),
]


@pytest.mark.parametrize(("script", "reason"), REFUSALS)
def test_a_bubblewrap_that_does_not_work_is_no_verdict(stand_in, monkeypatch, script, reason):
    stand_in(script)
    assert reason in str(sandbox.fault_of("bubblewrap"))
    monkeypatch.setattr(sandbox, "level_in_force", lambda: "bubblewrap")
    with pytest.raises(SandboxError, match="was not run"):
        run("print(1)", limits=LIMITS)
    assert_nothing_runs()


def test_a_bubblewrap_that_hangs_is_no_verdict(stand_in, monkeypatch):
    stand_in("echo wait >&2; exec 3>&2; sleep 60")
    monkeypatch.setattr(sandbox, "START_S", 1.0)
    assert "not within 1 s wait" in str(sandbox.fault_of("bubblewrap"))
    assert_nothing_runs()


def test_without_bubblewrap(monkeypatch):
    monkeypatch.setenv("PATH", "/nothing")
    assert sandbox.fault_of("bubblewrap") == "there is no bwrap on the PATH"


@with_bubblewrap
@pytest.mark.skipif(bool(REAL) and os.stat(str(REAL)).st_mode & stat.S_ISUID != 0, reason="a stand-in is not setuid")
def test_a_complaint_and_a_slow_start_are_no_failure(level, stand_in):
    stand_in(f'echo "bwrap: a warning" >&2; sleep 4; exec {REAL} "$@"')
    result = run("print(1)", limits=replace(LIMITS, wall_s=3.0))
    assert (result.kind, result.stdout, result.stderr) == ("ok", b"1\n", b"")


@with_bubblewrap
def test_bytes_are_watched_where_bubblewrap_does_not_limit_them(level, tmp_path, monkeypatch):
    shutil.copy(str(REAL), tmp_path / "bwrap")
    (tmp_path / "bwrap").chmod(0o4755)  # to itself: nothing is gained, but it would refuse a size
    monkeypatch.setenv("PATH", str(tmp_path))
    if fault := sandbox.fault_of("bubblewrap"):
        pytest.skip(f"its copy does not work: {fault}")
    assert "--size" not in sandbox._bubblewrap(LIMITS)
    program = "for n in range(40): open(f'/tmp/{n}', 'w').write('x' * 100_000)\nimport time; time.sleep(60)"
    result = run(program, limits=LIMITS)
    assert (result.kind, result.status) == ("output", None)
    assert result.wall_s < 20
    assert_nothing_runs()


def test_the_choice_of_a_level(stand_in, monkeypatch):
    """Bubblewrap is as strong as namespaces of one's own; what is lacking is said."""
    tried = sandbox.fault_of
    monkeypatch.setattr(sandbox, "fault_of", lambda level: "not here" if level == "namespaces" else tried(level))
    sandbox._best_level.cache_clear()
    try:
        if FAULTS["bubblewrap"] is None:
            assert (sandbox.level_in_force(), sandbox.why_not_better()) == ("bubblewrap", "namespaces: not here")
            assert run("print(1)").stdout == b"1\n"
        stand_in("echo 'bwrap: not today' >&2; exit 1")
        sandbox._best_level.cache_clear()
        assert sandbox.level_in_force() == "rlimits"
        why = "namespaces: not here; bubblewrap: the program was not run: bwrap: not today"
        assert sandbox.why_not_better() == why
        with pytest.raises(RewardError, match=rf"only sandbox level 'rlimits'.*\({why}\)"):
            code_verdicts([""], [""], tests=[["assert f(1)"]])
    finally:
        sandbox._best_level.cache_clear()


def test_what_reaches_what():
    strength = {level: [sandbox.reaches(level, other) for other in sandbox.LEVELS] for level in sandbox.LEVELS}
    assert strength == {"rlimits": [True, False, False], "bubblewrap": [True] * 3, "namespaces": [True] * 3}


# --- the server ----------------------------------------------------------------------------------


def test_a_weaker_sandbox_than_required_is_refused(monkeypatch):
    monkeypatch.setattr(sandbox, "level_in_force", lambda: "rlimits")
    with pytest.raises(SandboxError, match="sandbox level 'rlimits' is the best here, below the required 'namespaces'"):
        run("print(1)")
    assert run("print(1)", require="rlimits").kind == "ok"


@at_each_level
def test_from_many_threads_and_after_a_fork(level):
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda n: run(f"print({n})", require=level).stdout, range(12))
        assert list(results) == [f"{n}\n".encode() for n in range(12)]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, run("print('child')", require=level).stdout)
        sandbox._close_server()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"child\n"
    os.close(read)
    os.close(write)
    assert run("print('parent')", require=level).stdout == b"parent\n"


@at_each_level
def test_a_lost_server_is_replaced(level):
    server = sandbox._server()
    server._process.kill()
    server._process.wait()
    assert run("print(1)", require=level).stdout == b"1\n"


def kill_a_keeper(chain):
    """Once as many processes of sandboxes run."""
    server = sandbox._server()._process.pid
    deadline = time.monotonic() + 20
    while len(processes()) < chain and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in processes():
        with contextlib.suppress(OSError):  # its init is gone with it
            if parent_of(pid) == server:
                os.kill(pid, 9)


@at_each_level
def test_a_lost_keeper_is_no_verdict(level):
    killer = threading.Thread(target=kill_a_keeper, args=(len(CHAINS[level]),))
    killer.start()
    with pytest.raises(SandboxError, match="its keeper was lost"):
        run("import time; time.sleep(30)", limits=Limits(wall_s=30.0), require=level)
    killer.join()
    assert_nothing_runs()


def test_a_keeper_lost_while_bubblewrap_starts(stand_in):
    """Of bubblewrap's two processes only one ends with the keeper then; the other waits for ever."""
    stand_in('sleep 600 & wait # "$@"')
    killer = threading.Thread(target=kill_a_keeper, args=(2,))
    killer.start()
    assert "its keeper was lost" in str(sandbox.fault_of("bubblewrap"))
    killer.join()
    deadline = time.monotonic() + 20
    while (left := children_of(sandbox._server()._process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


@at_each_level
def test_descriptors_are_not_leaked(level):
    run("print(1)", require=level)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run("print(1)", require=level)
        run("while True: print(1)", limits=LIMITS, require=level)
    assert len(os.listdir("/proc/self/fd")) == before
