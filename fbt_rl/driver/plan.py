"""What is to be done about each stage of a run: run, resume, skip, or refuse the whole run.

A stage's folder says in ``stage.json`` what it was made from; that is compared with what the config
says now (:mod:`fbt_rl.driver.inputs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fbt_rl.artifacts import RunFolder, read_json
from fbt_rl.config import RunConfig
from fbt_rl.driver.inputs import Digests, differences, stage_inputs

Action = Literal["run", "resume", "skip", "refuse"]
_WORDS = {"run": "run", "resume": "go on from its checkpoint", "skip": "finished, skip", "refuse": "REFUSE: changed"}


class RunRefused(ValueError):
    """The run folder holds work that does not fit the config; the message says which keys differ."""


@dataclass(frozen=True)
class PlannedStage:
    """What is to be done about one stage, and why."""

    name: str
    kind: str
    action: Action
    inputs: dict[str, Any]
    changes: list[str]  # "key: before -> after", where the folder was made from other inputs


def plan(config: RunConfig, run_dir: Path, digests: Digests) -> list[PlannedStage]:
    """Decide about every stage.

    Work of other inputs that is finished or has a checkpoint is refused; less than that is redone.
    """
    planned = []
    for name, inputs in stage_inputs(config, digests).items():
        folder = RunFolder(run_dir).stage(name)
        changes = differences(read_json(folder.stage_json)["inputs"], inputs) if folder.stage_json.is_file() else []
        action: Action = "skip" if folder.finished() else "resume" if folder.latest_checkpoint() else "run"
        if changes and action != "run":
            action = "refuse"
        planned.append(PlannedStage(name, config.stages[name].kind, action, inputs, changes))
    return planned


def known_digests(config: RunConfig, run_dir: Path) -> Digests:
    """With what the run folder remembers of the files its stages were made from."""
    known: dict[str, Any] = {}
    for name in config.stages:
        path = RunFolder(run_dir).stage(name).stage_json
        if path.is_file():
            known.update(read_json(path)["files"])
    return Digests(known)


def describe_plan(planned: Sequence[PlannedStage]) -> str:
    """One line a stage."""
    width = max(len(stage.name) for stage in planned)
    return "\n".join(f"  {stage.name:<{width}}  {stage.kind:<8}  {_WORDS[stage.action]}" for stage in planned)


def check_folder(run_dir: Path) -> None:
    """Raise :class:`RunRefused` for a folder that holds something else than a run."""
    if run_dir.exists() and not RunFolder(run_dir).state_path.is_file():
        if not run_dir.is_dir():
            raise RunRefused(f"{run_dir} is not a folder: choose another --run-dir")
        if others := sorted(path.name for path in run_dir.iterdir() if not path.name.startswith(".")):
            raise RunRefused(
                f"{run_dir} is not a run folder (it holds {', '.join(others[:3])}): choose another --run-dir"
            )


def check_plan(planned: Sequence[PlannedStage], run_dir: Path) -> None:
    """Raise :class:`RunRefused` for the first stage to be refused; those after it often change with it."""
    for stage in planned:
        if stage.action == "refuse":
            state = "finished" if RunFolder(run_dir).stage(stage.name).finished() else "half done"
            changes = "\n".join(f"  {change}" for change in stage.changes)
            raise RunRefused(
                f"{run_dir} belongs to another config: stage {stage.name!r} is {state}, and since then changed\n"
                f"{changes}\nPut it back, choose another --run-dir, or start over with --fresh (the old one is kept)."
            )


def check_worker_count(planned: Sequence[PlannedStage], run_dir: Path, workers: int) -> None:
    """A training checkpoint holds one part per rank: raise :class:`RunRefused` where their number changed."""
    for stage in planned:
        folder = RunFolder(run_dir).stage(stage.name)
        if stage.action == "resume" and (before := read_json(folder.stage_json)["workers"]) != workers:
            raise RunRefused(
                f"stage {stage.name!r} is half done by {before} workers, now there would be {workers}: "
                f"set resources.workers={before}, or remove {folder.path} to start the stage again"
            )
