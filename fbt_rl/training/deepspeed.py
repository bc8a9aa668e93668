"""The one place that decides DeepSpeed's settings, and the process settings it needs.

Users never write a DeepSpeed file: batch sizes, clipping and precision come from the run's config,
so they cannot disagree. No torch is imported at module level: the settings can be checked on a
machine that only plans a run.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fbt_rl.config import DeepSpeedConfig, RLStage, RowsStage
from fbt_rl.config.file import ConfigError

if TYPE_CHECKING:
    from transformers import TrainingArguments

# Would put another optimiser, schedule or precision beside the run's own.
_NOT_IN_EXTRA = ("optimizer", "scheduler", "fp16", "amp")


@dataclass(frozen=True)
class BatchSplit:
    """How the rows of one optimiser step fall on ranks and micro-batches."""

    ranks: int
    micro_batch_rows: int
    accumulation: int


def split_batch(stage: RowsStage | RLStage, ranks: int) -> BatchSplit:
    """Divide a step's rows (RL: rollouts, in whole groups) over ``ranks``. Raises ConfigError where it cannot be."""
    if isinstance(stage, RLStage):
        rows, name = stage.prompts_per_step * stage.group_size, "prompts_per_step * group_size"
        if stage.prompts_per_step % ranks:
            raise ConfigError(
                f"prompts_per_step is {stage.prompts_per_step}, but each of {ranks} ranks needs whole groups of "
                f"{stage.group_size} rollouts; choose a multiple of {ranks}"
            )
    else:
        rows, name = stage.batch_rows, "batch_rows"
    if rows % ranks:
        raise ConfigError(f"{name} is {rows}, which does not divide over {ranks} ranks; choose a multiple of {ranks}")
    share = rows // ranks
    micro = stage.micro_batch_rows or share
    if share % micro:
        raise ConfigError(
            f"{name} {rows} over {ranks} ranks is {share} rows a rank, not a multiple of micro_batch_rows {micro}"
        )
    return BatchSplit(ranks, micro, share // micro)


def deepspeed_settings(config: DeepSpeedConfig, split: BatchSplit, max_grad_norm: float) -> dict[str, Any]:
    """DeepSpeed's JSON. ``config.extra`` is merged in; raises ConfigError where it contradicts the run's config."""
    zero: dict[str, Any] = {"stage": config.zero_stage}
    if config.zero_stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True  # also what gathers fp32 weights
    settings: dict[str, Any] = {
        "train_batch_size": split.ranks * split.micro_batch_rows * split.accumulation,
        "train_micro_batch_size_per_gpu": split.micro_batch_rows,
        "gradient_accumulation_steps": split.accumulation,
        "gradient_clipping": max_grad_norm,  # DeepSpeed clips at 1.0 where nothing is said
        "bf16": {"enabled": config.precision == "bf16"},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": None,
    }
    if config.offload_optimizer:
        if config.zero_stage == 0:
            raise ConfigError("deepspeed.offload_optimizer needs zero_stage 1, 2 or 3")
        zero["offload_optimizer"] = {"device": "cpu"}
        settings["zero_force_ds_cpu_optimizer"] = False  # keep torch's AdamW, which needs no compiler
    for name in _NOT_IN_EXTRA:
        if name in config.extra:
            raise ConfigError(
                f"deepspeed.extra may not set {name!r}: it is decided by the stage and deepspeed.precision"
            )
    _merge(settings, config.extra, "deepspeed.extra")
    return settings


def _merge(settings: dict[str, Any], extra: dict[str, Any], path: str) -> None:
    for key, value in extra.items():
        derived = settings.get(key)
        if isinstance(derived, dict) and isinstance(value, dict):
            _merge(derived, value, f"{path}.{key}")
        elif key in settings and derived != value:
            raise ConfigError(
                f"{path}.{key} is {value!r}, but the run's config makes it {derived!r}: change the setting it comes "
                "from (batch sizes, optimizer.max_grad_norm, deepspeed.*), or drop it from extra"
            )
        else:
            settings[key] = value


def prepare_environment(threads: int) -> None:
    """Settle what a training process needs before TrainingArguments are made. Harmless when repeated.

    A process started without a launcher becomes the only rank of its own group, which DeepSpeed
    would otherwise ask MPI for.
    """
    import torch

    if "WORLD_SIZE" not in os.environ:
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=_free_port())
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(threads)

    import deepspeed
    import deepspeed.ops
    from datasets.utils import disable_progress_bars
    from transformers.utils import logging as transformers_logging

    # An all-reduce for inference that is compiled (two minutes) whenever it is said to be compatible.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # type: ignore[attr-defined]
    if torch.distributed.is_initialized():
        # A group that the launcher made: DeepSpeed must know it before ZeRO-3 partitions weights as they are read.
        deepspeed.init_distributed(torch.distributed.get_backend())
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.")  # DeepSpeed's to mend
    if not sys.stderr.isatty():
        disable_progress_bars()
        transformers_logging.disable_progress_bar()


@contextmanager
def unpartitioned(arguments: TrainingArguments) -> Iterator[None]:
    """Make a model of random weights whole on every rank, also under ZeRO-3.

    Partitioned from the start, its weights would be drawn in another order: the same seed gives the
    same model at every stage only this way.
    """
    from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(arguments.hf_deepspeed_config)


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
