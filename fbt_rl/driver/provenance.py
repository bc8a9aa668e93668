"""Where, with what and by which command a run is made: kept in its ``run.json``."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import fbt_rl
from fbt_rl.driver.resources import this_machine

_VERSIONS_OF = ("torch", "transformers", "trl", "accelerate", "deepspeed", "peft", "ray", "math-verify")


def provenance() -> dict[str, Any]:
    machine = this_machine()
    versions = {name: importlib.metadata.version(name) for name in _VERSIONS_OF}
    return {
        "command": sys.argv,
        "versions": {"fbt-rl": fbt_rl.__version__, "python": platform.python_version(), **versions},
        "git": git_revision(),
        "host": {
            "name": socket.gethostname(),
            "system": platform.platform(),
            "cpus": machine.cpus,
            "gpus": machine.gpus,
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        },
    }


def git_revision() -> str | None:
    """Commit of this code, with ``+changes`` where files differ from it; None outside a repository of its own."""
    root = Path(fbt_rl.__file__).parents[1]
    if not (root / ".git").exists() or not (revision := _git(root, "rev-parse", "HEAD")):
        return None
    return f"{revision}+changes" if _git(root, "status", "--porcelain", "--untracked-files=no") else revision


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
