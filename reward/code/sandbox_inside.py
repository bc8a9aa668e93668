"""What a contained process does before it becomes the program: limits, no privileges, refused system calls.

Imported by :mod:`reward.code.sandbox_init`; under bubblewrap run as a script instead, as process 1 of what
bubblewrap made. The standard library alone, Linux alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import json
import os
import resource
import signal
import struct
import sys
import time
import types
from collections.abc import Iterator

POLL_S = 0.05  # between two looks at what is used
STARTED = b"\0"  # told when the program starts: before it stands what went wrong, after it how the program ended

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 22, 24, 38

# Calls refused with "not permitted": new namespaces and mounts, memory that no limit counts, looking into
# other processes. Number on x86_64 and on aarch64.
_REFUSED = {
    "x86_64": (272, 308, 165, 166, 155, 428, 429, 430, 442, 101, 310, 311, 321, 298, 250, 248, 249, 323, 425, 319, 29,
               31, 30),
    "aarch64": (97, 268, 40, 39, 41, 428, 429, 430, 442, 117, 270, 271, 280, 241, 219, 217, 218, 282, 425, 279, 194,
                195, 196),
}  # fmt: skip
_CLONE, _CLONE3 = {"x86_64": 56, "aarch64": 220}, 435
_PRLIMIT = {"x86_64": 302, "aarch64": 261}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

libc = ctypes.CDLL(None, use_errno=True)


def enter(job: dict, tell: int) -> None:
    """Start the program's process, with nothing left that it may not have. Returns in it alone."""
    if job["level"] != "rlimits":
        _become_init(job, tell)
    _restrain(job, keep=tell)
    os.write(tell, STARTED)
    os.close(tell)


@contextlib.contextmanager
def telling(tell: int) -> Iterator[None]:
    """What goes wrong is told, and is the end of this process."""
    try:
        yield
    except BaseException as error:
        os.write(tell, f"{type(error).__name__}: {error}".encode())
        os._exit(1)


def run_program(program: str) -> None:
    """Run Python source as ``__main__``; an uncaught exception is printed and ends the process with 1."""
    import builtins

    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # what the site module would do
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = ["program.py"]
    exec(compile(program, "program.py", "exec", dont_inherit=True), main.__dict__)


# --- process 1 -----------------------------------------------------------------------------------


def _become_init(job: dict, tell: int) -> None:
    """Be process 1: start the program, end when it ends and tell how. Returns in the program's process.

    The program may be of the same user; it must not get at this process, which speaks for it.
    """
    prctl(PR_SET_DUMPABLE, 0)  # no taking of its descriptors
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the others have no effect on a process 1
    program = os.fork()
    if program == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return
    close_standard_files()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == program:
            told = str(os.waitstatus_to_exitcode(status))
            break
        if not ended and _has_written_too_much(job):
            told = "output"
            break
        if not ended:
            signal.sigtimedwait([signal.SIGCHLD], POLL_S)
    os.write(tell, told.encode())
    os._exit(0)


def _has_written_too_much(job: dict) -> bool:
    """Never where the mount itself has these limits; bubblewrap cannot give it one on files, nor, setuid, on bytes."""
    tmp = os.statvfs("/tmp")
    return (tmp.f_blocks - tmp.f_bfree) * tmp.f_frsize > job["disk_bytes"] or tmp.f_files - tmp.f_ffree > job["files"]


# --- the program's own limits --------------------------------------------------------------------


def _restrain(job: dict, keep: int) -> None:
    """What holds for the program and all it starts, and cannot be undone by it."""
    os.setsid()  # a signal to its process group is for itself, not for its keeper
    os.closerange(3, keep)
    os.closerange(keep + 1, 1024)
    for kind, value in (
        (resource.RLIMIT_CPU, job["cpu_s"]),
        (resource.RLIMIT_AS, job["memory_bytes"]),
        (resource.RLIMIT_FSIZE, job["disk_bytes"]),
        (resource.RLIMIT_NOFILE, job["open_files"]),
        (resource.RLIMIT_NPROC, job["processes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit + 1 if kind == resource.RLIMIT_CPU and hard < 0 else limit))
    if os.geteuid() == 0 and job["drop"]:
        _become_nobody()
    _drop_capabilities()
    if job["level"] == "rlimits":
        os.chdir(job["folder"])
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    _refuse_calls(network=job["level"] != "rlimits")


def _become_nobody() -> None:
    # A user of its own for each sandbox, so that the limit on processes counts only its own.
    for user in (1_000_000_000 + time.time_ns() % 1_000_000_000, 65534):
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            return
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    raise OSError("no user to become")


def _drop_capabilities() -> None:
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header, nothing = struct.pack("<II", 0x20080522, 0), bytes(24)
    check(libc.capset(header, nothing), "capset")


def _refuse_calls(network: bool) -> None:
    """A seccomp filter: the calls of ``_REFUSED``, new namespaces by clone, and without ``network`` sockets."""
    machine = os.uname().machine
    if machine not in _REFUSED:
        return
    load, jump_equal, jump_set, jump_greater, give = 0x20, 0x15, 0x45, 0x35, 0x06
    allow, refuse, absent = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
    calls = [*_REFUSED[machine], *([] if network else [_SOCKET[machine]])]
    filters = [(load, 0, 0, 4), (jump_equal, 1, 0, _AUDIT_ARCH[machine]), (give, 0, 0, refuse), (load, 0, 0, 0)]
    filters += [(jump_greater, 0, 1, 0x40000000), (give, 0, 0, refuse)]
    for call in calls:
        filters += [(jump_equal, 0, 1, call), (give, 0, 0, refuse)]
    filters += [(jump_equal, 0, 1, _CLONE3), (give, 0, 0, absent)]  # the C library falls back on clone
    filters += [(jump_equal, 0, 4, _PRLIMIT[machine]), (load, 0, 0, 16), (jump_equal, 1, 0, 0)]  # of itself alone
    filters += [(give, 0, 0, refuse), (give, 0, 0, allow)]
    filters += [(jump_equal, 0, 3, _CLONE[machine]), (load, 0, 0, 16), (jump_set, 0, 1, 0x7E020000)]
    filters += [(give, 0, 0, refuse), (give, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in filters))
    program = struct.pack("@HP", len(filters), ctypes.addressof(code))
    check(libc.prctl(PR_SET_SECCOMP, 2, ctypes.c_char_p(program), 0, 0), "seccomp")


# --- small things --------------------------------------------------------------------------------


def close_standard_files() -> None:
    """So that a reader of the program's output sees its end."""
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)


def prctl(option: int, value: int) -> None:
    check(libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def load_beside(names: list[str]) -> None:
    """Import modules that lie beside this file, for programs to have."""
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    for name in names:
        importlib.import_module(name)
    sys.path.pop()


def main(job_file: int, stderr: int, names: list[str]) -> str:
    """Under bubblewrap: returns in the program's process, with its source."""
    tell = os.dup(2)  # up to here what is printed is told, whether by bubblewrap or by the interpreter
    with telling(tell):
        os.dup2(stderr, 2)
        os.close(stderr)
        if os.getpid() != 1:
            raise OSError("bubblewrap has made no processes of its own")
        load_beside(names)
        with open(job_file, "rb") as file:
            job = json.load(file)
        os.chmod("/tmp", 0o1777)
        enter(job, tell)
    return job["program"]


if __name__ == "__main__":
    run_program(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
