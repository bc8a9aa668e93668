"""The contract of every reward, and the result it may give.

A reward is a function in the call shape of TRL::

    def my_reward(prompts, completions, completion_ids, **columns) -> list[float | None | Verdict]

Everything is given by keyword: one entry a completion, ``columns`` being the data's other columns
(``answer`` among them). Completions are text, or lists of chat messages. None, NaN and infinity mean
*could not be judged*, which is not the same as wrong: such a row is left out and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

NOT_FINITE = "not_finite"  # a verdict's error: the score was NaN or infinite

Completion = str | Sequence[dict[str, Any]]
RewardFunction = Callable[..., Sequence[Any]]


class RewardError(ValueError):
    """A reward cannot be loaded, or broke its contract; the message says which and how."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a grader says of one completion.

    ``correct`` and ``score`` are None together: not judged. ``extracted`` is the answer that was
    found; ``error`` a short kind (``no_answer``, ``too_complex``, ``not_finite``...) where grading went out of the
    ordinary.
    """

    correct: bool | None
    score: float | None
    extracted: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Reward:
    """A reward function with its name and settings, checked each time it is called."""

    name: str
    function: RewardFunction
    args: dict[str, Any] = field(default_factory=dict)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """One score a completion. Raises :class:`RewardError` where the function breaks the contract."""
        return [verdict.score for verdict in self.verdicts(prompts, completions, completion_ids, **columns)]

    def verdicts(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> list[Verdict]:
        """As calling, with what else is known. A plain score counts as correct from 1 on."""
        results = self.function(
            prompts=prompts, completions=completions, completion_ids=completion_ids, **{**columns, **self.args}
        )
        if not isinstance(results, Sequence) or len(results) != len(completions):
            given = f"{len(results)} results" if isinstance(results, Sequence) else type(results).__name__
            raise RewardError(f"reward {self.name!r} returned {given} for {len(completions)} completions")
        return [self._verdict(row, result) for row, result in enumerate(results)]

    def _verdict(self, row: int, result: Any) -> Verdict:
        score = result.score if isinstance(result, Verdict) else result
        if score is None:
            return result if isinstance(result, Verdict) else Verdict(None, None)
        if not isinstance(score, int | float):
            raise RewardError(f"reward {self.name!r} gave {score!r} for completion {row}: expected a number or None")
        if not math.isfinite(score):
            return Verdict(None, None, result.extracted if isinstance(result, Verdict) else None, NOT_FINITE)
        return result if isinstance(result, Verdict) else Verdict(score >= 1, float(score))


def completion_text(completion: Completion) -> str:
    """The text a model wrote: the completion itself, or the content of its chat messages."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)
