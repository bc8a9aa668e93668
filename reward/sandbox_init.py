"""The inside of :mod:`reward.sandbox`: a small process that forks one contained process per request.

Run as a script, ``python -I -S -B sandbox_init.py``, with a Unix socket as stdin; the standard library
alone, Linux alone. Every message on the socket carries five descriptors: the job (JSON in a file), stdin,
stdout and stderr of the program, and a socket for the report. The server never reads a job, so that
nothing of one is in the memory of the next. Of each message a chain of processes is made:

    server -> keeper (limits in time and memory, kills, reports)
                -> init (process 1 of the new namespaces; its end is everyone's) -> the program

At level ``rlimits`` there is no init: the keeper is the reaper of whatever the program leaves behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.util
import json
import os
import platform
import resource
import select
import signal
import socket
import struct
import sys
import time
import types

POLL_S = 0.05  # between two looks at the memory in use

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE, MS_NOATIME, MS_RELATIME = 16384, 1 << 18, 1024, 1 << 21
READ_ONLY = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 36, 38

# Calls refused with "not permitted": new namespaces and mounts, memory that no limit counts, looking into
# other processes. Number on x86_64 and on aarch64.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_REFUSED = {
    "x86_64": (272, 308, 165, 166, 155, 428, 429, 430, 442, 101, 310, 311, 321, 298, 250, 248, 249, 323, 425, 319, 29,
               31, 30),
    "aarch64": (97, 268, 40, 39, 41, 428, 429, 430, 442, 117, 270, 271, 280, 241, 219, 217, 218, 282, 425, 279, 194,
                195, 196),
}  # fmt: skip
_CLONE, _CLONE3 = {"x86_64": 56, "aarch64": 220}, 435
_SOCKET = {"x86_64": 41, "aarch64": 198}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_libc = ctypes.CDLL(None, use_errno=True)


def serve(requests: socket.socket) -> str:
    """Answer requests until the other side is gone. Returns in a program's process only, with its source."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers report for themselves
    os.umask(0o022)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 16, 5)
        if not message:
            os._exit(0)
        try:
            keeper = os.fork()
        except OSError:
            keeper = -1  # the report socket closes unused: the other side sees that nothing started
        if keeper == 0:
            requests.close()
            return keep(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def keep(job_file: int, stdin: int, stdout: int, stderr: int, report_file: int) -> str:
    """Start one job and see it end. Returns in the program's own process only, with its source."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    with open(job_file, "rb") as file:
        job = json.load(file)
    report = socket.socket(fileno=report_file)
    deadline = time.monotonic() + job["wall_s"]
    try:
        contained = job["level"] == "namespaces"
        heard, tell = os.pipe()  # "ok" and then init's word on how the program ended, or what went wrong
        with_user = _new_namespaces() if contained else False
        if not contained:
            _prctl(PR_SET_CHILD_SUBREAPER, 1)
        child = os.fork()
        if child == 0:
            report.close()
            os.close(heard)
            _contain(job, contained, with_user, tell)
            return job["program"]
        os.close(tell)
        _close_standard_files()
        ending = _watch(child, report, job, deadline)
        _kill_all(child, contained)
        status = _reap(child)
        word, _, told = os.read(heard, 4096).decode().partition("\n")
        if word != "ok" and ending is None:
            raise OSError(word or "the program could not be started")
        if contained:
            if ending is None and not told:
                raise OSError("its first process was lost")  # which no program can kill
            status = int(told) if told else None
        answer = {"status": status, "ending": ending}
    except Exception as error:
        answer = {"failure": f"{type(error).__name__}: {error}"}
    try:
        report.sendall(json.dumps(answer).encode())
    finally:
        os._exit(0)


def _contain(job: dict, contained: bool, with_user: bool, tell: int) -> None:
    """Returns in the program's process, when nothing is left that it may not have."""
    try:
        if contained:
            _become_init(job, tell)
        _restrain(job, with_user, keep=tell)
        os.write(tell, b"ok\n")
        os.close(tell)
    except BaseException as error:
        os.write(tell, f"{type(error).__name__}: {error}".replace("\n", " ").encode())
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


# --- watching ------------------------------------------------------------------------------------


def _watch(child: int, report: socket.socket, job: dict, deadline: float) -> str | None:
    """Wait for ``child``; None, or why it has to be killed: ``timeout``, ``memory``, ``cancelled``."""
    ended = os.pidfd_open(child)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return "timeout"
        ready, _, _ = select.select([ended, report], [], [], min(left, POLL_S))
        if ended in ready:
            return None
        if ready:  # nothing is ever sent to us: the other side is gone
            return "cancelled"
        if sum(map(_resident_bytes, _descendants(child))) > job["memory_bytes"]:
            return "memory"


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:  # grows while it is read
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children") as file:
                    found.extend(map(int, file.read().split()))
        except OSError:  # it has just ended
            continue
    return found


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def _kill_all(child: int, contained: bool) -> None:
    if contained:  # with process 1 of a namespace every other process of it dies
        _kill(child)
        return
    while others := [pid for pid in _descendants(os.getpid()) if pid != os.getpid() and not _is_zombie(pid)]:
        for pid in others:
            _kill(pid)
        time.sleep(0.001)


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _reap(child: int) -> int:
    status = 0
    while True:
        try:
            pid, ending = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if pid == child:
            status = os.waitstatus_to_exitcode(ending)


# --- namespaces ----------------------------------------------------------------------------------


def _new_namespaces() -> bool:
    """Leave the host's processes, network and IPC; True where that took a namespace of users as well."""
    kinds = CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    if os.geteuid() == 0 and _libc.unshare(kinds) == 0:
        return False
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(kinds | CLONE_NEWUSER), "unshare")
    for name, line in (("setgroups", "deny"), ("uid_map", f"65534 {user} 1"), ("gid_map", f"65534 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
    return True


def _become_init(job: dict, tell: int) -> None:
    """Be process 1: make the view of the file system, start the program, end when it ends. Returns in it."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _private_root(job)
    program = os.fork()
    if program == 0:
        return
    _close_standard_files()
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == program:
            os.write(tell, str(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)


def _private_root(job: dict) -> None:
    """A root of its own: the interpreter and the system's libraries to read, /tmp to write, four devices."""
    _check(_libc.unshare(CLONE_NEWNS), "unshare")
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    places = ("/mnt", "/media", "/srv", "/opt")
    root = next(p for p in places if os.path.isdir(p) and not any(seen.startswith(p) for seen in job["visible"]))
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=1k,mode=755")
    for path in job["visible"]:
        inside = root + path
        if os.path.islink(path):
            os.makedirs(os.path.dirname(inside), exist_ok=True)
            os.symlink(os.readlink(path), inside)
        elif os.path.isdir(path):
            os.makedirs(inside, exist_ok=True)
            _mount(path, inside, None, MS_BIND | MS_REC)
            _mount(
                "none", inside, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | _locked_flags(inside)
            )
    os.mkdir(f"{root}/dev")
    for device in ("null", "zero", "random", "urandom"):
        os.close(os.open(f"{root}/dev/{device}", os.O_CREAT))
        _mount(f"/dev/{device}", f"{root}/dev/{device}", None, MS_BIND)
    os.mkdir(f"{root}/tmp")
    size = f"size={job['disk_bytes']},nr_inodes={job['files']},mode=1777"
    _mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, size)
    _mount("none", root, None, READ_ONLY)
    os.chdir(root)
    _check(_libc.syscall(_PIVOT_ROOT[platform.machine()], b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/tmp")


def _locked_flags(path: str) -> int:
    """Of a mount that came from outside; in a namespace of users they may not be dropped."""
    given = os.statvfs(path).f_flag
    pairs = ((os.ST_NOEXEC, MS_NOEXEC), (os.ST_NOATIME, MS_NOATIME), (os.ST_RELATIME, MS_RELATIME))
    return sum(flag for mask, flag in pairs if given & mask)


# --- the program's own limits --------------------------------------------------------------------


def _restrain(job: dict, with_user: bool, keep: int) -> None:
    """What holds for the program and all it starts, and cannot be undone by it."""
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
    elif with_user or os.geteuid() == 0:
        _drop_capabilities()
    if job["level"] != "namespaces":
        os.chdir(job["folder"])
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _refuse_calls(network=job["level"] == "namespaces")


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
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header, nothing = struct.pack("<II", 0x20080522, 0), bytes(24)
    _check(_libc.capset(header, nothing), "capset")


def _refuse_calls(network: bool) -> None:
    """A seccomp filter: the calls of ``_REFUSED``, new namespaces by clone, and without ``network`` sockets."""
    machine = platform.machine()
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
    filters += [(jump_equal, 0, 3, _CLONE[machine]), (load, 0, 0, 16), (jump_set, 0, 1, 0x7E020000)]
    filters += [(give, 0, 0, refuse), (give, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in filters))
    program = struct.pack("@HP", len(filters), ctypes.addressof(code))
    _check(_libc.prctl(PR_SET_SECCOMP, 2, ctypes.c_char_p(program), 0, 0), "seccomp")


# --- small things --------------------------------------------------------------------------------


def _close_standard_files() -> None:
    """So that a reader of the program's output sees its end."""
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    given = (source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), data.encode())
    _check(_libc.mount(*given), f"mount {target}")


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    # What programs use most, and the files given, are loaded once for all of them.
    for name in ("bisect", "collections", "copy", "functools", "heapq", "itertools", "math", "random", "re", "typing"):
        importlib.import_module(name)
    for path in sys.argv[1:]:
        spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[spec.name])
    run_program(serve(socket.socket(fileno=os.dup(0))))
