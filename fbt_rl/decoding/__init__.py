"""Decoding in the modes standard, soft and fused (METHOD 1.2)."""

from fbt_rl.decoding.decode import (
    DEFAULT_NEW_TOKENS,
    STOP_CHECK_EVERY,
    Completion,
    OnEnd,
    SamplingParams,
    decode,
    default_new_tokens,
    pad_left,
)

__all__ = [
    "DEFAULT_NEW_TOKENS",
    "STOP_CHECK_EVERY",
    "Completion",
    "OnEnd",
    "SamplingParams",
    "decode",
    "default_new_tokens",
    "pad_left",
]
