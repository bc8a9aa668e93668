"""Numbers in words: five, twenty-one, minus three, one half, two thirds."""

from __future__ import annotations

import re

_SMALL = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
          "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_VALUES = {word: value for value, word in enumerate(_SMALL)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
_PARTS = {
    "half": 2,
    "halves": 2,
    "third": 3,
    "quarter": 4,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "eighth": 8,
    "tenth": 10,
}
_NUMBER = re.compile(
    rf"(?P<sign>minus\s+|negative\s+)?"
    rf"(?:(?P<tens>{'|'.join(_TENS)})(?:[-\s](?P<ones>{'|'.join(_SMALL[1:10])}))?|(?P<small>{'|'.join(_SMALL[::-1])}))"
    rf"(?:[-\s](?P<part>{'|'.join(_PARTS)})s?)?(?![a-zA-Z-])",
    re.IGNORECASE,
)


def with_digits(text: str) -> str:
    """``text`` with the number in words that it begins with, if any, in digits: ``5 apples`` of ``five apples``."""
    if not text[:1].isalpha():
        return text
    if text.casefold() in ("half", "a half"):
        return "1/2"
    match = _NUMBER.match(text)
    if match is None:
        return text
    value = sum(_VALUES[word.casefold()] for word in match.group("tens", "ones", "small") if word)
    part = f"/{_PARTS[match['part'].casefold()]}" if match["part"] else ""
    return f"{'-' if match['sign'] else ''}{value}{part}{text[match.end() :]}"
