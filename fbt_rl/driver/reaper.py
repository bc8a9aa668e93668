"""Ends what a local Ray leaves behind when its driver is gone, however the driver ended.

Ray's server processes die with a killed driver, but its agents linger for a minute and processes
started by workers for ever. This guard runs beside the driver as a process of its own, by path and
with the standard library only: ``python reaper.py FOLDER``. Its standard input is a pipe from the
driver; when that closes, it kills every process that was started with ``FBT_RL_RAY=FOLDER`` in its
environment (where /proc tells) and removes the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

MARK = "FBT_RL_RAY"


def marked(folder: str) -> list[int]:
    """Processes whose environment at their start held the mark of ``folder``."""
    entry, found = f"{MARK}={folder}".encode(), []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                if entry in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


def main(folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    empty = 0
    while empty < 10:  # a process that is just being started does not show its environment yet
        left = marked(folder)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        empty = 0 if left else empty + 1
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
