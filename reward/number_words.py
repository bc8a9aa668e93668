"""Numbers in words: five, twenty-one, minus three, one half, two thirds."""

from __future__ import annotations

import re

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_PARTS = "half third quarter fifth sixth seventh eighth ninth tenth".split()
_VALUES = {word: value for value, word in enumerate(_SMALL)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
_NUMBER = re.compile(
    rf"(minus\s+|negative\s+)?(?:({'|'.join(_TENS)})(?:[-\s]({'|'.join(_SMALL[1:10])}))?|({'|'.join(_SMALL[::-1])})|an?(?=\s))"
    rf"(?:[-\s]({'|'.join(_PARTS)})s?|[-\s](halves|fourths?))?(?![a-zA-Z-])",
    re.IGNORECASE,
)


def with_digits(text: str) -> str:
    """``text`` with the number in words that it begins with, if any, in digits: ``5 apples`` of ``five apples``."""
    match = _NUMBER.match(text) if text[:1].isalpha() else None
    if match is None:
        return "1/2" if text.casefold() == "half" else text
    minus, tens, ones, small, part, other_part = match.groups()
    if not (tens or small) and not (part or other_part):
        return text  # "a" alone
    value = sum(_VALUES[word.casefold()] for word in (tens, ones, small) if word) if tens or small else 1
    number = f"{'-' if minus else ''}{value}"
    if part or other_part:
        number += f"/{_PARTS.index(part.casefold()) + 2 if part else 2 if other_part[0] in 'hH' else 4}"
    return number + text[match.end() :]
