"""Configurations of the full-bandwidth transformer (Wang et al. 2026, arXiv 2608.08888).

``FBTTextConfig`` is the paper's decoder; ``FBTConfig`` is the whole: any decoder-only text configuration that
takes ``inputs_embeds``, plus the latent feedback that sits outside it.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from fbt_rl.config import ModelConfig

Fusion = Literal["gate", "concat", "add", "none"]


@strict
class FBTTextConfig(PreTrainedConfig):
    """The paper's decoder; the defaults are its 1B model at 8K context.

    Every ``full_attention_interval``-th layer attends to everything, the others to the last
    ``sliding_window`` tokens; ``layer_types`` spells that out and wins where both are given. ``head_dim`` 0 stands
    for ``hidden_size // num_attention_heads``.
    ``rope_theta_full`` is the RoPE base of the full-attention layers, ``rope_theta`` that of the others;
    both are read on every forward, so raising one for a longer context needs no new module.
    """

    model_type = "fbt_text"

    vocab_size: int = 100_352
    hidden_size: int = 1536
    intermediate_size: int = 6656
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    head_dim: int = 0
    sliding_window: int = 2048
    full_attention_interval: int = 6
    layer_types: list[str] = field(default_factory=list)
    rope_theta: float | int = 250_000.0
    rope_theta_full: float | int = 250_000.0
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    head_gate: bool = True
    qk_norm: bool = True
    depth_scaling: bool = True
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if not self.head_dim:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if not self.layer_types:
            self.layer_types = [
                "sliding_attention" if (layer + 1) % self.full_attention_interval else "full_attention"
                for layer in range(self.num_hidden_layers)
            ]
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        """Called by ``@strict`` after construction, which wraps the error as a StrictDataclassError.

        Raises:
            ValueError: the head counts do not fit each other or the head dimension is odd (RoPE needs pairs).
        """
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd: RoPE rotates pairs, choose an even one")


@strict
class FBTConfig(PreTrainedConfig):
    """A decoder with latent feedback.

    Args:
        text_config: the decoder; a dict or configuration of any decoder-only model type (default ``fbt_text``).
        fusion: how the carried state and the token are joined; ``none`` is a standard transformer.
        plain_input_norm: whether plain inputs go through the input norm (the paper). False in a retrofit, where
            they enter untouched and only fused inputs are normalised.
        fused_input_rms: what normalised fused inputs are multiplied with (a retrofit: the RMS of the source's
            embeddings). None: nothing.
        tie_word_embeddings: whether the LM head shares the embedding.
    """

    model_type = "fbt"
    sub_configs_defaults = {  # noqa: RUF012 (transformers' declared ClassVar)
        "text_config": SubConfigSpec(config_class=AutoConfig, model_type="fbt_text")
    }

    text_config: dict | PreTrainedConfig | None = None
    fusion: Fusion = "gate"
    plain_input_norm: bool = True
    fused_input_rms: float | None = None
    tie_word_embeddings: bool = True
    use_cache: bool = True

    def validate_architecture(self) -> None:
        """Called by ``@strict`` after construction, which wraps the error as a StrictDataclassError.

        Raises:
            ValueError: neither plain nor fused inputs would use the input norm.
        """
        if self.fusion == "none" and not self.plain_input_norm:
            raise ValueError("fusion 'none' without plain_input_norm is the text model itself: load that instead")


def from_model_config(
    model: ModelConfig,
    vocab_size: int,
    *,
    pad_token_id: int | None = None,
    bos_token_id: int | None = None,
    eos_token_id: int | list[int] | None = None,
) -> FBTConfig:
    """The model configuration of a run's ``model`` section.

    Args:
        model: shape, fusion and attention implementation; its ``vocab_size``, where set, pads the tokenizer's.
        vocab_size: number of ids the tokenizer can produce.
        pad_token_id, bos_token_id, eos_token_id: the tokenizer's.

    Raises:
        ValueError: ``model.vocab_size`` is smaller than the tokenizer's.
    """
    if model.vocab_size is not None and model.vocab_size < vocab_size:
        raise ValueError(
            f"model.vocab_size is {model.vocab_size} but the tokenizer has {vocab_size} tokens; "
            "raise it, or leave it out to take the tokenizer's"
        )
    text_config = FBTTextConfig(
        vocab_size=model.vocab_size or vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        sliding_window=model.sliding_window,
        full_attention_interval=model.full_attention_interval,
        max_position_embeddings=model.max_position_embeddings,
        rope_theta=model.rope_theta,
        rope_theta_full=model.rope_theta_full,
        depth_scaling=model.depth_scaling,
        pad_token_id=pad_token_id,
        bos_token_id=bos_token_id,
        eos_token_id=eos_token_id,
    )
    config = FBTConfig(text_config=text_config, fusion=model.fusion, tie_word_embeddings=model.tie_word_embeddings)
    config._attn_implementation = model.attn_implementation
    return config
