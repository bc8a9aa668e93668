"""The accuracy guard (METHOD 2.5): a controller of how much short answers are paid for."""

from __future__ import annotations

import math
from typing import Any

from fbt_rl.config import GuardConfig


def next_weight(
    weight: float, accuracy: float, before: float, *, configured: float, margin: float, factor: float
) -> float:
    """The length weight w after held-out ``accuracy`` was measured, ``before`` being its value before RL.

    Below ``before - margin`` w is multiplied by ``factor``, else divided by it up to ``configured``: what
    n measurements in a row took away comes back in n. All in [0, 1]; ``factor`` strictly inside.
    """
    return weight * factor if accuracy < before - margin else min(configured, weight / factor)


class AccuracyGuard:
    """Keeps ``weight``, the w in force, and ``before``, the accuracy before RL, which is the first one measured."""

    def __init__(self, config: GuardConfig, configured: float):
        """``configured`` is the stage's own length weight: where w starts and what it comes back to."""
        self.config = config
        self._configured = configured
        self.weight = configured
        self.before: float | None = None

    def is_due(self, step: int) -> bool:
        """Whether to measure before ``step``, counted from 0."""
        return step % self.config.every == 0

    def update(self, accuracy: float) -> None:
        """Take in a measurement; NaN, when no answer could be judged, changes nothing.

        Raises ValueError where the very first is NaN.
        """
        if self.before is None:
            if math.isnan(accuracy):
                raise ValueError("no held-out answer could be judged before RL: look at guard.data and the reward")
            self.before = accuracy
        if not math.isnan(accuracy):
            config = self.config
            self.weight = next_weight(
                self.weight,
                accuracy,
                self.before,
                configured=self._configured,
                margin=config.margin,
                factor=config.factor,
            )

    def state(self) -> dict[str, Any]:
        return {"weight": self.weight, "before": self.before}

    def load_state(self, state: dict[str, Any]) -> None:
        self.weight, self.before = state["weight"], state["before"]
