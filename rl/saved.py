"""A batch of rollouts on disk, so that sampling and training can each be run alone.

``only_rollouts`` ends a stage with ``<stage>/batch/``: one ``rank-*.safetensors`` for each rank, and
``batch.json``, written last, with how it was sampled. ``saved_batch`` trains on such a folder: the losses are
those of a stage that sampled the batch itself, bit for bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from fbt_rl.artifacts import StageContext, read_json, write_json
from fbt_rl.config import RLStage
from fbt_rl.config.file import ConfigError
from fbt_rl.driver.inputs import Digests, differences
from fbt_rl.training.trainer import barrier
from rl.rollout import Batch

FACTS = "batch.json"


class BatchSaved(Exception):
    """The batch that was asked for is written; there is nothing more to do."""

    def __init__(self, metrics: dict[str, float]):
        super().__init__("only_rollouts: the batch is saved")
        self.metrics = metrics


def save_batch(context: StageContext, batch: Batch, metrics: dict[str, float], rank: int, ranks: int) -> None:
    """Write this rank's part, and once all have theirs, how the batch was sampled and its ``metrics``."""
    folder = context.folder.batch_dir
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: values.detach().cpu().contiguous() for name, values in batch.items()}
    save_file(tensors, folder / _part(rank))
    barrier()
    if rank == 0:
        write_json(folder / FACTS, {"sampled": sampled_with(context, ranks), "metrics": metrics})
    barrier()


def load_batch(folder: Path, rank: int, device: torch.device) -> tuple[Batch, dict[str, float]]:
    """This rank's part on ``device``, its latents on the host, and the metrics of the batch."""
    batch = load_file(folder / _part(rank))
    batch = {name: values if name == "latents" else values.to(device) for name, values in batch.items()}
    return batch, read_json(folder / FACTS)["metrics"]


def check_batch(folder: Path, context: StageContext, ranks: int) -> None:
    """Raises ConfigError if the batch was sampled by another model, in another way or on other ranks."""
    found = differences(read_json(folder / FACTS)["sampled"], sampled_with(context, ranks))
    if found:
        raise ConfigError(
            f"stages.{context.name}.saved_batch: {folder} was not sampled as this stage would (saved -> now): "
            + "; ".join(found)
        )


def sampled_with(context: StageContext, ranks: int) -> dict[str, Any]:
    """What a batch's log-probs, latents and shape hang on."""
    stage = context.config.stages[context.name]
    assert isinstance(stage, RLStage)
    assert context.source is not None
    names = ("mode", "temperature", "max_new_tokens", "prompts_per_step", "group_size", "latents")
    return {
        **{name: getattr(stage, name) for name in names},
        "precision": context.config.deepspeed.precision,
        "model": Digests({}).of(context.source),
        "ranks": ranks,
    }


def _part(rank: int) -> str:
    return f"rank-{rank}.safetensors"
