"""Ray: a private local one or a given cluster, worker groups and tasks on it. The only importer of ray."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fbt_rl.artifacts import write_text
from fbt_rl.driver import rank_memory, reaper
from fbt_rl.driver.rank_memory import RankMemory
from fbt_rl.driver.resources import Available, GroupSize, this_machine
from reward.base import Reward, Verdict
from reward.load import load_limited

# Read by Ray when it is imported or started; the user's own values win.
for _name, _value in {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process more, of use on spot instances only
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # workers stay in the folder the command was given in
    "SPT_NOENV": "1",  # Ray's agents, renaming themselves, would write over the mark that the reaper looks for
}.items():
    os.environ.setdefault(_name, _value)

import ray  # noqa: E402
import ray._private.worker as ray_worker  # noqa: E402
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, WorkerCrashedError  # noqa: E402

logger = logging.getLogger(__name__)

# Environment variables that workers and jobs get from the driver; everything else stays behind.
PASSED_ON = (
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "TRANSFORMERS_OFFLINE",
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
)
_TOKEN = secrets.token_hex(32)  # one for all clusters that a process starts: Ray reads it only once
_OBJECT_STORE_BYTES = 100 * 2**20  # nothing big goes through it
_POLL_S = 0.3
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ClusterError(RuntimeError):
    """Ray could not be started or reached, or its workers were lost more often than allowed."""


class Cluster:
    """A Ray cluster while the ``with`` block lasts: the one at ``address``, or a local one of its own.

    The local one uses this machine only (with a token of its own and no dashboard) and ends with
    the block; a killed driver takes it along. Raises :class:`ClusterError`.
    """

    def __init__(self, address: str | None = None):
        self.address = address
        self._guard: subprocess.Popen[bytes] | None = None
        self._told: list[str] = []  # what Ray's daemons say of dead workers, which Ray would print

    def __enter__(self) -> Cluster:
        handlers = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
        try:
            self._start()
        except BaseException as error:
            self.__exit__()
            if isinstance(error, Exception):
                where = f"reach the Ray cluster at {self.address}" if self.address else "start Ray on this machine"
                raise ClusterError(f"cannot {where}: {str(error).strip().splitlines()[0]}") from error
            raise
        finally:
            for number, handler in handlers.items():  # Ray puts its own in their place
                signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        # A second Ctrl-C would leave processes behind.
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _STOP_SIGNALS}
        try:
            ray.shutdown()
            if self._guard is not None:
                self._guard.communicate()  # closes its input: the sign to finish
        finally:
            for name in (reaper.MARK, "RAY_AUTH_TOKEN_PATH") if self._guard else ():
                os.environ.pop(name, None)
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _start(self) -> None:
        ray_worker.print_to_stdstream = self._hear  # no setting keeps Ray from printing it
        quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if self.address is not None:
            _check_address(self.address)
            ray.init(address=self.address, **quiet)
            return
        # Ray puts Unix sockets below its folder, whose paths may have 107 bytes: so right below /tmp.
        folder = tempfile.mkdtemp(prefix="fbt-ray-", dir="/tmp")
        command = [sys.executable, "-S", reaper.__file__, folder]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        os.environ[reaper.MARK] = folder
        if "RAY_AUTH_TOKEN" not in os.environ:  # else Ray leaves one in the home folder, readable by all
            token = Path(folder, "token")
            token.touch(mode=0o600)
            token.write_text(_TOKEN)
            os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
        machine = this_machine()
        ray.init(
            address="local",
            num_cpus=machine.cpus,
            num_gpus=machine.gpus,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            _temp_dir=folder,
            **quiet,
        )

    def _hear(self, data: dict[str, Any], *_: object, **__: object) -> None:
        self._told += data["lines"]

    def available(self) -> Available:
        if self.address is None:
            return this_machine()
        total = ray.cluster_resources()
        return Available(int(total.get("CPU", 0)), int(total.get("GPU", 0)), f"the cluster at {self.address}")

    def run(
        self,
        function: Callable[[Any], None],
        argument: Any,
        size: GroupSize,
        *,
        max_failures: int,
        storage: Path,
        watch: Callable[[], None],
        to_lower: Callable[[], str],
    ) -> None:
        """Call ``function(argument)`` on every rank of a Ray Train worker group and wait for all of them.

        ``torch.distributed`` is initialised (gloo, or nccl with GPUs). ``watch`` is called a few
        times a second meanwhile; what it raises ends the wait, and leaving the ``with`` block then
        ends the workers. A group that lost a worker is started again up to ``max_failures`` times.
        ``storage`` is a folder that all nodes see; ``ray.log`` in it gets Ray's own account of a failure.
        ``to_lower`` says by which settings the ranks take less memory. Raises :class:`ClusterError`, whose message is
        one sentence.
        """
        import ray.train
        from ray.train.torch import TorchTrainer

        log, notes = storage / "ray.log", storage / ".ranks"
        log.unlink(missing_ok=True)
        shutil.rmtree(notes, ignore_errors=True)
        resources = {"CPU": float(size.cpus), **({"GPU": size.gpus} if size.gpus else {})}
        trainer = TorchTrainer(
            functools.partial(_on_rank, function, argument, notes),
            scaling_config=ray.train.ScalingConfig(
                num_workers=size.workers, use_gpu=size.gpus > 0, resources_per_worker=resources
            ),
            run_config=ray.train.RunConfig(
                name=".ray",
                storage_path=str(storage),
                failure_config=ray.train.FailureConfig(max_failures=max_failures),
                worker_runtime_env={"env_vars": self._worker_environment(size)},
            ),
        )
        outcome: list[BaseException | None] = []

        def fit() -> None:
            try:
                trainer.fit()
                outcome.append(None)
            except BaseException as error:
                outcome.append(error)

        # In a thread of its own, so that Ctrl-C and watch are served here.
        thread = threading.Thread(target=fit, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                watch()
                thread.join(_POLL_S)
            watch()
            if outcome and outcome[0] is not None:
                account = traceback.format_exception(outcome[0])
                write_text(log, "\n".join(["".join(account), *self._told]))
                message = explain(outcome[0], rank_memory.read_notes(notes), max_failures, to_lower)
                raise ClusterError(f"{message}; Ray's own account is in {log}") from outcome[0]
        finally:
            for folder in (storage / ".ray", notes):
                shutil.rmtree(folder, ignore_errors=True)

    def _worker_environment(self, size: GroupSize) -> dict[str, str]:
        threads = str(size.threads)
        return {
            **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            **({} if size.gpus else {"DS_ACCELERATOR": "cpu"}),
        }


def remote_verdicts(
    use: str, args: dict[str, Any], given: dict[str, Any], *, cpus: int, time_limit_s: float | None = None
) -> list[Verdict] | None:
    """What :func:`reward.load.load_limited`'s reward says of ``given``, computed by a Ray task on ``cpus`` CPUs.

    What it logs is logged here. None if its process was lost, and those of further tries. To be called in a process of
    the cluster.
    """
    # Not in the worker group's own placement group, whose CPUs are the workers'.
    task = ray.remote(_verdicts).options(num_cpus=cpus, scheduling_strategy="SPREAD", max_retries=2)
    try:
        verdicts, told = ray.get(task.remote(use, args, given, time_limit_s))
    except (WorkerCrashedError, OutOfMemoryError, NodeDiedError):
        return None
    for level, text in told:
        logger.log(level, "%s", text)
    return verdicts


def _verdicts(
    use: str, args: dict[str, Any], given: dict[str, Any], time_limit_s: float | None
) -> tuple[list[Verdict], list[tuple[int, str]]]:
    """Of a reward; and what it had to say, which would be lost in the log of a process that nobody looks at."""
    told: list[tuple[int, str]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append((record.levelno, self.format(record)))

    keep, source = Keep(logging.WARNING), logging.getLogger("reward")
    source.addHandler(keep)
    source.propagate = False
    try:
        return _loaded(use, json.dumps(args), time_limit_s).verdicts(**given), told
    finally:
        source.removeHandler(keep)


@functools.lru_cache(maxsize=16)
def _loaded(use: str, args: str, time_limit_s: float | None) -> Reward:
    """Once a process: a reward may load much, and keep it."""
    return load_limited(use, json.loads(args), time_limit_s)


def _check_address(address: str) -> None:
    """Somebody listens there; Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise ValueError(f"expected HOST:PORT or auto, got {address!r}; to send a job, use fbt-rl submit")
    with socket.create_connection((host, int(port)), timeout=10):
        pass


def _on_rank(function: Callable[[Any], None], argument: Any, notes: Path) -> None:
    with rank_memory.noted(notes, int(os.environ.get("RANK", "0"))):
        function(argument)


def explain(
    error: BaseException, notes: Mapping[int, RankMemory], max_failures: int, to_lower: Callable[[], str]
) -> str:
    """One line for what Ray Train raised: the rank, the reason and, where it was memory, what to lower.

    ``notes`` are the ranks' own, by rank.
    """
    failures: Mapping[int, BaseException] = getattr(error, "worker_failures", None) or {}
    causes = {rank: getattr(cause, "health_check_failure", cause) for rank, cause in failures.items()}
    gone = {rank for rank, cause in causes.items() if isinstance(cause, RayError)}
    whole = getattr(error, "controller_failure", error)
    for cause in (whole, *causes.values()):
        if isinstance(cause, OutOfMemoryError):
            return f"{_killed_by_monitor(str(cause), gone, notes)}; to need less, {to_lower()}"
    if not causes:
        return f"the worker group could not be run: {_one_line(whole)}"
    used_up = f"resources.max_failures {max_failures} is used up"
    if not gone:
        rank, cause = next(iter(causes.items()))
        cause = getattr(cause, "_base_exc", cause)
        return f"{_rank(rank, notes)}: {type(cause).__name__}: {_one_line(cause)}; {used_up}"
    note = rank_memory.largest(notes, gone)
    if note is None:
        return f"{_rank(min(gone), notes)} ended without an error, as by signal 9 (SIGKILL) from outside; {used_up}"
    who = _rank(note.rank, notes)
    had = f"it had {note.peak_text} at its peak, when its node held {note.node_text}"
    if rank_memory.probably_for_memory(note):
        return f"{who} was killed by signal 9, probably for memory: {had}; to need less, {to_lower()}; {used_up}"
    return f"{who} ended without an error, as by signal 9 (SIGKILL) from outside: {had}; {used_up}"


def _killed_by_monitor(account: str, gone: set[int], notes: Mapping[int, RankMemory]) -> str:
    """Whom Ray's memory monitor killed. It takes several processes at once, and Ray Train's controller with them."""
    pattern = r"Selected to kill: .*?\bpid=(\d+), actual memory used=([\d.]+)GB"
    used = {int(pid): int(float(size) * rank_memory.GIB) for pid, size in re.findall(pattern, account)}
    # Ray may have looked later than the rank itself.
    notes = {rank: replace(note, peak=max(note.peak, used.get(note.pid, 0))) for rank, note in notes.items()}
    note = rank_memory.largest(notes, gone | {rank for rank, note in notes.items() if note.pid in used})
    filled = re.search(r"was ([\d.]+)GB used / ([\d.]+)GB limit", account)
    held = f"{filled[1]} of {filled[2]} GiB" if filled else "too much"
    if note is None:
        return f"Ray's memory monitor ended the worker group, whose node held {held}"
    who = f"{_rank(note.rank, notes)} was killed for memory by Ray's monitor"
    return f"{who}: it had {note.peak_text} at its peak, when its node held {held}"


def _rank(rank: int, notes: Mapping[int, RankMemory]) -> str:
    several = len({note.node for note in notes.values()}) > 1
    return f"rank {rank} on node {notes[rank].node}" if several and rank in notes else f"rank {rank}"


def _one_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
