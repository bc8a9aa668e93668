"""Matrices, compared entry by entry."""

from __future__ import annotations

import re
from collections.abc import Callable

_MATRIX = re.compile(r"\(?\s*\\begin\{(p|b|B|)matrix\}((?:(?!\\begin).)*)\\end\{\1matrix\}\s*\)?", re.DOTALL)


def is_matrix(text: str) -> bool:
    """Whether ``text`` (tidy) is one matrix and nothing else."""
    return bool(_MATRIX.fullmatch(text))


def same_matrices(prediction: str, answer: str, equal: Callable[[str, str], bool]) -> bool:
    """Entry by entry, whatever the brackets."""
    given, gold = _rows(prediction), _rows(answer)
    if [len(row) for row in given] != [len(row) for row in gold]:
        return False
    return all(equal(*pair) for rows in zip(given, gold, strict=True) for pair in zip(*rows, strict=True))


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
