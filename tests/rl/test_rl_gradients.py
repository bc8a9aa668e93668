"""One batch gives one gradient, however it is divided into micro-batches and over ranks, at ZeRO 0, 2 and 3."""

import json

import pytest
import torch
from rl_cases import save_source
from stage_helpers import finish_ranks, start_ranks

pytestmark = pytest.mark.timeout(700)

# A group is dropped, a rollout is not judged, every optional term is on.
COMMON = {
    "steps": 1,
    "prompts_per_step": 4,
    "group_size": 4,
    "rewards": [{"use": "rl_cases:mixed"}],
    "degenerate_groups": "drop",
    "max_resamples": 1,
    "entropy_bonus": 0.1,
    "kl_weight": 0.1,
    "standard_weight": 0.1,
    "probe_every": 1,
    "guard": {"data": {"kind": "arithmetic", "split": "heldout", "size": 9}},
}
CASES = {
    "soft": {"mode": "soft"},
    "fused": {"mode": "fused", "loss_type": "dr_grpo"},
    "lora": {"mode": "soft", "lora": {"r": 2}},
}
# (case, ranks, ZeRO stage, micro-batches); the first of each case is what the others are compared with.
DIVISIONS = [("soft", 1, 0, 1), ("soft", 1, 0, 2), ("soft", 1, 0, 4), ("soft", 1, 3, 2)]
DIVISIONS += [("soft", 2, 0, 2), ("soft", 2, 2, 1), ("soft", 2, 2, 4), ("soft", 2, 3, 1), ("soft", 2, 3, 4)]
DIVISIONS += [("fused", 1, 0, 1), ("fused", 2, 2, 2), ("fused", 2, 3, 2), ("lora", 1, 0, 1), ("lora", 2, 3, 2)]

SCRIPT = """
import json, sys
from pathlib import Path
import torch
import torch.distributed as dist
torch.set_num_threads(1)
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.utils import safe_get_full_grad
import rl.scoring
from rl_cases import run_rl

rl.scoring._PART_ROWS = 2  # several forward passes before one backward pass
taken = {}
step = DeepSpeedEngine.step
def keep(self, *args, **kwargs):
    if self.is_gradient_accumulation_boundary():
        for name, parameter in self.module.named_parameters():
            gradient = safe_get_full_grad(parameter)
            if gradient is not None:
                taken[name] = gradient.clone()
    return step(self, *args, **kwargs)
DeepSpeedEngine.step = keep

dist.init_process_group("gloo")
for folder, changes in json.loads(sys.argv[2]):
    taken.clear()
    run_rl(Path(sys.argv[1]), Path(folder), **changes)
    if dist.get_rank() == 0:
        torch.save(taken, Path(folder) / "gradients.pt")
"""


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    """A division -> (gradient of every weight, row of metrics)."""
    base = tmp_path_factory.mktemp("gradients")
    source, started = save_source(base / "source"), []
    for ranks in (1, 2):
        jobs = []
        for case, _, stage, parts in [division for division in DIVISIONS if division[1] == ranks]:
            rows = COMMON["prompts_per_step"] * COMMON["group_size"] // ranks // parts
            changes = {**COMMON, **CASES[case], "micro_batch_rows": rows, "deepspeed": {"zero_stage": stage}}
            jobs.append((str(base / f"{case}-{ranks}-{stage}-{parts}"), changes))
        started += start_ranks(SCRIPT, str(source), json.dumps(jobs), ranks=ranks)
    for code, output in finish_ranks(started, timeout_s=600):
        assert code == 0, output[-3000:]

    def outcome(case, ranks, stage, parts):
        folder = base / f"{case}-{ranks}-{stage}-{parts}"
        return torch.load(folder / "gradients.pt"), json.loads((folder / "metrics.jsonl").read_text())

    return outcome


@pytest.mark.parametrize("division", DIVISIONS)
def test_division_does_not_change_the_gradient(gradients, division):
    expected, row = gradients(division[0], 1, 0, 1)
    values, other = gradients(*division)
    assert set(values) == set(expected)
    # Adapters begin at zero, and then half of their gradients are.
    scales = {name: max(float(value.norm()), 1e-12) for name, value in expected.items()}
    errors = {name: float((values[name] - expected[name]).norm()) / scale for name, scale in scales.items()}
    assert max(errors.values()) <= 1e-5, (max(errors, key=errors.get), max(errors.values()))
    for name in ("reward", "degenerate_groups", "resamples", "unjudged", "accuracy_first", "heldout_accuracy"):
        assert other[name] == pytest.approx(row[name], rel=1e-6), name
    for name in ("loss", "standard_loss", "payload_zeroed"):  # whom a row swaps with depends on the ranks
        assert other[name] == pytest.approx(row[name], rel=1e-4), name


def test_the_batch_has_all_that_may_be_divided(gradients):
    _, row = gradients("soft", 1, 0, 1)
    assert row["degenerate_groups"] > 0
    assert row["resamples"] > 0
    assert row["unjudged"] > 0
    assert 0 < row["heldout_accuracy"] <= 1
    assert row["standard_loss"] > 0
