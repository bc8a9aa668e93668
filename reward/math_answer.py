"""Is the final answer of a completion mathematically the right one?

The answer is extracted strictly (:mod:`reward.extraction`), plain numbers are compared exactly, and
the rest goes to Math-Verify. What a model wrote is data: it is never run, a malformed answer is a 0
with an error kind, and what could cost unbounded time to evaluate is refused by its size. (There is
no clock here: signal timeouts work in a main thread only.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from reward.base import Completion, RewardError, Verdict, completion_text
from reward.extraction import DEFAULT_FORMS, Form, extract_answer
from reward.notation import plain_text, tidy
from reward.quantities import DEFAULT, Conventions, numbers_equal, parse_number, times_equal, without_unit
from reward.structure import compare_parts, split

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
    answer: Sequence[str],
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
    answer: Sequence[str],
    forms: Sequence[Form] = DEFAULT_FORMS,
    numeric: bool = False,
    **columns: Any,
) -> list[Verdict]:
    """:func:`grade` for each completion."""
    texts = map(completion_text, completions)
    return [grade(text, gold, forms=forms, numeric=numeric) for text, gold in zip(texts, answer, strict=True)]


def grade(completion: str, answer: str, *, forms: Sequence[Form] = DEFAULT_FORMS, numeric: bool = False) -> Verdict:
    """Judge one completion against the right ``answer``.

    ``forms`` says where an answer may stand (:func:`reward.extraction.extract_answer`); none found is
    wrong (``no_answer``). ``numeric`` takes a written-out number only, so that a sum which the model
    was asked to work out does not pass as its own answer (``not_a_number``). Not judged (None) is
    only an ``answer`` that is itself empty, too complex or, with ``numeric``, no number
    (``bad_answer``); where it is a whole worked solution, its boxed or ``####`` answer is meant.
    """
    gold = extract_answer(answer) or answer
    if not gold.strip() or (numeric and parse_number(gold) is None):
        return Verdict(None, None, error="bad_answer")
    extracted = extract_answer(completion, forms)
    if extracted is None:
        return Verdict(False, 0.0, error="no_answer")
    if numeric:
        given = parse_number(extracted)
        equal, error = given == parse_number(gold), "not_a_number" if given is None else None
    else:
        equal, error = equivalent(extracted, gold)
    return Verdict(equal, None if equal is None else float(equal), extracted, error)


def equivalent(prediction: str, answer: str, conventions: Conventions = DEFAULT) -> tuple[bool | None, str | None]:
    """Whether two bare answers are equal, and the kind of error met on the way.

    Numbers and times are compared exactly (:mod:`reward.quantities`), lists, tuples, sets, intervals and
    matrices part by part (:mod:`reward.structure`), texts but for blanks, ``\\text`` and case. All else is
    Math-Verify's. None: ``answer`` is no answer that anything could be compared with (``bad_answer``).
    """
    given, gold = (tidy(extract_answer(text, ("boxed",)) or text) for text in (prediction, answer))
    if gold.count("{") > gold.count("}"):
        gold = gold.removeprefix("\\boxed{")  # cut off, but it can be meant only so
    if not _EQUALS.search(gold):
        given = _last_side(given)
    equal = numbers_equal(given, gold, conventions)
    if equal is None and _same_text(given, gold):
        return True, None
    if equal is None:
        equal = times_equal(given, gold)
    if equal is not None:
        return equal, None
    if len(gold) > MAX_CHARS:
        return None, "bad_answer"
    if len(given) > MAX_CHARS:
        return False, "too_complex"
    errors: list[str | None] = []
    equal = compare_parts(
        given, gold, lambda *parts: _note(errors, *equivalent(*parts, conventions)), conventions.ordered
    )
    if equal is not None:
        error = None if equal else next(filter(None, errors), None)
        return (None, error) if "bad_answer" in errors and not equal else (equal, error)
    if _is_unwieldy(gold):
        return None, "bad_answer"
    if _is_unwieldy(given):
        return False, "too_complex"
    from reward.symbolic import compare

    return compare(without_unit(given), without_unit(gold), conventions)


def _note(errors: list[str | None], equal: bool | None, error: str | None) -> bool:
    errors.append(error)
    return equal is True


@lru_cache(maxsize=1)
def self_test() -> None:
    """Grade a few answers of known worth; a broken installation must not score a whole run 0.

    Raises :class:`reward.base.RewardError`.
    """
    for completion, answer, expected in _SELF_TEST:
        verdict = grade(completion, answer)
        if verdict.correct is not expected:
            raise RewardError(
                f"the math grader's self-test failed: {completion!r} against {answer!r} gave {verdict}, "
                f"expected {expected}; check that math-verify and its antlr4 runtime are installed"
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


# --- texts ---

_CHOICE = re.compile(r"\(?([A-J])\)?(?:\s*[:.)]\s.*)?", re.DOTALL)

_EQUALS = re.compile(r"(?<![<>!:\\])=(?!=)")


def _last_side(formula: str) -> str:
    """The right side of ``x = ... = 7``; a list of equations stays whole."""
    return formula if len(split(formula)) > 1 else _EQUALS.split(formula)[-1].strip()


def _same_text(prediction: str, answer: str) -> bool:
    given, gold = _text_key(prediction), _text_key(answer)
    if given == gold:
        return bool(gold)
    if len(gold) == 1 and (choice := _CHOICE.fullmatch(plain_text(tidy(prediction)))):
        return choice[1] == gold
    return False


def _text_key(text: str) -> str:
    text = re.sub(r"\s+", "", plain_text(tidy(text)))
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
