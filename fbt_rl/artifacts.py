"""The run folder: where a run keeps its state, and the only thing that passes between stages.

    <run>/config.yaml, run.json
    <run>/stages/<name>/stage.json, metrics.jsonl, result.json
    <run>/stages/<name>/checkpoints/step-000123/, model/
    <run>/stages/<name>/rollouts.parquet, batch/ or generations.parquet

A file or folder with its final name is whole: everything is written under another name first and
renamed when complete.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fbt_rl.config import RunConfig
from reward.base import Verdict

# (use, args, columns, cpus) -> a reward's verdicts; None: the process at work on them was lost.
Remote = Callable[..., list[Verdict] | None]

_CHECKPOINT_NAME = re.compile(r"step-(\d{6,})")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON; a reader sees the old file or the new one, never a part."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` by rename, flushed to disk first so that a crash cannot leave an empty file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class StageFolder:
    """One stage's folder, ``<run>/stages/<name>``."""

    path: Path

    @property
    def model_dir(self) -> Path:
        return self.path / "model"

    @property
    def checkpoints_dir(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def result_path(self) -> Path:
        return self.path / "result.json"

    @property
    def rollouts_path(self) -> Path:
        return self.path / "rollouts.parquet"

    @property
    def batch_dir(self) -> Path:
        return self.path / "batch"

    @property
    def generations_path(self) -> Path:
        return self.path / "generations.parquet"

    @property
    def stage_json(self) -> Path:
        return self.path / "stage.json"

    def finished(self) -> bool:
        """``result.json`` is written last, so its presence means that the stage is complete."""
        return self.result_path.is_file()

    def read_result(self) -> dict[str, Any]:
        return read_json(self.result_path)

    def write_result(self, result: dict[str, Any]) -> None:
        write_json(self.result_path, result)

    # Progress of work that has no steps; gone when it is done.

    @property
    def progress_path(self) -> Path:
        return self.path / "progress.json"

    def read_progress(self) -> tuple[int, int] | None:
        """How much is done, of how much; None: not known."""
        try:
            found = read_json(self.progress_path)
        except FileNotFoundError:
            return None
        return found["done"], found["total"]

    def write_progress(self, done: int, total: int) -> None:
        write_json(self.progress_path, {"done": done, "total": total})

    # Metrics: one JSON object a line.

    def append_metrics(self, row: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole rows; a last line cut short by a kill is left out."""
        if not self.metrics_path.is_file():
            return []
        rows = []
        for line in self.metrics_path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return rows

    def truncate_metrics(self, step: int) -> None:
        """Drop rows after ``step``: a resumed run writes them again."""
        if self.metrics_path.is_file():
            kept = [row for row in self.read_metrics() if row.get("step", 0) <= step]
            write_text(self.metrics_path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))

    # Checkpoints: a folder named step-000123 is whole.

    def checkpoint_dir(self, step: int) -> Path:
        return self.checkpoints_dir / f"step-{step:06d}"

    def checkpoints(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        if not self.checkpoints_dir.is_dir():
            return []
        found = [path for path in self.checkpoints_dir.iterdir() if _CHECKPOINT_NAME.fullmatch(path.name)]
        return sorted(found, key=checkpoint_step)

    def latest_checkpoint(self) -> Path | None:
        return next(reversed(self.checkpoints()), None)

    def prune_checkpoints(self, keep: int) -> None:
        """Keep the newest ``keep`` checkpoints; remove older ones and what a killed save left."""
        if not self.checkpoints_dir.is_dir():
            return
        kept = set(self.checkpoints()[-keep:]) if keep else set()
        for path in self.checkpoints_dir.iterdir():
            if path.is_dir() and path not in kept:
                shutil.rmtree(path, ignore_errors=True)


def checkpoint_step(path: Path) -> int:
    """The step of a checkpoint folder."""
    match = _CHECKPOINT_NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path} is not a checkpoint folder; expected a name like step-000123")
    return int(match[1])


@dataclass(frozen=True)
class RunFolder:
    """A whole run."""

    path: Path

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

    @property
    def state_path(self) -> Path:
        return self.path / "run.json"

    @property
    def report_dir(self) -> Path:
        return self.path / "report"

    def stage(self, name: str) -> StageFolder:
        return StageFolder(self.path / "stages" / name)

    def read_state(self) -> dict[str, Any]:
        return read_json(self.state_path) if self.state_path.is_file() else {}

    def write_state(self, state: dict[str, Any]) -> None:
        write_json(self.state_path, state)


@dataclass(frozen=True)
class StageContext:
    """What a stage's ``run(stage, context)`` gets beside its own settings."""

    config: RunConfig
    name: str
    folder: StageFolder
    source: Path | None  # model folder to start from; None: a new model
    # Has a reward's verdicts computed elsewhere on the cluster (fbt_rl.driver.cluster.remote_verdicts); None: by this process.
    grade_remotely: Remote | None = None
