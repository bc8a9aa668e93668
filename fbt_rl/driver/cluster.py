"""Ray: a private local one or a given cluster, worker groups and tasks on it. The only importer of ray."""

from __future__ import annotations

import functools
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fbt_rl.driver import reaper
from fbt_rl.driver.resources import Available, GroupSize, this_machine
from reward.base import Reward, Verdict
from reward.load import load_reward

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
    ) -> None:
        """Call ``function(argument)`` on every rank of a Ray Train worker group and wait for all of them.

        ``torch.distributed`` is initialised (gloo, or nccl with GPUs). ``watch`` is called a few
        times a second meanwhile; what it raises ends the wait, and leaving the ``with`` block then
        ends the workers. A group that lost a worker is started again up to ``max_failures`` times.
        ``storage`` is a folder that all nodes see. Raises :class:`ClusterError`.
        """
        import ray.train
        from ray.train.torch import TorchTrainer

        resources = {"CPU": float(size.cpus), **({"GPU": size.gpus} if size.gpus else {})}
        trainer = TorchTrainer(
            functools.partial(function, argument),
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
        finally:
            shutil.rmtree(storage / ".ray", ignore_errors=True)
        if outcome and outcome[0] is not None:
            raise ClusterError(_explain(outcome[0], max_failures)) from outcome[0]

    def _worker_environment(self, size: GroupSize) -> dict[str, str]:
        threads = str(size.threads)
        return {
            **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            **({} if size.gpus else {"DS_ACCELERATOR": "cpu"}),
        }


def remote_verdicts(use: str, args: dict[str, Any], given: dict[str, Any], *, cpus: int) -> list[Verdict] | None:
    """What :func:`reward.load.load_reward`'s reward says of ``given``, computed by a Ray task on ``cpus`` CPUs.

    What it logs is logged here. None if its process was lost, and those of further tries. To be called in a process of
    the cluster.
    """
    # Not in the worker group's own placement group, whose CPUs are the workers'.
    task = ray.remote(_verdicts).options(num_cpus=cpus, scheduling_strategy="SPREAD", max_retries=2)
    try:
        verdicts, told = ray.get(task.remote(use, args, given))
    except (WorkerCrashedError, OutOfMemoryError, NodeDiedError):
        return None
    for level, text in told:
        logger.log(level, "%s", text)
    return verdicts


def _verdicts(use: str, args: dict[str, Any], given: dict[str, Any]) -> tuple[list[Verdict], list[tuple[int, str]]]:
    """Of a reward; and what it had to say, which would be lost in the log of a process that nobody looks at."""
    told: list[tuple[int, str]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append((record.levelno, self.format(record)))

    keep, source = Keep(logging.WARNING), logging.getLogger("reward")
    source.addHandler(keep)
    source.propagate = False
    try:
        return _loaded(use, json.dumps(args)).verdicts(**given), told
    finally:
        source.removeHandler(keep)


@functools.lru_cache(maxsize=16)
def _loaded(use: str, args: str) -> Reward:
    """Once a process: a reward may load much, and keep it."""
    return load_reward(use, json.loads(args))


def _check_address(address: str) -> None:
    """Somebody listens there; Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise ValueError(f"expected HOST:PORT or auto, got {address!r}; to send a job, use fbt-rl submit")
    with socket.create_connection((host, int(port)), timeout=10):
        pass


def _explain(error: BaseException, max_failures: int) -> str:
    """One message for what Ray Train raised: the rank and the reason instead of Ray's own traceback."""
    failures = getattr(error, "worker_failures", None)
    if not failures:
        cause = getattr(error, "controller_failure", error)
        return f"the worker group could not be run: {cause}"
    dead = {rank: cause for rank, cause in failures.items() if isinstance(cause, RayError)}
    rank, cause = next(iter((dead or failures).items()))
    cause = getattr(cause, "_base_exc", cause)
    what = "its process died (killed, or out of memory)" if dead else f"{type(cause).__name__}: {cause}"
    return f"rank {rank}: {what}; resources.max_failures {max_failures} is used up"
