"""Low-rank adapters by PEFT; the feedback module is trained whole."""

from __future__ import annotations

from typing import Any

from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from transformers import PreTrainedModel, TrainingArguments

from fbt_rl.artifacts import StageContext
from fbt_rl.config import LoraConfig, RLStage, SFTStage
from fbt_rl.config.file import ConfigError
from fbt_rl.training.deepspeed import unpartitioned
from fbt_rl.training.objective import has_feedback


def check_adapters(stage: SFTStage | RLStage, context: StageContext) -> None:
    """Raises ConfigError for the one set of features that adapters cannot be combined with."""
    if stage.lora is not None and stage.gradient_checkpointing and context.config.deepspeed.zero_stage == 3:
        raise ConfigError(
            f"stages.{context.name}: with lora and ZeRO stage 3, TRL needs a kind of gradient checkpointing that "
            "several passes do not survive; turn one of the three off"
        )


def adapter_config(lora: LoraConfig, model: PreTrainedModel) -> PeftLoraConfig:
    """PEFT's configuration of the run's ``lora`` section for ``model``."""
    feedback = has_feedback(model)
    return PeftLoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        exclude_modules=r".*\.feedback\..*" if feedback else None,  # it has a gate_proj too
        modules_to_save=["feedback"] if feedback else None,
        task_type="CAUSAL_LM",
    )


def merged_model(model: PeftModel, weights: dict[str, Any], arguments: TrainingArguments) -> PreTrainedModel:
    """A plain model with the adapters of ``weights`` (``model``'s full state) merged in.

    Built anew, because ``model``'s own parameters may be spread over the ranks.
    """
    base: Any = model.get_base_model()
    with unpartitioned(arguments):
        fresh: Any = get_peft_model(type(base)(base.config), model.peft_config["default"])
    loaded = fresh.load_state_dict(weights, strict=False)
    tied = tuple(base.all_tied_weights_keys)  # ZeRO-3 gathers a shared weight once
    absent = [name for name in loaded.missing_keys if not (tied and name.endswith(tied))]
    if absent or loaded.unexpected_keys:
        raise RuntimeError(f"adapters cannot be merged: missing {absent}, unexpected {loaded.unexpected_keys}")
    return fresh.merge_and_unload()
