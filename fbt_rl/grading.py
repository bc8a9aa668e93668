"""Where rewards are computed: in the process that decodes, or by Ray tasks on the cluster's CPUs.

Either way grading goes on beside decoding where the reward allows it (:attr:`reward.base.Reward.concurrent`).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fbt_rl.config import Grading, RewardConfig
from reward.base import Completion, Reward, Verdict
from reward.load import load_reward

_WAITING = 64  # Ray tasks that one rank waits for at a time


@dataclass(frozen=True)
class RayReward(Reward):
    """A reward that Ray tasks compute, each on as many CPUs as the reward has workers."""

    def verdicts(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> list[Verdict]:
        """As for any reward; rows whose task was lost with its process are not judged (``grader``)."""
        from fbt_rl.cluster import remote_verdicts

        given = self._given(prompts, completions, completion_ids, columns)
        args = self.args
        if "workers" in inspect.signature(self.function).parameters:
            args = {"workers": 1} | args  # unless the user wants more: tasks are what runs side by side here
        found = remote_verdicts(self.name, args, given, cpus=args.get("workers", 1))
        return found or [Verdict(None, None, error="grader") for _ in completions]


def load_reward_for(config: RewardConfig, grading: Grading) -> Reward:
    """The reward that ``config`` names, computed where ``grading`` says. Raises RewardError."""
    reward = load_reward(config.use, config.args)
    return reward if grading == "node" else RayReward(reward.name, reward.function, reward.args, concurrent=True)


def grading_threads(grading: Grading) -> ThreadPoolExecutor:
    """What calls rewards beside decoding. On the node one at a time: a reward has worker processes of its own."""
    return ThreadPoolExecutor(1 if grading == "node" else _WAITING, "grading")
