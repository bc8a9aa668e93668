"""Running an untrusted Python program: contained, limited, and with nothing left of it afterwards.

Levels, the two last equally strong:

- ``rlimits``: limits on time, memory, file size, processes and open files, a session of its own, no
  sockets, no capabilities and no way to new ones; as root also a user that owns nothing, where that user can
  read the interpreter. The program sees the host's files and processes, and has its user's rights over them.
- ``bubblewrap``: besides, process, network, IPC and mount namespaces of its own: no network, no other
  process, a file system that holds the interpreter and the system's libraries, read-only, and a small
  /tmp that is gone with it; no capabilities, and a filter on system calls. Where bwrap is installed and works.
- ``namespaces``: the same, made here: root, or a kernel that lets users make namespaces. Quicker to start, and
  /tmp is limited by the kernel; bubblewrap limits at most its bytes, so there it is watched and a program that
  has filled it is killed.

Linux only, the standard library only. Works from any thread. Programs see the standard library, not
installed packages. A small server process forks one chain of processes a program
(:mod:`reward.code.sandbox_init`); it ends with this process.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

Level = Literal["rlimits", "bubblewrap", "namespaces"]
LEVELS: tuple[Level, ...] = ("rlimits", "bubblewrap", "namespaces")  # tried from the last to the first
_STRENGTH: dict[Level, int] = {"rlimits": 0, "bubblewrap": 1, "namespaces": 1}
Kind = Literal["ok", "exit", "crash", "timeout", "memory", "output", "processes"]

PRELOADED = ("code_harness",)  # modules beside this file that programs can import
DEVICES = ("null", "zero", "random", "urandom")
PYTHON_OPTIONS = ("-I", "-S", "-B", "-X", "utf8")
START_S = 30.0  # for a program to be started; then its own time runs
GRACE_S = 60.0  # beyond the wall-clock limit: a backstop for a keeper that does not report, on a busy machine


class SandboxError(RuntimeError):
    """The program could not be run as asked: no judgement on the program."""


@dataclass(frozen=True)
class Limits:
    """Of one program and all it starts. ``memory_bytes`` holds for each process and for their sum."""

    wall_s: float = 10.0
    cpu_s: int = 10  # of each process
    memory_bytes: int = 512 * 2**20
    disk_bytes: int = 16 * 2**20  # of each file; not at level rlimits also of all files together
    files: int = 1000  # not at level rlimits
    processes: int = 16  # and threads
    open_files: int = 64
    output_bytes: int = 2**20  # standard output and error together


@dataclass(frozen=True)
class Result:
    """How a program ended.

    ``kind``: ``ok`` (exit status 0), ``exit`` (another status), ``crash`` (a signal), or the limit that it met:
    ``timeout`` (wall clock or CPU), ``memory``, ``output`` (too much printed or written), ``processes``.
    ``status`` is the exit status, negative for a signal, None where it was killed from outside.
    """

    kind: Kind
    status: int | None
    stdout: bytes
    stderr: bytes
    wall_s: float


def run(program: str, stdin: bytes = b"", limits: Limits = Limits(), require: Level = "namespaces") -> Result:
    """Run Python source as a script. Raises :class:`SandboxError` where ``require`` is not to be had here."""
    started = time.monotonic()
    given = memory_file(stdin)
    read_out, write_out = os.pipe()
    read_error, write_error = os.pipe()
    try:
        job = Job(program, (given, write_out, write_error), limits, require)
    finally:
        for descriptor in (given, write_out, write_error):
            os.close(descriptor)
    try:
        output, flooded = read_all([read_out, read_error], limits.output_bytes, started + limits.wall_s + GRACE_S)
        if flooded:
            job.cancel()
        report = job.wait()
    finally:
        job.close()
        os.close(read_out)
        os.close(read_error)
    stdout, stderr = output
    kind = classify(report, stderr, flooded)
    return Result(kind, report["status"], stdout, stderr, time.monotonic() - started)


def level_in_force() -> Level:
    """The best level that works here, tried out once. Raises :class:`SandboxError` where none does."""
    return _best_level()[0]


def why_not_better() -> str:
    """What kept the levels above the one in force from working; empty where there are none."""
    return _best_level()[1]


def reaches(level: Level, require: Level) -> bool:
    """Whether ``level`` is at least as strong as ``require``."""
    return _STRENGTH[level] >= _STRENGTH[require]


@lru_cache(maxsize=1)
def _best_level() -> tuple[Level, str]:
    faults = []
    for level in reversed(LEVELS):
        fault = fault_of(level)
        if fault is None:
            return level, "; ".join(faults)
        faults.append(f"{level}: {fault}")
    raise SandboxError("no sandbox here: " + "; ".join(faults))


def fault_of(level: Level) -> str | None:
    """Try a level out: None where programs run at it here, else why they do not."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        job = Job("import colorsys; raise SystemExit(7)", (null, null, null), Limits(), level, probe=True)
        return None if job.wait().get("status") == 7 else "the trial program did not run"
    except SandboxError as error:
        return str(error)
    finally:
        os.close(null)


def classify(report: dict[str, Any], stderr: bytes, flooded: bool = False) -> Kind:
    """The kind of ending; what a program met inside Python is read off the last line of its traceback."""
    if flooded:
        return "output"
    if report["ending"] in ("timeout", "memory", "output"):
        return report["ending"]
    status = report["status"]
    if status == 0:
        return "ok"
    if status is None or status < 0:
        return "timeout" if status == -24 else "crash"  # SIGXCPU
    last = stderr.rstrip().rpartition(b"\n")[2]
    if last.startswith(b"MemoryError"):
        return "memory"
    if b"can't start new thread" in last or last.startswith(b"BlockingIOError: [Errno 11]"):
        return "processes"
    if b"[Errno 27]" in last or b"[Errno 28]" in last:  # file too large, no space left
        return "output"
    return "exit"


class Job:
    """One program under way, on the descriptors given for its standard input, output and error."""

    def __init__(
        self, program: str, files: tuple[int, int, int], limits: Limits, require: Level, *, probe: bool = False
    ):
        """Raises :class:`SandboxError`. The descriptors stay the caller's to close."""
        level = require if probe else level_in_force()
        if not reaches(level, require):
            raise SandboxError(f"sandbox level {level!r} is the best here, below the required {require!r}")
        self._limits = limits
        content = {**asdict(limits), "program": program, "level": level, "visible": _visible(), "drop": True}
        content |= {"start_s": START_S, "devices": DEVICES}
        if level == "rlimits":
            content |= {"folder": "/", "drop": _readable_by_all()}
        if level == "bubblewrap":
            content["bubblewrap"] = _bubblewrap(limits)
        job = memory_file(json.dumps(content).encode())
        self._report, theirs = socket.socketpair()
        try:
            _send([job, *files, theirs.fileno()])
        except BaseException:
            self.close()
            raise
        finally:
            os.close(job)
            theirs.close()

    def wait(self) -> dict[str, Any]:
        """``status`` and ``ending`` of the program, all its processes being gone. Raises :class:`SandboxError`."""
        self._report.settimeout(self._limits.wall_s + GRACE_S)
        parts = []
        try:
            while part := self._report.recv(4096):
                parts.append(part)
        except OSError as error:
            raise SandboxError(f"the sandbox does not answer: {error}") from error
        finally:
            self._report.close()
        report = json.loads(b"".join(parts)) if parts else {"failure": "its keeper was lost"}
        if "failure" in report:
            raise SandboxError(f"the program was not run: {report['failure']}")
        return report

    def cancel(self) -> None:
        """Have everything of it killed, unless it has ended; :meth:`wait` may follow."""
        if self._report.fileno() >= 0:
            self._report.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """As :meth:`cancel`, and no longer listen."""
        self._report.close()


def memory_file(content: bytes) -> int:
    """A descriptor to read ``content`` from; it has no name."""
    descriptor = os.memfd_create("sandbox")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def read_all(descriptors: list[int], limit: int, deadline: float) -> tuple[list[bytes], bool]:
    """What comes from each until its end, and whether it was cut off at ``limit`` bytes in all or the deadline."""
    parts: dict[int, bytearray] = {descriptor: bytearray() for descriptor in descriptors}
    left = limit
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and left >= 0 and time.monotonic() < deadline:
            for key, _ in selector.select(max(deadline - time.monotonic(), 0)):
                part = os.read(key.fd, 65536)
                if not part:
                    selector.unregister(key.fd)
                left -= len(part)
                parts[key.fd] += part
        cut = bool(selector.get_map())
    return [bytes(part[: limit + 1]) for part in parts.values()], cut


# --- the server ----------------------------------------------------------------------------------


class _Server:
    def __init__(self) -> None:
        if not sys.platform.startswith("linux"):
            raise SandboxError(f"the sandbox needs Linux, this is {sys.platform}")
        self.owner = os.getpid()
        self.lost = False
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = str(Path(__file__).with_name("sandbox_init.py"))
        self._process = subprocess.Popen(
            [sys.executable, *PYTHON_OPTIONS, script, *PRELOADED],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        theirs.close()

    def send(self, descriptors: list[int]) -> None:
        socket.send_fds(self._socket, [b"job"], descriptors)

    def alive(self) -> bool:
        return self.owner == os.getpid() and not self.lost and self._process.poll() is None

    def close(self) -> None:
        self._socket.close()
        if self.owner == os.getpid():
            self._process.wait()


_lock = threading.Lock()
_running: list[_Server] = []


def _server() -> _Server:
    """This process's server, started when first needed and again if it was lost."""
    with _lock:
        if _running and not _running[0].alive():
            _running.pop().close()
        if not _running:
            _running.append(_Server())
        return _running[0]


def _send(descriptors: list[int]) -> None:
    """To the server; one that has just been killed can refuse it before it is known to have ended."""
    server = _server()
    try:
        server.send(descriptors)
    except ConnectionError:
        server.lost = True
        _server().send(descriptors)


@atexit.register
def _close_server() -> None:
    while _running:
        _running.pop().close()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _bubblewrap(limits: Limits) -> list[str]:
    """The command line under which a program's first process starts. Raises :class:`SandboxError` without bwrap."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError("there is no bwrap on the PATH")
    command = [os.path.abspath(bwrap), "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    command += ["--as-pid-1", "--die-with-parent", "--cap-drop", "ALL"]
    root = os.geteuid() == 0
    if root:  # in no namespace of users, so that the program can become a user that owns nothing
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user-try"]
    if not os.stat(bwrap).st_mode & stat.S_ISUID:  # which would refuse it
        command += ["--size", str(limits.disk_bytes)]
    command += ["--tmpfs", "/tmp"]
    for path in [*_visible(), "/etc/ld.so.cache", *(f"/dev/{name}" for name in DEVICES)]:
        for parent in reversed(Path(path).parents[:-1]) if root else ():
            command += ["--perms", "0755", "--dir", str(parent)]  # else made for root alone
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--dev-bind" if path.startswith("/dev/") else "--ro-bind-try", path, path]
    for name in ("sandbox_inside", *PRELOADED):
        command += ["--ro-bind", str(Path(__file__).with_name(f"{name}.py")), f"/sandbox/{name}.py"]
    command += ["--remount-ro", "/", "--chdir", "/tmp", "--"]
    python = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)  # a venv's own is not visible
    return [*command, python, *PYTHON_OPTIONS, "/sandbox/sandbox_inside.py"]


@lru_cache(maxsize=1)
def _visible() -> list[str]:
    """What a contained program sees of the host's files: the interpreter's folders and the system's libraries."""
    paths = ["/usr", "/bin", "/lib", "/lib64"]
    for prefix in (sys.base_prefix, sys.base_exec_prefix):
        prefix = os.path.realpath(prefix)
        if not any(prefix == path or prefix.startswith(f"{path}/") for path in paths):
            paths.append(prefix)
    return [path for path in paths if os.path.exists(path)]


@lru_cache(maxsize=1)
def _readable_by_all() -> bool:
    """Whether a user that owns nothing can import the standard library."""
    library = Path(os.path.realpath(os.__file__))
    return all(folder.stat().st_mode & 0o001 for folder in library.parents)
