"""Locks on files that end with the process holding them, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Locked(RuntimeError):
    """Another process holds the lock."""


@contextmanager
def lock(path: Path, *, shared: bool = False, wait_s: float = 0.0) -> Iterator[None]:
    """Hold ``path`` (made if need be), alone or together with other ``shared`` holders.

    Waits up to ``wait_s`` seconds for others to let go, then raises :class:`Locked`.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Locked(f"{path} is held by another process") from None
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)
