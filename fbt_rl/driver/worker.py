"""What every rank of a worker group does: run the stages it is given, one after another.

The group's processes are started once for several stages, because importing torch, transformers
and deepspeed anew costs more than a short stage. Nothing but the run folder passes from one stage
to the next: settings that libraries keep per process are put back in between.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fbt_rl.artifacts import Remote, RunFolder, StageContext, StageFolder, write_text
from fbt_rl.config import RunConfig
from fbt_rl.driver.lock import lock

# Words by which gloo and NCCL report that another rank is gone.
_PEER_LOST = re.compile(r"closed by peer|reset by peer|broken pipe|gloo/transport|NCCL", re.IGNORECASE)


@dataclass(frozen=True)
class Assignment:
    """The stages of one worker group, in order; stage name -> ``module:function``."""

    config: RunConfig
    run_dir: Path
    stages: Mapping[str, str]
    threads: int


def workers_lock(run_dir: Path) -> Path:
    """Held, shared, by every process that may write into the run's stage folders."""
    return run_dir / ".workers.lock"


def work(assignment: Assignment) -> None:
    """Run the stages on this rank. Errors are also written to the stage's ``error.log``."""
    import torch

    torch.set_num_threads(assignment.threads)
    rank = int(os.environ.get("RANK", "0"))
    with lock(workers_lock(assignment.run_dir), shared=True, wait_s=30):
        folders = {name: RunFolder(assignment.run_dir).stage(name) for name in assignment.stages}
        left = [name for name, folder in folders.items() if not folder.finished()]  # fewer in a group started again
        _barrier()  # all ranks have looked before one finishes a stage
        for name in left:
            _run_stage(assignment, name, assignment.stages[name], folders[name], rank)


def failure(folder: StageFolder) -> str | None:
    """The message of the error that ended a stage, if one did."""
    try:
        return error_log(folder).read_text(encoding="utf-8").split("\n\n", 1)[0]
    except FileNotFoundError:
        return None


def error_log(folder: StageFolder) -> Path:
    return folder.path / "error.log"


def source_model(config: RunConfig, run_dir: Path, name: str) -> Path | None:
    """The model folder that a stage starts from; None: a new model."""
    source = config.source_of(name)
    if source is not None:
        return RunFolder(run_dir).stage(source).model_dir
    fresh = config.stages[name].kind == "pretrain" or config.model.path is None
    return None if fresh else Path(config.model.path or "")


def _run_stage(assignment: Assignment, name: str, function: str, folder: StageFolder, rank: int) -> None:
    source = source_model(assignment.config, assignment.run_dir, name)
    context = StageContext(assignment.config, name, folder, source, _grade_remotely(assignment.config))
    environment = dict(os.environ)
    try:
        with output_to(folder.path / f"worker-{rank}.log"):
            result = _load(function)(assignment.config.stages[name], context)
        if rank == 0:
            folder.write_result(result)
        _barrier()
    except Exception as error:
        record_failure(error, folder, rank)
        raise
    finally:
        _clean_slate(environment)


def _grade_remotely(config: RunConfig) -> Remote | None:
    if config.resources.grading == "node":
        return None
    from fbt_rl.driver.cluster import remote_verdicts

    return remote_verdicts


def _load(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def record_failure(error: Exception, folder: StageFolder, rank: int) -> None:
    """Write ``error.log``: the message, a blank line, the traceback. The first rank to fail has the say."""
    if _peer_lost(error):
        return
    message = re.sub(r"\n\s*\n", "\n", f"rank {rank}: {type(error).__name__}: {error}".strip())
    text = f"{message}\n\n{''.join(traceback.format_exception(error))}"
    try:
        if not error_log(folder).exists():
            write_text(error_log(folder), text.encode(errors="backslashreplace").decode())
    except OSError:
        pass  # a full disk, perhaps the very error: it still reaches the driver by Ray


def _peer_lost(error: BaseException | None) -> bool:
    """Whether the error only tells that another rank is gone; that rank, or Ray, has the reason."""
    from torch.distributed import DistError

    while error is not None:
        if isinstance(error, DistError) or (isinstance(error, RuntimeError) and _PEER_LOST.search(str(error))):
            return True
        error = error.__cause__ or error.__context__
    return False


def _barrier() -> None:
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.barrier()


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Send the process's output, from C too, to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a log line with half a surrogate pair must not end the stage
            stream.reconfigure(errors="backslashreplace")
    saved = [os.dup(1), os.dup(2)]
    try:
        with path.open("ab") as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, descriptor in zip((1, 2), saved, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _clean_slate(environment: dict[str, str]) -> None:
    """Take back what Trainer, accelerate and DeepSpeed keep per process, so that stages cannot touch each other."""
    os.environ.clear()
    os.environ.update(environment)
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    if "transformers.integrations.deepspeed" in sys.modules:
        sys.modules["transformers.integrations.deepspeed"].unset_hf_deepspeed_config()
    gc.collect()
