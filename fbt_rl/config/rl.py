"""Sections of an RL stage: how it scores, and what it watches over (METHOD 2.2, 2.4, 2.5). No torch here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, model_validator

from fbt_rl.config.sections import Count, DataConfig, Fraction, Strict


class ReplayScorer(Strict):
    """One pass fused with the recorded states, then ``passes`` (METHOD: n) that re-fuse those of the one before."""

    use: Literal["replay"] = "replay"
    passes: Annotated[int, Field(ge=0, le=8)] = 1


class JacobiScorer(Strict):
    """``passes`` (METHOD: K) passes from plain completions; ``detach``: only the last one has a gradient."""

    use: Literal["jacobi"] = "jacobi"
    passes: Count = 4
    detach: bool = False


class SequentialScorer(Strict):
    """As many passes as tokens: exact in value and gradient, and as slow as that sounds."""

    use: Literal["sequential"] = "sequential"


ScorerConfig = Annotated[ReplayScorer | JacobiScorer | SequentialScorer, Field(discriminator="use")]


class GuardConfig(Strict):
    """Lowers ``length.weight`` while held-out accuracy is below its value before RL (METHOD 2.5)."""

    data: DataConfig  # problems that are not trained on; all of them are answered at each measurement
    every: Count = 20  # steps
    margin: Fraction = 0.01  # of accuracy: so much below the value before RL is no loss
    factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5  # w times it after a loss, divided by it after none
    batch_size: Count = 256


class Ceiling(Strict):
    """Above ``warn`` a figure is told of, above ``stop`` it ends the run; null: never."""

    warn: FiniteFloat | None = None
    stop: FiniteFloat | None = None

    def passed(self, value: float, bound: float | None) -> bool:
        return bound is not None and value > bound

    @model_validator(mode="after")
    def _warn_first(self) -> Ceiling:
        if self.warn is not None and self.stop is not None and self.passed(self.warn, self.stop):
            raise ValueError(f"warn {self.warn:g} lies beyond stop {self.stop:g}: the run would end before it warns")
        return self


class Floor(Ceiling):
    """Below ``warn`` a figure is told of, below ``stop`` it ends the run; null: never."""

    def passed(self, value: float, bound: float | None) -> bool:
        return bound is not None and value < bound


class LimitsConfig(Strict):
    """Bounds of figures in the metrics (METHOD 2.4). The defaults stop only what is broken, in fp32 as in bf16."""

    logprob_mismatch_mean: Ceiling = Ceiling(warn=0.01, stop=0.2)
    logprob_mismatch_max: Ceiling = Ceiling(warn=1e-3)  # fp32 stays below 1e-4; in bf16 raise it
    kl_rollout_train: Ceiling = Ceiling(warn=0.01)
    ratio_outside: Ceiling = Ceiling(warn=0.05)
    effective_sample_size: Floor = Floor(warn=0.9)
    residual: Ceiling = Ceiling(warn=0.1)
    truncated: Ceiling = Ceiling(warn=0.5)
    unjudged_share: Ceiling = Ceiling(warn=0.1)
    payload_zeroed: Floor = Floor()
    payload_swapped: Floor = Floor(warn=0.0)
    accuracy: Floor = Floor()
    heldout_accuracy: Floor = Floor()
