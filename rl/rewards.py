"""From completions to one reward each: correctness shaped by length, plus whatever else is configured."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from fbt_rl.artifacts import Remote
from fbt_rl.config import LengthConfig, RewardConfig
from fbt_rl.grading import grading_threads, load_stage_reward
from reward.base import Reward, RewardError, Verdict
from reward.length import LENGTH_REWARDS

logger = logging.getLogger(__name__)

_NOT_JUDGED = math.nan
_WRONG = Verdict(False, 0.0)
OUT_OF_BOUNDS = "out_of_bounds"  # a verdict's error: a number that cannot be meant


class Judgement(NamedTuple):
    """What is known of one completion; NaN: could not be judged, by one of the rewards at least."""

    reward: float
    correct: float  # 1 or 0, by the first reward
    errors: tuple[str, ...] = ()  # kinds, of all rewards
    # By name, before weights: what each reward said, its terms (reward/term), and what ``length`` added to the first.
    scores: tuple[tuple[str, float | None], ...] = ()
    metadata: tuple[tuple[str, Mapping[str, Any]], ...] = ()  # by name, of the rewards that gave any


# Of some whole groups, for each reward: what it says of them and how long that took; None: not asked yet.
Asked = list["Future[tuple[list[Verdict], float]] | None"]


class StageRewards:
    """The rewards of an RL stage, for whole groups of completions, group after group.

    The first configured reward judges correctness; accuracy and shaping by length come from it. A
    completion that any of them cannot judge has no reward. Nor has one whose score lies beyond ``bound``:
    a single such number in the batch's deviation would make every other advantage nothing.
    ``length_weight`` is the w of METHOD 2.5 in force; None: the length reward has none.

    Those that may run in a thread can be asked (:meth:`ask`) for the groups that are complete while others
    are still being decoded; the rest are called once, for all groups, in the caller's thread.
    """

    def __init__(
        self,
        rewards: Sequence[RewardConfig],
        length: LengthConfig | None,
        group_size: int,
        bound: float = math.inf,
        remote: Remote | None = None,
    ):
        """``remote``: what computes the rewards, if not this process.

        Raises RewardError for a reward that cannot be loaded, or settings of ``length`` that do not fit.
        """
        self._rewards = [load_stage_reward(reward, remote) for reward in rewards]
        self._threads = grading_threads(remote)
        self._weights = [reward.weight for reward in rewards]
        self._length = length
        if length is not None:
            try:
                LENGTH_REWARDS[length.use]([True], [1], **length.settings())
            except ValueError as error:
                raise RewardError(f"length reward {length.use!r}: {error}") from error
        self._group_size = group_size
        self._bound = bound
        self.length_weight = None if length is None else length.weight

    def ask(self, **columns: Sequence[Any]) -> Asked:
        """Have the rewards that may run in a thread judge some whole groups there; ``columns`` as in a call."""
        given = self._with_groups(columns)
        return [
            self._threads.submit(reward.timed_verdicts, **given) if reward.concurrent else None
            for reward in self._rewards
        ]

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        truncated: Sequence[bool],
        lengths: Sequence[int] | None = None,
        asked: Sequence[Asked] = (),
        **columns: Sequence[Any],
    ) -> list[Judgement]:
        """One judgement a completion.

        ``columns`` are the problems' other columns, one entry a completion; ``lengths`` is what counts for
        shaping (default: all tokens); ``asked`` is what :meth:`ask` gave for all of them, a part after the other.
        A truncated completion is wrong whatever it says. Raises RewardError where
        a reward breaks its contract, or where partial credit is to be shaped by length.
        """
        given = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **columns}
        parts = asked or [self.ask(**given)]
        judge, *others = (
            [*map(self._bounded, self._verdicts(reward, [part[number] for part in parts], given))]
            for number, reward in enumerate(self._rewards)
        )
        judge = [_WRONG if cut else verdict for verdict, cut in zip(judge, truncated, strict=True)]
        shaped = [verdict.score for verdict in judge]
        if self._length is not None:
            shaped = self._shaped(shaped, lengths or [len(ids) for ids in completion_ids], self._length)
        rows = zip(shaped, zip(judge, *others, strict=True), strict=True)
        return [self._judgement(first, verdicts) for first, verdicts in rows]

    def _verdicts(self, reward: Reward, parts: Asked, given: dict[str, Any]) -> list[Verdict]:
        """Of one reward, from its ``parts``, or by calling it now."""
        start = time.perf_counter()
        if reward.concurrent:
            found = [part.result() for part in parts if part is not None]
        else:
            found = [reward.timed_verdicts(**self._with_groups(given))]
        verdicts, seconds = [verdict for some, _ in found for verdict in some], sum(taken for _, taken in found)
        logger.info(
            "reward %r: %d completions in %.2f s, %.0f a second; waited for after decoding: %.2f s",
            *(reward.name, len(verdicts), seconds, len(verdicts) / max(seconds, 1e-9), time.perf_counter() - start),
        )
        return verdicts

    def _with_groups(self, columns: dict[str, Any]) -> dict[str, Any]:
        return columns | {"group": [row // self._group_size for row in range(len(columns["completions"]))]}

    def _judgement(self, shaped: float | None, verdicts: Sequence[Verdict]) -> Judgement:
        """Of one completion: the verdicts of all rewards, the first one's score being ``shaped`` by length."""
        judge = verdicts[0]
        scores = [shaped, *(verdict.score for verdict in verdicts[1:])]
        total = sum(w * s for w, s in zip(self._weights, scores, strict=True) if s is not None)
        apart: list[tuple[str, float | None]] = []
        for reward, verdict in zip(self._rewards, verdicts, strict=True):
            apart.append((reward.name, verdict.score))
            apart += [(f"{reward.name}/{term}", value) for term, value in verdict.terms.items()]
        if self._length is not None:
            apart.append(("length", None if shaped is None or judge.score is None else shaped - judge.score))
        return Judgement(
            _NOT_JUDGED if None in scores else total,
            _NOT_JUDGED if judge.correct is None else float(judge.correct),
            tuple(dict.fromkeys(verdict.error for verdict in verdicts if verdict.error)),
            tuple(apart),
            tuple((r.name, v.metadata) for r, v in zip(self._rewards, verdicts, strict=True) if v.metadata),
        )

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
            return Verdict(None, None, verdict.extracted, OUT_OF_BOUNDS)
        return verdict

    def _shaped(self, scores: list[float | None], lengths: Sequence[int], length: LengthConfig) -> list[float | None]:
        """Correctness shaped by the lengths of each group's judged completions; not judged stays None."""
        shaped, settings = list(scores), length.settings()
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
