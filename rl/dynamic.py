"""Dynamic sampling: groups that teach nothing give way to those of fresh prompts (METHOD 2.5; DAPO, Yu et al. 2025).

A batch has one place for each of its groups, counted over all ranks. Which prompt comes to a place at
which attempt, and what is sampled of it, depends on the batch, the place and the attempt only: the
batch is the same on any number of ranks, and each rank fills its own places without asking the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fbt_rl.decoding import Completion
from reward.apart import TIMED_OUT
from reward.base import NOT_FINITE, RAISED
from rl.rewards import OUT_OF_BOUNDS, Judgement

Problem = dict[str, Any]


@dataclass
class Groups:
    """Whole groups of G samples of a prompt, side by side; of M places."""

    problems: list[Problem]  # M
    completions: list[Completion]  # M * G
    judgements: list[Judgement]  # M * G
    attempts: list[int]  # M: fresh prompts that each place has been given
    first_correct: list[float]  # M * G: correctness of the samples drawn first, before any place was given another

    def table(self) -> list[list[float]]:
        """(M * G, 10): one row a sample, in the order of the fields of :class:`rl.monitor.Outcomes`."""
        group_size = len(self.completions) // len(self.problems)
        return [
            [
                judgement.reward,
                judgement.correct,
                len(completion.token_ids),
                completion.truncated,
                *(kind in judgement.errors for kind in (NOT_FINITE, OUT_OF_BOUNDS, RAISED, TIMED_OUT)),
                self.attempts[row // group_size],
                self.first_correct[row],
            ]
            for row, (completion, judgement) in enumerate(zip(self.completions, self.judgements, strict=True))
        ]


def degenerate(correct: Sequence[float], group_size: int) -> list[bool]:
    """For each group, whether its judged samples are all right, all wrong, or none.

    ``correct`` has 1, 0 or NaN (not judged) for every sample. The shaped reward has no say: lengths
    differ in nearly every group, and would keep those whose answers are all right.
    """
    groups = [correct[start : start + group_size] for start in range(0, len(correct), group_size)]
    return [len({value for value in group if not math.isnan(value)}) < 2 for group in groups]


def draw_groups(
    problems: Sequence[Problem],
    roll_out: Callable[[Sequence[Problem], Sequence[int], int], tuple[list[Completion], list[Judgement]]],
    fresh: Callable[[int, int], Problem],
    *,
    group_size: int,
    max_resamples: int,
) -> Groups:
    """Sample and judge a group of each of ``problems``, then up to ``max_resamples`` times those that are degenerate.

    ``roll_out(problems, places, attempt)`` samples and judges whole groups, ``fresh(place, attempt)`` names the
    problem that a place goes on with; ``attempt`` is 0 at first.
    """
    completions, judgements = roll_out(problems, range(len(problems)), 0)
    first_correct = [judgement.correct for judgement in judgements]
    groups = Groups(list(problems), completions, judgements, [0] * len(problems), first_correct)
    for attempt in range(1, max_resamples + 1):
        flags = degenerate([judgement.correct for judgement in groups.judgements], group_size)
        places = [place for place, flag in enumerate(flags) if flag]
        if not places:
            break
        problems = [fresh(place, attempt) for place in places]
        completions, judgements = roll_out(problems, places, attempt)
        for index, place in enumerate(places):
            old, new = (slice(start * group_size, (start + 1) * group_size) for start in (place, index))
            groups.problems[place] = problems[index]
            groups.completions[old] = completions[new]
            groups.judgements[old] = judgements[new]
            groups.attempts[place] = attempt
    return groups
