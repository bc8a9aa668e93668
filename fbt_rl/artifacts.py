"""The run folder: where a run keeps its state, and the only thing that passes between stages.

    <run>/config.yaml, run.json
    <run>/stages/<name>/stage.json, metrics.jsonl, result.json
    <run>/stages/<name>/checkpoints/step-000123/, model/, adapter/
    <run>/stages/<name>/rollouts.parquet, batch/ or generations.parquet

A file or folder with its final name is whole: everything is written under another name first and
renamed when complete. What is complete has checksums (:mod:`fbt_rl.integrity`): a finished stage a list of its
files and, in ``model/``, of the model's; each checkpoint a list; ``run.json`` and ``stage.json`` a digest of their own.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fbt_rl.config import RunConfig
from fbt_rl.config.file import ConfigError, dump_config, load_config
from fbt_rl.integrity import (
    LIST,
    Damaged,
    fault_in,
    has_list,
    read_json,
    read_last,
    read_sealed_json,
    reopen,
    sha256_of,
    verify,
    write_json,
    write_last,
    write_sealed_json,
    write_text,
)
from reward.base import Verdict
from reward.beside import files_of

FileKind = Literal["data", "model", "tokenizer", "code"]

# (use, args, columns, cpus, time_limit_s) -> a reward's verdicts; None: the process at work on them was lost.
Remote = Callable[..., list[Verdict] | None]

_CHECKPOINT_NAME = re.compile(r"step-(\d{6,})")
_NAMED_IN_LIST = ("stage.json", "data.json", "metrics.jsonl", "rollouts.parquet", "generations.parquet")
_FOLDERS_WITH_LISTS = ("model", "adapter", "tokenizer", "batch")


@dataclass(frozen=True)
class StageFolder:
    """One stage's folder, ``<run>/stages/<name>``."""

    path: Path

    @property
    def model_dir(self) -> Path:
        return self.path / "model"

    @property
    def adapter_dir(self) -> Path:
        """Of a stage with ``lora``: what it trained, in PEFT's format, beside ``model_dir`` that has it merged."""
        return self.path / "adapter"

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
        """Raises Damaged, OSError."""
        return read_last(self.result_path)

    def write_result(self, result: dict[str, Any]) -> None:
        """Finish the stage: checksums of its files, then ``result.json``."""
        tables = sorted(self.path.glob("temperature-*/generations.parquet"))
        names = [*_NAMED_IN_LIST, *(f"{folder}/{LIST}" for folder in _FOLDERS_WITH_LISTS)]
        write_last(self.result_path, result, [*names, *(str(table.relative_to(self.path)) for table in tables)])

    def reopen(self) -> None:
        """Take back that the stage is finished: its files will change."""
        reopen(self.result_path)

    def verify(self) -> None:
        """Compare the files of a finished stage, but for its model's, with their checksums. Raises Damaged."""
        verify(self.path, lambda name: "/" not in name)

    # What the stage was made from.

    def read_stage(self) -> dict[str, Any] | None:
        """What ``stage.json`` holds; None: no such file. Raises Damaged."""
        if not self.stage_json.is_file():
            return None
        return read_sealed_json(
            self.stage_json,
            f"put it back from a copy, or remove {self.path} and give the run's command again to redo the stage",
        )

    def write_stage(self, content: dict[str, Any]) -> None:
        write_sealed_json(self.stage_json, content)

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
        """All whole rows; a last line cut short by a kill is left out. Raises Damaged."""
        if not self.metrics_path.is_file():
            return []
        *lines, last = self.metrics_path.read_bytes().split(b"\n")
        rows = []
        for line in [*lines, last] if _is_json(last) else lines:
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise Damaged(
                    f"{self.metrics_path} is damaged (line {len(rows) + 1}: {error}): put it back from a copy, or "
                    f"remove {self.path} and give the run's command again to redo the stage"
                ) from error
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

    def drop_damaged_checkpoints(self) -> list[str]:
        """Remove the newest checkpoints as far as they are damaged; a sentence on each. Reads the newest sound one."""
        sentences = []
        for path in reversed(self.checkpoints()):
            if (fault := fault_in(path)) is None:
                break
            shutil.rmtree(path)
            before = self.latest_checkpoint()
            instead = f"goes on from {before.name}" if before else "starts again"
            sentences.append(f"{fault}: that checkpoint was removed, stage {self.path.name!r} {instead}")
        return sentences

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


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


_STATE_REMEDY = (
    "put it back from a copy, or write {} into it: the next fbt-rl run fills it in again, without the times of the "
    "stages that are finished"
)


def missing_state(run_dir: Path) -> str:
    """The sentence on a run folder without ``run.json``."""
    return f"{RunFolder(run_dir).state_path} is missing: {_STATE_REMEDY}"


def config_digest(config: RunConfig) -> str:
    """Of ``config.yaml`` as the run writes it, to be kept in ``run.json``."""
    return hashlib.sha256(dump_config(config).encode()).hexdigest()


def no_checksums(stages: Iterable[str]) -> str:
    """A line on stages that cannot be checked."""
    return f"no checksums in stages {', '.join(stages)}: written by an older version; their files are not checked"


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
        """What ``run.json`` holds; nothing where there is none. Raises Damaged."""
        return read_sealed_json(self.state_path, _STATE_REMEDY) if self.state_path.is_file() else {}

    def write_state(self, state: dict[str, Any]) -> None:
        write_sealed_json(self.state_path, state)

    def read_config(self) -> RunConfig:
        """The run's resolved config. Raises Damaged where it or ``run.json`` is missing, damaged or changed."""
        remedy = (
            "give the run's command again, which writes it anew "
            f"(to keep a change of your own: fbt-rl run {self.config_path} --run-dir {self.path})"
        )
        if not self.state_path.is_file():
            raise Damaged(missing_state(self.path))
        if not self.config_path.is_file():
            raise Damaged(f"{self.config_path} is missing: {remedy}")
        if not self.holds_its_config():
            raise Damaged(f"{self.config_path} is not what the run wrote, but damaged or changed: {remedy}")
        try:
            return load_config(self.config_path)
        except ConfigError as error:
            raise Damaged(f"{self.config_path} cannot be used ({' '.join(str(error).split())}): {remedy}") from error

    def holds_its_config(self) -> bool:
        """Whether ``config.yaml`` is there and what the run wrote, as far as ``run.json`` knows."""
        digest = self.read_state().get("config_sha256")  # None: an older version's
        return self.config_path.is_file() and digest in (None, sha256_of(self.config_path))

    def verify_stages(self, names: Iterable[str]) -> list[str]:
        """Compare the files of the finished ones among the stages ``names``, but for their models', with their
        checksums. Returns those that have none, of an older version. Raises Damaged.
        """
        noted = self.read_state().get("stages", {})
        unchecked = []
        for name in names:
            folder = self.stage(name)
            # A kill can come between the checksums and the result; once run.json says finished, both were there.
            if folder.finished() or noted.get(name, {}).get("status") == "finished":
                folder.verify()
                if folder.finished() and not has_list(folder.path):
                    unchecked.append(name)
        return unchecked


# --- what a stage was made from -----------------------------------------------------------------


class Digests:
    """SHA-256 of files and folders; those known with the same size and time are not read again."""

    def __init__(self, known: Mapping[str, Any]):
        self.known = dict(known)  # absolute path -> {size, mtime_ns, sha256}

    def of(self, path: Path, kind: FileKind = "data") -> str:
        """Of a file's content, or of the names and contents of a folder's files; "missing" where there is none.

        Of ``code`` that imports modules beside it: of the names and contents of all of them.
        """
        path = path.expanduser().absolute()
        if kind == "code" and len(files := files_of(path)) > 1:
            parts = [f"{file.relative_to(path.parent)} {self.of(file)}" for file in sorted(files)]
            return hashlib.sha256("\n".join(parts).encode()).hexdigest()
        if path.is_dir():
            parts = [f"{file.relative_to(path)} {self.of(file)}" for file in sorted(path.rglob("*")) if file.is_file()]
            return hashlib.sha256("\n".join(parts).encode()).hexdigest()
        if not path.is_file():
            return "missing"
        found = path.stat()
        stamp = {"size": found.st_size, "mtime_ns": found.st_mtime_ns}
        entry = self.known.get(str(path), {})
        if {key: entry.get(key) for key in stamp} != stamp:
            entry = self.known[str(path)] = {**stamp, "sha256": sha256_of(path)}
        return entry["sha256"]


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """One line per changed value: ``dotted.key: before -> after``."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [*before, *(key for key in after if key not in before)]
        return [
            line
            for key in keys
            for line in differences(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            line for i, pair in enumerate(zip(before, after, strict=True)) for line in differences(*pair, f"{path}.{i}")
        ]
    return [] if before == after else [f"{path}: {_shown(before)} -> {_shown(after)}"]


def _shown(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, str) else value


@dataclass(frozen=True)
class StageContext:
    """What a stage's ``run(stage, context)`` gets beside its own settings."""

    config: RunConfig
    name: str
    folder: StageFolder
    source: Path | None  # model folder to start from; None: a new model
    # Has verdicts computed elsewhere on the cluster (fbt_rl.driver.cluster.remote_verdicts); None: by this process.
    grade_remotely: Remote | None = None
