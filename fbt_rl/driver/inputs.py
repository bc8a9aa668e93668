"""What a stage's result depends on, as plain values with a hash: the ground for skip or refuse.

A stage depends on its own settings, the seed, the model, tokenizer and DeepSpeed sections, the
content of every file it reads, and its source stage's inputs. It does not depend on where files
lie, on how often something is logged or saved, nor on how the work is divided (``resources``,
micro-batches, gradient checkpointing): those change a result by rounding at most.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from fbt_rl.config import RunConfig
from fbt_rl.config.file import parse_config

FileKind = Literal["data", "model", "tokenizer", "code"]

# Settings of a stage that do not change what it computes.
NEUTRAL = {
    "checkpoint_every",
    "keep_checkpoints",
    "log_every",
    "save_rollouts_every",
    "probe_every",
    "limits",
    "micro_batch_rows",
    "gradient_checkpointing",
    "batch_size",  # of evaluation: rows are decoded independently of each other
    "init_from",  # replaced by the source's hash
}


def map_files(config: RunConfig, change: Callable[[str, FileKind], str]) -> RunConfig:
    """The same config with every path of a file or folder that it names passed through ``change``.

    Of a reward given as ``file.py:function`` the file is passed, as kind ``code``.
    """
    values = config.model_dump(mode="json")
    for kind in ("model", "tokenizer"):
        if values[kind]["path"] is not None:
            values[kind]["path"] = change(values[kind]["path"], kind)
    for stage in values["stages"].values():
        data, guard = stage["data"], stage.get("guard")
        for part in [*(data if isinstance(data, list) else [data]), *([guard["data"]] if guard else [])]:
            if part["kind"] == "files":
                for key in ("paths", "shots_paths"):
                    part[key] = [change(path, "data") for path in part[key]]
        if stage.get("saved_batch") is not None:
            stage["saved_batch"] = change(stage["saved_batch"], "data")
        for part in [*stage.get("rewards", []), stage.get("reward"), stage.get("length")]:
            path, sign, function = part["use"].rpartition(":") if part else ("", "", "")
            if path.endswith(".py"):
                part["use"] = f"{change(path, 'code')}{sign}{function}"
    return parse_config(values)


def absolute_paths(config: RunConfig) -> RunConfig:
    """For workers, whose working folder may be another."""
    return map_files(config, lambda path, kind: str(Path(path).expanduser().absolute()))


class Digests:
    """SHA-256 of files and folders; those known with the same size and time are not read again."""

    def __init__(self, known: Mapping[str, Any]):
        self.known = dict(known)  # absolute path -> {size, mtime_ns, sha256}

    def of(self, path: Path) -> str:
        """Of a file's content, or of the names and contents of a folder's files; "missing" where there is none."""
        path = path.expanduser().absolute()
        if path.is_dir():
            parts = [f"{file.relative_to(path)} {self.of(file)}" for file in sorted(path.rglob("*")) if file.is_file()]
            return hashlib.sha256("\n".join(parts).encode()).hexdigest()
        if not path.is_file():
            return "missing"
        found = path.stat()
        stamp = {"size": found.st_size, "mtime_ns": found.st_mtime_ns}
        entry = self.known.get(str(path), {})
        if {key: entry.get(key) for key in stamp} != stamp:
            with path.open("rb") as file:
                entry = {**stamp, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
            self.known[str(path)] = entry
        return entry["sha256"]


def stage_inputs(config: RunConfig, digests: Digests) -> dict[str, dict[str, Any]]:
    """What each stage's result depends on, as nested plain values; stage name -> inputs.

    A file is written ``name@digest``, a source ``stage@hash``, so a moved file is the same input.
    """
    named = map_files(config, lambda path, kind: f"{Path(path).name}@{digests.of(Path(path))[:12]}")
    values = named.model_dump(mode="json")
    inputs: dict[str, dict[str, Any]] = {}
    for name, stage in values["stages"].items():
        source = config.source_of(name)
        of_run = (
            ("seed", "model", "tokenizer") if stage["kind"] == "eval" else ("seed", "model", "tokenizer", "deepspeed")
        )
        inputs[name] = {
            **{key: values[key] for key in of_run},
            "stages": {name: {key: value for key, value in stage.items() if key not in NEUTRAL}},
            "source": source and f"{source}@{input_hash(inputs[source])[:12]}",
        }
    return inputs


def input_hash(inputs: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


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
