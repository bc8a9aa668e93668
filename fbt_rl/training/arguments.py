"""TrainingArguments of every training stage, derived in one place from the run's config."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any, TypeVar

import torch
from transformers import TrainingArguments

from fbt_rl.artifacts import StageContext
from fbt_rl.config import RLStage, RowsStage
from fbt_rl.training.deepspeed import deepspeed_settings, prepare_environment, split_batch

Arguments = TypeVar("Arguments", bound=TrainingArguments)


def stage_seed(context: StageContext) -> int:
    """The seed of one stage, below 2**32: stages of a run draw different data, order and noise.

    Unless they share a ``seed`` of their own, as arms that are to be compared do.
    """
    own = context.config.stages[context.name].seed
    key = context.name if own is None else own
    digest = hashlib.blake2b(f"{context.config.seed}/{key}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


def training_arguments(
    stage: RowsStage | RLStage,
    context: StageContext,
    kind: type[Arguments] = TrainingArguments,
    **extra: Any,
) -> Arguments:
    """Prepare the process and derive the arguments of ``kind`` (TRL's configs as well).

    Made before the model is loaded, so that under ZeRO-3 the weights are partitioned as they are
    read. ``extra`` is for fields that only ``kind`` has. Raises ConfigError.
    """
    config = context.config
    prepare_environment(config.resources.threads)
    split = split_batch(stage, int(os.environ["WORLD_SIZE"]))
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(context.folder.path / "tensorboard")
    os.environ.setdefault("WANDB_PROJECT", "fbt-rl")
    seed = stage_seed(context)
    return kind(
        output_dir=str(context.folder.path),
        max_steps=stage.steps,
        per_device_train_batch_size=split.micro_batch_rows,
        gradient_accumulation_steps=split.accumulation,
        average_tokens_across_devices=True,
        learning_rate=stage.optimizer.learning_rate,
        max_grad_norm=stage.optimizer.max_grad_norm,
        deepspeed=deepspeed_settings(config.deepspeed, split, stage.optimizer.max_grad_norm),
        use_cpu=not torch.cuda.is_available(),
        bf16=config.deepspeed.precision == "bf16",
        activation_checkpointing=stage.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},  # reentrant fails with several passes
        seed=seed,
        data_seed=seed,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_steps=stage.log_every,
        logging_nan_inf_filter=False,  # a loss that is not finite stops the run instead
        save_strategy="steps",
        save_steps=stage.checkpoint_every,
        report_to=["tensorboard", *config.trackers],
        run_name=f"{config.name}/{context.name}",
        project="fbt-rl",
        push_to_hub=False,
        disable_tqdm=not sys.stderr.isatty(),
        **extra,
    )
