"""Rewards that stand alone: no torch, no ray, nothing of the training code."""

from reward.base import Reward, RewardError, Verdict
from reward.code_tests import code_reward
from reward.length import relative
from reward.load import load_reward
from reward.math_answer import grade, math_reward

__all__ = ["Reward", "RewardError", "Verdict", "code_reward", "grade", "load_reward", "math_reward", "relative"]
