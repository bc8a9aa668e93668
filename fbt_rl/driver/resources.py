"""What a worker group needs and what this machine has, worked out without ray or torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fbt_rl.config import ResourcesConfig


class ResourceError(ValueError):
    """The workers do not fit the machine or cluster; the message shows the sum."""


@dataclass(frozen=True)
class Available:
    """CPU cores and GPUs of a machine or cluster."""

    cpus: int
    gpus: int
    where: str  # for messages: "this machine", "the cluster at ..."


@dataclass(frozen=True)
class GroupSize:
    """A worker group: ``workers`` ranks of ``cpus`` cores, ``gpus`` GPUs and ``threads`` torch threads each."""

    workers: int
    cpus: int
    gpus: float
    threads: int

    def __str__(self) -> str:
        gpus = f", {self.gpus:g} GPU" if self.gpus else ""
        return f"{self.workers} x ({self.cpus} CPU{gpus}, {self.threads} torch thread{'s' * (self.threads > 1)})"


def this_machine() -> Available:
    """Cores this process may use (affinity and control-group quota respected) and visible GPUs."""
    return Available(cpus=_cores(), gpus=_gpus(), where="this machine")


def plan_group(wanted: ResourcesConfig, available: Available) -> GroupSize:
    """The worker group for ``wanted``: ``auto`` is all GPUs where there are any, else up to two CPU ranks.

    A CPU is left over where Ray tasks grade. Raises :class:`ResourceError` where the group does not fit.
    """
    gpus = wanted.gpus_per_worker
    graders = 1 if wanted.grading == "ray" else 0
    if wanted.workers != "auto":
        workers = wanted.workers
    elif available.gpus:
        gpus = gpus or 1.0
        workers = max(1, int(available.gpus // gpus))
    else:
        workers = max(1, min(2, (available.cpus - graders) // wanted.cpus_per_worker))
    size = GroupSize(workers, wanted.cpus_per_worker, gpus, wanted.threads)
    for name, each, there in (("CPU", size.cpus, available.cpus), ("GPU", size.gpus, available.gpus)):
        if name == "CPU" and workers * each <= there < workers * each + graders:
            raise ResourceError(
                f"resources: {workers} workers take all {there:g} CPUs of {available.where}, and resources.grading ray "
                "needs at least one more: lower resources.workers, or set grading to node"
            )
        if workers * each > there:
            raise ResourceError(
                f"resources: {workers} workers x {each:g} {name} = {workers * each:g} {name}s, "
                f"{available.where} has {there}: lower resources.workers or resources.{name.lower()}s_per_worker"
            )
    return size


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no control group, or "max": no quota
        return cores


def _gpus() -> int:
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
