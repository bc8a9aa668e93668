"""Pretraining, and its continuation on longer rows (extension): METHOD 1.3, 1.4."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments, set_seed

from fbt_rl.artifacts import StageContext
from fbt_rl.config import ExtendStage, PretrainStage
from fbt_rl.config.file import ConfigError
from fbt_rl.data.tokenization import build_tokenizer, load_tokenizer
from fbt_rl.model import FBTForCausalLM, from_model_config, load_model
from fbt_rl.training.arguments import stage_seed, training_arguments
from fbt_rl.training.deepspeed import unpartitioned
from fbt_rl.training.objective_trainer import ObjectiveTrainer, note_data
from fbt_rl.training.rows import RowCollator
from fbt_rl.training.trainer import barrier
from pretrain.data import build_rows, read_documents


def run(stage: PretrainStage | ExtendStage, context: StageContext) -> dict[str, float]:
    """Train, resuming from the newest checkpoint, and export model and tokenizer; returns the last metrics."""
    arguments = training_arguments(stage, context)
    seed = stage_seed(context)
    documents = read_documents(stage.data, seed)
    tokenizer = _tokenizer(context, documents["text"], arguments)
    model = _model(stage, context, tokenizer, arguments)
    rows, counts = build_rows(documents, tokenizer, stage.row_length)
    note_data(context, stage, counts)
    trainer = ObjectiveTrainer(
        model,
        arguments,
        stage=stage,
        context=context,
        data_collator=RowCollator(stage.row_length, cast(int, tokenizer.pad_token_id)),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    return trainer.fit()


def _tokenizer(
    context: StageContext, documents: Iterable[str], arguments: TrainingArguments
) -> PreTrainedTokenizerBase:
    """The source model's, or one built from the documents: once, by the first rank, and kept for a resumed run."""
    if context.source is not None:
        return load_tokenizer(context.source)
    folder = context.folder.path / "tokenizer"
    if arguments.process_index == 0 and not folder.is_dir():
        temporary = folder.with_name(".tokenizer.tmp")
        build_tokenizer(context.config.tokenizer, documents).save_pretrained(temporary)
        temporary.rename(folder)
    barrier()
    return load_tokenizer(folder)


def _model(
    stage: PretrainStage | ExtendStage,
    context: StageContext,
    tokenizer: PreTrainedTokenizerBase,
    arguments: TrainingArguments,
) -> PreTrainedModel:
    if isinstance(stage, ExtendStage):
        if context.source is None:
            raise ConfigError(f"stages.{context.name} extends a model: put a training stage above it or set model.path")
        model = load_model(context.source, attn_implementation=context.config.model.attn_implementation)
        return _extended(model, stage)
    set_seed(stage_seed(context))
    token_ids = {name: cast(int, getattr(tokenizer, name)) for name in ("pad_token_id", "eos_token_id")}
    config = from_model_config(context.config.model, len(tokenizer), **token_ids)
    with unpartitioned(arguments):
        return FBTForCausalLM(config)


def _extended(model: PreTrainedModel, stage: ExtendStage) -> PreTrainedModel:
    """Raise the context length and the RoPE base of the full-attention layers (read on every forward)."""
    config = model.config.get_text_config()
    if not hasattr(config, "rope_theta_full"):
        raise ConfigError(
            f"an extend stage sets rope_theta_full, which a {config.model_type!r} decoder does not have; "
            "it works on models made by a pretrain stage"
        )
    config.rope_theta_full = stage.rope_theta_full
    config.max_position_embeddings = max(config.max_position_embeddings, stage.row_length)
    return model
