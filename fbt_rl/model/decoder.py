"""The paper's decoder (METHOD 1.4; Wang et al. 2026, section on the 1B model).

Legend: B batch, T positions, D hidden width, H query heads, J key/value heads, E head dimension.

A block is ``x + s * norm(branch(norm(x)))`` for attention and for the SiLU-GLU, with ``s = 1/sqrt(2L)``, so that
the residual stream keeps a norm of O(1) at any depth. Attention has grouped queries, RMSNorm on every query and
key head before RoPE, and one sigmoid gate a head on its output. A final RMSNorm gives the top state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import create_masks_for_generate
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from fbt_rl.model.configuration import FBTTextConfig

Rotation = tuple[Tensor, Tensor]  # cos and sign-folded sin, each (B or 1, T, 1, E)


def rotary_tables(position_ids: Tensor, theta: float, head_dim: int, dtype: torch.dtype) -> Rotation:
    """RoPE's cosines and sines of ``position_ids`` (B, T), each (B, T, 1, E).

    The sines carry the minus sign of the rotation's first half, see :func:`rotate`.
    """
    wide = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, head_dim, 2, device=position_ids.device, dtype=wide) / head_dim
    angles = position_ids[..., None].to(wide) * theta**-exponent
    cos, sin = angles.cos(), angles.sin()
    cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return cos.to(dtype)[..., None, :], sin.to(dtype)[..., None, :]


def rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """Turn ``heads`` (B, T, any, E) by RoPE, halves paired: three kernels, as launches dominate at small widths."""
    cos, sin = rotation
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, dims=-1), sin)


class FBTAttention(nn.Module):
    """Grouped-query attention with QK norm and a head-wise output gate."""

    is_causal = True

    def __init__(self, config: FBTTextConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.scaling = config.head_dim**-0.5
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        sliding = config.layer_types[layer_idx] == "sliding_attention"
        self.sliding_window = config.sliding_window if sliding else None

        query_width = config.num_attention_heads * config.head_dim
        key_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)
        self.head_gate = (
            nn.Linear(config.hidden_size, config.num_attention_heads, bias=False) if config.head_gate else None
        )
        self.q_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()

    def forward(
        self,
        hidden_states: Tensor,
        rotation: Rotation,
        attention_mask: Tensor | None,
        cache: Cache | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """``hidden_states`` (B, T, D), normed -> ((B, T, D), attention weights where the backend gives them)."""
        heads_shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = rotate(self.q_norm(self.q_proj(hidden_states).view(heads_shape)), rotation).transpose(1, 2)
        key = rotate(self.k_norm(self.k_proj(hidden_states).view(heads_shape)), rotation).transpose(1, 2)
        value = self.v_proj(hidden_states).view(heads_shape).transpose(1, 2)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx, kwargs=kwargs)

        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation or "eager", eager_attention_forward
        )
        output, weights = attend(
            self, query, key, value, attention_mask,
            dropout=0.0, scaling=self.scaling, sliding_window=self.sliding_window, **kwargs,
        )  # fmt: skip
        if self.head_gate is not None:
            output = output * self.head_gate(hidden_states).sigmoid()[..., None]  # (B, T, H, E)
        return self.o_proj(output.flatten(-2)), weights


class FBTMLP(nn.Module):
    """SiLU-GLU."""

    def __init__(self, config: FBTTextConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(hidden_states)) * self.up_proj(hidden_states))


class FBTDecoderLayer(GradientCheckpointingLayer):
    """One block: both residual branches normed before and after and scaled by depth."""

    def __init__(self, config: FBTTextConfig, layer_idx: int) -> None:
        super().__init__()
        self.branch_scale = (2 * config.num_hidden_layers) ** -0.5 if config.depth_scaling else 1.0
        self.self_attn = FBTAttention(config, layer_idx)
        self.mlp = FBTMLP(config)
        self.pre_attention_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.pre_mlp_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_mlp_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden_states: Tensor, **attention: Any) -> Tensor:
        branch, _ = self.self_attn(self.pre_attention_norm(hidden_states), **attention)
        hidden_states = torch.add(hidden_states, self.post_attention_norm(branch), alpha=self.branch_scale)
        branch = self.mlp(self.pre_mlp_norm(hidden_states))
        return torch.add(hidden_states, self.post_mlp_norm(branch), alpha=self.branch_scale)


class FBTTextPreTrainedModel(PreTrainedModel):
    config_class = FBTTextConfig
    config: FBTTextConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["FBTDecoderLayer"]  # noqa: RUF012 (transformers' declared class attributes)
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": FBTDecoderLayer, "attentions": FBTAttention}  # noqa: RUF012


class FBTTextModel(FBTTextPreTrainedModel):
    """Embedding, blocks and final norm; no LM head and no feedback."""

    def __init__(self, config: FBTTextConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(FBTDecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | dict[str, Any] | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Run the stack over ``input_ids`` (B, T) or ``inputs_embeds`` (B, T, D).

        ``attention_mask`` is (B, T_total), or the masks by layer type where a caller has made them already.
        Rows packed with several documents have ``position_ids`` that restart and no ``attention_mask``.

        Raises:
            ValueError: not exactly one of ``input_ids`` and ``inputs_embeds``.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        hidden_states = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            start = cache.get_seq_length() if cache is not None else 0
            position_ids = (torch.arange(hidden_states.shape[1], device=hidden_states.device) + start)[None]
        # Made before a new cache exists: with one, transformers does not look for packed documents.
        masks: Any = attention_mask
        if not isinstance(masks, dict):
            masks = create_masks_for_generate(self.config, hidden_states, masks, cache, position_ids)
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)

        rotations = {
            theta: rotary_tables(position_ids, theta, self.config.head_dim, hidden_states.dtype)
            for theta in {self.config.rope_theta, self.config.rope_theta_full}
        }
        for layer, layer_type in zip(self.layers, self.config.layer_types, strict=True):
            theta = self.config.rope_theta_full if layer_type == "full_attention" else self.config.rope_theta
            hidden_states = layer(
                hidden_states,
                rotation=rotations[theta],
                attention_mask=masks[layer_type],
                position_ids=position_ids,  # read by the flash-attention backends
                cache=cache,
                use_cache=use_cache,
                **kwargs,
            )
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden_states), cache=cache if use_cache else None)
