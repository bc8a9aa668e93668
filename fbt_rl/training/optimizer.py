"""The optimiser and its parameter groups."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW

from fbt_rl.config import OptimizerConfig


def parameter_groups(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """The trainable parameters, by name: (decayed, not decayed); each is in exactly one.

    Matrices decay, the feedback's too. Embeddings (with the tied head), norms, biases and other
    vectors do not.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decayed, plain = {}, {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            # Under ZeRO-3 a parameter is a placeholder whose true shape is kept beside it.
            dims = len(getattr(parameter, "ds_shape", parameter.shape))
            (decayed if dims >= 2 and id(parameter) not in embeddings else plain)[name] = parameter
    return decayed, plain


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> AdamW:
    """torch's AdamW: DeepSpeed's own needs a compiler at first use."""
    decayed, plain = parameter_groups(model)
    groups = [
        {"params": list(decayed.values()), "weight_decay": config.weight_decay},
        {"params": list(plain.values()), "weight_decay": 0.0},
    ]
    return AdamW([group for group in groups if group["params"]], lr=config.learning_rate, betas=config.betas)
