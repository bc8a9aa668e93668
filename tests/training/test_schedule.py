import math

import numpy as np
import pytest

from fbt_rl.config import OptimizerConfig, PassPhase
from fbt_rl.training.schedule import (
    decay_start,
    draw_num_passes,
    in_cooldown,
    mean_passes,
    phase_at,
    wsd_multiplier,
)


def optimizer(**values) -> OptimizerConfig:
    return OptimizerConfig(**{"learning_rate": 1.0, "warmup_steps": 10, "decay_fraction": 0.25, **values})


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.1), (8, 0.9), (9, 1.0), (10, 1.0), (74, 1.0), (75, 1.0), (76, 0.96), (99, 0.04), (100, 0.0)],
)
def test_wsd_at_the_corners(step, expected):
    assert wsd_multiplier(step, 100, optimizer()) == pytest.approx(expected, abs=1e-12)


def test_sqrt_decay():
    config = optimizer(decay="sqrt")
    assert wsd_multiplier(75, 100, config) == 1.0
    assert wsd_multiplier(76, 100, config) == pytest.approx(1 - math.sqrt(1 / 25))
    assert wsd_multiplier(99, 100, config) == pytest.approx(1 - math.sqrt(24 / 25))
    assert wsd_multiplier(100, 100, config) == 0.0


def test_wsd_without_warmup_or_decay():
    config = optimizer(warmup_steps=0, decay_fraction=0.0)
    assert {wsd_multiplier(step, 50, config) for step in range(51)} == {1.0}


def test_overlapping_warmup_and_decay_take_the_smaller():
    config = optimizer(warmup_steps=10, decay_fraction=1.0)
    values = [wsd_multiplier(step, 10, config) for step in range(10)]
    assert values == pytest.approx([min((step + 1) / 10, 1 - step / 10) for step in range(10)])


def test_cooldown_is_the_last_part():
    assert decay_start(100, 0.25) == 75
    assert [in_cooldown(step, 100, 0.25) for step in (0, 74, 75, 99)] == [False, False, True, True]
    assert not in_cooldown(99, 100, 0.0)
    assert in_cooldown(0, 100, 1.0)


LATE = [PassPhase(weights=[1.0]), PassPhase(start_fraction=0.5, weights=[75, 22, 3])]


def test_passes_are_a_pure_function_of_seed_and_step():
    first = [draw_num_passes(LATE, 7, step, 200) for step in range(200)]
    assert first == [draw_num_passes(LATE, 7, step, 200) for step in range(200)]
    assert draw_num_passes(LATE, 7, 150, 200) == first[150]  # alone, as after a resume
    assert first != [draw_num_passes(LATE, 8, step, 200) for step in range(200)]


def test_passes_start_with_their_phase():
    assert all(draw_num_passes(LATE, 1, step, 1000) == 1 for step in range(500))
    assert any(draw_num_passes(LATE, 1, step, 1000) > 1 for step in range(500, 550))
    assert phase_at(LATE, 499, 1000) is LATE[0]
    assert phase_at(LATE, 500, 1000) is LATE[1]
    # Half of 5 steps is 2.5: a step belongs to a phase only where all of it does.
    assert [phase_at(LATE, step, 5) is LATE[1] for step in range(5)] == [False, False, False, True, True]


def test_pass_frequencies():
    phases = [PassPhase(weights=[75, 22, 3])]
    draws = np.array([draw_num_passes(phases, 0, step, 10_000) for step in range(10_000)])
    shares = [np.mean(draws == passes) for passes in (1, 2, 3)]
    # three standard deviations of a binomial share of 10,000
    assert shares == pytest.approx([0.75, 0.22, 0.03], abs=0.013)
    assert draws.mean() == pytest.approx(1.28, abs=0.02)
    assert draws.max() == 3


def test_a_weight_of_zero_is_never_drawn():
    phases = [PassPhase(weights=[0, 1, 0, 1, 0])]
    assert {draw_num_passes(phases, 0, step, 500) for step in range(500)} == {2, 4}


def test_mean_passes():
    assert mean_passes([PassPhase(weights=[75, 22, 3])], 10) == pytest.approx(1.28)
    assert mean_passes(LATE, 1000) == pytest.approx(0.5 + 0.5 * 1.28)
    assert mean_passes([PassPhase(weights=[0, 0, 1])], 3) == 3
    assert mean_passes(LATE, 5) == pytest.approx((3 * 1 + 2 * 1.28) / 5)
