"""Is the final answer of a completion mathematically the right one?

The answer is extracted strictly (:mod:`reward.math.extraction`), plain numbers are compared exactly, and
answers of several parts part by part, and the rest goes to Math-Verify. What a model wrote is data: it is
never run, a malformed answer is a 0 with an error kind, what could cost unbounded time to evaluate is
refused by its size, and what takes too long nevertheless is ended with its process (:mod:`reward.math.pool`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, cast

from reward.base import Completion, RewardError, Verdict, completion_text
from reward.math import pool
from reward.math.extraction import DEFAULT_FORMS, Form, extract_answer
from reward.math.notation import plain_text, tidy
from reward.math.quantities import (
    DEFAULT,
    Conventions,
    Percent,
    numbers_equal,
    numerals_equal,
    parse_number,
    times_equal,
)
from reward.math.structure import compare_parts, split

# The largest formula handed to the parser, whose time can grow exponentially with nesting. The answers
# of the MATH data set need 159 characters, 3 brackets within each other, 7 scripts.
MAX_CHARS = 800
MAX_NESTING = 8
MAX_SCRIPTS = 20


def math_reward(
    prompts: Sequence[Any],
    completions: Sequence[Completion],
    completion_ids: Any = None,
    *,
    answer: Sequence[str | float],
    **columns: Any,
) -> list[float | None]:
    """1 where the completion's final answer equals ``answer``, 0 where not, None where that cannot be said."""
    verdicts = math_verdicts(prompts, completions, completion_ids, answer=answer, **columns)
    return [verdict.score for verdict in verdicts]


def math_verdicts(
    prompts: Sequence[Any],
    completions: Sequence[Completion],
    completion_ids: Any = None,
    *,
    answer: Sequence[str | float],
    forms: Sequence[Form] = DEFAULT_FORMS,
    numeric: bool = False,
    percent: Percent = "unit",
    decimal_comma: bool = True,
    digits: int = 5,
    ordered: bool = False,
    workers: int = 2,
    time_limit_s: float = 5.0,
    memory_mb: int = 1024,
    **columns: Any,
) -> list[Verdict]:
    """As :func:`grade` for each completion, with limits: formulas are compared in worker processes.

    At most ``workers`` at a time, each comparison within ``time_limit_s`` seconds of processor time and
    ``memory_mb``; beyond them (``timeout``, ``memory``, ``crash``) an answer is wrong, but not judged (None)
    where it is the right one that takes so much (``bad_answer``), or where no worker could be had (``grader``).
    For ``percent`` to ``ordered`` see :class:`reward.math.quantities.Conventions`. Raises
    :class:`reward.base.RewardError` over a bad setting.
    """
    if workers < 1 or time_limit_s <= 0 or memory_mb < 512:
        raise RewardError(
            f"reward 'math' with workers {workers}, time_limit_s {time_limit_s}, memory_mb {memory_mb}: "
            "expected at least 1, more than 0, and at least 512"
        )
    conventions = _conventions(percent=percent, decimal_comma=decimal_comma, digits=digits, ordered=ordered)
    verdicts: list[Verdict | None] = []
    waiting: dict[tuple[str, str], list[int]] = {}  # equal comparisons are made once
    for row, (completion, gold) in enumerate(zip(completions, answer, strict=True)):
        found = _prepare(completion_text(completion), gold, forms, numeric, conventions)
        verdicts.append(found if isinstance(found, Verdict) else None)
        if not isinstance(found, Verdict):
            waiting.setdefault(found, []).append(row)
    settings = asdict(conventions)
    rows = [(*pair, settings) for pair in waiting]
    outcomes = pool.compare_all(rows, workers, time_limit_s, memory_mb)
    for (pair, places), outcome in zip(waiting.items(), outcomes, strict=True):
        for row in places:
            verdicts[row] = _verdict(pair[0], *outcome)
    return cast(list[Verdict], verdicts)


def grade(
    completion: str,
    answer: str | float,
    *,
    forms: Sequence[Form] = DEFAULT_FORMS,
    numeric: bool = False,
    conventions: Conventions = DEFAULT,
) -> Verdict:
    """Judge one completion against the right ``answer``, in this process and without limits on time.

    ``forms`` says where an answer may stand (:func:`reward.math.extraction.extract_answer`); none found is
    wrong (``no_answer``). ``numeric`` takes a written-out number only, so that a sum which the model
    was asked to work out does not pass as its own answer (``not_a_number``). Not judged (None) is
    only an ``answer`` that is itself empty, too complex or, with ``numeric``, no number
    (``bad_answer``); where it is a whole worked solution, its boxed or ``####`` answer is meant.
    """
    found = _prepare(completion, answer, forms, numeric, conventions)
    return found if isinstance(found, Verdict) else _verdict(found[0], *equivalent(*found, conventions))


def _prepare(
    completion: str, answer: str | float, forms: Sequence[Form], numeric: bool, conventions: Conventions
) -> Verdict | tuple[str, str]:
    """The verdict where it takes no formula, else what is to be compared."""
    if isinstance(answer, int | float) and math.isfinite(answer):
        answer = str(answer)  # data may hold numbers
    if not isinstance(answer, str):
        return Verdict(None, None, error="bad_answer")
    gold = extract_answer(answer) or answer
    if not gold.strip() or (numeric and parse_number(gold) is None):
        return Verdict(None, None, error="bad_answer")
    extracted = extract_answer(completion, forms)
    if extracted is None:
        return Verdict(False, 0.0, error="no_answer")
    if numeric:
        given = parse_number(extracted)
        return _verdict(extracted, given == parse_number(gold), "not_a_number" if given is None else None)
    decided = _decide_plain(extracted, gold, conventions)
    return (extracted, gold) if decided is None else _verdict(extracted, *decided)


def _verdict(extracted: str, equal: bool | None, error: str | None) -> Verdict:
    return Verdict(equal, None if equal is None else float(equal), extracted, error)


def _conventions(**settings: Any) -> Conventions:
    try:
        return Conventions(**settings)
    except ValueError as error:
        raise RewardError(f"reward 'math': {error}") from error


def equivalent(prediction: str, answer: str, conventions: Conventions = DEFAULT) -> tuple[bool | None, str | None]:
    """Whether two bare answers are equal, and the kind of error met on the way.

    Numbers and times are compared exactly (:mod:`reward.math.quantities`), lists, tuples, sets, intervals and
    matrices part by part (:mod:`reward.math.structure`), texts but for blanks, ``\\text`` and case. All else is
    Math-Verify's. None: ``answer`` is no answer that anything could be compared with (``bad_answer``).
    """
    decided = _decide_plain(prediction, answer, conventions)
    if decided is not None:
        return decided
    given, gold = _sides(prediction, answer)
    errors: list[str | None] = []

    def equal_parts(given_part: str, gold_part: str) -> bool:
        equal, error = equivalent(given_part, gold_part, conventions)
        errors.append(error)
        return equal is True

    equal = compare_parts(given, gold, equal_parts, conventions.ordered)
    if equal:
        return True, None
    if equal is False:
        return (None, "bad_answer") if "bad_answer" in errors else (False, next(filter(None, errors), None))
    if _PROSE.fullmatch(plain_text(given)) and _PROSE.fullmatch(plain_text(gold)):
        return False, None  # as a formula "x is even" would be "x is", and its last word a unit
    if _is_unwieldy(gold):
        return None, "bad_answer"
    if _is_unwieldy(given):
        return False, "too_complex"
    from reward.math.symbolic import compare

    equal, error = compare(given, gold, conventions)
    return (False, None) if equal is None and _WORDS.fullmatch(plain_text(gold)) else (equal, error)


def _decide_plain(prediction: str, answer: str, conventions: Conventions) -> tuple[bool | None, str | None] | None:
    """The part of :func:`equivalent` that takes bounded time: numbers, times, texts. None if it takes more."""
    if prediction.strip() == answer.strip() != "":
        return True, None
    if len(answer) > MAX_CHARS:
        return None, "bad_answer"
    if len(prediction) > MAX_CHARS:
        return False, "too_complex"
    given, gold = _sides(prediction, answer)
    equal = numbers_equal(given, gold, conventions)
    if equal is None and _same_text(given, gold):
        return True, None
    if equal is None:
        equal = times_equal(given, gold)
    if equal is None:
        equal = numerals_equal(given, gold)
    return None if equal is None else (equal, None)


def _sides(prediction: str, answer: str) -> tuple[str, str]:
    """Both in the one notation, and of ``x = ... = 7`` the last side where no equation is asked for."""
    given, gold = (
        tidy((extract_answer(text, ("boxed",)) if "\\" in text else None) or text) for text in (prediction, answer)
    )
    if gold.count("{") > gold.count("}"):
        gold = gold.removeprefix("\\boxed{")  # cut off, but it can be meant only so
    if "=" in given and not _EQUALS.search(gold) and len(split(given)) == 1:
        given = _EQUALS.split(given)[-1].strip()
    return given, gold


@lru_cache(maxsize=1)
def self_test() -> None:
    """Grade a few answers of known worth; a broken installation must not score a whole run 0.

    Raises :class:`reward.base.RewardError`.
    """
    completions, answers, expected = zip(*_SELF_TEST, strict=True)
    verdicts = math_verdicts(completions, completions, answer=answers, workers=1, time_limit_s=60.0)
    for completion, answer, right, verdict in zip(completions, answers, expected, verdicts, strict=True):
        if verdict.correct is not right:
            raise RewardError(
                f"the math grader's self-test failed: {completion!r} against {answer!r} gave {verdict}, "
                f"expected {right}; check that math-verify and its antlr4 runtime are installed"
            )


_SELF_TEST = (
    ("3+5=8 \\boxed{8}", "8", True),
    ("\\boxed{8}", "9", False),
    ("the answer is 8", "8", False),
    ("\\boxed{\\frac{1}{2}}", "0.5", True),
    ("\\boxed{x + 1}", "1 + x", True),
    ("\\boxed{x - 1}", "1 + x", False),
    ("\\boxed{\\sqrt{8}}", "2\\sqrt{2}", True),
)


# --- texts ---------------------------------------------------------------------------------------

_CHOICE = re.compile(r"\(?([A-J])\)?(?:\s*[:.)]\s.*)?", re.DOTALL)

_WORDS = re.compile(r"\([A-Z]\)|[A-Za-z][A-Za-z ,'-]+")  # a text, which needs no reading as a formula
_PROSE = re.compile(r"(?=.*[A-Za-z]{2})[A-Za-z,'-]+(?: [A-Za-z,'-]+)+")
_EQUALS = re.compile(r"(?<![<>!:\\])=(?!=)")


def _same_text(prediction: str, answer: str) -> bool:
    given, gold = _text_key(prediction), _text_key(answer)
    if given == gold:
        return bool(gold)
    if len(gold) == 1 and (choice := _CHOICE.fullmatch(plain_text(tidy(prediction)))):
        return choice[1] == gold
    return False


def _text_key(text: str) -> str:
    text = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", plain_text(tidy(text)))  # 1 2 is not 12
    text = re.sub(r"([_^])\{([\w+*-])\}", r"\1\2", text)
    if re.fullmatch(r"\([A-J]\)", text):
        return text[1]
    return text.casefold() if len(text) > 1 and text.isalpha() else text


def _is_unwieldy(formula: str) -> bool:
    depth = deepest = 0
    for character in formula:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    scripts = sum(formula.count(mark) for mark in "^_|!")
    return len(formula) > MAX_CHARS or deepest > MAX_NESTING or scripts > MAX_SCRIPTS
