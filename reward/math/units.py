"""Units, currency and ordinal endings, which are left aside: a quantity is an amount and what it counts."""

from __future__ import annotations

import re


def _any_of(names: str) -> str:
    return "|".join(map(re.escape, sorted(names.split(), key=len, reverse=True)))


MONEY = r"[€£¥¢₹]|\\(?:pounds|euro|yen|cent)(?![a-zA-Z])|\b(?:USD|EUR|Rs\.?)(?![a-zA-Z])"
_BEFORE = re.compile(rf"(?:(?:{MONEY}|\\approx|\\sim)\s*)+|(?:the\s+)?(?:(?:[Dd]ay|[Yy]ear|[Nn]umber)\s+)?(?=\d)")

# Words after a number that are part of its value, or that join it to another answer.
_NO_UNITS = (
    "hundred thousand million billion trillion dozen half third quarter and or to mod base sqrt pi "
    "zero one two three four five six seven eight nine ten eleven twelve"
)
_SYMBOLS = (
    "mm cm dm km nm mg kg ml mL kL ft in yd mi lb lbs oz hr hrs ms min mins sec secs mph kph sq cu "
    "mN kN kJ MJ kW MW mV kV mA Hz kHz MHz GHz Pa kPa MPa eV keV MeV cal kcal Wh kWh mol rad deg atm pct \\Omega"
)
_LETTERS = "m g s L N J W V"  # units of one letter: variables too, so only after a number without any variable
_LETTERS_APART = "l h K A C F T"  # right after a number (3h, 2A) these are variables

_WORD = rf"(?!(?:{_any_of(_NO_UNITS)})\b)[A-Za-z]{{3,}}"
_POWER = r"(?:\s*\^\s*\{?\s*-?\d\s*\}?)?"
SYMBOL = rf"(?:\\mu\s*[mgsLCF]|{_any_of(f'{_SYMBOLS} {_LETTERS} {_LETTERS_APART}')})(?![a-zA-Z])"
_GLUED = rf"(?:{_any_of(f'{_SYMBOLS} {_LETTERS}')})(?![a-zA-Z])"
_FURTHER = rf"(?:\s*(?:/|\\cdot)\s*(?:{_WORD}|{SYMBOL}){_POWER}){{0,2}}"
_TEXT = (
    r"\s*(?:\\cdot\s*|/\s*)?\\(?:text|textrm|textnormal|textbf|textit|mbox|mathrm|operatorname)\s*"
    r"\{(?![^{}]*(?:illion|thousand))(?:[^{}]|\{[^{}]*\})*\}"
)
_ORDINAL = (
    r"(?<=\d)\s*\^\s*(?:\{\s*)?(?:\\(?:text|mathrm)\s*\{\s*)?(?:st|nd|rd|th)(?:\s*\}){0,2}|(?<=\d)(?:st|nd|rd|th)\b"
)
_FRACTION = r"\s*\\frac\s*\{\s*\\(?:text|mathrm)\s*\{[^{}]*\}\s*\}\s*\{\s*\\(?:text|mathrm)\s*\{[^{}]*\}\s*\}"
_TIME = r"/\s*(?:second|minute|hour|day|week|month|year|mile|gallon|pound|person)"
# One of them at the end; no two ways to match, so that time is bounded.
_NAMED = re.compile(
    rf"(?:{_ORDINAL}|{_FRACTION}|{_TEXT}{_POWER}|\s*\^\\circ\s*(?:[CF]\b)?|\s*\\?%|\s*(?:{MONEY})|\s*{_TIME}"
    rf"|\s+(?:of\s+(?:the\s+)?)?{_WORD}{_POWER}{_FURTHER})$"
)
_SYMBOL = re.compile(rf"(?:\s+{SYMBOL}|(?<=[\d}})]){_GLUED}){_POWER}{_FURTHER}$")
_AFTER_VARIABLES = re.compile(rf"\s+(?:mm|cm|km|kg|mL|ft){_POWER}$")  # what is no product of variables, set apart
MAX_UNITS = 6

_AMOUNT = re.compile(r"(?:[\d})!.]|\\pi)\s*$")
_VARIABLE = re.compile(
    r"\\(?:[dt]?frac|sqrt|pi|times|cdot|left|right|overline)(?![a-zA-Z])|\d[eE](?=[+-]?\d)|([a-zA-Z])"
)


def without_unit(text: str) -> str:
    """``text`` (tidy) without unit, currency, percent sign and ordinal ending.

    ``5 km/h``, ``\\frac{3}{4}kg``, ``4\\sqrt3\\text{ cm}^2`` and ``5s`` lose theirs; ``2t``, ``x + 2m`` and
    ``a m`` lose nothing: a letter beside a variable, or one that no unit has, is a variable.
    """
    if text.isdecimal():
        return text
    before = _BEFORE.match(text)
    text = text[before.end() :] if before else text
    bare = _cut(text, _NAMED, _SYMBOL)
    if bare is not text and not _is_amount(bare):
        bare = _cut(text, _NAMED, _AFTER_VARIABLES)
    return bare.strip()


def _cut(text: str, *units: re.Pattern[str]) -> str:
    for _ in range(MAX_UNITS):
        end = next(filter(None, (unit.search(text) for unit in units)), None)
        if end is None:
            break
        text = text[: end.start()]
    return text


def _is_amount(text: str) -> bool:
    """Whether symbols of units may follow ``text``: it ends in a value and holds no variable."""
    return bool(_AMOUNT.search(text)) and not any(found[1] for found in _VARIABLE.finditer(text))
