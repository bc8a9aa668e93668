"""Written-out numbers and times of day, read exactly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from reward.math.notation import plain_text, tidy

MAX_CHARS = 1000  # of a number: reading digits takes quadratic time
MAX_EXPONENT = 5000  # of ten


Percent = Literal["unit", "fraction", "either"]


@dataclass(frozen=True, slots=True)
class Conventions:
    """What an answer means where people disagree.

    - ``percent``: ``unit`` (25% is 25), ``fraction`` (25% is 0.25) or ``either`` (both pass);
    - ``decimal_comma``: ``2,74`` is also 2.74 where the other side is a single number;
    - ``digits``: a decimal of at least so many significant digits equals the exact value that it
      rounds (2.6667 is 8/3); 0 for never;
    - ``ordered``: lists without brackets must agree in order too.
    """

    percent: Percent = "unit"
    decimal_comma: bool = True
    digits: int = 5
    ordered: bool = False

    def __post_init__(self) -> None:
        if self.percent not in ("unit", "fraction", "either"):
            raise ValueError(f"percent is {self.percent!r}: expected unit, fraction or either")
        if self.digits < 0:
            raise ValueError(f"digits is {self.digits}: expected 0 (never) or more")


DEFAULT = Conventions()

_UNSIGNED = r"(?:[1-9]\d{0,2}(?:[, ]\d{3})+|\d+)?(?:\.\d*)?"
_DECIMAL = re.compile(rf"([+-]?)\s*({_UNSIGNED})(?:[eE]([+-]?\d{{1,4}}))?", re.ASCII)
_RATIO = re.compile(rf"([+-]?)\s*(?:(\d+)\s+)?({_UNSIGNED})\s*/\s*({_UNSIGNED})", re.ASCII)
_FRAC = re.compile(
    rf"([+-]?)\s*(\d+)?\s*\\frac\s*(?:\{{\s*([+-]?{_UNSIGNED})\s*\}}|(\d))\s*(?:\{{\s*({_UNSIGNED})\s*\}}|(\d))",
    re.ASCII,
)
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d*)\\overline\s*\{(\d+)\}", re.ASCII)
_TEN_TO_THE = re.compile(r"\s*(?:\\times|\\cdot|\*)\s*10\s*(?:\^|\*\*)\s*(?:\{\s*([+-]?\d+)\s*\}|([+-]?\d+))", re.ASCII)
_SCALE = re.compile(r"(?<=\d)(?:\s+|\s*\\text\s*\{\s*)(hundred|thousand|million|billion|trillion)\b(?:[^{}]*\})?")
_SCALES = {"hundred": "e2", "thousand": "e3", "million": "e6", "billion": "e9", "trillion": "e12"}

_MONEY = r"[€£¥¢₹]|\\(?:pounds|euro|yen|cent)(?![a-zA-Z])|\b(?:USD|EUR|Rs\.?)(?![a-zA-Z])"
_WORD = r"(?!(?:hundred|thousand|million|billion|trillion|dozen|and|or|to|mod|base|sqrt|pi)\b)[A-Za-z]{3,}"
_SHORT = r"(?:[cmkdn]?m|[mk]?g|[mk]?[lL]|ft|in|lbs?|oz|hrs?|h|min|s|mph|sq|cu|K|N|J|W|V|A|Pa|kJ|kW|Hz)"
_POWER = r"(?:\s*\^\s*\{?\s*-?\d\s*\}?)?"
_TEXT_UNIT = (
    r"\s*(?:\\cdot\s*|/\s*)?\\(?:text|textrm|textnormal|textbf|textit|mbox|mathrm|operatorname)\s*"
    r"\{(?![^{}]*(?:illion|thousand))(?:[^{}]|\{[^{}]*\})*\}"
)
_UNIT = re.compile(  # one of them at the end; no two ways to match, so that time is bounded
    rf"(?:{_TEXT_UNIT}{_POWER}|\s*\^\\circ\s*(?:[CF]\b)?|\s*\\?%|\s*(?:{_MONEY})"
    rf"|(?:\s+{_WORD}|(?:(?<![a-zA-Z])|(?<=\\pi))\s+{_SHORT}\b){_POWER}(?:\s*/\s*(?:{_WORD}|{_SHORT}\b){_POWER})?"
    rf"|(?<=\d)(?:[cmk]m|[mk]?g|m|m[lL]|L|ft){_POWER}(?![a-zA-Z]))$"
)
MAX_UNITS = 6
_BEFORE = re.compile(rf"(?:(?:{_MONEY}|\\approx|\\sim)\s*)+")
_PERCENT = re.compile(r"\\?%|\b(?:percent|pct)\b")


@lru_cache(maxsize=8192)
def parse_number(text: str) -> Fraction | None:
    """The exact value of a written-out number, or None.

    7, -0.5, 1,250, $3, 3/4, \\frac34, 1 \\frac{1}{2}, 25\\%, 15 cm, 1.2e5, 3 \\times 10^{-4}, 5 million.
    Units, a percent sign among them, are left aside.
    """
    if len(text) > MAX_CHARS:
        return None
    text = _bare_number(text)
    if repeating := _REPEATING.fullmatch(text):
        sign, head, tail, period = repeating.groups()
        value = Fraction(int((head or "0") + tail), 10 ** len(tail))
        value += Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(tail))
        return -value if sign == "-" else value
    whole, exponent = "0", None
    if match := _DECIMAL.fullmatch(text):
        sign, top, exponent = match.groups()
        bottom = "1"
    elif match := _RATIO.fullmatch(text):
        sign, whole, top, bottom = match.groups()
    elif match := _FRAC.fullmatch(text):
        sign, whole = match[1], match[2]
        top, bottom = match[3] or match[4], match[5] or match[6]
        if not (top and bottom) or (whole and not top.isdecimal()):
            return None
    else:
        return None
    try:
        value = int(whole or 0) + Fraction(_ungrouped(top)) / Fraction(_ungrouped(bottom))
    except (ValueError, ZeroDivisionError):  # no digit at all, or nothing to divide by
        return None
    if exponent:
        if abs(int(exponent)) > MAX_EXPONENT:
            return None
        value *= Fraction(10) ** int(exponent)
    return -value if sign == "-" else value


def _ungrouped(digits: str) -> str:
    return digits.replace(",", "").replace(" ", "")


def without_unit(text: str) -> str:
    """``text`` (tidy) without unit, currency and percent sign."""
    if text.isdecimal():
        return text
    before = _BEFORE.match(text)
    text = text[before.end() :] if before else text
    for _ in range(MAX_UNITS):
        end = _UNIT.search(text)
        if end is None:
            break
        text = text[: end.start()]
    return text.strip()


def _bare_number(text: str) -> str:
    """A number without its unit; powers of ten and large scales as ``e5``."""
    text = _TEN_TO_THE.sub(lambda match: f"e{match[1] or match[2]}", tidy(text))
    return without_unit(_SCALE.sub(lambda match: _SCALES[match[1]], text))


def numbers_equal(prediction: str, answer: str, conventions: Conventions = DEFAULT) -> bool | None:
    """Whether two numbers are equal, exactly or as a decimal and what it rounds; None where one is no number."""
    given, gold = parse_number(prediction), parse_number(answer)
    if conventions.decimal_comma and (given is None) != (gold is None):
        given = _with_decimal_comma(prediction) if given is None else given
        gold = _with_decimal_comma(answer) if gold is None else gold
    if given is None or gold is None:
        return None
    percents = [bool(_PERCENT.search(text)) for text in (prediction, answer)]
    if given == gold and (conventions.percent != "fraction" or percents[0] == percents[1]):
        return True
    if percents[0] != percents[1]:
        return conventions.percent != "unit" and given == (gold * 100 if percents[0] else gold / 100)
    return rounds(prediction, given, gold, conventions) or rounds(answer, gold, given, conventions)


def _with_decimal_comma(text: str) -> Fraction | None:
    """``2,74`` as 2.74; not a thousands group, and not a list of digits such as 1,2."""
    match = re.fullmatch(r"([+-]?\d+),(\d{2}|\d{4,})", _bare_number(text), re.ASCII)
    return Fraction(f"{match[1]}.{match[2]}") if match and len(text) <= MAX_CHARS else None


def rounds(text: str, decimal: Fraction, exact: Fraction, conventions: Conventions) -> bool:
    """Whether ``text``, a decimal of enough digits, is ``exact`` (no such decimal itself) rounded."""
    match = "." in text and re.fullmatch(r"[+-]?([\d,]*)\.(\d+)", _bare_number(text), re.ASCII)
    if not match or not conventions.digits:
        return False
    places = len(match[2])
    if len((match[1] + match[2]).replace(",", "").lstrip("0")) < conventions.digits:
        return False
    return 10**places % exact.denominator != 0 and abs(decimal - exact) <= Fraction(1, 2 * 10**places)


# --- numerals in a base --------------------------------------------------------------------------

_NUMERAL = re.compile(r"\(?(\w+)\)?\s*_\s*(?:\{\s*\(?(\d+)\)?\s*\}|(\d))", re.ASCII)


def numerals_equal(prediction: str, answer: str) -> bool | None:
    """Whether two numerals with their bases (204_5) are written alike; None where one has no base."""
    given, gold = (_NUMERAL.fullmatch(plain_text(tidy(text))) for text in (prediction, answer))
    if not given or not gold or not (given[1][0].isdigit() and gold[1][0].isdigit()):
        return None
    return given[1].upper() == gold[1].upper() and (given[2] or given[3]) == (gold[2] or gold[3])


# --- times of day --------------------------------------------------------------------------------

_TIME = re.compile(r"(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)


def times_equal(prediction: str, answer: str) -> bool | None:
    """Whether two times of day are the same (3:00 PM, 15:00, 3 p.m.); None where one is no time.

    Without a.m. or p.m. on one side, 3:00 is either.
    """
    given, gold = _parse_time(prediction), _parse_time(answer)
    if given is None or gold is None:
        return None
    if (given[1] is None) == (gold[1] is None):
        return given == gold
    bare, said = (given, gold) if given[1] is None else (gold, given)
    return bare[0] == said[0] if bare[0] >= 13 * 3600 else bare[0] % 43200 == said[0] % 43200


def _parse_time(text: str) -> tuple[int, str | None] | None:
    """Seconds since midnight, and the half of the day if it is said."""
    match = _TIME.fullmatch(plain_text(tidy(text)))
    if not match or not (match[2] or match[4]):
        return None
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    half = match[4].lower() if match[4] else None
    if minute > 59 or second > 59 or hour > (12 if half else 24):
        return None
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    return hour * 3600 + minute * 60 + second, half
