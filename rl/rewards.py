"""From completions to one reward each: correctness shaped by length, plus whatever else is configured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fbt_rl.config import LengthConfig, RewardConfig
from reward.base import NOT_FINITE, RewardError, Verdict
from reward.length import LENGTH_REWARDS
from reward.load import load_reward

_NOT_JUDGED = math.nan
_WRONG = Verdict(False, 0.0)
_OUT_OF_BOUNDS = "out_of_bounds"  # a verdict's error


class Judgement(NamedTuple):
    """What is known of one completion; NaN: could not be judged, by one of the rewards at least."""

    reward: float
    correct: float  # 1 or 0, by the first reward
    not_finite: bool  # a reward gave NaN or infinity
    out_of_bounds: bool  # a reward gave a number that cannot be meant


class StageRewards:
    """The rewards of an RL stage, for whole groups of completions, group after group.

    The first configured reward judges correctness; accuracy and shaping by length come from it. A
    completion that any of them cannot judge has no reward. Nor has one whose score lies beyond ``bound``:
    a single such number in the batch's deviation would make every other advantage nothing.
    ``length_weight`` is the w of METHOD 2.5 in force; None: the length reward has none.
    """

    def __init__(
        self, rewards: Sequence[RewardConfig], length: LengthConfig | None, group_size: int, bound: float = math.inf
    ):
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
        self._bound = bound
        self.length_weight = None if length is None else length.weight

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        truncated: Sequence[bool],
        **columns: Sequence[Any],
    ) -> list[Judgement]:
        """One judgement a completion.

        ``columns`` are the problems' other columns, one entry a completion. A truncated completion is
        wrong whatever it says. Raises RewardError where a reward breaks its contract, or where
        partial credit is to be shaped by length.
        """
        columns = {"completion_ids": completion_ids, **columns}
        judge, *others = ([*map(self._bounded, r.verdicts(prompts, completions, **columns))] for r in self._rewards)
        judge = [_WRONG if cut else verdict for verdict, cut in zip(judge, truncated, strict=True)]
        scores = [verdict.score for verdict in judge]
        if self._length is not None:
            scores = self._shaped(scores, [len(ids) for ids in completion_ids], self._length)
        table = zip(scores, *([verdict.score for verdict in verdicts] for verdicts in others), strict=True)
        totals = [
            _NOT_JUDGED if None in row else sum(map(float.__mul__, self._weights, map(float, row))) for row in table
        ]
        errors = [{verdict.error for verdict in row} for row in zip(judge, *others, strict=True)]
        return [
            Judgement(
                total,
                _NOT_JUDGED if verdict.correct is None else float(verdict.correct),
                not_finite=NOT_FINITE in kinds,
                out_of_bounds=_OUT_OF_BOUNDS in kinds,
            )
            for total, verdict, kinds in zip(totals, judge, errors, strict=True)
        ]

    def correctness(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        truncated: Sequence[bool],
        **columns: Sequence[Any],
    ) -> list[bool | None]:
        """Whether each of any completions (in groups or not) is right; None: could not be judged."""
        verdicts = map(self._bounded, self._rewards[0].verdicts(prompts, completions, completion_ids, **columns))
        return [False if cut else verdict.correct for verdict, cut in zip(verdicts, truncated, strict=True)]

    def _bounded(self, verdict: Verdict) -> Verdict:
        if verdict.score is not None and abs(verdict.score) > self._bound:
            return Verdict(None, None, verdict.extracted, _OUT_OF_BOUNDS)
        return verdict

    def _shaped(self, scores: list[float | None], lengths: list[int], length: LengthConfig) -> list[float | None]:
        """Correctness shaped by the lengths of each group's judged completions; not judged stays None."""
        shaped, settings = list(scores), length.model_dump(exclude={"use"})
        if self.length_weight is not None:
            settings["weight"] = self.length_weight
        for start in range(0, len(scores), self._group_size):
            rows = [row for row in range(start, start + self._group_size) if scores[row] is not None]
            if partial := [scores[row] for row in rows if scores[row] not in (0.0, 1.0)]:
                raise RewardError(
                    f"reward {self._rewards[0].name!r} gave {partial[0]}; shaping by length needs a correctness of 0 "
                    "or 1. Set length to null, or put a reward first that says right or wrong"
                )
            values = LENGTH_REWARDS[length.use](
                [scores[row] == 1.0 for row in rows], [lengths[row] for row in rows], **settings
            )
            for row, value in zip(rows, values, strict=True):
                shaped[row] = value
        return shaped
