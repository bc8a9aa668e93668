import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stage_helpers import clean_process, context_of, losses, run_stage, small_config

from fbt_rl.artifacts import read_json
from fbt_rl.config import ExtendStage
from fbt_rl.config.file import ConfigError
from fbt_rl.data.problems import DataError
from fbt_rl.data.tokenization import build_tokenizer, load_tokenizer
from fbt_rl.model import load_model
from fbt_rl.training import objective
from fbt_rl.training.arguments import stage_seed, training_arguments
from fbt_rl.training.objective_trainer import ObjectiveTrainer
from fbt_rl.training.trainer import StageTrainer, TrainingError
from pretrain.data import build_rows, read_documents

GOLDEN = Path(__file__).parents[1] / "golden" / "pretrain_losses.json"


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An uninterrupted run of 10 steps: its run folder and the stage's folder."""
    run_dir = tmp_path_factory.mktemp("run")
    folder, result = run_stage(small_config(), run_dir, "pretrain")
    return run_dir, folder, result


# --- data ------------------------------------------------------------------------------------------


def test_rows_hold_every_document_and_its_end(tmp_path):
    texts = ["12+3", "", "  ", "7" * 30, "8-1"]
    tokenizer = build_tokenizer(small_config().tokenizer, texts)
    rows, counts = build_rows(texts, tokenizer, 16, tmp_path)
    assert counts == {"documents": 5, "dropped": 2, "split": 1, "rows": len(rows), "tokens": 5 + 31 + 4}
    ends = sum(ids.count(tokenizer.eos_token_id) for ids in rows["input_ids"])
    assert ends == 3
    text = "|".join(tokenizer.decode(ids) for ids in rows["input_ids"])
    assert "12+3<|end|>" in text
    assert "8-1<|end|>" in text


def test_documents_without_text_are_refused(tmp_path):
    tokenizer = build_tokenizer(small_config().tokenizer, ["1"])
    with pytest.raises(DataError, match="none of the 2 pretraining documents"):
        build_rows(["", " "], tokenizer, 16, tmp_path)


def test_sources_are_joined():
    data = small_config().stages["pretrain"].data
    assert len(list(read_documents([*data, *data], 0))) == 300


# --- the run ---------------------------------------------------------------------------------------


def test_outputs(finished):
    _, folder, result = finished
    rows = folder.read_metrics()
    assert [row["step"] for row in rows] == list(range(1, 11))
    expected = {"loss", "loss_pass_1", "num_passes", "mean_passes", "learning_rate", "grad_norm"}
    expected |= {"tokens_seen", "batch_tokens", "tokens_per_second"}
    assert expected <= rows[-1].keys()
    for row in rows:
        passes = [row[f"loss_pass_{k}"] for k in range(1, int(row["num_passes"]) + 1)]
        later = sum(passes[1:]) / max(1, len(passes) - 1)
        z_loss = 1e-5 * 50 * len(passes) if row["step"] > 8 else 0.0  # on in the last quarter: small, positive
        assert 0 <= row["loss"] - (passes[0] + later) + 1e-6 <= z_loss + 2e-6
    assert {int(row["num_passes"]) for row in rows} == {1, 2, 3}
    assert result == {key: rows[-1][key] for key in result}
    assert "tokens_per_second" not in result
    assert [path.name for path in folder.checkpoints()] == ["step-000005", "step-000010"]
    assert read_json(folder.path / "data.json")["documents"] == 150
    assert list((folder.path / "tensorboard").glob("events*"))
    assert torch.isfinite(torch.tensor([row["loss"] for row in rows])).all()
    assert rows[-1]["loss_pass_1"] < rows[0]["loss_pass_1"] - 0.5  # it learns


@pytest.mark.parametrize(("weight", "z_loss", "cooled"), [(0.25, 0.0, 1.0), (0.25, 0.5, 0.0), (0.25, 0.5, 1.0)])
def test_the_loss_is_weighted_as_configured(tmp_path, weight, z_loss, cooled):
    objective = {"passes": [{"weights": [0, 0, 1]}], "feedback_weight": weight, "z_loss": z_loss}
    changes = {"steps": 1, "objective": objective, "optimizer__decay_fraction": cooled}
    config = small_config(**{f"stages__pretrain__{name}": value for name, value in changes.items()})
    (row,) = run_stage(config, tmp_path, "pretrain")[0].read_metrics()
    passes = row["loss_pass_1"] + weight / 2 * (row["loss_pass_2"] + row["loss_pass_3"])
    if z_loss and cooled:  # some 12 for a log-partition of about log(vocabulary)
        assert row["loss"] - passes > 0.5
    else:
        assert row["loss"] == pytest.approx(passes, rel=1e-6)


def test_what_is_drawn_goes_by_the_settings(tmp_path, monkeypatch):
    """Passes by the phase of the step, noise and prefixes as told, in every pass."""
    seen = []
    original = ObjectiveTrainer.compute_loss

    def spy(self, model, inputs, *args, **kwargs):
        def noted(**arguments):
            seen.append((arguments["num_passes"], arguments.get("jitter"), "fused_mask" in arguments))
            return model(**arguments)

        return original(self, noted, inputs, *args, **kwargs)

    monkeypatch.setattr(ObjectiveTrainer, "compute_loss", spy)
    phases = [{"weights": [1]}, {"start_fraction": 0.5, "weights": [0, 0, 1]}]
    for name, settings in (("a", {"jitter": 0.5, "prefix_mixing": False}), ("b", {"jitter": 0.25})):
        changes = {"steps": 3, "objective": {"passes": phases, **settings}}
        config = small_config(**{f"stages__pretrain__{name}": value for name, value in changes.items()})
        run_stage(config, tmp_path / name, "pretrain")
    assert seen == [(1, None, False), (1, None, False), (3, 0.5, False), *[(1, None, False)] * 2, (3, 0.25, True)]


def test_a_row_of_several_steps_is_their_mean(finished, tmp_path):
    config = small_config(stages__pretrain__log_every=5)
    folder, _ = run_stage(config, tmp_path, "pretrain")
    each = [row["loss"] for row in finished[1].read_metrics()]
    means = [sum(each[start : start + 5]) / 5 for start in (0, 5)]
    assert [row["loss"] for row in folder.read_metrics()] == pytest.approx(means, rel=1e-5)


def test_stages_draw_apart_unless_they_share_a_seed(tmp_path):
    def seeds(**changes):
        config = small_config(**changes)
        return [stage_seed(context_of(config, tmp_path, name)) for name in config.stages]

    assert len({*seeds(), *seeds(seed=4)}) == 6
    shared = seeds(stages__extend__seed=1, stages__sft__seed=1)
    assert shared[0] == seeds()[0]
    assert shared[1] == shared[2] != seeds(stages__extend__seed=2)[1]


def test_settings_reach_the_trainers_arguments(tmp_path):
    changes = {"micro_batch_rows": 2, "gradient_checkpointing": True, "log_every": 3, "checkpoint_every": 4}
    changes |= {"optimizer": {"learning_rate": 0.25, "max_grad_norm": 0.5}}
    config = small_config(**{f"stages__pretrain__{name}": value for name, value in changes.items()})
    with clean_process():
        arguments = training_arguments(config.stages["pretrain"], context_of(config, tmp_path, "pretrain"))
    assert (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == (2, 2)
    assert (arguments.learning_rate, arguments.max_grad_norm, arguments.max_steps) == (0.25, 0.5, 10)
    assert (arguments.logging_steps, arguments.save_steps) == (3, 4)
    assert arguments.activation_checkpointing


def test_exported_model_loads_with_its_tokenizer(finished):
    _, folder, _ = finished
    model, tokenizer = load_model(folder.model_dir), load_tokenizer(folder.model_dir)
    assert model.config.get_text_config().vocab_size == len(tokenizer)
    assert model.config.get_text_config().eos_token_id == tokenizer.eos_token_id
    assert not list(folder.path.glob(".*"))  # nothing half-written is left


def test_golden_losses(tmp_path):
    """Twenty steps give the recorded numbers; a change of them must be meant.

    Record anew with ``python tests/pretrain/test_pretrain.py``.
    """
    folder, _ = run_stage(golden_config(), tmp_path, "pretrain")
    got = [row["loss"] for row in folder.read_metrics()]
    assert got == pytest.approx(read_json(GOLDEN), rel=2e-4)  # as far as CPUs differ in rounding


def golden_config():
    return small_config(stages__pretrain__steps=20, stages__pretrain__checkpoint_every=20)


def test_killed_and_resumed_equals_uninterrupted(finished, tmp_path):
    run_dir, folder, result = finished
    shutil.copytree(run_dir, tmp_path, dirs_exist_ok=True)
    again = context_of(small_config(), tmp_path, "pretrain").folder
    # what a run killed after step 7 leaves: a checkpoint at 5, rows up to 7, a part of a checkpoint
    shutil.rmtree(again.model_dir)
    again.checkpoint_dir(10).rename(again.checkpoints_dir / ".step-000010.tmp")
    again.truncate_metrics(7)
    _, resumed = run_stage(small_config(), tmp_path, "pretrain")
    assert losses(again) == losses(folder)
    assert resumed == result
    assert [path.name for path in again.checkpoints_dir.iterdir()].count(".step-000010.tmp") == 0
    weights = [load_file(one.model_dir / "model.safetensors") for one in (folder, again)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.parametrize("zero_stage", [0, 2, 3])
def test_normuon_resumes_bit_for_bit(tmp_path, zero_stage):
    config = small_config(
        stages__pretrain__steps=6,
        stages__pretrain__checkpoint_every=3,
        stages__pretrain__optimizer={"name": "normuon", "learning_rate": 1e-2, "adam_learning_rate": 1e-3},
        deepspeed__zero_stage=zero_stage,
    )
    whole, _ = run_stage(config, tmp_path / "whole", "pretrain")
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    again = context_of(config, tmp_path / "again", "pretrain").folder
    shutil.rmtree(again.model_dir)
    shutil.rmtree(again.checkpoint_dir(6))
    run_stage(config, tmp_path / "again", "pretrain")
    assert losses(again) == losses(whole)
    weights = [load_file(one.model_dir / "model.safetensors") for one in (whole, again)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_normuon_steps_fp32_masters_of_a_bf16_model(tmp_path):
    """Steps that bf16 weights would each round away add up, at every ZeRO stage, to what they are in fp32."""

    def trained(name, rate, **deepspeed):
        optimizer = {"name": "normuon", "learning_rate": rate, "adam_learning_rate": 0.0, "weight_decay": 0.0}
        settings = {"stages__pretrain__steps": 10, "stages__pretrain__optimizer": {**optimizer, "warmup_steps": 0}}
        folder, _ = run_stage(small_config(**settings, **deepspeed), tmp_path / name, "pretrain")
        weights = load_file(folder.model_dir / "model.safetensors")
        return torch.cat([weights[name].float().flatten() for name in sorted(weights) if "mlp" in name])

    start, exact = trained("start", 0.0), trained("exact", 2e-4)
    for stage in (0, 2, 3):
        moved = trained(f"bf16-{stage}", 2e-4, deepspeed__precision="bf16", deepspeed__zero_stage=stage) - start
        assert torch.cosine_similarity(moved, exact - start, dim=0) > 0.98, stage
        assert moved.norm().item() == pytest.approx((exact - start).norm().item(), rel=0.05), stage


def test_resumed_inside_a_logging_interval(tmp_path):
    config = small_config(stages__pretrain__log_every=4, stages__pretrain__steps=8)
    whole, _ = run_stage(config, tmp_path / "whole", "pretrain")
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    again = context_of(config, tmp_path / "again", "pretrain").folder
    shutil.rmtree(again.checkpoint_dir(8))  # goes on from step 5, between the rows of 4 and 8
    run_stage(config, tmp_path / "again", "pretrain")
    assert losses(again) == losses(whole)
    assert [row["step"] for row in losses(again)] == [4, 8]


def test_finished_training_resumes_to_the_export(finished, tmp_path):
    run_dir, folder, result = finished
    shutil.copytree(run_dir, tmp_path, dirs_exist_ok=True)
    again = context_of(small_config(), tmp_path, "pretrain").folder
    shutil.rmtree(again.model_dir)
    assert run_stage(small_config(), tmp_path, "pretrain")[1] == result
    assert losses(again) == losses(folder)


def test_same_rows_whatever_the_micro_batch(tmp_path, monkeypatch):
    """Each step draws the same rows, also after a resume, and accumulation does not change the gradient."""
    seen: dict[int, list[int]] = {}
    original = ObjectiveTrainer.compute_loss

    def spy(self, model, inputs, *args, **kwargs):
        seen.setdefault(self.state.global_step, []).extend(inputs["row_ids"])
        return original(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(ObjectiveTrainer, "compute_loss", spy)
    quiet = {"stages__pretrain__objective__jitter": 0.0, "stages__pretrain__steps": 4}
    config = small_config(**quiet)
    whole, _ = run_stage(config, tmp_path / "whole", "pretrain")
    rows_whole = dict(seen)
    seen.clear()
    config = small_config(**quiet, stages__pretrain__micro_batch_rows=2, stages__pretrain__checkpoint_every=2)
    parts, _ = run_stage(config, tmp_path / "parts", "pretrain")
    assert seen == rows_whole
    assert all(len(rows) == 4 for rows in seen.values())
    for one, other in zip(losses(whole), losses(parts), strict=True):
        assert one == pytest.approx(other, rel=2e-6)

    seen.clear()
    shutil.rmtree(parts.checkpoint_dir(4))
    run_stage(config, tmp_path / "parts", "pretrain")
    assert seen == {step: rows_whole[step] for step in (2, 3)}


def test_lr_zero_leaves_the_weights(tmp_path):
    config = small_config(stages__pretrain__optimizer__learning_rate=0.0, stages__pretrain__steps=2)
    one, _ = run_stage(config, tmp_path / "a", "pretrain")
    config = small_config(stages__pretrain__optimizer__learning_rate=0.0, stages__pretrain__steps=4)
    other, _ = run_stage(config, tmp_path / "b", "pretrain")
    weights = [load_file(folder.model_dir / "model.safetensors") for folder in (one, other)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


# --- what goes wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [0, 2])
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, monkeypatch, stage):
    original = ObjectiveTrainer.compute_loss

    def poisoned(self, model, inputs, *args, **kwargs):
        loss = original(self, model, inputs, *args, **kwargs)
        return loss * float("nan") if self.state.global_step == 6 else loss

    monkeypatch.setattr(ObjectiveTrainer, "compute_loss", poisoned)
    with pytest.raises(TrainingError, match=r"stage pretrain, step 7: loss not finite.*step-000005"):
        run_stage(small_config(deepspeed__zero_stage=stage), tmp_path, "pretrain")
    folder = context_of(small_config(), tmp_path, "pretrain").folder
    assert [path.name for path in folder.checkpoints()] == ["step-000005"]
    assert [row["step"] for row in folder.read_metrics()] == list(range(1, 7))


def test_the_pass_that_is_not_finite_is_named(tmp_path, monkeypatch):
    original, calls = objective.token_loss_sums, []

    def poisoned(*args):
        calls.append(args)
        losses, squares = original(*args)
        return losses * (float("inf") if len(calls) == 4 else 1.0), squares

    monkeypatch.setattr(objective, "token_loss_sums", poisoned)
    config = small_config(stages__pretrain__objective__passes=[{"weights": [0, 1]}])
    with pytest.raises(TrainingError, match=r"step 2: loss of pass 2 and loss not finite"):
        run_stage(config, tmp_path, "pretrain")


def test_a_failed_save_leaves_the_older_checkpoint(tmp_path, monkeypatch):
    original = StageTrainer._save_rng_state

    def full(self, output_dir):
        if self.state.global_step == 10:
            raise OSError(28, "No space left on device")
        original(self, output_dir)

    monkeypatch.setattr(StageTrainer, "_save_rng_state", full)
    with pytest.raises(TrainingError, match=r"could not save .*step-000010.*No space left.*step-000005") as error:
        run_stage(small_config(), tmp_path, "pretrain")
    assert "MiB free" in str(error.value)
    folder = context_of(small_config(), tmp_path, "pretrain").folder
    assert [path.name for path in folder.checkpoints_dir.iterdir()] == ["step-000005"]
    monkeypatch.undo()
    run_stage(small_config(), tmp_path, "pretrain")  # goes on from it
    assert folder.latest_checkpoint() == folder.checkpoint_dir(10)


def test_another_zero_stage_than_the_checkpoints(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    with pytest.raises(TrainingError, match=r"'zero_stage': 2.*'zero_stage': 1.*: go on with the same"):
        run_stage(small_config(deepspeed__zero_stage=1), tmp_path, "pretrain")


def test_rows_longer_than_the_model_takes():
    with pytest.raises(ConfigError, match=r"row_length is 256, above .*max_position_embeddings 128"):
        small_config(stages__pretrain__row_length=256)


# --- extension -------------------------------------------------------------------------------------


def test_extend_raises_context_and_rope(finished, tmp_path):
    run_dir, folder, _ = finished
    shutil.copytree(run_dir, tmp_path, dirs_exist_ok=True)
    extended, result = run_stage(small_config(), tmp_path, "extend")
    before, after = load_model(folder.model_dir), load_model(extended.model_dir)
    assert before.config.text_config.max_position_embeddings == 128
    assert after.config.text_config.max_position_embeddings == 160
    assert after.config.text_config.rope_theta_full == 50_000.0
    assert after.config.text_config.rope_theta == before.config.text_config.rope_theta
    assert result["num_passes"] == 3
    assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


def test_extend_needs_a_source(tmp_path):
    context = context_of(small_config(), tmp_path, "pretrain")
    stage = small_config().stages["extend"]
    assert isinstance(stage, ExtendStage)
    from pretrain.train import run

    with pytest.raises(ConfigError, match="extends a model"):
        run(stage, context)


if __name__ == "__main__":
    import tempfile

    logging.basicConfig()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        run_folder, _ = run_stage(golden_config(), Path(scratch), "pretrain")
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(json.dumps([row["loss"] for row in run_folder.read_metrics()], indent=1) + "\n")
