"""The inside of :mod:`reward.code.sandbox`: a small process that forks one contained process per request.

Run as a script, ``python -I -S -B sandbox_init.py``, with a Unix socket as stdin; the standard library
alone, Linux alone. Every message on the socket carries five descriptors: the job (JSON in a file), stdin,
stdout and stderr of the program, and a socket for the report. The server never reads a job, so that
nothing of one is in the memory of the next. Of each message a chain of processes is made:

    server -> keeper (limits in time and memory, kills, reports)
                -> init (process 1 of the new namespaces; its end is everyone's) -> the program

At level ``bubblewrap`` bwrap stands between keeper and init, and init is a new interpreter. At level
``rlimits`` there is no init. What the last two do is in :mod:`reward.code.sandbox_inside`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # isolated mode leaves it out
inside = importlib.import_module("sandbox_inside")
sys.path.pop()

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE, MS_NOATIME, MS_RELATIME = 16384, 1 << 18, 1024, 1 << 21
READ_ONLY = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def serve(requests: socket.socket) -> str:
    """Answer requests until the other side is gone. Returns in a program's process only, with its source."""
    keepers: set[int] = set()

    def reap(*_: object) -> None:
        """Keepers report for themselves; but one that was killed leaves what it kept to us."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitpid(-1, os.WNOHANG)[0]:
                keepers.discard(ended)
        for orphan in set(_children(os.getpid())) - keepers:
            for pid in _descendants(orphan):
                _kill(pid)

    inside.prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, reap)
    os.umask(0o022)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 16, 5)
        if not message:
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # until the keeper is known as one
        try:
            keeper = os.fork()
        except OSError:
            keeper = -1  # the report socket closes unused: the other side sees that nothing started
        if keeper == 0:
            requests.close()
            return keep(*descriptors)
        keepers.add(keeper)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        for descriptor in descriptors:
            os.close(descriptor)


def keep(job_file: int, stdin: int, stdout: int, stderr: int, report_file: int) -> str:
    """Start one job and see it end. Returns in the program's own process only, with its source."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    os.setsid()
    for number, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    with open(job_file, "rb", closefd=False) as file:
        job = json.load(file)
    report = socket.socket(fileno=report_file)
    level = job["level"]
    try:
        heard, tell = os.pipe()
        if level == "namespaces":
            _new_namespaces()
        inside.prctl(PR_SET_CHILD_SUBREAPER, 1)  # of what loses its parent
        child = os.fork()
        if child == 0:
            report.close()
            os.close(heard)
            with inside.telling(tell):
                if level != "rlimits":
                    inside.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if level == "bubblewrap":
                    _become_bubblewrap(job, job_file, tell)
                if level == "namespaces":
                    _private_root(job)
                inside.enter(job, tell)
            return job["program"]
        os.close(tell)
        inside.close_standard_files()
        told, ending = _watch(child, heard, report, job)
        _kill_all()
        status = _reap(child)
        said, started, told = (told + os.read(heard, 4096)).partition(inside.STARTED)
        answer = {"status": status, "ending": ending}
        if not started and ending != "cancelled":
            late = [f"not within {job['start_s']:g} s"] if ending == "timeout" else []
            words = [*late, *said.decode(errors="replace").split()]
            answer = {"failure": " ".join(words) or f"its start ended with status {status}"}
        elif told == b"output":
            answer = {"status": None, "ending": "output"}
        elif level != "rlimits":
            answer["status"] = int(told) if told else None
            if ending is None and not told:
                answer = {"failure": "its first process was lost"}  # which no program can kill
    except Exception as error:
        answer = {"failure": f"{type(error).__name__}: {error}"}
    try:
        report.sendall(json.dumps(answer).encode())
    finally:
        os._exit(0)


def _become_bubblewrap(job: dict, job_file: int, tell: int) -> None:
    """Have bubblewrap run the rest of this module's work; its complaints, on standard error, are told."""
    stderr = os.dup(2)
    os.dup2(tell, 2)
    os.lseek(job_file, 0, os.SEEK_SET)
    for descriptor in (job_file, stderr):
        os.set_inheritable(descriptor, True)
    os.execv(job["bubblewrap"][0], [*job["bubblewrap"], str(job_file), str(stderr), *sys.argv[1:]])


# --- watching ------------------------------------------------------------------------------------


def _watch(child: int, heard: int, report: socket.socket, job: dict) -> tuple[bytes, str | None]:
    """Wait for ``child``: what was told, and None or why it has to be killed: timeout, memory, cancelled."""
    ended = os.pidfd_open(child)
    deadline = time.monotonic() + job["start_s"]
    told, listening = b"", [heard]
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return told, "timeout"
        ready, _, _ = select.select([ended, report, *listening], [], [], min(left, inside.POLL_S))
        if ended in ready:
            return told, None
        if report in ready:  # nothing is ever sent to us: the other side is gone
            return told, "cancelled"
        if heard in ready:
            part = os.read(heard, 4096)
            told += part
            if inside.STARTED in told:
                deadline = time.monotonic() + job["wall_s"]
            if inside.STARTED in told or not part:
                listening = []
        if sum(map(_resident_bytes, _descendants(child))) > job["memory_bytes"]:
            return told, "memory"


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:  # grows while it is read
        found.extend(_children(parent))
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has just ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found.extend(map(int, file.read().split()))
    return found


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def _kill_all() -> None:
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


def _new_namespaces() -> None:
    """Leave the host's processes, network and IPC; that may take a namespace of users as well."""
    kinds = CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    if os.geteuid() == 0 and inside.libc.unshare(kinds) == 0:
        return
    user, group = os.geteuid(), os.getegid()
    inside.check(inside.libc.unshare(kinds | CLONE_NEWUSER), "unshare")
    for name, line in (("setgroups", "deny"), ("uid_map", f"65534 {user} 1"), ("gid_map", f"65534 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)


def _private_root(job: dict) -> None:
    """A root of its own: the interpreter and the system's libraries to read, /tmp to write, four devices."""
    inside.check(inside.libc.unshare(CLONE_NEWNS), "unshare")
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    places = ("/mnt", "/media", "/srv", "/opt")
    root = next(p for p in places if os.path.isdir(p) and not any(seen.startswith(p) for seen in job["visible"]))
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=1k,mode=755")
    for path in job["visible"]:
        place = root + path
        if os.path.islink(path):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.symlink(os.readlink(path), place)
        elif os.path.isdir(path):
            os.makedirs(place, exist_ok=True)
            _mount(path, place, None, MS_BIND | MS_REC)
            _mount("none", place, None, READ_ONLY | _locked_flags(place))
    os.mkdir(f"{root}/dev")
    for device in job["devices"]:
        os.close(os.open(f"{root}/dev/{device}", os.O_CREAT))
        _mount(f"/dev/{device}", f"{root}/dev/{device}", None, MS_BIND)
    os.mkdir(f"{root}/tmp")
    size = f"size={job['disk_bytes']},nr_inodes={job['files']},mode=1777"
    _mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, size)
    _mount("none", root, None, READ_ONLY)
    os.chdir(root)
    inside.check(inside.libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    inside.check(inside.libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/tmp")


def _locked_flags(path: str) -> int:
    """Of a mount that came from outside; in a namespace of users they may not be dropped."""
    given = os.statvfs(path).f_flag
    pairs = ((os.ST_NOEXEC, MS_NOEXEC), (os.ST_NOATIME, MS_NOATIME), (os.ST_RELATIME, MS_RELATIME))
    return sum(flag for mask, flag in pairs if given & mask)


# --- small things --------------------------------------------------------------------------------


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    given = (source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), data.encode())
    inside.check(inside.libc.mount(*given), f"mount {target}")


if __name__ == "__main__":
    # What programs use most, and the modules named, are loaded once for all of them.
    for name in ("bisect", "collections", "copy", "functools", "heapq", "itertools", "math", "random", "re", "typing"):
        importlib.import_module(name)
    inside.load_beside(sys.argv[1:])
    inside.run_program(serve(socket.socket(fileno=os.dup(0))))
