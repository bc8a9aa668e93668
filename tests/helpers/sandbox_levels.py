"""Sandbox levels for tests that are parametrised by them, and what runs of a sandbox."""

import time
from pathlib import Path

import pytest

from reward.code import sandbox
from reward.code.sandbox import SandboxError


def best():
    try:
        return sandbox.level_in_force()
    except SandboxError:
        return None


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
