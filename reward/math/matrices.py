"""Matrices, compared entry by entry."""

from __future__ import annotations

import re
from collections.abc import Callable

_NESTED = re.compile(r"\[\s*(\[[^\[\]]*\](?:\s*,\s*\[[^\[\]]*\])+)\s*\]")  # [[1, 2], [3, 4]]
_ROUNDED = re.compile(r"[-+]?\d*\.\d{2,}")
_SHORT_DECIMAL = re.compile(r"[-+]?\d*\.?\d{0,9}")
_MATRIX = re.compile(r"\(?\s*\\begin\{(p|b|B|)matrix\}((?:(?!\\begin).)*)\\end\{\1matrix\}\s*\)?", re.DOTALL)


def is_matrix(text: str) -> bool:
    """Whether ``text`` (tidy) is one matrix and nothing else."""
    return bool(_MATRIX.fullmatch(text))


def from_lists(text: str) -> str:
    """Rows in brackets as a matrix; anything else as it is."""
    nested = _NESTED.fullmatch(text)
    if nested is None:
        return text
    rows = [row.replace(",", "&") for row in re.findall(r"\[([^\[\]]*)\]", nested[1])]
    return "\\begin{pmatrix}" + "\\\\".join(rows) + "\\end{pmatrix}"


def same_matrices(prediction: str, answer: str, equal: Callable[..., bool]) -> bool:
    """Entry by entry, whatever the brackets; of two entries or more a decimal may be rounded to two places.

    ``equal`` takes two entries, and ``rounded=True`` where a decimal of any digits may be the other one rounded.
    """
    given, gold = _rows(prediction), _rows(answer)
    if [len(row) for row in given] != [len(row) for row in gold]:
        return False
    pairs = [pair for rows in zip(given, gold, strict=True) for pair in zip(*rows, strict=True)]
    return all(equal(*pair) or (len(pairs) > 1 and _is_rounded(*pair) and equal(*pair, rounded=True)) for pair in pairs)


def _is_rounded(given: str, gold: str) -> bool:
    """Whether one is a decimal of two places or more, and the other no decimal that somebody may have rounded too."""
    sides = ((given, gold), (gold, given))
    return any(_ROUNDED.fullmatch(one) and not _SHORT_DECIMAL.fullmatch(other) for one, other in sides)


def vector(text: str) -> str:
    """A matrix of one column or row as a tuple; anything else as it is."""
    rows = _rows(text) if _MATRIX.fullmatch(text) else []
    entries = [entry for row in rows for entry in row]
    return f"({', '.join(entries)})" if entries and len(entries) in (len(rows), len(rows[0])) else text


def _rows(matrix: str) -> list[list[str]]:
    match = _MATRIX.fullmatch(matrix)
    assert match is not None
    rows = [row for row in re.split(r"\\\\|\\cr(?![a-z])", match[2]) if row.strip()]
    return [[entry.strip() for entry in row.split("&")] for row in rows]
