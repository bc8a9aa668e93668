"""Answers made of parts, compared part by part: lists, tuples, sets, intervals, relations, matrices, plus-minus.

The parts go back to the caller's comparison, so that numbers within them are compared exactly too. All
texts are tidy (:func:`reward.math.notation.tidy`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reward.math.matrices import is_matrix, same_matrices, vector
from reward.math.quantities import parse_number

Equal = Callable[[str, str], bool]

MAX_PARTS = 40  # of one answer: unordered parts are matched pairwise
MAX_SIGNS = 4  # plus-minus signs in one answer

_JOINT = re.compile(r"\s*[,;]?\s*(?<![a-zA-Z\\])(?:and|or)(?![a-z])\s*|[,;]")
_SET_OPERATION = re.compile(r"\\(?:cup|cap|setminus|backslash)(?![a-zA-Z])")
_UNION = re.compile(r"\\cup(?![a-zA-Z])")
_GROUPED = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)")
_RELATION = re.compile(r"\\(?:le|ge|ne|in|approx|equiv)(?![a-zA-Z])|(?<!:)=|<|>")
_NAME = re.compile(
    r"\(?\s*(?:[A-Z]\s*\\(?:cup|cap)\s*(?=[A-Z]))*(?:\\lim\s*_\s*\{[^{}]*\}\s*)?"
    r"(?:\\(?:angle|overline|triangle|widehat|vec|text|mathrm|mathbf|det|max|min)\s*)?(?:\\?[a-zA-Z]+|\{[a-zA-Z ]+\})"
    r"(?:\s*_\s*(?:\w|\{[^{}]*\}))?'*(?:\s*\([\w, ]+\)|(?:\s*,\s*\\?[a-zA-Z]\w*)+\s*\))?"
)
_REALS = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?|\\R|(?-i:R)|all\s+real\s+numbers?|all\s+reals?", re.IGNORECASE)
_BY_CONDITION = re.compile(
    r"\\\{\s*([a-zA-Z])\s*(?:\\in\s*(?:\\mathbb\s*\{?\s*R\s*\}?|\\R)\s*)?(?:\||\\mid(?![a-zA-Z])|:)(.*)\\\}"
)
_ABSOLUTE = re.compile(r"(?:\||\\lvert)\s*([a-zA-Z])\s*(?:\||\\rvert)\s*(<|>|\\(?:le|ge)(?![a-zA-Z]))\s*([^<>|]*)")
_POINT = re.compile(r"([A-Z]'*)\s*(\([^()]*,[^()]*\))")
_VARIABLES = ("x", "y", "z", "t")  # what a relation between two letters is about
_RESIDUE = re.compile(
    r"(.+?)\s*\(?\s*(?:\\p?mod|\\bmod|\\text\s*\{\s*mod\s*\}|\bmod)(?![a-zA-Z])\s*(\{[^{}]*\}|\w+)\s*\)?"
)
_EQUIVALENT = re.compile(r"\\equiv(?![a-zA-Z])")
_INDEXED = re.compile(r"([a-zA-Z])\s*_\s*(?:\d|\{\s*\d+\s*\})\s*=")
_OR = re.compile(r"\s*(?<![a-zA-Z\\])or(?![a-z])\s*|,")
_SIGN = re.compile(r"\\(pm|mp)(?![a-zA-Z])")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Interval:
    low: str
    high: str
    low_closed: bool
    high_closed: bool


def compare_parts(prediction: str, answer: str, equal: Equal, ordered: bool = False) -> bool | None:
    """Whether two answers agree part by part; None where they are not both made of parts that are known here."""
    (given_residue, given_modulus), (gold_residue, gold_modulus) = _residue(prediction), _residue(answer)
    if given_modulus or gold_modulus:
        same_modulus = not given_modulus or not gold_modulus or equal(given_modulus, gold_modulus)
        return same_modulus and equal(given_residue, gold_residue)
    matrices = [is_matrix(text) for text in (prediction, answer)]
    if all(matrices):
        return same_matrices(prediction, answer, equal)
    if any(matrices):
        prediction, answer = (vector(text) for text in (prediction, answer))
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
    if bool(given_name) != bool(gold_name) and not _RELATION.search(prediction if gold_name else answer):
        return equal(given, gold)
    if _SET_OPERATION.search(prediction + answer):
        return None
    if 0 < max(len(_SIGN.findall(prediction)), len(_SIGN.findall(answer))) <= MAX_SIGNS:
        return any(_matched(_members(prediction, free), _members(answer, free), equal) for free in (False, True))
    if (assigned := _same_assignments(prediction, answer, equal)) is not None:
        return assigned
    if (ratios := _same_ratios(prediction, answer, equal)) is not None:
        return ratios
    given_parts, gold_parts = (_collection(text, parse_number(text) is not None) for text in (prediction, answer))
    if len(given_parts[1]) != len(gold_parts[1]):  # 2,500\pi may be one number
        given_parts, gold_parts = _collection(prediction, True), _collection(answer, True)
    return _compare_collections(given_parts, gold_parts, equal, ordered)


def _same_assignments(prediction: str, answer: str, equal: Equal) -> bool | None:
    """``x = 1, y = 2`` against the like or ``(x, y) = (1, 2)``; None where not both assign to several names."""
    given, gold = _assignments(prediction), _assignments(answer)
    if not given or not gold:
        return None
    if given.keys() == gold.keys():
        return all(equal(given[name], value) for name, value in gold.items())
    return None


def _same_ratios(prediction: str, answer: str, equal: Equal) -> bool | None:
    """``1:2:3`` against ``2:4:6``; None where not both have three or more terms."""
    given, gold = (split(text.rpartition("=")[2], re.compile(":")) for text in (prediction, answer))
    if min(len(given), len(gold)) < 3:
        return None
    if len(given) != len(gold):
        return False
    if all(map(equal, given, gold)):
        return True
    terms = [[parse_number(term) for term in ratio] for ratio in (given, gold)]
    if any(not term for ratio in terms for term in ratio):
        return False
    return len({left / right for left, right in zip(*terms, strict=True)}) == 1  # type: ignore[operator]


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
    if is_set and len(given_parts) != len(gold_parts):  # \\{1, 1, 2\\} has two members
        given_parts, gold_parts = list(dict.fromkeys(given_parts)), list(dict.fromkeys(gold_parts))

    def same(left: str, right: str) -> bool:
        return _share_a_letter([left, right]) and equal(left, right)  # a > 0 is not b > 0 where there are others

    if {given_brackets, gold_brackets} <= {"", "{}"} and (is_set or not ordered):
        return _matched(given_parts, gold_parts, same)
    return len(given_parts) == len(gold_parts) and all(map(same, given_parts, gold_parts))


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


def _residue(text: str) -> tuple[str, str | None]:
    """``x = 3`` and ``7`` of ``x \\equiv 3 \\pmod 7``; the text and None of anything else."""
    match = _RESIDUE.fullmatch(text)
    return (_EQUIVALENT.sub("=", match[1]), match[2]) if match else (text, None)


# --- taking answers apart ------------------------------------------------------------------------


def split(text: str, separator: re.Pattern[str] = _JOINT, grouped: bool = False) -> list[str]:
    """``text`` cut at what matches ``separator`` outside of all brackets, blank parts left out.

    A comma that groups thousands does not cut where lists have blanks or words, or where ``grouped``.
    """
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
    if grouped or (separator is _JOINT and re.search(r",\s|\band\b|\bor\b", surface)):
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


def _collection(text: str, grouped: bool = False) -> tuple[str, list[str]]:
    """The brackets around a list ("" without any) and its parts. Braces that are not ``\\{`` only group."""
    brackets, inner = _bracketed(text) or ("", text)
    if brackets == "{}":
        if not text.startswith("\\{"):
            brackets = ""
        elif "|" in inner or "\\mid" in inner or ":" in inner:
            return brackets, []  # a set given by a condition
    return brackets, split(inner, grouped=grouped)


def _members(text: str, free: bool) -> list[str]:
    """The parts of a list or set (else the text alone), each ``a \\pm b`` as the two that it stands for.

    Of ``\\pm a \\pm b`` the signs go together, or each may be chosen (``free``).
    """
    brackets, parts = _collection(text)
    return [sign for part in (parts if brackets in ("", "{}") else [text]) for sign in _signs(part, free)]


def _signs(part: str, free: bool) -> list[str]:
    signs = len(_SIGN.findall(part))
    if not signs:
        return [part]
    choices = itertools.product("+-", repeat=signs) if free else [("+",) * signs, ("-",) * signs]
    swapped = {"+": "-", "-": "+"}
    readings = []
    for choice in choices:
        left = iter(choice)
        readings.append(_SIGN.sub(lambda mark, left=left: next(left) if mark[1] == "pm" else swapped[next(left)], part))
    return readings


def _named_value(text: str) -> tuple[str | None, str]:
    """``x = ... = 7`` (or ``x \\approx 7``) as its name and last exact value; (None, text) of anything else."""
    if point := _POINT.fullmatch(text):
        return point[1], point[2]
    if len(split(text)) != 1:
        return None, text
    sides = split(text, re.compile(r"(?<![<>!:])=(?!=)|\\approx(?![a-zA-Z])"))
    if len(sides) < 2 or not _NAME.fullmatch(sides[0]) or any(map(_has_order, sides)):
        return None, text
    exact = split(text, re.compile(r"\\approx(?![a-zA-Z])"))[0]
    return sides[0], split(exact, re.compile("="))[-1] if "=" in exact else sides[1]


def _assignments(text: str) -> dict[str, str]:
    """Value by name of ``x = 1, y = 2`` or ``(x, y) = (1, 2)``, of two or more names."""
    sides = split(text, re.compile("="))
    if len(sides) == 2 and all(map(_bracketed, sides)):
        names, values = (_collection(side)[1] for side in sides)
    else:
        parts = [split(part, re.compile("=")) for part in split(text)]
        if any(len(part) != 2 for part in parts):
            return {}
        names, values = [part[0] for part in parts], [part[1] for part in parts]
    names = [re.sub(r"[\s{}]", "", name) for name in names if _NAME.fullmatch(name)]
    return dict(zip(names, values, strict=True)) if len({*names}) == len(values) > 1 else {}


def _has_order(text: str) -> bool:
    return bool(re.search(r"[<>]|\\(?:le|ge|ne|in)(?![a-zA-Z])", text))


def _head(name: str) -> str:
    """``f`` of ``f(x)``: the letter chosen for an argument means nothing."""
    return re.sub(r"[\s{}]|(?<=\w)\([\w, ]*\)$", "", name)


def _without_common_name(parts: list[str]) -> list[str]:
    """``n = 1, 2, 3`` as ``1, 2, 3``, and ``x_1 = 1, x_2 = 2`` as ``x = 1, x = 2``."""
    if len({found[1] if (found := _INDEXED.match(part)) else None for part in parts}) == 1:
        return [_INDEXED.sub(r"\1 =", part) for part in parts]
    name, value = _named_value(parts[0])
    return [value, *parts[1:]] if name and not any("=" in part for part in parts[1:]) else parts


# --- ranges --------------------------------------------------------------------------------------


def _ranges(text: str) -> list[Interval]:
    """The intervals that an answer is the union of; none where it is anything else."""
    text = _member_of(text)
    if condition := _BY_CONDITION.fullmatch(text):
        text = condition[2].strip()
    if absolute := _ABSOLUTE.fullmatch(text):
        return _absolute_ranges(absolute[2], absolute[3].strip())
    parts = re.split(r"\s+and\s+", text)
    sides = [side for side in map(_interval, parts) if side]
    if len(sides) == len(parts) == 2 and _share_a_letter(parts):  # x > 2 and x < 5
        below, above = sorted(sides, key=lambda side: side.low == "-\\infty")
        if below.high == "\\infty" and above.low == "-\\infty":
            return [Interval(below.low, above.high, below.low_closed, above.high_closed)]
    pieces = split(text, _UNION)
    if len(pieces) == 1 and (_has_order(text) or "\\infty" in text):
        pieces = split(text, _OR)
        if not _share_a_letter(pieces):
            return []
    ranges = [_interval(piece) or (_single(piece) if len(pieces) > 1 else None) for piece in pieces]
    return [] if None in ranges else ranges  # type: ignore[return-value]


def _share_a_letter(relations: list[str]) -> bool:
    """Whether all relations (what has no sign of one aside) are about one letter."""
    sides = [split(relation, re.compile(r"\\(?:le|ge)(?![a-zA-Z])|[<>=]")) for relation in relations]
    names = [{_head(side) for side in found if _NAME.fullmatch(side)} for found in sides if len(found) > 1]
    return not names or bool(set.intersection(*names))


def _absolute_ranges(sign: str, bound: str) -> list[Interval]:
    """The intervals of ``|x| < bound`` and the like."""
    closed = sign in ("\\le", "\\ge")
    if sign in ("<", "\\le"):
        return [Interval(f"-({bound})", bound, closed, closed)]
    return [Interval("-\\infty", f"-({bound})", False, closed), Interval(bound, "\\infty", closed, False)]


def _member_of(text: str) -> str:
    """The set S of ``x \\in S``."""
    sides = split(text, re.compile(r"\\in(?![a-zA-Z])"))
    return sides[1] if len(sides) == 2 and _NAME.fullmatch(sides[0]) else text


def _single(text: str) -> Interval | None:
    """``x = 2`` or ``\\{2\\}``, a piece of a union."""
    name, value = _named_value(text)
    if not name:
        brackets, parts = _collection(text)
        value = parts[0] if brackets == "{}" and len(parts) == 1 else ""
    return Interval(value, value, True, True) if value else None


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
    if all(names):
        names = [side in _VARIABLES for side in sides]
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
