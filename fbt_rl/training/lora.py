"""Low-rank adapters by PEFT; the feedback module is trained whole."""

from __future__ import annotations

from typing import Any

from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from transformers import PreTrainedModel

from fbt_rl.config import LoraConfig
from fbt_rl.training.objective import has_feedback


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


def merged_model(model: PeftModel, weights: dict[str, Any]) -> PreTrainedModel:
    """A plain model with the adapters of ``weights`` (``model``'s full state) merged in.

    Built anew, because ``model``'s own parameters may be spread over the ranks.
    """
    base = model.get_base_model()
    fresh = get_peft_model(type(base)(base.config), model.peft_config["default"])
    fresh.load_state_dict(weights)
    return fresh.merge_and_unload()
