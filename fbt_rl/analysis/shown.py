"""Figures as text, with as many decimals as their intervals need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# Wherever intervals are shown: a reader would take them for those of training.
ONE_RUN = (
    "Intervals are over problems, of one run each: another seed or machine may move the figures by more than they say."
)
_MOST_MORE = 4  # decimals beyond the usual ones: an interval narrower than that is one point to any reader
_FORMS = {  # factor, least decimals, sign, unit
    "ratio": (1, 2, "", ""),
    "difference of ratios": (1, 3, "", ""),
    "percent": (100, 1, "", "%"),
    "points": (100, 1, "+", ""),
}


class Shown(NamedTuple):
    """A figure and the ends of its interval."""

    value: str
    low: str
    high: str

    @property
    def interval(self) -> str:
        return f"[{self.low}, {self.high}]"

    def __str__(self) -> str:
        return f"{self.value} {self.interval}"


def shown(value: float | None, ends: Sequence[float | None], form: str) -> Shown:
    """``form``: "ratio", "difference of ratios", "percent" or "points"; the latter two of shares.

    All three get the decimals at which no end reads as the figure unless it is that.
    """
    factor, decimals, sign, unit = _FORMS[form]
    numbers = [None if number is None else factor * number for number in (value, *ends)]

    def texts(decimals: int) -> Shown:
        forms = ["–" if number is None else f"{number:{sign}.{decimals}f}{unit}" for number in numbers]
        return Shown(*(text.replace("-", "−") for text in forms))

    for more in range(_MOST_MORE):
        found = texts(decimals + more)
        told = [text != found.value or end == value for text, end in zip(found[1:], ends, strict=True)]
        if value is None or all(told):
            return found
    return texts(decimals)


def shown_of(entry: Mapping[str, Any], key: str, form: str) -> Shown:
    """The figure ``key`` of a comparison or summary, whose interval is ``<key>_ci``."""
    return shown(entry[key], entry[f"{key}_ci"], form)
