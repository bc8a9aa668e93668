"""Figures of a step against their limits (METHOD 2.4): first a warning, then the end of the run with the reason."""

from __future__ import annotations

import logging
import math
from typing import Literal

from fbt_rl.config import LimitsConfig
from fbt_rl.training.trainer import TrainingError

logger = logging.getLogger(__name__)


def crossed(limits: LimitsConfig, row: dict[str, float], bound: Literal["warn", "stop"]) -> dict[str, str]:
    """Which figures of ``row`` lie beyond their ``bound``: name -> what to say of it. NaN is no figure."""
    told = {}
    for name, limit in limits:
        value, at = row.get(name, math.nan), getattr(limit, bound)
        if limit.passed(value, at):
            told[name] = f"{name} is {value:.3g} (limits.{name}.{bound}: {at:g})"
    return told


class LimitWatch:
    """Warns once when a figure comes to lie beyond its limit, and again only after it has been back.

    Ranks that are shown the same figures come to the same end; only one that is not ``quiet`` warns.
    """

    def __init__(self, limits: LimitsConfig, stage: str, *, quiet: bool = False):
        self._limits = limits
        self._stage = stage
        self._quiet = quiet
        self._beyond: set[str] = set()

    def check(self, row: dict[str, float], step: int) -> None:
        """Raises TrainingError where a figure of ``step`` (counted from 1) has passed its limit for stopping."""
        if fatal := crossed(self._limits, row, "stop"):
            raise TrainingError(
                f"stage {self._stage}, step {step}: {'; '.join(fatal.values())}. Nothing of this step was saved. "
                "Find the reason, or move the limit and give the same command again."
            )
        told = crossed(self._limits, row, "warn")
        if not self._quiet:
            for name in told.keys() - self._beyond:
                logger.warning("stage %s, step %d: %s", self._stage, step, told[name])
        # What was not measured in this step is where it was.
        self._beyond = (self._beyond - row.keys()) | told.keys()
