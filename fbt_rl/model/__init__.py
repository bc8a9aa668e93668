"""The full-bandwidth transformer for transformers: importing this package registers it with the Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from fbt_rl.model.backbone import FBTModel, FBTModelOutput
from fbt_rl.model.causal_lm import FBTCausalLMOutput, FBTForCausalLM
from fbt_rl.model.configuration import FBTConfig, FBTTextConfig, from_model_config
from fbt_rl.model.decoder import FBTTextModel
from fbt_rl.model.loading import is_fbt, load_model

AutoConfig.register("fbt_text", FBTTextConfig)
AutoConfig.register("fbt", FBTConfig)
AutoModel.register(FBTTextConfig, FBTTextModel)
AutoModel.register(FBTConfig, FBTModel)
AutoModelForCausalLM.register(FBTConfig, FBTForCausalLM)

__all__ = [
    "FBTCausalLMOutput",
    "FBTConfig",
    "FBTForCausalLM",
    "FBTModel",
    "FBTModelOutput",
    "FBTTextConfig",
    "FBTTextModel",
    "from_model_config",
    "is_fbt",
    "load_model",
]
