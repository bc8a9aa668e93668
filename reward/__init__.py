"""Rewards that stand alone: no torch, no ray, nothing of the training code."""

from reward.base import Reward, RewardError, Verdict
from reward.code.program import code_reward
from reward.length import relative
from reward.load import load_reward
from reward.math.answer import grade, math_reward

__all__ = ["Reward", "RewardError", "Verdict", "code_reward", "grade", "load_reward", "math_reward", "relative"]
