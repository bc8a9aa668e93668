"""The policy's weights where ZeRO-3 has spread them over the ranks: whole for decoding, and the norms of some."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from trl.models.utils import unwrap_model_for_generation


@contextmanager
def whole_weights(engine: Any, accelerator: Any) -> Iterator[None]:
    """Under ZeRO-3: weights gathered once, no hook that talks to other ranks (some decode longer than others)."""
    plugin = accelerator.state.deepspeed_plugin
    if plugin is None or plugin.zero_stage != 3:
        yield
        return
    with unwrap_model_for_generation(engine, accelerator):
        # DeepSpeed compares the order of modules over ranks; TRL leaves that one.
        hooks = engine.module._forward_pre_hooks
        removed = dict(hooks)
        hooks.clear()
        try:
            yield
        finally:
            hooks.update(removed)


def feedback_norms(policy: nn.Module, distribution: Any) -> dict[str, float]:
    """Frobenius norms of the feedback's matrices that are trained: W_U is ``value``, W_G ``gate``.

    ``distribution`` is TRL's, which gathers parameters where they are spread.
    """
    matrices = {
        name.split(".")[-2].removesuffix("_proj"): parameter
        for name, parameter in policy.named_parameters()
        if "feedback" in name and parameter.requires_grad
    }
    with distribution.gather_params(list(matrices.values())):
        return {f"norm_{name}": matrix.detach().norm().item() for name, matrix in matrices.items()}
