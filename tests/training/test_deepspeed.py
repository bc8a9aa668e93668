import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from stage_helpers import context_of, finish_ranks, losses, run_stage, small_config, start_ranks

from fbt_rl.config import DeepSpeedConfig
from fbt_rl.config.file import ConfigError
from fbt_rl.integrity import seal
from fbt_rl.model import load_model
from fbt_rl.training.deepspeed import BatchSplit, deepspeed_settings, split_batch
from fbt_rl.training.trainer import TrainingError

SPLIT = BatchSplit(ranks=2, micro_batch_rows=4, accumulation=3)


def settings(max_grad_norm: float = 1.0, **config) -> dict:
    return deepspeed_settings(DeepSpeedConfig(**config), SPLIT, max_grad_norm)


# --- settings --------------------------------------------------------------------------------------


def test_settings_follow_the_run():
    derived = settings(max_grad_norm=0.5, zero_stage=2)
    assert derived["train_batch_size"] == 24
    assert derived["train_micro_batch_size_per_gpu"] == 4
    assert derived["gradient_accumulation_steps"] == 3
    assert derived["zero_optimization"]["stage"] == 2
    assert derived["zero_allow_untested_optimizer"] is True
    assert derived["bf16"] == {"enabled": False}
    assert settings(precision="bf16")["bf16"] == {"enabled": True}


def test_clipping_is_always_said():
    assert settings(max_grad_norm=0.5)["gradient_clipping"] == 0.5
    assert settings(max_grad_norm=0.0)["gradient_clipping"] == 0.0  # DeepSpeed's default would be 1.0


def test_stage_3_can_be_saved_and_offload_keeps_the_optimizer():
    assert settings(zero_stage=3)["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True
    offloaded = settings(zero_stage=2, offload_optimizer=True)
    assert offloaded["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert offloaded["zero_force_ds_cpu_optimizer"] is False
    with pytest.raises(ConfigError, match="offload_optimizer needs zero_stage"):
        settings(zero_stage=0, offload_optimizer=True)


def test_extra_is_merged():
    derived = settings(extra={"wall_clock_breakdown": True, "zero_optimization": {"reduce_bucket_size": 1000}})
    assert derived["wall_clock_breakdown"] is True
    assert derived["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 1000}
    assert settings(extra={"gradient_clipping": 1.0}) == settings()  # says the same


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"train_batch_size": 99}, r"deepspeed\.extra\.train_batch_size is 99, .* 24"),
        ({"zero_optimization": {"stage": 3}}, r"deepspeed\.extra\.zero_optimization\.stage is 3, .* 2"),
        ({"bf16": {"enabled": True}}, r"bf16\.enabled is True"),
        ({"optimizer": {"type": "Adam"}}, r"may not set 'optimizer'"),
        ({"fp16": {"enabled": True}}, r"may not set 'fp16'"),
    ],
)
def test_contradictions_are_refused(extra, message):
    with pytest.raises(ConfigError, match=message):
        settings(extra=extra)


def test_settings_are_made_without_torch():
    script = (
        "import sys; from fbt_rl.training.deepspeed import split_batch; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'deepspeed', 'transformers')))"
    )
    [(code, output)] = finish_ranks(start_ranks(script, ranks=1))
    assert code == 0, output


def test_split_batch():
    stage = small_config(stages__pretrain__batch_rows=12, stages__pretrain__micro_batch_rows=3).stages["pretrain"]
    assert split_batch(stage, 2) == BatchSplit(2, 3, 2)
    assert split_batch(small_config().stages["pretrain"], 2) == BatchSplit(2, 2, 1)
    with pytest.raises(ConfigError, match="batch_rows is 12, which does not divide over 5 ranks"):
        split_batch(stage, 5)
    with pytest.raises(ConfigError, match="not a multiple of micro_batch_rows 3"):
        split_batch(stage, 3)


# --- several ranks ---------------------------------------------------------------------------------

# One, two and three passes in turn, so that the feedback module sits out steps in between. No
# jitter: its noise is drawn anew for each micro-batch.
PASSES = [[1], [0, 1], [0, 0, 1], [1], [1], [0, 0, 1]]
CHANGES = {
    "stages__pretrain__steps": 6,
    "stages__pretrain__checkpoint_every": 4,
    "stages__pretrain__objective__jitter": 0.0,
    "stages__pretrain__objective__passes": [
        {"start_fraction": step / 6, "weights": weights} for step, weights in enumerate(PASSES)
    ],
}

# Each job is a run folder, changes of the config, and perhaps a finished run to go on from at step 4.
SCRIPT = """
import json, shutil, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from stage_helpers import context_of, run_stage, small_config
from fbt_rl.training.objective_trainer import ObjectiveTrainer
from fbt_rl.training.trainer import TrainingError
for run_dir, changes, earlier in json.loads(sys.argv[1]):
    config = small_config(**changes)
    folder = context_of(config, Path(run_dir), "pretrain").folder
    if earlier:
        if torch.distributed.get_rank() == 0:
            shutil.copytree(earlier, run_dir)
            shutil.rmtree(folder.checkpoint_dir(6))
        torch.distributed.barrier()
    print("result", sorted(run_stage(config, Path(run_dir), "pretrain")[1].items()))

# a row of the second rank goes wrong
original = ObjectiveTrainer.compute_loss
def poisoned(self, model, inputs, *rest, **named):
    loss = original(self, model, inputs, *rest, **named)
    return loss * float("nan") if self.state.global_step == 5 and self.args.process_index == 1 else loss
ObjectiveTrainer.compute_loss = poisoned
try:
    run_stage(config, Path(run_dir).with_name("poisoned"), "pretrain")
except TrainingError as error:
    print("stopped", error)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same training on one rank and, started once for all, on two: name -> stage folder."""
    base = tmp_path_factory.mktemp("runs")
    run_stage(small_config(**CHANGES, deepspeed__zero_stage=0), base / "one", "pretrain")
    two = {**CHANGES, "stages__pretrain__micro_batch_rows": 1}
    jobs = [
        (str(base / "zero2"), two, None),
        (str(base / "resumed"), two, str(base / "zero2")),
        (str(base / "grown"), {**two, "deepspeed__zero_stage": 0}, str(base / "one")),
    ]
    finished = finish_ranks(start_ranks(SCRIPT, json.dumps(jobs)))
    assert [code for code, _ in finished] == [0, 0], "\n".join(output for _, output in finished)
    results = [[line for line in output.splitlines() if line.startswith("result")] for _, output in finished]
    assert results[0] == results[1]  # every rank returns the same
    assert len(results[0]) == len(jobs)
    return {
        name: context_of(small_config(), base / name, "pretrain").folder
        for name in ("one", "zero2", "resumed", "grown")
    }


def test_two_ranks_equal_one(runs):
    """What is logged and exported; gradients at every stage: test_deepspeed_zero.py."""
    rows, expected = losses(runs["zero2"]), losses(runs["one"])
    for row in rows:
        assert row.pop("grad_norm") > 0  # which stage 0 does not tell
    assert [row["num_passes"] for row in expected] == [1, 2, 3, 1, 1, 3]
    for row, other in zip(rows, expected, strict=True):
        assert row == pytest.approx(other, rel=1e-5)
    weights = load_file(runs["zero2"].model_dir / "model.safetensors")
    for parameter, value in load_file(runs["one"].model_dir / "model.safetensors").items():
        torch.testing.assert_close(weights[parameter], value, rtol=1e-3, atol=2e-5)
    load_model(runs["zero2"].model_dir)


def test_two_ranks_resume(runs):
    for row, other in zip(losses(runs["resumed"]), losses(runs["zero2"]), strict=True):
        assert row == pytest.approx(other, rel=1e-6)
    assert [path.name for path in runs["resumed"].checkpoints()] == ["step-000004", "step-000006"]


def same_course(folder, expected):
    """Metrics and weights of two runs, to round-off."""
    for row, other in zip(losses(folder), losses(expected), strict=True):
        row.pop("grad_norm", None), other.pop("grad_norm", None)  # which stage 0 does not tell
        assert row == pytest.approx(other, rel=1e-5)
    weights, others = (load_file(each.model_dir / "model.safetensors") for each in (folder, expected))
    for name, value in others.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=2e-5, msg=name)


def test_one_rank_goes_on_as_two(runs):
    same_course(runs["grown"], runs["one"])


def test_two_ranks_go_on_as_one(runs, tmp_path):
    """At stage 2, from step 4 of 6, by way of DeepSpeed's universal format."""
    shutil.copytree(runs["zero2"].path.parents[1], tmp_path, dirs_exist_ok=True)
    folder = context_of(small_config(), tmp_path, "pretrain").folder
    shutil.rmtree(folder.checkpoint_dir(6))
    shutil.rmtree(folder.model_dir)
    run_stage(small_config(**CHANGES), tmp_path, "pretrain")
    same_course(folder, runs["zero2"])
    assert [path.name for path in folder.checkpoints_dir.iterdir()] == ["step-000004", "step-000006"]


def test_stage_3_keeps_its_number_of_ranks(runs, tmp_path):
    shutil.copytree(runs["zero2"].path.parents[1], tmp_path, dirs_exist_ok=True)
    state = context_of(small_config(), tmp_path, "pretrain").folder.latest_checkpoint() / "stage_state.json"
    written = json.loads(state.read_text())
    written["layout"]["zero_stage"] = 3
    state.write_text(json.dumps(written))
    seal(state.parent)
    with pytest.raises(TrainingError, match=r"'ranks': 2.*'ranks': 1.*ZeRO stage 3 can only go on with the same"):
        run_stage(small_config(**CHANGES, deepspeed__zero_stage=3), tmp_path, "pretrain")
