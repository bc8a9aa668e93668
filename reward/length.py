"""Rewards that prefer short correct answers, by name: METHOD's own and the published ones.

Each is a pure function of one group, the answers to one prompt: ``correct`` (bool) and ``lengths``
(tokens, >= 0), one entry an answer, and settings by keyword; it returns one score an answer. In the
formulas c is 1 for a correct answer and 0 for a wrong one, L its length, G the size of the group,
s the group's share of correct answers. Every score is bounded, and none depends on the order in the
group. Unless a docstring says otherwise a shorter correct answer scores at least as much as a longer
one, and any correct answer more than any wrong one. ValueError: sizes or settings that do not fit.

Published formulas that are unbounded are cut off, and each docstring says where. Formulas and numbers
were checked against the papers or public code quoting them; what could not be is marked as such.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

LengthReward = Callable[..., list[float]]


def relative(correct: Sequence[bool], lengths: Sequence[int], *, weight: float, sigma_min: float) -> list[float]:
    """Correctness, less a bounded penalty for being longer than the group's other correct answers.

    ``c * (1 - w * s * sigmoid((L - mean(L_correct)) / max(std(L_correct), sigma_min)))``, w = ``weight``
    in [0, 1). The penalty grows with how well the prompt is solved, so a hard prompt is not rushed. A
    wrong answer is exactly 0 and a correct one at least 1 - w > 0: failing fast never pays.
    ``sigma_min`` (tokens) keeps a group of nearly equal lengths from being told apart by noise. std is
    the population's. Source: METHOD 2.5.
    """
    _same_size(correct, lengths)
    _require(0.0 <= weight < 1.0 and sigma_min > 0.0, "0 <= weight < 1 and sigma_min > 0", weight, sigma_min)
    mean, spread = _mean_and_std(correct, lengths)
    scale = max(spread, sigma_min)
    strength = weight * sum(map(bool, correct)) / max(len(correct), 1)
    return [
        1.0 - strength * _sigmoid((length - mean) / scale) if right else 0.0
        for right, length in zip(correct, lengths, strict=True)
    ]


def arora_zanette(correct: Sequence[bool], lengths: Sequence[int], *, alpha: float) -> list[float]:
    """``c * (1 - alpha * sigmoid((L - mean(L_correct)) / std(L_correct)))``, 0 <= alpha < 1; in [0, 1].

    Where all correct answers are equally long the sigmoid is 1/2. :func:`relative` without the solve
    rate and without a least spread: one token of difference can count as much as a thousand.
    Source: Arora and Zanette 2025, "Training Language Models to Reason Efficiently", arXiv:2502.04463.
    """
    _same_size(correct, lengths)
    _require(0.0 <= alpha < 1.0, "0 <= alpha < 1", alpha)
    mean, spread = _mean_and_std(correct, lengths)
    return [
        1.0 - alpha * _sigmoid((length - mean) / spread if spread else 0.0) if right else 0.0
        for right, length in zip(correct, lengths, strict=True)
    ]


def kimi(correct: Sequence[bool], lengths: Sequence[int], *, weight: float) -> list[float]:
    """``c + w * l`` with ``l = 1/2 - (L - min L) / (max L - min L)`` if correct, ``min(0, l)`` if wrong.

    min and max are over the whole group, right and wrong; where they are equal l is 0. w = ``weight`` in
    [0, 2): scores lie in [-w/2, 1 + w/2]. **Wrong answers are paid for being short**, though never above
    a correct one. Source: Kimi Team 2025, "Kimi k1.5: Scaling Reinforcement Learning with LLMs",
    arXiv:2501.12599 (the length reward; its weight is not stated there as a number).
    """
    _same_size(correct, lengths)
    _require(0.0 <= weight < 2.0, "0 <= weight < 2", weight)
    shortest, longest = min(lengths, default=0), max(lengths, default=0)
    scores = []
    for right, length in zip(correct, lengths, strict=True):
        reward = 0.5 - (length - shortest) / (longest - shortest) if longest > shortest else 0.0
        scores.append(1.0 + weight * reward if right else weight * min(0.0, reward))
    return scores


def l1_exact(
    correct: Sequence[bool], lengths: Sequence[int], *, target: int, alpha: float, max_penalty: float
) -> list[float]:
    """``c - min(alpha * |target - L|, max_penalty)``: keep to a length of ``target`` tokens; in [-max_penalty, 1].

    **Not a conciseness reward**: below the target the longer answer is better, and a wrong answer near the
    target is above a correct one far from it (with max_penalty < 1 it never is). Published without
    the cut-off and with alpha = 0.0003. Source: Aggarwal and Welleck 2025, "L1: Controlling How Long A
    Reasoning Model Thinks With Reinforcement Learning" (LCPO-Exact), arXiv:2503.04697.
    """
    _same_size(correct, lengths)
    _require(alpha >= 0.0 and max_penalty >= 0.0, "alpha >= 0 and max_penalty >= 0", alpha, max_penalty)
    return [
        float(bool(right)) - min(alpha * abs(target - length), max_penalty)
        for right, length in zip(correct, lengths, strict=True)
    ]


def l1_max(
    correct: Sequence[bool], lengths: Sequence[int], *, target: int, alpha: float, delta: float = 0.5
) -> list[float]:
    """``c * clip(alpha * (target - L) + delta, 0, 1)``: stay within ``target`` tokens; in [0, 1].

    **A correct answer more than delta / alpha tokens over the target scores 0, like a wrong one.**
    Published with alpha = 0.0003. Source: as :func:`l1_exact` (LCPO-Max).
    """
    _same_size(correct, lengths)
    _require(alpha >= 0.0 and 0.0 <= delta <= 1.0, "alpha >= 0 and 0 <= delta <= 1", alpha, delta)
    return [
        min(max(alpha * (target - length) + delta, 0.0), 1.0) if right else 0.0
        for right, length in zip(correct, lengths, strict=True)
    ]


def dapo(correct: Sequence[bool], lengths: Sequence[int], *, max_length: int, buffer: int) -> list[float]:
    """``2c - 1`` plus the soft overlong punishment, right or wrong alike; in [-2, 1].

    The punishment is 0 up to ``max_length - buffer`` tokens, falls linearly to -1 at ``max_length``
    and stays there. **A correct answer of max_length and more scores 0, above every wrong answer (at most
    -1)**; within the free range length does not matter. Published with buffer 4096 and max_length
    20480. Source: Yu et al. 2025, "DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    arXiv:2503.14476 (its correctness reward of 1 and -1 is kept).
    """
    _same_size(correct, lengths)
    _require(0 < buffer <= max_length, "0 < buffer <= max_length", buffer, max_length)
    return [
        (1.0 if right else -1.0) - min(max((length - (max_length - buffer)) / buffer, 0.0), 1.0)
        for right, length in zip(correct, lengths, strict=True)
    ]


def alp(correct: Sequence[bool], lengths: Sequence[int], *, beta: float, max_length: int) -> list[float]:
    """``c - beta * max(s, 1/G) * min(L / max_length, 1)``, 0 <= beta < 1; in [-beta, 1].

    The easier the prompt, the dearer a token. **Wrong answers are paid for being short**, though
    never above a correct one. The paper divides L by a constant N that it leaves open; here N is the most
    tokens an answer can have, which bounds the penalty. Source: Xiang et al. 2025, "Just Enough Thinking:
    Efficient Reasoning with Adaptive Length Penalties Reinforcement Learning", arXiv:2506.05256.
    """
    _same_size(correct, lengths)
    _require(0.0 <= beta < 1.0 and max_length > 0, "0 <= beta < 1 and max_length > 0", beta, max_length)
    size = max(len(correct), 1)
    price = beta * max(sum(map(bool, correct)), 1) / size
    return [
        float(bool(right)) - price * min(length / max_length, 1.0)
        for right, length in zip(correct, lengths, strict=True)
    ]


def gr3(correct: Sequence[bool], lengths: Sequence[int], *, alpha: float) -> list[float]:
    """``c / (1 + alpha * L / mean(L))``, the mean over the whole group; in [0, 1].

    Multiplicative, so wrong is exactly 0. A correct answer is at least 1 / (1 + alpha * G). Where all
    lengths are 0 nothing is taken off. alpha = 0.33 is the default of public implementations. Source: Li
    et al. 2026, "Tackling Length Inflation Without Trade-offs: Group Relative Reward Rescaling for
    Reinforcement Learning", arXiv:2603.10535 (the rescaling; its calibration of advantages is not here).
    """
    _same_size(correct, lengths)
    _require(alpha >= 0.0, "alpha >= 0", alpha)
    mean = sum(lengths) / max(len(lengths), 1)
    return [
        1.0 / (1.0 + alpha * length / mean if mean else 1.0) if right else 0.0
        for right, length in zip(correct, lengths, strict=True)
    ]


def shorter_better(
    correct: Sequence[bool], lengths: Sequence[int], *, alpha: float, beta: float, max_penalty: float
) -> list[float]:
    """``alpha * c - min(beta * |L - L*|, max_penalty)``; in [-max_penalty, alpha].

    L* is the length of the shortest correct answer, or the mean of all where none is. **Wrong
    answers are pulled to L* as well** (in an all-wrong group to the mean length); with ``max_penalty`` <
    ``alpha``, which is required, never above a correct one. The paper has no cut-off; its code has alpha
    2 and beta 0.001. Source: Yi, Wang and Li 2025, "ShorterBetter: Guiding Reasoning Models to Find
    Optimal Inference Length for Efficient Reasoning", arXiv:2504.21370.
    """
    _same_size(correct, lengths)
    _require(beta >= 0.0 and 0.0 <= max_penalty < alpha, "beta >= 0, max_penalty < alpha", beta, max_penalty, alpha)
    mean = sum(lengths) / max(len(lengths), 1)
    best = min((length for length, right in zip(lengths, correct, strict=True) if right), default=mean)
    return [
        (alpha if right else 0.0) - min(beta * abs(length - best), max_penalty)
        for right, length in zip(correct, lengths, strict=True)
    ]


def laser(correct: Sequence[bool], lengths: Sequence[int], *, target: int, alpha: float) -> list[float]:
    """``c * (1 + alpha)`` up to ``target`` tokens, ``c`` beyond; in [0, 1 + alpha].

    A step, so two answers on the same side of it score the same. Source: Liu et al. 2025, "Learn to
    Reason Efficiently with Adaptive Length-based Reward Shaping", arXiv:2505.15612 (LASER with a fixed
    target; LASER-D and -DE, which move it, are not here). The default alpha of 0.5 was not confirmed.
    """
    _same_size(correct, lengths)
    _require(alpha >= 0.0, "alpha >= 0", alpha)
    return [
        (1.0 + alpha if length <= target else 1.0) if right else 0.0
        for right, length in zip(correct, lengths, strict=True)
    ]


def cosine(correct: Sequence[bool], lengths: Sequence[int], *, max_length: int) -> list[float]:
    """Half a cosine over L: correct from 1 at L = 0 to 1/2 at ``max_length``, wrong from -1 to -1/2.

    ``end + (start - end) * (1 + cos(pi * L / max_length)) / 2``; an answer of ``max_length`` tokens or more
    scores -1 whether right or wrong. **Of two wrong answers the longer is better**: thinking on is
    encouraged. **A correct answer that reaches max_length is not above a wrong one.** In [-1, 1].
    Source: Yeo et al. 2025, "Demystifying Long Chain-of-Thought Reasoning in LLMs", arXiv:2502.03373; the
    four end values are those of open-r1, the paper's own were not confirmed.
    """
    _same_size(correct, lengths)
    _require(max_length > 0, "max_length > 0", max_length)
    scores = []
    for right, length in zip(correct, lengths, strict=True):
        start, end = (1.0, 0.5) if right else (-1.0, -0.5)
        wave = 0.5 * (1.0 + math.cos(math.pi * length / max_length))
        scores.append(end + (start - end) * wave if length < max_length else -1.0)
    return scores


def linear(correct: Sequence[bool], lengths: Sequence[int], *, weight: float, max_length: int) -> list[float]:
    """``c * (1 - w * min(L / max_length, 1))``, w = ``weight`` in [0, 1); in [0, 1].

    The plainest length penalty, gated on correctness: a baseline, of no particular source.
    """
    _same_size(correct, lengths)
    _require(0.0 <= weight < 1.0 and max_length > 0, "0 <= weight < 1 and max_length > 0", weight, max_length)
    return [
        1.0 - weight * min(length / max_length, 1.0) if right else 0.0
        for right, length in zip(correct, lengths, strict=True)
    ]


LENGTH_REWARDS: dict[str, LengthReward] = {
    "relative": relative,
    "arora_zanette": arora_zanette,
    "kimi": kimi,
    "l1_exact": l1_exact,
    "l1_max": l1_max,
    "dapo": dapo,
    "alp": alp,
    "gr3": gr3,
    "shorter_better": shorter_better,
    "laser": laser,
    "cosine": cosine,
    "linear": linear,
}


def _same_size(correct: Sequence[bool], lengths: Sequence[int]) -> None:
    if len(correct) != len(lengths):
        raise ValueError(f"{len(correct)} correctness flags for {len(lengths)} lengths: give one of each per sample")


def _require(fits: bool, expected: str, *given: float) -> None:
    if not fits:
        raise ValueError(f"expected {expected}, got {', '.join(map(str, given))}")


def _mean_and_std(correct: Sequence[bool], lengths: Sequence[int]) -> tuple[float, float]:
    """Of the correct answers' lengths, as a population; (0, 0) where there is none."""
    solved = [length for length, right in zip(lengths, correct, strict=True) if right]
    if not solved:
        return 0.0, 0.0
    mean = math.fsum(solved) / len(solved)
    return mean, math.sqrt(math.fsum((length - mean) ** 2 for length in solved) / len(solved))


def _sigmoid(x: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * x))
