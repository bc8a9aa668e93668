"""Decoding in the modes standard, soft and fused (METHOD 1.2)."""

from fbt_rl.decoding.decode import STOP_CHECK_EVERY, Completion, OnEnd, SamplingParams, decode, pad_left

__all__ = ["STOP_CHECK_EVERY", "Completion", "OnEnd", "SamplingParams", "decode", "pad_left"]
