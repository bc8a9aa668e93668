"""What changes over the steps of a run: learning rate, cool-down, number of passes.

Every value is a pure function of the step (and of the seed where something is drawn). Nothing is
kept between steps, so a resumed run, every rank and every micro-batch see the same.
Steps count from 0: step s is the one that takes the weights from state s to state s + 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fbt_rl.config import OptimizerConfig, PassPhase

_PASS_STREAM = 0x9A55  # keeps these draws apart from others made with the same seed and step


def decay_start(steps: int, decay_fraction: float) -> int:
    """First step of the cool-down; ``steps`` where there is none."""
    return steps - round(decay_fraction * steps)


def in_cooldown(step: int, steps: int, decay_fraction: float) -> bool:
    """Whether ``step`` lies in the last ``decay_fraction`` of the run (z-loss is on only there)."""
    return step >= decay_start(steps, decay_fraction)


def wsd_multiplier(step: int, steps: int, config: OptimizerConfig) -> float:
    """Warm-up, stable, decay: the factor on the learning rate at ``step`` of ``steps``.

    Rises linearly to 1 at the last of ``warmup_steps``, stays there, and in the cool-down falls as
    ``1 - x`` (linear) or ``1 - sqrt(x)`` (sqrt) with x the share of the cool-down that is done. The
    first cool-down step is still at 1; 0 is reached at ``steps``, one past the last step. Where a
    short run makes the two overlap, the smaller of both counts.
    """
    rising = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    start = decay_start(steps, config.decay_fraction)
    done = min(1.0, max(0.0, (step - start) / (steps - start))) if start < steps else 0.0
    falling = 1.0 - (math.sqrt(done) if config.decay == "sqrt" else done)
    return min(rising, falling)


def phase_at(phases: Sequence[PassPhase], step: int, steps: int) -> PassPhase:
    """The phase ``step`` belongs to: the last one that has started."""
    return [phase for phase in phases if step >= math.ceil(phase.start_fraction * steps)][-1]


def draw_num_passes(phases: Sequence[PassPhase], seed: int, step: int, steps: int) -> int:
    """K of ``step``: 1, 2, ... with the weights of its phase (METHOD 1.3)."""
    shares = np.cumsum(phase_at(phases, step, steps).weights)
    draw = np.random.default_rng([seed, step, _PASS_STREAM]).random() * shares[-1]
    return int(np.searchsorted(shares, draw, side="right")) + 1


def mean_passes(phases: Sequence[PassPhase], steps: int) -> float:
    """Expected forward passes of one step over the whole run: 1.28 for 75/22/3."""
    starts = [math.ceil(phase.start_fraction * steps) for phase in phases] + [steps]
    total = 0.0
    for phase, first, last in zip(phases, starts, starts[1:], strict=False):
        weights = np.asarray(phase.weights)
        total += (last - first) * float(weights @ np.arange(1, len(weights) + 1) / weights.sum())
    return total / steps
