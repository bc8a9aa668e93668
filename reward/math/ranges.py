"""Intervals and inequalities: ``[1, 2)``, ``1 \\le x < 2``, ``|x| > 3``, ``x \\ne 0``, and unions of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from reward.math.parts import (
    NAME,
    RELATION,
    bracketed,
    collection,
    has_order,
    member_of,
    named_value,
    share_a_letter,
    split,
)

_UNION = re.compile(r"\\cup(?![a-zA-Z])")
_REALS = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?|\\R|(?-i:R)|all\s+real\s+numbers?|all\s+reals?", re.IGNORECASE)
_BY_CONDITION = re.compile(
    r"\\\{\s*([a-zA-Z])\s*(?:\\in\s*(?:\\mathbb\s*\{?\s*R\s*\}?|\\R)\s*)?(?:\||\\mid(?![a-zA-Z])|:)(.*)\\\}"
)
_ABSOLUTE = re.compile(r"(?:\||\\lvert)\s*([a-zA-Z])\s*(?:\||\\rvert)\s*(<|>|\\(?:le|ge)(?![a-zA-Z]))\s*([^<>|]*)")
_VARIABLES = ("x", "y", "z", "t")  # what a relation between two letters is about
_OR = re.compile(r"\s*(?<![a-zA-Z\\])or(?![a-z])\s*|,")
_UNEQUAL = re.compile(r"\\ne(?![a-zA-Z])")
_WITHOUT = re.compile(r"(?:\\mathbb\s*\{?\s*R\s*\}?|\\R)\s*\\(?:setminus|backslash)\s*\\\{([^{},]*)\\\}")


@dataclass(frozen=True)
class Interval:
    low: str
    high: str
    low_closed: bool
    high_closed: bool


def ranges(text: str) -> list[Interval]:
    """The intervals that an answer is the union of; none where it is anything else."""
    text = member_of(text)
    if condition := _BY_CONDITION.fullmatch(text):
        text = condition[2].strip()
    if absolute := _ABSOLUTE.fullmatch(text):
        return _absolute_ranges(absolute[2], absolute[3].strip())
    if holes := _all_but(text):
        return [Interval("-\\infty", holes, False, False), Interval(holes, "\\infty", False, False)]
    parts = re.split(r"\s+and\s+", text)
    sides = [side for side in map(_interval, parts) if side]
    if len(sides) == len(parts) == 2 and share_a_letter(parts):  # x > 2 and x < 5
        below, above = sorted(sides, key=lambda side: side.low == "-\\infty")
        if below.high == "\\infty" and above.low == "-\\infty":
            return [Interval(below.low, above.high, below.low_closed, above.high_closed)]
    pieces = split(text, _UNION)
    if len(pieces) == 1 and (has_order(text) or "\\infty" in text):
        pieces = split(text, _OR)
        if not share_a_letter(pieces):
            return []
    found = [_interval(piece) or (_single(piece) if len(pieces) > 1 else None) for piece in pieces]
    return [] if None in found else found  # type: ignore[return-value]


def _all_but(text: str) -> str | None:
    """The number a that ``x \\ne a`` or ``\\mathbb{R} \\setminus \\{a\\}`` leaves out."""
    sides = split(text, _UNEQUAL)
    if len(sides) == 2 and sides[0] in _VARIABLES and len(split(sides[1])) == 1:
        return sides[1]
    without = _WITHOUT.fullmatch(text)
    return without[1].strip() if without else None


def _absolute_ranges(sign: str, bound: str) -> list[Interval]:
    """The intervals of ``|x| < bound`` and the like."""
    closed = sign in ("\\le", "\\ge")
    if sign in ("<", "\\le"):
        return [Interval(f"-({bound})", bound, closed, closed)]
    return [Interval("-\\infty", f"-({bound})", False, closed), Interval(bound, "\\infty", closed, False)]


def _single(text: str) -> Interval | None:
    """``x = 2`` or ``\\{2\\}``, a piece of a union."""
    name, value = named_value(text)
    if not name:
        brackets, parts = collection(text)
        value = parts[0] if brackets == "{}" and len(parts) == 1 else ""
    return Interval(value, value, True, True) if value else None


def _interval(text: str) -> Interval | None:
    if _REALS.fullmatch(text):
        return Interval("-\\infty", "\\infty", False, False)
    if reversed_brackets := re.fullmatch(r"\](.*)\[", text):
        text = f"({reversed_brackets[1]})"
    whole = bracketed(text)
    if whole and whole[0][0] in "([" and whole[0][1] in ")]":
        ends = split(whole[1])
        if len(ends) != 2 or RELATION.search(whole[1]):
            return None
        return Interval(_end(ends[0]), _end(ends[1]), whole[0][0] == "[", whole[0][1] == "]")
    signs = re.findall(r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|<|>", text)
    sides = split(text, re.compile(r"\\(?:le|ge)(?![a-zA-Z])|<|>"))
    if len(sides) != len(signs) + 1 or len(signs) not in (1, 2) or "=" in text or "\\ne" in text:
        return None
    falling = signs[0] in ("\\ge", ">")
    if any((sign in ("\\ge", ">")) != falling for sign in signs):
        return None
    if falling:
        sides, signs = sides[::-1], signs[::-1]
    closed = [sign in ("\\le", "\\ge") for sign in signs]
    if len(signs) == 2:
        return Interval(_end(sides[0]), _end(sides[2]), *closed) if NAME.fullmatch(sides[1]) else None
    names = [bool(NAME.fullmatch(side)) for side in sides]
    if all(names):
        names = [side in _VARIABLES for side in sides]
    if names[0] == names[1]:
        return None
    if names[0]:
        return Interval("-\\infty", _end(sides[1]), False, closed[0])
    return Interval(_end(sides[0]), "\\infty", closed[0], False)


def _end(text: str) -> str:
    return re.sub(r"^\+\s*(?=\\infty)", "", text).replace("\\infty ", "\\infty").strip()


def same_interval(given: Interval, gold: Interval, equal: Callable[[str, str], bool]) -> bool:
    closed = (given.low_closed, given.high_closed) == (gold.low_closed, gold.high_closed)
    return closed and equal(given.low, gold.low) and equal(given.high, gold.high)
