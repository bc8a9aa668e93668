"""Where rewards are computed: by the process that decodes, or elsewhere on the cluster.

Either way grading goes on beside decoding where the reward allows it (:attr:`reward.base.Reward.concurrent`).
"""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from fbt_rl.artifacts import Remote
from fbt_rl.config import RewardConfig
from reward.apart import LOST
from reward.base import Reward, Verdict
from reward.load import load_limited

_WAITING = 64  # remote calls that one rank waits for at a time


@dataclass(frozen=True)
class RemoteReward(Reward):
    """A reward that is computed elsewhere, each call on as many CPUs as the reward has workers."""

    remote: Remote = field(kw_only=True)
    time_limit_s: float | None = field(kw_only=True)

    def _judge(self, given: dict[str, Any]) -> list[Verdict]:
        """Rows whose process was lost are not judged (``grader``)."""
        args = self.args
        if "workers" in inspect.signature(self.function).parameters:
            args = {"workers": 1} | args  # unless the user wants more: calls are what runs side by side here
        found = self.remote(self.name, args, given, cpus=args.get("workers", 1), time_limit_s=self.time_limit_s)
        return found or [Verdict(None, None, error=LOST) for _ in given["completions"]]


def load_stage_reward(config: RewardConfig, remote: Remote | None) -> Reward:
    """The reward that ``config`` names, computed by ``remote`` where there is one. Raises RewardError."""
    reward = load_limited(config.use, config.args, config.time_limit_s)
    if remote is None:
        return reward
    return RemoteReward(
        reward.name, reward.function, config.args, concurrent=True, remote=remote, time_limit_s=config.time_limit_s
    )


def grading_threads(remote: Remote | None = None) -> ThreadPoolExecutor:
    """What calls rewards beside decoding. On the node one at a time: a reward has worker processes of its own."""
    return ThreadPoolExecutor(1 if remote is None else _WAITING, "grading")
