"""Is the final answer of a completion mathematically the right one?

The answer is extracted strictly (:mod:`reward.extraction`), plain numbers are compared exactly, and
the rest goes to Math-Verify. What a model wrote is data: it is never run, a malformed answer is a 0
with an error kind, and what could cost unbounded time to evaluate is refused by its size. (There is
no clock here: signal timeouts work in a main thread only.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from reward.base import Completion, RewardError, Verdict, completion_text
from reward.extraction import DEFAULT_FORMS, Form, extract_answer

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


def equivalent(prediction: str, answer: str) -> tuple[bool | None, str | None]:
    """Whether two bare answers are equal, and the kind of error met on the way.

    Numbers (integers, decimals, fractions; thousands separators, currency, percent and degree signs
    and units aside) are compared exactly, but a decimal of six or more places also equals the
    fraction it rounds. Texts are equal but for blanks, ``\\text`` and case. All else is Math-Verify's.
    """
    if not _EQUALS.search(answer):
        prediction = _last_side(prediction)
    given, gold = parse_number(prediction), parse_number(answer)
    if given is not None and gold is not None:
        return given == gold or _rounds(prediction, given, gold) or _rounds(answer, gold, given), None
    if _same_text(prediction, answer):
        return True, None
    if _is_unwieldy(answer):
        return None, "bad_answer"
    if _is_unwieldy(prediction):
        return False, "too_complex"
    from reward.symbolic import compare

    return compare(_tidy(prediction), _tidy(answer))


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


# --- numbers -------------------------------------------------------------------------------------

_UNSIGNED = r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)?(?:\.\d*)?"
_DECIMAL = re.compile(rf"([+-]?)\s*({_UNSIGNED})", re.ASCII)
_RATIO = re.compile(rf"([+-]?)\s*({_UNSIGNED})\s*/\s*({_UNSIGNED})", re.ASCII)
_FRAC = re.compile(
    rf"([+-]?)\s*\\[dtc]?frac\s*(?:\{{\s*([+-]?{_UNSIGNED})\s*\}}|(\d))\s*(?:\{{\s*({_UNSIGNED})\s*\}}|(\d))",
    re.ASCII,
)
_WORD = r"(?!(?:hundred|thousand|million|billion|trillion|dozen|and|or|to|mod|base|sqrt|pi)\b)[A-Za-z]{3,}"
_UNIT = re.compile(
    r"(?:\s*\\(?:text|textrm|textnormal|textbf|mbox|mathrm|operatorname)\s*\{(?![^{}]*illion|[^{}]*thousand)[^{}]*\}"
    r"(?:\s*\^\s*\{?\d\}?)?"
    r"|\s*\^\s*\{?\s*\\circ\s*\}?|\s*°|\s*\\?%"
    rf"|\s+(?:{_WORD}|(?:[cmk]?m|[mk]?g|ml|ft|lbs?|oz|hrs?|mph)\b)(?:\s+{_WORD}){{0,3}}(?:\s*\^\s*\{{?\d\}}?)?)+$"
)


@lru_cache(maxsize=8192)
def parse_number(text: str) -> Fraction | None:
    """The exact value of a written-out number, or None: 7, -0.5, 1,250, $3, 3/4, \\frac34, 25\\%, 15 cm.

    A percent sign is a unit like any other: 25% is 25.
    """
    if len(text) > 200:
        return None
    text = _UNIT.sub("", _tidy(text))
    if match := _DECIMAL.fullmatch(text):
        sign, top, bottom = match[1], match[2], "1"
    elif match := _RATIO.fullmatch(text):
        sign, top, bottom = match[1], match[2], match[3]
    elif match := _FRAC.fullmatch(text):
        sign, top, bottom = match[1], match[2] or match[3], match[4] or match[5]
    else:
        return None
    try:
        value = Fraction(top.replace(",", "")) / Fraction(bottom.replace(",", ""))
    except (ValueError, ZeroDivisionError):  # no digit at all, or nothing to divide by
        return None
    return -value if sign == "-" else value


def _rounds(text: str, decimal: Fraction, exact: Fraction) -> bool:
    """Whether ``text``, a decimal of six places or more, is ``exact`` (no such decimal itself) rounded."""
    places = len(_tidy(text).partition(".")[2].rstrip("%\\ "))
    if places < 6 or "/" in text or "frac" in text or 10**places % exact.denominator == 0:
        return False
    return abs(decimal - exact) <= Fraction(1, 2 * 10**places)


# --- formulas and texts ---------------------------------------------------------------------------------------

_FORMULA = re.compile(r"\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]|\*\*(.*)\*\*", re.DOTALL)
_SPACING = re.compile(r"\\!\s*|\\[,;:]|\\q?quad\b|\\displaystyle\b")
_TEXT = re.compile(r"\\(?:text|textrm|textnormal|textbf|textit|mbox|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")
_CHOICE = re.compile(r"\(?([A-J])\)?(?:\s*[:.)]\s.*)?", re.DOTALL)

_EQUALS = re.compile(r"(?<![<>!:\\])=(?!=)")


def _last_side(formula: str) -> str:
    """The right side of ``x = ... = 7``; a list of equations stays whole."""
    return formula if "," in formula or ";" in formula else _EQUALS.split(formula)[-1]


def _tidy(text: str) -> str:
    """``text`` without what surrounds a formula: math delimiters, bold marks, spacing, currency, a last dot."""
    text = text.strip()
    if text.isalnum():
        return text
    while match := _FORMULA.fullmatch(text):
        text = next(group for group in match.groups() if group is not None).strip()
    text = _SPACING.sub("", text.replace("−", "-").replace("{,}", ",").replace("\\$", "").replace("$", ""))
    return text.strip().rstrip("\\").removesuffix(".").strip()


def _same_text(prediction: str, answer: str) -> bool:
    given, gold = _text_key(prediction), _text_key(answer)
    if given == gold:
        return bool(gold)
    if len(gold) == 1 and (choice := _CHOICE.fullmatch(_TEXT.sub(r"\1", _tidy(prediction)))):
        return choice[1] == gold
    return False


def _text_key(text: str) -> str:
    text = re.sub(r"\s+", "", _TEXT.sub(r"\1", _tidy(text)))
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
