"""Taking answers apart: lists, brackets, names and their values, plus-minus signs. All texts are tidy."""

from __future__ import annotations

import itertools
import re

_JOINT = re.compile(r"\s*[,;]?\s*(?<![a-zA-Z\\])(?:and|or)(?![a-z])\s*|[,;]")
_SET_OPERATION = re.compile(r"\\(?:cup|cap|setminus|backslash)(?![a-zA-Z])")
_GROUPED = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)")
RELATION = re.compile(r"\\(?:le|ge|ne|in|approx|equiv)(?![a-zA-Z])|(?<!:)=|<|>")
NAME = re.compile(
    r"\(?\s*(?:[A-Z]\s*\\(?:cup|cap)\s*(?=[A-Z]))*(?:\\lim\s*_\s*\{[^{}]*\}\s*)?"
    r"(?:\\(?:angle|overline|triangle|widehat|vec|text|mathrm|mathbf|det|max|min)\s*)?(?:\\?[a-zA-Z]+|\{[a-zA-Z ]+\})"
    r"(?:\s*_\s*(?:\w|\{[^{}]*\}))?'*(?:\s*\([\w, ]+\)|(?:\s*,\s*\\?[a-zA-Z]\w*)+\s*\))?"
)
_POINT = re.compile(r"([A-Z]'*)\s*(\([^()]*,[^()]*\))")
_INDEXED = re.compile(r"([a-zA-Z])\s*_\s*(?:\d|\{\s*\d+\s*\})\s*=")
SIGN = re.compile(r"\\(pm|mp)(?![a-zA-Z])")
_EQUALS = re.compile(r"(?<![<>!:])=(?!=)")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


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


def bracketed(text: str) -> tuple[str, str] | None:
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


def collection(text: str, grouped: bool = False) -> tuple[str, list[str]]:
    """The brackets around a list ("" without any) and its parts. Braces that are not ``\\{`` only group."""
    brackets, inner = bracketed(text) or ("", text)
    if brackets == "{}":
        if not text.startswith("\\{"):
            brackets = ""
        elif "|" in inner or "\\mid" in inner or ":" in inner:
            return brackets, []  # a set given by a condition
    return brackets, split(inner, grouped=grouped)


def members(text: str, free: bool) -> list[str]:
    """The parts of a list or set (else the text alone), each ``a \\pm b`` as the two that it stands for.

    Of ``\\pm a \\pm b`` the signs go together, or each may be chosen (``free``).
    """
    brackets, parts = collection(text)
    return [sign for part in (parts if brackets in ("", "{}") else [text]) for sign in _signs(part, free)]


def _signs(part: str, free: bool) -> list[str]:
    signs = len(SIGN.findall(part))
    if not signs:
        return [part]
    choices = itertools.product("+-", repeat=signs) if free else [("+",) * signs, ("-",) * signs]
    swapped = {"+": "-", "-": "+"}
    readings = []
    for choice in choices:
        left = iter(choice)
        readings.append(SIGN.sub(lambda mark, left=left: next(left) if mark[1] == "pm" else swapped[next(left)], part))
    return readings


def named_value(text: str) -> tuple[str | None, str]:
    """``x = ... = 7`` (or ``x \\approx 7``) as its name and last exact value; (None, text) of anything else."""
    if point := _POINT.fullmatch(text):
        return point[1], point[2]
    if len(split(text)) != 1:
        return None, text
    sides = split(text, re.compile(r"(?<![<>!:])=(?!=)|\\approx(?![a-zA-Z])"))
    if len(sides) < 2 or not NAME.fullmatch(sides[0]) or any(map(has_order, sides)):
        return None, text
    exact = split(text, re.compile(r"\\approx(?![a-zA-Z])"))[0]
    return sides[0], split(exact, re.compile("="))[-1] if "=" in exact else sides[1]


def assignments(text: str) -> dict[str, str]:
    """Value by name of ``x = 1, y = 2`` or ``(x, y) = (1, 2)``, of two or more names."""
    sides = split(text, re.compile("="))
    if len(sides) == 2 and all(map(bracketed, sides)):
        names, values = (collection(side)[1] for side in sides)
    else:
        parts = [split(part, re.compile("=")) for part in split(text)]
        if any(len(part) != 2 for part in parts):
            return {}
        names, values = [part[0] for part in parts], [part[1] for part in parts]
    names = [re.sub(r"[\s{}]", "", name) for name in names if NAME.fullmatch(name)]
    return dict(zip(names, values, strict=True)) if len({*names}) == len(values) > 1 else {}


def solutions(text: str) -> str:
    """``a=3, b=1; a=4, b=1`` as ``(3, 1), (4, 1)``; anything else as it is."""
    sides = [split(part, _EQUALS) for part in split(text)] if text.count("=") > 3 else []
    names = [side[0] for side in sides]
    size = len({*names})
    if size < 2 or len(names) % size or names != names[:size] * (len(names) // size):
        return text
    if any(len(side) != 2 or not NAME.fullmatch(side[0]) for side in sides):
        return text
    values = [side[1] for side in sides]
    return ", ".join(f"({', '.join(values[start : start + size])})" for start in range(0, len(values), size))


def has_order(text: str) -> bool:
    return bool(re.search(r"[<>]|\\(?:le|ge|ne|in)(?![a-zA-Z])", text))


def head(name: str) -> str:
    """``f`` of ``f(x)``: the letter chosen for an argument means nothing."""
    return re.sub(r"[\s{}]|(?<=\w)\([\w, ]*\)$", "", name)


def with_argument_of(gold_name: str, given_name: str, given: str) -> str:
    """``2x`` of ``f(n) = 2n`` where the other is named ``f(x)``, if the value has no ``x`` already."""
    arguments = [re.search(r"\(\s*([a-zA-Z])\s*\)$", name) for name in (given_name, gold_name)]
    if not all(arguments):
        return given
    old, new = (argument[1] for argument in arguments)  # type: ignore[index]
    letters = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]")
    if old == new or new in letters.findall(given):
        return given
    return letters.sub(lambda letter: new if letter[0] == old else letter[0], given)


def without_common_name(parts: list[str]) -> list[str]:
    """``n = 1, 2, 3`` as ``1, 2, 3``, and ``x_1 = 1, x_2 = 2`` as ``x = 1, x = 2``."""
    if len({found[1] if (found := _INDEXED.match(part)) else None for part in parts}) == 1:
        return [_INDEXED.sub(r"\1 =", part) for part in parts]
    name, value = named_value(parts[0])
    return [value, *parts[1:]] if name and not any("=" in part for part in parts[1:]) else parts


def member_of(text: str) -> str:
    """The set S of ``x \\in S``."""
    sides = split(text, re.compile(r"\\in(?![a-zA-Z])"))
    return sides[1] if len(sides) == 2 and NAME.fullmatch(sides[0]) else text


def share_a_letter(relations: list[str]) -> bool:
    """Whether all relations (what has no sign of one aside) are about one letter."""
    sides = [split(relation, re.compile(r"\\(?:le|ge)(?![a-zA-Z])|[<>=]")) for relation in relations]
    names = [{head(side) for side in found if NAME.fullmatch(side)} for found in sides if len(found) > 1]
    return not names or bool(set.intersection(*names))
