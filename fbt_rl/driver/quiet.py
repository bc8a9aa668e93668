"""What libraries say by themselves, kept off the terminal: a command prints what it has to say, and nothing else."""

from __future__ import annotations

import logging
import os
import sys

_CHATTY = (
    "DeepSpeed",  # the accelerator it found
    "ray._private.runtime_env.packaging",  # packages of code that are made and sent
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",  # streams that end
)


def quiet_libraries() -> None:
    """Let chatty libraries log errors only, in this process. To be called before they are imported."""
    for name in _CHATTY:
        # By a filter: they set levels of their own when they are imported.
        logging.getLogger(name).addFilter(lambda record: record.levelno >= logging.ERROR)
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
