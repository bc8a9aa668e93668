"""What one rank samples and has judged: its share of a batch of rollouts, and of the held-out problems.

With dynamic sampling, groups that teach nothing give way to those of fresh prompts (METHOD 2.5; DAPO, Yu et al. 2025).
A batch has one place for each of its groups, counted over all ranks. Which prompt comes to a place at which attempt,
and what is sampled of it, depends on the batch, the place and the attempt only: the batch is the same on any number of
ranks, and each rank fills its own places without asking the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fbt_rl.config import RLStage
from fbt_rl.decoding import Completion, SamplingParams, decode
from reward.apart import TIMED_OUT
from reward.base import NOT_FINITE, RAISED
from reward.reasoning import reasoning_tokens
from rl.monitor import Outcomes
from rl.record import rollout_rows
from rl.rewards import OUT_OF_BOUNDS, Asked, Judgement, StageRewards
from rl.rollout import sample_completions, sampling_seed

Problem = dict[str, Any]
_NOT_FOR_REWARDS = ("prompt", "prompt_ids", "completion")  # columns; the last is a worked solution


@dataclass
class Groups:
    """Whole groups of G samples of a prompt, side by side; of M places."""

    problems: list[Problem]  # M
    completions: list[Completion]  # M * G
    judgements: list[Judgement]  # M * G
    attempts: list[int]  # M: fresh prompts that each place has been given
    first_correct: list[float]  # M * G: correctness of the samples drawn first, before any place was given another

    def outcomes(self, device: torch.device) -> Outcomes:
        """One row a sample."""
        group_size = len(self.completions) // len(self.problems)
        errors = [judgement.errors for judgement in self.judgements]
        columns = {
            "rewards": [judgement.reward for judgement in self.judgements],
            "correct": [judgement.correct for judgement in self.judgements],
            "lengths": [len(completion.token_ids) for completion in self.completions],
            "truncated": [completion.truncated for completion in self.completions],
            "not_finite": [NOT_FINITE in kinds for kinds in errors],
            "out_of_bounds": [OUT_OF_BOUNDS in kinds for kinds in errors],
            "raised": [RAISED in kinds for kinds in errors],
            "timed_out": [TIMED_OUT in kinds for kinds in errors],
            "attempts": [attempts for attempts in self.attempts for _ in range(group_size)],
            "first_correct": self.first_correct,
        }
        return Outcomes(
            **{name: torch.tensor(values, dtype=torch.float64, device=device) for name, values in columns.items()}
        )


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


@dataclass(frozen=True)
class Collector:
    """Nothing in here talks to other ranks: under ZeRO-3 the weights have to be whole beforehand.

    ``spare`` holds, for every batch and every attempt, a problem for each place of a batch.
    """

    stage: RLStage
    tokenizer: PreTrainedTokenizerBase
    rewards: StageRewards
    spare: Sequence[Problem]
    heldout: Sequence[Problem]
    eos_token_ids: tuple[int, ...]
    seed: int
    rank: int = 0
    ranks: int = 1

    def groups(self, model: PreTrainedModel, problems: Sequence[Problem], batch: int) -> Groups:
        """A group of each of ``problems``, this rank's of the ``batch``-th batch, or of those that replace it."""
        stage = self.stage
        first = self.rank * len(problems)  # place in the whole batch

        def roll_out(
            problems: Sequence[Problem], places: Sequence[int], attempt: int
        ) -> tuple[list[Completion], list[Judgement]]:
            starts = [(first + place) * stage.group_size for place in places]
            ended: list[dict[int, list[int]]] = [{} for _ in problems]  # of each group, by sample
            asked: dict[int, Asked] = {}  # of the groups that are complete

            def on_end(row: int, token_ids: list[int], _reason: str) -> None:
                group, sample = divmod(row, stage.group_size)
                ended[group][sample] = token_ids
                if len(ended[group]) == stage.group_size:
                    answers = [ended[group][sample] for sample in range(stage.group_size)]
                    asked[group] = self.rewards.ask(**self._columns([problems[group]] * stage.group_size, answers))

            completions = sample_completions(
                model,
                [problem["prompt_ids"] for problem in problems],
                stage,
                eos_token_ids=self.eos_token_ids,
                seed=sampling_seed(self.seed, batch, attempt),
                row_keys=[start + sample for start in starts for sample in range(stage.group_size)],
                on_end=on_end,
            )
            only_reasoning = stage.length is not None and stage.length.count == "reasoning"
            judgements = self.rewards(
                **self._columns(each_of(problems, stage.group_size), [row.token_ids for row in completions]),
                truncated=[row.truncated for row in completions],
                lengths=[self.reasoning_tokens(row) for row in completions] if only_reasoning else None,
                asked=[asked[group] for group in range(len(problems))],
            )
            return completions, judgements

        def fresh(place: int, attempt: int) -> Problem:
            attempts = batch * stage.max_resamples + attempt - 1
            return self.spare[attempts * stage.prompts_per_step + first + place]

        return draw_groups(problems, roll_out, fresh, group_size=stage.group_size, max_resamples=stage.max_resamples)

    def heldout_counts(self, model: PreTrainedModel, batch_size: int) -> tuple[int, int]:
        """Of this rank's held-out problems: greedy answers in the stage's mode that are right, and those judged."""
        share = self.heldout[self.rank :: self.ranks]
        if not share:
            return 0, 0
        params = SamplingParams(
            mode=self.stage.mode,
            max_new_tokens=self.stage.max_new_tokens,
            temperature=0.0,
            eos_token_ids=self.eos_token_ids,
        )
        completions = decode(model, [problem["prompt_ids"] for problem in share], params, batch_size=batch_size)
        columns = self._columns(share, [row.token_ids for row in completions])
        flags = self.rewards.correctness(**columns, truncated=[row.truncated for row in completions])
        return flags.count(True), len(flags) - flags.count(None)

    def rows(self, step: int, groups: Groups, advantages: Sequence[float]) -> list[dict[str, Any]]:
        """What is kept of ``groups``, rolled out before ``step``."""
        reasoning = [self.reasoning_tokens(completion) for completion in groups.completions]
        texts = self._texts([completion.token_ids for completion in groups.completions])
        return rollout_rows(step, self.stage.mode, groups, texts, reasoning, advantages)

    def reasoning_tokens(self, completion: Completion) -> int:
        return reasoning_tokens(completion.token_ids, self.tokenizer.decode, self.stage.reasoning_marker)  # pyright: ignore[reportArgumentType]

    def _texts(self, token_ids: list[list[int]]) -> list[str]:
        return self.tokenizer.batch_decode(token_ids, skip_special_tokens=True)

    def _columns(self, problems: Sequence[Problem], token_ids: list[list[int]]) -> dict[str, Any]:
        """What a reward is called with: one entry a completion, ``token_ids`` being the completions."""
        return {name: [row[name] for row in problems] for name in problems[0] if name not in _NOT_FOR_REWARDS} | {
            "prompts": [problem["question"] for problem in problems],
            "completions": self._texts(token_ids),
            "completion_ids": token_ids,
        }


def each_of(problems: Sequence[Problem], times: int) -> list[Problem]:
    """Each problem so many times in a row: one entry a completion."""
    return [problem for problem in problems for _ in range(times)]
