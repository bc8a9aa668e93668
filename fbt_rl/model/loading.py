"""Loading a causal language model, with or without latent feedback, from a local folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel

from fbt_rl.integrity import read_json, verify
from fbt_rl.model.backbone import note_unchecked
from fbt_rl.model.configuration import FBTConfig


def load_model(
    folder: str | Path, dtype: str | torch.dtype = "float32", attn_implementation: str | None = None
) -> PreTrainedModel:
    """The model saved in ``folder``, in evaluation mode; never looks on a hub.

    Raises:
        ValueError: ``folder`` is no model folder, of an unknown kind, damaged, or its weights are incomplete.
    """
    folder = Path(folder)
    verify(folder)
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{folder} is not a model folder: it has no config.json. "
            "Give a folder written by save_pretrained, such as a stage's model/"
        )
    own = read_json(folder / "config.json").get("model_type") == FBTConfig.model_type
    if own:
        note_unchecked(folder)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=attn_implementation,
            local_files_only=True,
            output_loading_info=True,
            **({"checked": True} if own else {}),
        )
    except (OSError, ValueError, RuntimeError, StrictDataclassError, SafetensorError) as error:
        raise ValueError(f"cannot load a causal language model from {folder}: {error}") from error
    model, info = loaded
    # transformers would fill gaps with random numbers and only warn.
    wrong = {kind: sorted(map(str, info[kind])) for kind in ("missing_keys", "mismatched_keys") if info.get(kind)}
    if wrong:
        raise ValueError(f"the weights in {folder} do not fit its config.json: {wrong}")
    return model.eval()


def is_fbt(model: torch.nn.Module) -> bool:
    """Whether ``model`` (or what PEFT or an engine wraps) has latent feedback, and with it soft and fused modes."""
    config = getattr(model, "config", None)
    return isinstance(config, FBTConfig) and config.fusion != "none"
