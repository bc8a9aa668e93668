"""Answers made of parts, compared part by part: lists, tuples, sets, intervals, relations, matrices, plus-minus.

The parts go back to the caller's comparison, so that numbers within them are compared exactly too. All
texts are tidy (:func:`reward.notation.tidy`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Equal = Callable[[str, str], bool]

MAX_PARTS = 40  # of one answer: unordered parts are matched pairwise

_JOINT = re.compile(r"\s*[,;]?\s*(?:\\(?:lor|vee|land|wedge)(?![a-zA-Z])|(?<![a-zA-Z\\])(?:and|or)(?![a-z]))\s*|[,;]")
_SET_OPERATION = re.compile(r"\\(?:cup|cap|setminus|backslash)(?![a-zA-Z])")
_UNION = re.compile(r"\\cup(?![a-zA-Z])")
_GROUPED = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)")
_RELATION = re.compile(r"\\(?:le|ge|ne|in|approx|equiv)(?![a-zA-Z])|(?<!:)=|<|>")
_MATRIX = re.compile(r"\(?\s*\\begin\{(p|b|B|)matrix\}((?:(?!\\begin).)*)\\end\{\1matrix\}\s*\)?", re.DOTALL)
_NAME = re.compile(
    r"\(?\s*(?:\\(?:angle|overline|triangle|widehat|vec|text|mathrm)\s*)?(?:\\?[a-zA-Z]+|\{[a-zA-Z ]+\})"
    r"(?:\s*_\s*(?:\w|\{[^{}]*\}))?'*(?:\s*\([\w, ]+\)|(?:\s*,\s*\\?[a-zA-Z]\w*)+\s*\))?"
)
_REALS = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?|\\R|all\s+real\s+numbers?|all\s+reals?", re.IGNORECASE)
_BY_CONDITION = re.compile(r"\\\{\s*([a-zA-Z])\s*(?:\||\\mid(?![a-zA-Z])|:)(.*)\\\}")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Interval:
    low: str
    high: str
    low_closed: bool
    high_closed: bool


def compare_parts(prediction: str, answer: str, equal: Equal, ordered: bool = False) -> bool | None:
    """Whether two answers agree part by part; None where they are not both made of parts that are known here."""
    if _MATRIX.fullmatch(prediction) and _MATRIX.fullmatch(answer):
        return _same_matrices(prediction, answer, equal)
    given_ranges, gold_ranges = _ranges(prediction), _ranges(answer)
    if given_ranges and gold_ranges:
        if len(given_ranges) != len(gold_ranges):
            return None  # [0, 1) and [1, 2] may be [0, 2]
        same = _matched(given_ranges, gold_ranges, lambda left, right: _same_interval(left, right, equal))
        return same or (False if len(given_ranges) == 1 else None)
    prediction, answer = _member_of(prediction), _member_of(answer)
    given_name, given = _named_value(prediction)
    gold_name, gold = _named_value(answer)
    if given_name and gold_name and _head(given_name) == _head(gold_name):
        return equal(given, gold)
    if (given_name and not _RELATION.search(answer)) or (gold_name and not _RELATION.search(prediction)):
        return equal(given, gold)
    if _SET_OPERATION.search(prediction + answer):
        return None
    if "\\pm" in prediction + answer or "\\mp" in prediction + answer:
        return _matched(_members(prediction), _members(answer), equal)
    return _compare_collections(_collection(prediction), _collection(answer), equal, ordered)


def _compare_collections(
    given: tuple[str, list[str]], gold: tuple[str, list[str]], equal: Equal, ordered: bool
) -> bool | None:
    (given_brackets, given_parts), (gold_brackets, gold_parts) = given, gold
    if not given_parts or not gold_parts or max(len(given_parts), len(gold_parts)) < 2:
        return None
    if max(len(given_parts), len(gold_parts)) > MAX_PARTS:
        return None
    given_parts, gold_parts = _without_common_name(given_parts), _without_common_name(gold_parts)
    if given_brackets and gold_brackets and given_brackets != gold_brackets:
        is_vector = len(gold_parts) > 2 and "{}" not in (given_brackets, gold_brackets)
        if not is_vector:
            return False
    is_set = "{}" in (given_brackets, gold_brackets)
    if {given_brackets, gold_brackets} <= {"", "{}"} and (is_set or not ordered):
        return _matched(given_parts, gold_parts, equal)
    return len(given_parts) == len(gold_parts) and all(map(equal, given_parts, gold_parts))


def _matched(given: Sequence, gold: Sequence, equal: Callable) -> bool:
    """Whether each of ``given`` equals another one of ``gold``, none being left over."""
    if len(given) != len(gold):
        return False
    left = list(gold)
    for item in sorted(given, key=lambda item: item not in gold):  # those written alike first
        match = item if item in left else next((other for other in left if equal(item, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


# --- taking answers apart ------------------------------------------------------------------------


def split(text: str, separator: re.Pattern[str] = _JOINT) -> list[str]:
    """``text`` cut at what matches ``separator`` outside of all brackets, blank parts left out."""
    outside = list(text)  # what is no place to cut is blanked, so that positions stay
    depth = 0
    for index, character in enumerate(text):
        depth += character in "([{"
        if depth:
            outside[index] = "\0"
        depth -= character in ")]}"
        if depth < 0:
            return [text]
    if depth:
        return [text]
    surface = "".join(outside)
    if separator is _JOINT and re.search(r",\s|\band\b|\bor\b", surface):
        surface = _GROUPED.sub(lambda match: "\0" * len(match[0]), surface)
    parts, start = [], 0
    for match in separator.finditer(surface):
        parts.append(text[start : match.start()].strip())
        start = match.end()
    return [part for part in (*parts, text[start:].strip()) if part]


def _bracketed(text: str) -> tuple[str, str] | None:
    """The outer pair of brackets and what they hold, if one pair holds all: ``("(]", "0, 1")``."""
    text = text.replace("\\{", "{").replace("\\}", "}").replace("\\langle", "(").replace("\\rangle", ")").strip()
    if len(text) < 2 or text[0] not in _PAIRS or text[-1] not in _PAIRS.values():
        return None
    depth = 0
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and index < len(text) - 1:
            return None
    return text[0] + text[-1], text[1:-1]


def _collection(text: str) -> tuple[str, list[str]]:
    """The brackets around a list ("" without any) and its parts. Braces that are not ``\\{`` only group."""
    brackets, inner = _bracketed(text) or ("", text)
    if brackets == "{}":
        if not text.startswith("\\{"):
            brackets = ""
        elif "|" in inner or "\\mid" in inner or ":" in inner:
            return brackets, []  # a set given by a condition
    return brackets, split(inner)


def _members(text: str) -> list[str]:
    """The parts of a list or set (else the text alone), each ``a \\pm b`` as the two that it stands for."""
    brackets, parts = _collection(text)
    return [sign for part in (parts if brackets in ("", "{}") else [text]) for sign in _signs(part)]


def _signs(part: str) -> list[str]:
    if "\\pm" not in part and "\\mp" not in part:
        return [part]
    plus = part.replace("\\pm", "+").replace("\\mp", "-")
    return [plus, part.replace("\\pm", "-").replace("\\mp", "+")]


def _named_value(text: str) -> tuple[str | None, str]:
    """``x = ... = 7`` (or ``x \\approx 7``) as its name and last exact value; (None, text) of anything else."""
    if len(split(text)) != 1:
        return None, text
    sides = split(text, re.compile(r"(?<![<>!:])=(?!=)|\\approx(?![a-zA-Z])"))
    if len(sides) < 2 or not _NAME.fullmatch(sides[0]) or any(map(_has_order, sides)):
        return None, text
    exact = split(text, re.compile(r"\\approx(?![a-zA-Z])"))[0]
    return sides[0], split(exact, re.compile("="))[-1] if "=" in exact else sides[1]


def _has_order(text: str) -> bool:
    return bool(re.search(r"[<>]|\\(?:le|ge|ne|in)(?![a-zA-Z])", text))


def _head(name: str) -> str:
    """``f`` of ``f(x)``: the letter chosen for an argument means nothing."""
    return re.sub(r"[\s{}]|(?<=\w)\([\w, ]*\)$", "", name)


def _without_common_name(parts: list[str]) -> list[str]:
    """``n = 1, 2, 3`` as ``1, 2, 3``."""
    name, value = _named_value(parts[0])
    return [value, *parts[1:]] if name and not any("=" in part for part in parts[1:]) else parts


# --- ranges --------------------------------------------------------------------------------------


def _ranges(text: str) -> list[Interval]:
    """The intervals that an answer is the union of; none where it is anything else."""
    text = _member_of(text)
    if condition := _BY_CONDITION.fullmatch(text):
        text = condition[2].strip()
    sides = [side for side in map(_interval, re.split(r"\s+and\s+", text)) if side]
    if len(sides) == 2:  # x > 2 and x < 5
        below, above = sorted(sides, key=lambda side: side.low == "-\\infty")
        if below.high == "\\infty" and above.low == "-\\infty":
            return [Interval(below.low, above.high, below.low_closed, above.high_closed)]
    pieces = split(text, _UNION)
    if len(pieces) == 1 and _has_order(text):
        pieces = [piece for piece in re.split(r"\s*(?<![a-zA-Z\\])or(?![a-z])\s*|\\(?:lor|vee)\s|,", text) if piece]
    ranges = [_interval(piece.strip()) for piece in pieces]
    return [] if None in ranges else ranges  # type: ignore[return-value]


def _member_of(text: str) -> str:
    """The set S of ``x \\in S``."""
    sides = split(text, re.compile(r"\\in(?![a-zA-Z])"))
    return sides[1] if len(sides) == 2 and _NAME.fullmatch(sides[0]) else text


def _interval(text: str) -> Interval | None:
    if _REALS.fullmatch(text):
        return Interval("-\\infty", "\\infty", False, False)
    if reversed_brackets := re.fullmatch(r"\](.*)\[", text):
        text = f"({reversed_brackets[1]})"
    bracketed = _bracketed(text)
    if bracketed and bracketed[0][0] in "([" and bracketed[0][1] in ")]":
        ends = split(bracketed[1])
        if len(ends) != 2 or _RELATION.search(bracketed[1]):
            return None
        return Interval(_end(ends[0]), _end(ends[1]), bracketed[0][0] == "[", bracketed[0][1] == "]")
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
        return Interval(_end(sides[0]), _end(sides[2]), *closed) if _NAME.fullmatch(sides[1]) else None
    names = [bool(_NAME.fullmatch(side)) for side in sides]
    if names[0] == names[1]:
        return None
    if names[0]:
        return Interval("-\\infty", _end(sides[1]), False, closed[0])
    return Interval(_end(sides[0]), "\\infty", closed[0], False)


def _end(text: str) -> str:
    return re.sub(r"^\+\s*(?=\\infty)", "", text).replace("\\infty ", "\\infty").strip()


def _same_interval(given: Interval, gold: Interval, equal: Equal) -> bool:
    closed = (given.low_closed, given.high_closed) == (gold.low_closed, gold.high_closed)
    return closed and equal(given.low, gold.low) and equal(given.high, gold.high)


# --- matrices ------------------------------------------------------------------------------------


def _same_matrices(prediction: str, answer: str, equal: Equal) -> bool:
    given, gold = _rows(prediction), _rows(answer)
    if [len(row) for row in given] != [len(row) for row in gold]:
        return False
    return all(equal(*pair) for rows in zip(given, gold, strict=True) for pair in zip(*rows, strict=True))


def _rows(matrix: str) -> list[list[str]]:
    match = _MATRIX.fullmatch(matrix)
    assert match is not None
    rows = [row for row in re.split(r"\\\\|\\cr(?![a-z])", match[2]) if row.strip()]
    return [[entry.strip() for entry in row.split("&")] for row in rows]
