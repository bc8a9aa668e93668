"""Going on with another number of ranks, by DeepSpeed's universal checkpoints."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from transformers import TrainingArguments


def resharded(checkpoint: Path) -> Path:
    """Where :func:`reshard` writes: beside ``checkpoint``, hidden, removed with the older checkpoints."""
    return checkpoint.with_name(f".{checkpoint.name}.universal")


def reshard(checkpoint: Path) -> None:
    """Rewrite a checkpoint of ZeRO stage 1 or 2 so that any number of ranks can read it after :func:`load_universal`.

    Raises RuntimeError with DeepSpeed's words.
    """
    target = resharded(checkpoint)
    shutil.rmtree(target, ignore_errors=True)
    [engine_state] = checkpoint.glob("global_step*")
    shutil.copytree(checkpoint, target, ignore=shutil.ignore_patterns("global_step*"))
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    command += ["--input_folder", str(engine_state), "--output_folder", str(target / engine_state.name)]
    command += ["--num_extract_workers", "1", "--num_merge_workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(target, ignore_errors=True)
        raise RuntimeError(f"could not convert {checkpoint} for another number of ranks: {done.stderr.strip()[-500:]}")
    (target / "latest_universal").write_text(engine_state.name)


def load_universal(arguments: TrainingArguments) -> None:
    """Have DeepSpeed read the universal format when it loads a checkpoint."""
    arguments.deepspeed_plugin.deepspeed_config["checkpoint"] = {"load_universal": True}  # type: ignore[union-attr]
