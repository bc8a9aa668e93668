"""How much memory each rank of a worker group uses, noted where its driver finds it after a kill; what to lower.

A process killed for memory leaves no message of its own: neither Ray's memory monitor nor the kernel asks it first.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from fbt_rl.artifacts import read_json, write_json
from fbt_rl.config import EvalStage, RLStage, RowsStage, StageConfig

GIB = 2**30
FULL = 0.9  # of a node's memory: a process killed by nobody knows whom was then probably killed for memory
_LOOK_S = 0.2
_GROWTH = 1.02  # of what a note says: less is not written
_RAN_OUT = re.compile(r"OutOfMemoryError|MemoryError|out of memory|not enough memory|can't allocate memory", re.I)


@dataclass(frozen=True)
class RankMemory:
    """What a rank noted last; sizes in bytes."""

    rank: int
    node: str  # host name
    pid: int
    peak: int  # most that was resident at once
    node_used: int
    node_total: int
    kernel_kills: int | None  # processes that the kernel had killed for memory on the node when the rank started

    @property
    def peak_text(self) -> str:
        return f"{self.peak / GIB:.2f} GiB"

    @property
    def node_text(self) -> str:
        return f"{self.node_used / GIB:.2f} of {self.node_total / GIB:.2f} GiB"


@contextmanager
def noted(folder: Path, rank: int) -> Iterator[None]:
    """Keep ``folder/<rank>.json`` up to date with this process's memory meanwhile, from a thread."""
    ended, kills, written = threading.Event(), kernel_kills(), 0

    def look() -> None:
        nonlocal written
        with suppress(OSError):  # no /proc, or a full disk: the run itself goes on
            peak = _peak()
            if peak > _GROWTH * written:
                memory = RankMemory(rank, socket.gethostname(), os.getpid(), peak, *_node_memory(), kills)
                write_json(folder / f"{rank}.json", asdict(memory))
                written = peak

    def watch() -> None:
        while not ended.wait(_LOOK_S):
            look()

    look()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def read_notes(folder: Path) -> dict[int, RankMemory]:
    """By rank what :func:`noted` wrote; {} where it did not."""
    notes = [RankMemory(**read_json(path)) for path in folder.glob("*.json") if not path.name.startswith(".")]
    return {note.rank: note for note in sorted(notes, key=lambda note: note.rank)}


def probably_for_memory(note: RankMemory) -> bool:
    """Whether something says that a rank which is gone without a word was killed for memory."""
    kills = kernel_kills() if note.node == socket.gethostname() else None
    counted = kills is not None and note.kernel_kills is not None and kills > note.kernel_kills
    return counted or note.node_used > FULL * note.node_total


def ran_out(message: str) -> bool:
    """Whether the message of an error, such as torch's, is about memory."""
    return _RAN_OUT.search(message) is not None


def to_lower(stage: StageConfig, workers: int, key: Callable[[str], str], workers_key: str) -> str:
    """The settings by which a rank of ``stage`` takes less memory, with what they are now.

    ``key`` gives the full name of a setting of the stage.
    """
    lower: dict[str, object] = {}
    switch: dict[str, str] = {}
    if isinstance(stage, RowsStage | RLStage):
        rows = stage.batch_rows if isinstance(stage, RowsStage) else stage.prompts_per_step * stage.group_size
        at_once = stage.micro_batch_rows or -(-rows // workers)
        if at_once > 1:
            lower["micro_batch_rows"] = at_once
        if not stage.gradient_checkpointing:
            switch["gradient_checkpointing"] = "true"
    if isinstance(stage, RowsStage):
        several = any(len(phase.weights) > 1 for phase in stage.objective.passes)
        if several and stage.pass_activations != "recompute":
            switch["pass_activations"] = "recompute"
    if isinstance(stage, RLStage):
        lower |= {"prompts_per_step": stage.prompts_per_step, "max_new_tokens": stage.max_new_tokens}
        if stage.mode != "standard" and stage.scorer.use == "replay" and stage.latents == "store":
            switch["latents"] = "recompute"
    elif isinstance(stage, EvalStage):
        lower |= {"batch_size": stage.batch_size, "max_new_tokens": stage.max_new_tokens}
    else:
        lower["row_length"] = stage.row_length
    parts = [f"{key(name)} (now {value})" for name, value in lower.items()]
    parts += [f"{workers_key} (now {workers})"] if workers > 1 else []
    options = [f"lower {', '.join(parts)}"] if parts else []
    options += [f"set {', '.join(f'{key(name)} to {value}' for name, value in switch.items())}"] if switch else []
    return " or ".join(options)


def largest(notes: Mapping[int, RankMemory], ranks: set[int]) -> RankMemory | None:
    """Of the ranks that are gone the one that had most: the others often follow it."""
    return max((note for rank, note in notes.items() if rank in ranks), key=lambda note: note.peak, default=None)


def kernel_kills() -> int | None:
    """How many processes of this machine the kernel has killed for memory since it started; None: not known."""
    with suppress(OSError):
        if found := re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE):
            return int(found[1])
    return None


def _peak() -> int:
    return _kilobytes(Path("/proc/self/status"), "VmHWM")


def _node_memory() -> tuple[int, int]:
    """Used and total, of the control group where it has the tighter limit."""
    info = Path("/proc/meminfo")
    total = _kilobytes(info, "MemTotal")
    used = total - _kilobytes(info, "MemAvailable")
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no control group, or "max": no limit
        limit = int((group / "memory.max").read_text())
        if limit < total:
            return int((group / "memory.current").read_text()), limit
    return used, total


def _kilobytes(file: Path, name: str) -> int:
    """The value of a line ``name:  123 kB``, in bytes."""
    found = re.search(rf"^{name}:\s*(\d+) kB$", file.read_text(), re.MULTILINE)
    return 1024 * int(found[1]) if found else 0
