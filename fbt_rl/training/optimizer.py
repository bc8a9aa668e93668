"""The optimiser and its parameter groups."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import AdamW
from transformers import PreTrainedModel

from fbt_rl.config import OptimizerConfig
from fbt_rl.training.normuon import Blocks, MatrixOptimizer
from fbt_rl.training.zero_layout import full_shape

logger = logging.getLogger(__name__)

Parameters = dict[str, nn.Parameter]

_HEAD_GATE = "head_gate.weight"

# Rows of a fused projection are the outputs of several: each is a matrix of its own.
_FUSED_GLU = ("gate_up_proj",)
_FUSED_QKV = ("qkv_proj", "query_key_value")


def parameter_groups(model: PreTrainedModel) -> tuple[Parameters, Parameters]:
    """The trainable parameters, by name: (matrices, others); each is in exactly one.

    Matrices are two-dimensional weights, the feedback's W_U and W_G too. Others are embeddings, the
    LM head (tied or not), norms, biases and the head-wise attention gates.
    """
    tables: list[Any] = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    apart = {id(table.weight) for table in [*tables, model.get_output_embeddings()]}
    matrices, others = {}, {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            matrix = len(full_shape(parameter)) == 2 and id(parameter) not in apart and not name.endswith(_HEAD_GATE)
            (matrices if matrix else others)[name] = parameter
    return matrices, others


def matrix_blocks(name: str, parameter: nn.Parameter, config: Any) -> Blocks:
    """The rows of each block of a matrix: one, but for fused q, k, v and fused GLU projections of foreign decoders.

    ``config`` is the text model's.
    """
    rows, module = full_shape(parameter)[0], name.split(".")[-2]
    if module in _FUSED_GLU:
        return (rows // 2, rows // 2)
    if module in _FUSED_QKV:
        heads = config.num_attention_heads
        key_heads = getattr(config, "num_key_value_heads", heads)
        width = rows // (heads + 2 * key_heads)
        return (heads * width, key_heads * width, key_heads * width)
    return (rows,)


def build_optimizer(
    model: PreTrainedModel, config: OptimizerConfig, engine_optimizer: Callable[[], Any] | None = None
) -> AdamW:
    """torch's AdamW (DeepSpeed's own needs a compiler at first use), or NorMuon for matrices and Adam for others.

    ``engine_optimizer``: gives DeepSpeed's optimiser, None before it is made; NorMuon reads from it how ZeRO has cut
    the matrices.
    """
    matrices, others = parameter_groups(model)
    for kind, group in (("matrices", matrices), ("others", others)):
        sizes = [math.prod(full_shape(parameter)) for parameter in group.values()]
        logger.info("%s: %d %s, %d parameters: %s", config.name, len(group), kind, sum(sizes), ", ".join(group))
    if config.adam_learning_rate is not None:  # normuon
        return MatrixOptimizer(
            list(matrices.values()),
            list(others.values()),
            blocks=[matrix_blocks(name, matrix, model.config.get_text_config()) for name, matrix in matrices.items()],
            learning_rate=config.learning_rate,
            adam_learning_rate=config.adam_learning_rate,
            betas=config.normuon_betas,
            weight_decay=config.weight_decay,
            adam_betas=config.betas,
            engine_optimizer=engine_optimizer,
        )
    groups = [
        {"params": list(matrices.values()), "weight_decay": config.weight_decay},
        {"params": list(others.values()), "weight_decay": 0.0},
    ]
    return AdamW([group for group in groups if group["params"]], lr=config.learning_rate, betas=config.betas)
