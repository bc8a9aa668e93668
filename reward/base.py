"""The contract of every reward, and the result it may give.

A reward is a function in the call shape of TRL::

    def my_reward(prompts, completions, completion_ids, **columns) -> list[float | None | Verdict]

Everything is given by keyword: one entry a completion, ``columns`` being the data's other columns
(``answer`` among them). Completions are text, or lists of chat messages. None, NaN and infinity mean
*could not be judged*, which is not the same as wrong: such a row is left out and counted. It may be ``async``.

Of its named parameters those without a default, or with None, are columns; with another default they are
settings, which only ``args`` reach. One that is named ``group`` makes the reward group-aware: it is the
column of labels, equal for the answers to one prompt, and every call then holds whole groups.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

from annotated_types import Interval

logger = logging.getLogger(__name__)

# Errors of a verdict that is none.
NOT_FINITE = "not_finite"  # the score was NaN or infinite
RAISED = "raised"  # the function raised an exception on this row

_VERY_LONG = "and so on " * 3000

# Settings of the built-in rewards, within bounds (reward.load checks args by the types of parameters).
Workers = Annotated[int, Interval(ge=1, le=1024)]
Seconds = Annotated[float, Interval(gt=0.0, le=86_400.0)]
Megabytes = Annotated[int, Interval(ge=16, le=2**20)]

Completion = str | Sequence[dict[str, Any]]
RewardFunction = Callable[..., Sequence[Any]]


class RewardError(ValueError):
    """A reward cannot be loaded, or broke its contract; the message says which and how.

    ``key`` is the setting of the config to look at: ``use``, ``args.NAME``, ``time_limit_s``.
    """

    def __init__(self, message: str, key: str = "use"):
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a grader says of one completion.

    ``correct`` and ``score`` are None together: not judged. ``extracted`` is the answer that was
    found; ``error`` a short kind (``no_answer``, ``too_complex``, ``not_finite``...) where grading went out of the
    ordinary. ``terms`` are the parts that ``score`` is made of, by name, and ``metadata`` is whatever else is worth
    keeping, as JSON can hold it: both are recorded, and neither is read.
    """

    correct: bool | None
    score: float | None
    extracted: str | None = None
    error: str | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reward:
    """A reward function with its name and settings, checked each time it is called."""

    name: str
    function: RewardFunction
    args: dict[str, Any] = field(default_factory=dict)
    # May be called from a thread other than the main one, where for instance no signal handler can be set.
    concurrent: bool = False

    @property
    def __name__(self) -> str:
        """What TRL calls it in its logs."""
        return self.name

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
        """As calling, with what else is known. A plain score counts as correct from 1 on.

        Where the function raises it is asked again row by row (group by group, if it is group-aware); rows on
        which it raises again have no score but the error ``raised``, and the log has the first traceback.
        """
        return self._judge(self._given(prompts, completions, completion_ids, columns))

    def timed_verdicts(self, *args: Any, **columns: Any) -> tuple[list[Verdict], float]:
        """:meth:`verdicts`, and the seconds that they took."""
        start = time.perf_counter()
        return self.verdicts(*args, **columns), time.perf_counter() - start

    def dry_call(self, problems: Sequence[Mapping[str, Any]]) -> list[Verdict]:
        """The verdicts on two groups of answers: to the first of ``problems`` the right one and an empty one, to the
        last the right one and a very long one.

        A problem has ``prompt``, ``completion`` (the right one) and the reward's columns. Raises :class:`RewardError`
        also for whatever the function raises.
        """
        first, last = problems[0], problems[-1]
        asked = [first, first, last, last]
        texts = [first["completion"], _like(first["completion"], ""), last["completion"]]
        texts.append(_like(last["completion"], _VERY_LONG))
        names = dict.fromkeys(name for row in asked for name in row if name not in ("prompt", "completion"))
        columns: dict[str, Any] = {name: [row.get(name) for row in asked] for name in names}
        ids = [[0] * (1 + len(completion_text(text)) // 4) for text in texts]
        given = self._given([row["prompt"] for row in asked], texts, ids, columns | {"group": [0, 0, 1, 1]})
        tried = f"it was tried on {len(asked)} rows, with {', '.join(given)}"
        try:
            verdicts = self._call(given)
        except RewardError:
            raise
        except Exception as error:
            raise RewardError(f"reward {self.name!r} raised {type(error).__name__}: {error}; {tried}") from error
        if all(verdict.error == NOT_FINITE for verdict in verdicts):
            raise RewardError(f"reward {self.name!r} gave no finite number; {tried}")
        return verdicts

    @cached_property
    def needs(self) -> frozenset[str]:
        """The columns it cannot do without."""
        given = {"prompts", "completions", "completion_ids", "group", *self.args}
        return frozenset(name for name, p in self._named.items() if p.default is p.empty) - given

    @property
    def group_aware(self) -> bool:
        return "group" in self._named

    @cached_property
    def _named(self) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.function).parameters
        return {name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}

    def _given(self, prompts: Any, completions: Any, completion_ids: Any, columns: dict[str, Any]) -> dict[str, Any]:
        """What the function is called with, but for ``args``."""
        settings = {name for name, p in self._named.items() if p.default not in (p.empty, None)}
        given = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids}
        given |= {name: values for name, values in columns.items() if name not in settings | set(given)}
        if self.group_aware and "group" not in given:
            given["group"] = group_labels(columns.get("problem_id", prompts))
        if missing := self.needs - set(given):
            raise RewardError(
                f"reward {self.name!r} needs the column {', '.join(sorted(missing))}; given: {', '.join(given)}"
            )
        return given

    def _judge(self, given: dict[str, Any]) -> list[Verdict]:
        try:
            return self._call(given)
        except RewardError:
            raise
        except Exception as error:  # whatever a user's function raises
            return self._call_apart(given, error)

    def _call(self, given: dict[str, Any]) -> list[Verdict]:
        rows = len(given["completions"])
        try:
            results = _plain(_awaited(self.function(**{**given, **self.args})))
        except SystemExit as error:
            if isinstance(error.code, int) and error.code > 128:  # a signal has ended the command
                raise
            raise RewardError(f"reward {self.name!r} called sys.exit({error.code!r})") from error
        if not isinstance(results, Sequence):
            raise RewardError(
                f"reward {self.name!r} returned {type(results).__name__} for {rows} completions: expected a list"
            )
        if len(results) != rows:
            raise RewardError(f"reward {self.name!r} returned {len(results)} results for {rows} completions")
        return [self._verdict(row, result) for row, result in enumerate(results)]

    def _call_apart(self, given: dict[str, Any], first: Exception) -> list[Verdict]:
        """Judge each row, or each group, by itself, ``first`` having been raised on all of them together."""
        rows = range(len(given["completions"]))
        parts: dict[Hashable, list[int]] = {}
        for row in rows:
            parts.setdefault(given["group"][row] if self.group_aware else row, []).append(row)
        found = [Verdict(None, None, error=RAISED) for _ in rows]
        for part in parts.values() if len(parts) > 1 else ():
            try:
                verdicts = self._call({name: _rows_of(values, part) for name, values in given.items()})
            except RewardError:
                raise
            except Exception:
                continue
            for row, verdict in zip(part, verdicts, strict=True):
                found[row] = verdict
        count = sum(verdict.error == RAISED for verdict in found)
        logger.warning("reward %r raised on %d of %d completions", self.name, count, len(found), exc_info=first)
        return found

    def _verdict(self, row: int, result: Any) -> Verdict:
        if isinstance(result, Verdict):
            terms = {name: _plain(term) for name, term in result.terms.items()}
            result = replace(result, correct=_plain(result.correct), score=_plain(result.score), terms=terms)
            self._check_record(row, result)
        else:
            result = _plain(result)
        score = result.score if isinstance(result, Verdict) else result
        if score is None:
            return result if isinstance(result, Verdict) else Verdict(None, None)
        if not isinstance(score, int | float):
            raise RewardError(f"reward {self.name!r} gave {score!r} for completion {row}: expected a number or None")
        if not math.isfinite(score):
            return Verdict(None, None, result.extracted if isinstance(result, Verdict) else None, NOT_FINITE)
        return result if isinstance(result, Verdict) else Verdict(score >= 1, float(score))

    def _check_record(self, row: int, verdict: Verdict) -> None:
        """Refuse what could not be written down, now rather than when the file is written."""
        if not isinstance(verdict.correct, bool | None) or (verdict.correct is None) != (verdict.score is None):
            raise RewardError(
                f"reward {self.name!r} gave correct={verdict.correct!r} and score={verdict.score!r} for completion "
                f"{row}: expected a truth value and a number, or None twice"
            )
        for name, text in (("extracted", verdict.extracted), ("error", verdict.error)):
            if not (text is None or isinstance(text, str)):
                raise RewardError(f"reward {self.name!r} gave {name}={text!r} for completion {row}: expected text")
        if odd := [term for term in verdict.terms.items() if not isinstance(term[1], int | float)]:
            raise RewardError(f"reward {self.name!r} gave the terms {dict(odd)} for completion {row}: expected numbers")
        try:
            json.dumps(dict(verdict.metadata), default=str)
        except (TypeError, ValueError) as error:
            raise RewardError(
                f"reward {self.name!r} gave metadata for completion {row} that is no JSON: {error}"
            ) from error


def completion_text(completion: Completion) -> str:
    """The text a model wrote: the completion itself, or the content of its chat messages."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)


def _like(completion: Completion, text: str) -> Completion:
    """``text`` as a completion of the same kind."""
    return text if isinstance(completion, str) else [{"role": "assistant", "content": text}]


def group_labels(values: Sequence[Any]) -> list[int]:
    """A number for each value, equal where the values are."""
    known: dict[str, int] = {}
    return [known.setdefault(repr(value), len(known)) for value in values]


def _rows_of(values: Any, rows: Sequence[int]) -> Any:
    """Of a column its ``rows``; what is no column (TRL also passes its state) as it is."""
    return [values[row] for row in rows] if isinstance(values, list | tuple) else values


def _plain(value: Any) -> Any:
    """A number or array of numpy or torch as what Python has for it; all else as it is."""
    return value.tolist() if callable(getattr(value, "tolist", None)) else value


def _awaited(result: Any) -> Any:
    """The result of an async function too, also where an event loop runs already, as in a notebook."""
    if not inspect.isawaitable(result):
        return result

    async def finish() -> Any:
        return await result

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(finish())
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, finish()).result()
