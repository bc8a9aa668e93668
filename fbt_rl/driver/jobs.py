"""Runs as Ray jobs: pack and submit a config, then status, logs and stop, over the cluster's Ray Jobs server."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fbt_rl
from fbt_rl.artifacts import RunFolder
from fbt_rl.config import RunConfig
from fbt_rl.config.file import ConfigError, dump_config
from fbt_rl.driver.inputs import Digests, FileKind, map_files

# The code that travels; tests, benchmarks, .git, environments and runs stay.
_PACKAGES = ("fbt_rl", "pretrain", "sft", "rl", "reward")
_MAX_BYTES = 100 * 2**20
_STOP_WAIT_S = 30
_AGENT_WAIT_S = 60


class JobError(RuntimeError):
    """The Jobs server cannot be reached or refuses; the message is its reason."""


@dataclass(frozen=True)
class JobStatus:
    """How a job stands by Ray's word, its driver's exit code and the run's own ``run.json`` where it can be read."""

    job: str
    ray: str  # PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED
    exit_code: int | None
    run: str | None  # status in run.json
    message: str

    @property
    def ended(self) -> bool:
        return self.ray not in ("PENDING", "RUNNING")

    @property
    def good(self) -> bool:
        """Under way, or ended well by every account: Ray alone has called failed jobs successful."""
        return not self.ended or (self.ray == "SUCCEEDED" and self.exit_code == 0 and self.run in (None, "finished"))

    def __str__(self) -> str:
        parts = [self.ray.lower()]
        if self.exit_code is not None:
            parts.append(f"exit code {self.exit_code}")
        if self.run is not None:
            parts.append(f"run.json: {self.run}")
        if not self.good and self.message:
            parts.append(self.message.strip())
        return f"{self.job}: {', '.join(parts)}"


def submit(config: RunConfig, address: str, *, run_dir: Path | None = None, fresh: bool = False) -> str:
    """Send code, config and the files it names by relative path; returns the job's id.

    Raises :class:`ConfigError` for files that are missing or too big, and :class:`JobError`.
    """
    from fbt_rl.driver.cluster import PASSED_ON

    command = ["python", "-m", "fbt_rl.cli", "run", "config.yaml"]
    command += ["--run-dir", str(run_dir)] if run_dir else []
    command += ["--fresh"] if fresh else []
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    with TemporaryDirectory() as folder, _client(address) as client:
        pack(config, Path(folder))
        deadline = time.monotonic() + _AGENT_WAIT_S
        while True:
            try:
                return client.submit_job(
                    entrypoint=shlex.join(command),
                    runtime_env={
                        "working_dir": folder,
                        "env_vars": {**environment, "RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_WAIT_S)},
                    },
                    metadata={"run_dir": str(run_dir)} if run_dir else {},
                )
            except RuntimeError as error:
                # What a head says that answers already but is not all up: nothing was submitted.
                if "No available agent" not in str(error):
                    raise
                if time.monotonic() > deadline:
                    hint = "the head's agent is not up; is its --dashboard-agent-listen-port (52365) taken by another?"
                    raise RuntimeError(f"{error} ({hint})") from error
                time.sleep(1)


def pack(config: RunConfig, folder: Path) -> None:
    """Fill a job's working folder: our packages, ``config.yaml`` and ``inputs/``.

    Reward files and what the config names by relative path are copied and renamed by content; absolute
    paths are left to be found on the cluster.
    """
    root = Path(fbt_rl.__file__).parents[1]
    for name in _PACKAGES:
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    digests = Digests({})
    size = 0

    def packed(path: str, kind: FileKind) -> str:
        nonlocal size
        source = Path(path).expanduser()
        if source.is_absolute() and kind != "code":
            return path
        if not source.exists():
            raise ConfigError(
                f"no {kind} file {path} (looked from {Path.cwd()}): relative paths are sent along, absolute ones are "
                "looked for on the cluster"
            )
        target = folder / "inputs" / digests.of(source)[:12] / source.name
        if not target.exists():
            files = [file for file in source.rglob("*") if file.is_file()] if source.is_dir() else [source]
            size += sum(file.stat().st_size for file in files)
            if size > _MAX_BYTES:
                raise ConfigError(
                    f"with {path} the job would carry {size / 2**20:.0f} MiB, at most {_MAX_BYTES / 2**20:.0f} are "
                    "sent: put it where the cluster sees it and name it by its absolute path"
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
        return str(target.relative_to(folder))

    (folder / "config.yaml").write_text(dump_config(map_files(config, packed)), encoding="utf-8")


def status(job: str, address: str) -> JobStatus:
    with _client(address) as client:
        return _status(client, job)


def logs(job: str, address: str, *, follow: bool = False) -> Iterator[str]:
    """Pieces of what the job has written; with ``follow`` until it ends."""
    with _client(address) as client:
        if not follow:
            yield client.get_job_logs(job)
            return
        pieces = client.tail_job_logs(job)
        with asyncio.Runner() as runner:
            while (piece := runner.run(_next(pieces))) is not None:
                yield piece


def stop(job: str, address: str) -> JobStatus:
    """Ask the job to stop and wait for its end."""
    with _client(address) as client:
        client.stop_job(job)
        deadline = time.monotonic() + 2 * _STOP_WAIT_S
        while not (found := _status(client, job)).ended:
            if time.monotonic() > deadline:
                raise JobError(f"job {job} has not stopped after {2 * _STOP_WAIT_S} s")
            time.sleep(0.5)
        return found


def _status(client: Any, job: str) -> JobStatus:
    info = client.get_job_info(job)
    run_dir = (info.metadata or {}).get("run_dir")
    state = RunFolder(Path(run_dir)).read_state() if run_dir else {}
    return JobStatus(job, info.status.value, info.driver_exit_code, state.get("status"), info.message or "")


async def _next(pieces: Any) -> str | None:
    return await anext(pieces, None)


@contextmanager
def _client(address: str) -> Iterator[Any]:
    from ray.job_submission import JobSubmissionClient

    import fbt_rl.driver.cluster  # noqa: F401  (settles Ray's environment before it is imported)

    try:
        yield JobSubmissionClient(address)
    except (RuntimeError, ConnectionError) as error:
        raise JobError(f"Ray Jobs at {address}: {str(error).strip()}") from error
