"""What one rank samples and has judged: its share of a batch of rollouts, and of the held-out problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fbt_rl.config import RLStage
from fbt_rl.decoding import Completion, SamplingParams, decode
from reward.reasoning import reasoning_tokens
from rl.dynamic import Groups, Problem, draw_groups
from rl.record import rollout_rows
from rl.rewards import Asked, Judgement, StageRewards
from rl.rollout import sample_completions, sampling_seed

_NOT_FOR_REWARDS = ("prompt", "prompt_ids", "completion")  # columns; the last is a worked solution


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
