"""Rewards that prefer short correct answers. All lengths are in tokens, of one group of one prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence


def relative(correct: Sequence[bool], lengths: Sequence[int], *, weight: float, sigma_min: float) -> list[float]:
    """Correctness, less a bounded penalty for being longer than the group's other correct answers.

    ``c * (1 - w * s * sigmoid((L - mean(L_correct)) / max(std(L_correct), sigma_min)))`` with c in
    {0, 1}, L the length, s the group's share of correct answers, w = ``weight`` in [0, 1).
    The penalty grows with how well the prompt is solved, so a hard prompt is not rushed. A wrong answer
    is exactly 0 and a correct one at least 1 - w > 0: failing fast never pays. ``sigma_min`` (tokens)
    keeps a group of nearly equal lengths from being told apart by noise. std is the population's.
    Raises ValueError on sizes or settings that do not fit.
    """
    if len(correct) != len(lengths):
        raise ValueError(f"{len(correct)} correctness flags for {len(lengths)} lengths: give one of each per sample")
    if not 0.0 <= weight < 1.0 or not sigma_min > 0.0:
        raise ValueError(f"expected 0 <= weight < 1 and sigma_min > 0, got weight {weight}, sigma_min {sigma_min}")
    solved = [length for length, right in zip(lengths, correct, strict=True) if right]
    if not solved:
        return [0.0] * len(lengths)
    mean = math.fsum(solved) / len(solved)
    spread = math.sqrt(math.fsum((length - mean) ** 2 for length in solved) / len(solved))
    scale = max(spread, sigma_min)
    strength = weight * len(solved) / len(correct)
    return [
        1.0 - strength * _sigmoid((length - mean) / scale) if right else 0.0
        for right, length in zip(correct, lengths, strict=True)
    ]


def _sigmoid(x: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * x))
