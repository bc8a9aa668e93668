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
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Annotated, Any, cast

from annotated_types import Interval

from reward.base import Completion, Megabytes, RewardError, Seconds, Verdict, Workers, completion_text
from reward.math import pool
from reward.math.extraction import DEFAULT_FORMS, Form, extract_answer
from reward.math.notation import plain_text, tidy
from reward.math.parts import split
from reward.math.quantities import (
    DEFAULT,
    Conventions,
    Percent,
    numbers_equal,
    numerals_equal,
    parse_number,
    times_equal,
)
from reward.math.structure import compare_parts

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
    digits: Annotated[int, Interval(ge=0, le=1000)] = 5,
    ordered: bool = False,
    workers: Workers = 2,
    time_limit_s: Seconds = 5.0,
    memory_mb: Megabytes = 1024,
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
    gold = extract_answer(answer, ("boxed", "hashes", "phrase")) or answer
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
    rounding = replace(conventions, digits=min(conventions.digits, 1))

    def equal_parts(given_part: str, gold_part: str, rounded: bool = False) -> bool:
        equal, error = equivalent(given_part, gold_part, rounding if rounded else conventions)
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
        sides = split(given, _EQUALS) or [""]
        given = given if _LINE.fullmatch(sides[0]) else sides[-1]
    elif (labelled := _LABELLED.fullmatch(given)) and len(gold) > 1:
        given = labelled[1]
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

_CHOICE = re.compile(r"(?:(?:option|choice)\s+)?\(?([A-J])\)?(?:\s*[:.)]\s.*)?", re.DOTALL | re.IGNORECASE)
_CHOICES = re.compile(r"\(?[A-J]\)?(?:(?:\s*,\s*(?:and\s+)?|\s+and\s+|\s*)\(?[A-J]\)?)+")
_REASON = re.compile(r"(yes|no|true|false)\s*[,.;:]\s+\w.*", re.DOTALL | re.IGNORECASE)  # "Yes, because it is even"
_OPPOSITE = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
_SAID = (  # ways to say the same in words
    (
        re.compile(r"(?:there\s+(?:is|are)\s+)?no(?:\s+real)?\s+(?:solutions?|roots?)(?:\s+exists?)?", re.IGNORECASE),
        "\\emptyset",
    ),
    (re.compile(r"(?:there\s+are\s+)?infinitely\s+many(?:\s+solutions)?", re.IGNORECASE), "\\infty"),
    (re.compile(r"(?:it\s+)?does\s+not\s+exist", re.IGNORECASE), "DNE"),
)
_ARTICLE = re.compile(r"(?:an?|the)\s+(?=[a-z]{3})", re.IGNORECASE)

_WORDS = re.compile(r"\([A-Z]\)|[A-Za-z][A-Za-z ,'-]+")  # a text, which needs no reading as a formula
_PROSE = re.compile(r"(?=.*[A-Za-z]{2})[A-Za-z,'-]+(?: [A-Za-z,'-]+)+")
_LINE = re.compile(r"[\d\s*.+-]*[xyz][\d\s*.]*(?:[+-][\d\s*.]*[xyz][\d\s*.]*)+")  # x + y = 5 is not 5
_LABELLED = re.compile(r"\([A-J]\)\s+(\d.*)")  # (C) 24
_EQUALS = re.compile(r"(?<![<>!:\\])=(?!=)")


def _same_text(prediction: str, answer: str) -> bool:
    given, gold = _text_key(prediction), _text_key(answer)
    if given == gold:
        return bool(gold)
    said = plain_text(tidy(prediction)).strip()
    if len(gold) == 1 and (choice := _CHOICE.fullmatch(said)):
        return choice[1] == gold
    if gold in _OPPOSITE and (reason := _REASON.fullmatch(said)):
        words = re.findall(r"[a-z]+", said.casefold())
        return reason[1].casefold() == gold and _OPPOSITE[gold] not in words
    wanted = plain_text(tidy(answer)).strip()
    if re.search(r"[,)]|and", said + wanted) and _CHOICES.fullmatch(said) and _CHOICES.fullmatch(wanted):
        return sorted(re.findall("[A-J]", said)) == sorted(re.findall("[A-J]", wanted))  # AC, A and C
    return False


def _text_key(text: str) -> str:
    text = plain_text(tidy(text)).strip()
    for pattern, meaning in _SAID if " " in text else ():
        if pattern.fullmatch(text):
            return meaning.casefold()
    text = _ARTICLE.sub("", text, count=1) if _ARTICLE.match(text) else text
    text = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)  # 1 2 is not 12
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
