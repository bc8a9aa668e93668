"""From completions to one reward each: correctness shaped by length, plus whatever else is configured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fbt_rl.config import LengthConfig, RewardConfig
from reward.base import RewardError
from reward.length import LENGTH_REWARDS
from reward.load import load_reward

_NOT_JUDGED = math.nan


class StageRewards:
    """The rewards of an RL stage, for whole groups of completions, group after group.

    The first configured reward judges correctness; accuracy and shaping by length come from it. A
    completion that any of them cannot judge has no reward.
    """

    def __init__(self, rewards: Sequence[RewardConfig], length: LengthConfig | None, group_size: int):
        """Raises RewardError for a reward that cannot be loaded, or settings of ``length`` that do not fit."""
        self._rewards = [load_reward(reward.use, reward.args) for reward in rewards]
        self._weights = [reward.weight for reward in rewards]
        self._length = length
        if length is not None:
            try:
                LENGTH_REWARDS[length.use]([True], [1], **length.model_dump(exclude={"use"}))
            except ValueError as error:
                raise RewardError(f"length reward {length.use!r}: {error}") from error
        self._group_size = group_size

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        truncated: Sequence[bool],
        **columns: Sequence[Any],
    ) -> tuple[list[float], list[float]]:
        """``(rewards, correct)`` of every completion, NaN where it could not be judged.

        ``columns`` are the problems' other columns, one entry a completion. A truncated completion is
        wrong whatever it says. Raises RewardError where a reward breaks its contract, or where
        partial credit is to be shaped by length.
        """
        judges, *others = self._rewards
        verdicts = judges.verdicts(prompts, completions, completion_ids, **columns)
        correct = [False if cut else verdict.correct for verdict, cut in zip(verdicts, truncated, strict=True)]
        scores = [0.0 if cut else verdict.score for verdict, cut in zip(verdicts, truncated, strict=True)]
        if self._length is not None:
            scores = self._shaped(scores, [len(ids) for ids in completion_ids], self._length)
        table = [scores, *(other(prompts, completions, completion_ids, **columns) for other in others)]
        rewards = [
            _NOT_JUDGED if None in row else sum(map(float.__mul__, self._weights, map(float, row)))
            for row in zip(*table, strict=True)
        ]
        return rewards, [_NOT_JUDGED if flag is None else float(flag) for flag in correct]

    def _shaped(self, scores: list[float | None], lengths: list[int], length: LengthConfig) -> list[float | None]:
        """Correctness shaped by the lengths of each group's judged completions; not judged stays None."""
        shaped = list(scores)
        for start in range(0, len(scores), self._group_size):
            rows = [row for row in range(start, start + self._group_size) if scores[row] is not None]
            if partial := [scores[row] for row in rows if scores[row] not in (0.0, 1.0)]:
                raise RewardError(
                    f"reward {self._rewards[0].name!r} gave {partial[0]}; shaping by length needs a correctness of 0 "
                    "or 1. Set length to null, or put a reward first that says right or wrong"
                )
            correct, sizes = [scores[row] == 1.0 for row in rows], [lengths[row] for row in rows]
            values = LENGTH_REWARDS[length.use](correct, sizes, **length.model_dump(exclude={"use"}))
            for row, value in zip(rows, values, strict=True):
                shaped[row] = value
        return shaped
