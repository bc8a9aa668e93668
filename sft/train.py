"""Supervised fine-tuning on worked solutions, several passes throughout (METHOD 1.3)."""

from __future__ import annotations

from typing import cast

from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from fbt_rl.artifacts import StageContext
from fbt_rl.config import SFTStage
from fbt_rl.config.file import ConfigError
from fbt_rl.data.tasks import load_problems
from fbt_rl.data.tokenization import load_tokenizer
from fbt_rl.model import load_model
from fbt_rl.training.arguments import stage_seed, training_arguments
from fbt_rl.training.lora import adapter_config, check_adapters
from fbt_rl.training.objective_trainer import ObjectiveTrainer, note_data
from fbt_rl.training.rows import RowCollator
from sft.data import build_rows


class FineTuner(ObjectiveTrainer, SFTTrainer):
    """TRL's SFT trainer (adapters, offloading) with the multi-pass loss and the run folder's habits."""


def run(stage: SFTStage, context: StageContext) -> dict[str, float]:
    """Train, resuming from the newest checkpoint, and export model and tokenizer; returns the last metrics."""
    if context.source is None:
        raise ConfigError(f"stages.{context.name} tunes a model: put a training stage above it or set model.path")
    check_adapters(stage, context)
    arguments = training_arguments(
        stage,
        context,
        SFTConfig,
        max_length=None,  # the rows are made already
        packing=False,
        loss_type="nll",
    )
    tokenizer = load_tokenizer(context.source)
    model = load_model(context.source, attn_implementation=context.config.model.attn_implementation)
    problems = load_problems(stage.data, stage_seed(context), needs=("prompt", "completion"))
    rows, counts = build_rows(problems, tokenizer, stage.row_length)
    note_data(context, stage, counts)
    trainer = FineTuner(
        model,
        arguments,
        stage=stage,
        context=context,
        data_collator=RowCollator(stage.row_length, cast(int, tokenizer.pad_token_id)),
        train_dataset=rows,
        processing_class=tokenizer,
        peft_config=adapter_config(stage.lora, model) if stage.lora else None,
    )
    return trainer.fit()
