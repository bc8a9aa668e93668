"""Answers made of parts, compared part by part: lists, tuples, sets, intervals, relations, matrices, plus-minus.

The parts go back to the caller's comparison, so that numbers within them are compared exactly too. All
texts are tidy (:func:`reward.math.notation.tidy`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from reward.math.matrices import from_lists, is_matrix, same_matrices, vector
from reward.math.parts import (
    RELATION,
    SIGN,
    assignments,
    bracketed,
    collection,
    head,
    member_of,
    members,
    named_value,
    share_a_letter,
    solutions,
    split,
    with_argument_of,
    without_common_name,
)
from reward.math.quantities import parse_number
from reward.math.ranges import ranges, same_interval

Equal = Callable[..., bool]  # of two parts; see same_matrices for ``rounded``

MAX_PARTS = 40  # of one answer: unordered parts are matched pairwise
MAX_SIGNS = 4  # plus-minus signs in one answer

_SET_OPERATION = re.compile(r"\\(?:cup|cap|setminus|backslash)(?![a-zA-Z])")
_RESIDUE = re.compile(
    r"(.+?)\s*\(?\s*(?:\\p?mod|\\bmod|\\text\s*\{\s*mod\s*\}|\bmod)(?![a-zA-Z])\s*(\{[^{}]*\}|\w+)\s*\)?"
)
_EQUIVALENT = re.compile(r"\\equiv(?![a-zA-Z])")
_TO = re.compile(r"(?<=\d)\s*(?:\\text\s*\{\s*to\s*\}|\bto\b)\s*(?=\d)")  # 3 to 4


def compare_parts(prediction: str, answer: str, equal: Equal, ordered: bool = False) -> bool | None:
    """Whether two answers agree part by part; None where they are not both made of parts that are known here."""
    (given_residue, given_modulus), (gold_residue, gold_modulus) = _residue(prediction), _residue(answer)
    if given_modulus or gold_modulus:
        same_modulus = not given_modulus or not gold_modulus or equal(given_modulus, gold_modulus)
        return same_modulus and equal(given_residue, gold_residue)
    if is_matrix(answer) or is_matrix(prediction):
        prediction, answer = from_lists(prediction), from_lists(answer)
    matrices = [is_matrix(text) for text in (prediction, answer)]
    if all(matrices):
        return same_matrices(prediction, answer, equal)
    if any(matrices):  # [1, 2] is a row then, and no interval
        prediction, answer = (re.sub(r"^\[(.*)\]$", r"(\1)", vector(text)) for text in (prediction, answer))
    given_ranges, gold_ranges = ranges(prediction), ranges(answer)
    if given_ranges and gold_ranges:
        if len(given_ranges) != len(gold_ranges):
            return None  # [0, 1) and [1, 2] may be [0, 2]
        same = _matched(given_ranges, gold_ranges, lambda left, right: same_interval(left, right, equal))
        return same or (False if len(given_ranges) == 1 else None)
    prediction, answer = member_of(prediction), member_of(answer)
    given_name, given = named_value(prediction)
    gold_name, gold = named_value(answer)
    if given_name and gold_name and head(given_name) == head(gold_name):
        return equal(with_argument_of(gold_name, given_name, given), gold)
    if bool(given_name) != bool(gold_name) and not RELATION.search(prediction if gold_name else answer):
        return equal(given, gold)
    if _SET_OPERATION.search(prediction + answer):
        return None
    if 0 < max(len(SIGN.findall(prediction)), len(SIGN.findall(answer))) <= MAX_SIGNS:
        return any(_matched(members(prediction, free), members(answer, free), equal) for free in (False, True))
    prediction, answer = solutions(prediction), solutions(answer)
    if (assigned := _same_assignments(prediction, answer, equal)) is not None:
        return assigned
    if (ratios := _same_ratios(prediction, answer, equal)) is not None:
        return ratios
    prediction, answer = _only_point(prediction, equal), _only_point(answer, equal)
    given_parts, gold_parts = (collection(text, parse_number(text) is not None) for text in (prediction, answer))
    if len(given_parts[1]) != len(gold_parts[1]):  # 2,500\pi may be one number
        given_parts, gold_parts = collection(prediction, True), collection(answer, True)
    return _compare_collections(given_parts, gold_parts, equal, ordered)


def _same_assignments(prediction: str, answer: str, equal: Equal) -> bool | None:
    """``x = 1, y = 2`` against the like or ``(x, y) = (1, 2)``; None where not both assign to several names."""
    given, gold = assignments(prediction), assignments(answer)
    if not given or not gold:
        return None
    if given.keys() == gold.keys():
        return all(equal(given[name], value) for name, value in gold.items())
    return None


def _same_ratios(prediction: str, answer: str, equal: Equal) -> bool | None:
    """``1:2:3`` against ``2:4:6``; None where they are no ratios."""
    if ":" in prediction + answer:
        prediction, answer = (_TO.sub(":", text) for text in (prediction, answer))
    given, gold = (split(text.rpartition("=")[2], re.compile(":")) for text in (prediction, answer))
    if len(given) == len(gold) == 2 and all(map(parse_number, (*given, *gold))):
        return equal("/".join(given), "/".join(gold))
    if {len(given), len(gold)} == {1, 2} and all(term.isdecimal() for term in (*given, *gold)):
        return False  # 3:1 is not 3
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
    given_parts, gold_parts = without_common_name(given_parts), without_common_name(gold_parts)
    if given_brackets and gold_brackets and given_brackets != gold_brackets:
        is_vector = len(gold_parts) > 2 and "{}" not in (given_brackets, gold_brackets)
        if not is_vector:
            return False
    is_set = "{}" in (given_brackets, gold_brackets)
    are_points = all(map(bracketed, (*given_parts, *gold_parts)))
    if len(given_parts) != len(gold_parts) and (is_set or are_points):  # \\{1, 1, 2\\} has two members
        given_parts, gold_parts = _distinct(given_parts, equal), _distinct(gold_parts, equal)

    def same(left: str, right: str) -> bool:
        return share_a_letter([left, right]) and equal(left, right)  # a > 0 is not b > 0 where there are others

    if {given_brackets, gold_brackets} <= {"", "{}"} and (is_set or not ordered):
        return _matched(given_parts, gold_parts, same)
    return len(given_parts) == len(gold_parts) and all(map(same, given_parts, gold_parts))


def _only_point(text: str, equal: Equal) -> str:
    """``(1, 2)`` of ``\\{(1, 2)\\}`` and of ``(1, 2), (1, 2)``; anything else as it is."""
    brackets, parts = collection(text)
    if brackets not in ("", "{}") or not parts or not all(map(bracketed, parts)):
        return text
    same = parts[0].startswith("(") and all(part == parts[0] or equal(part, parts[0]) for part in parts[1:])
    return parts[0] if same else text


def _distinct(parts: list[str], equal: Equal) -> list[str]:
    kept: list[str] = []
    for part in parts:
        if not any(part == other or equal(part, other) for other in kept):
            kept.append(part)
    return kept


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
