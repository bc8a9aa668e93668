import shutil
from itertools import pairwise

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from stage_helpers import assert_adapter_is_the_model, context_of, losses, run_stage, small_config

from fbt_rl.config import SFTStage
from fbt_rl.config.file import ConfigError
from fbt_rl.data.problems import DataError
from fbt_rl.data.tasks import encode_prompt
from fbt_rl.data.tokenization import build_tokenizer
from fbt_rl.model import load_model
from fbt_rl.training import objective_trainer
from fbt_rl.training.rows import IGNORED, RowCollator
from sft.data import build_rows
from sft.train import run

PROBLEMS = Dataset.from_dict(
    {"prompt": ["1+2", "3-4+5", "7-7"], "completion": ["3 \\boxed{3}", "-1,4 \\boxed{4}", "\\boxed{0}"]}
)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(small_config().tokenizer, ["0"])


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("pretrained")
    config = small_config(stages__pretrain__steps=2, stages__pretrain__data=[{"kind": "arithmetic", "size": 40}])
    run_stage(config, run_dir, "pretrain")
    return run_dir


def from_pretrained(pretrained, tmp_path, **changes):
    """Fine-tune the pretrained model in a fresh folder; ``changes`` of the sft stage."""
    shutil.copytree(pretrained, tmp_path, dirs_exist_ok=True)
    config = small_config(**{f"stages__sft__{key}": value for key, value in changes.items()})
    # straight from pretrain: an arm of its own
    stage = config.stages["sft"].model_copy(update={"init_from": "pretrain"})
    config = config.model_copy(update={"stages": {**config.stages, "sft": stage}})
    return run_stage(config, tmp_path, "sft")


# --- rows ------------------------------------------------------------------------------------------


def test_labels_are_the_completions_and_their_end(tokenizer, tmp_path):
    rows, counts = build_rows(PROBLEMS, tokenizer, 64, tmp_path)
    assert counts["problems"] == 3
    assert counts["dropped"] == 0
    found = {}
    for row in rows:
        start = 0
        for length in row["seq_lengths"]:
            ids, labels = (row[name][start : start + length] for name in ("input_ids", "labels"))
            predicted = [index for index, label in enumerate(labels) if label != IGNORED]
            assert [labels[index] for index in predicted] == [ids[index] for index in predicted]
            assert predicted == list(range(predicted[0], length))  # one block, up to the end
            found[tokenizer.decode(ids[: predicted[0]])] = tokenizer.decode(ids[predicted[0] :])
            start += length
    assert found == {
        f"<|user|>{prompt}<|assistant|>": f"{completion}<|end|>"
        for prompt, completion in zip(PROBLEMS["prompt"], PROBLEMS["completion"], strict=True)
    }


def test_a_row_starts_as_decoding_will(tokenizer, tmp_path):
    rows, _ = build_rows(PROBLEMS.select([0]), tokenizer, 64, tmp_path)
    prompt = encode_prompt(tokenizer, "1+2")
    assert rows[0]["input_ids"][: len(prompt)] == prompt
    assert rows[0]["labels"][: len(prompt)] == [IGNORED] * len(prompt)


def test_problems_that_do_not_fit_are_dropped_and_counted(tokenizer, tmp_path):
    longest = len(encode_prompt(tokenizer, "3-4+5") + tokenizer.encode("-1,4 \\boxed{4}")) + 1
    rows, counts = build_rows(PROBLEMS, tokenizer, longest - 1, tmp_path)
    assert counts["dropped"] == 1
    assert "3-4+5" not in "".join(tokenizer.decode(ids) for ids in rows["input_ids"])
    assert build_rows(PROBLEMS, tokenizer, longest, tmp_path)[1]["dropped"] == 0
    with pytest.raises(DataError, match="none of the 3 problems fits into row_length 8"):
        build_rows(PROBLEMS, tokenizer, 8, tmp_path)


# --- the run ---------------------------------------------------------------------------------------


def test_fine_tuning_writes_what_later_stages_need(pretrained, tmp_path):
    folder, result = from_pretrained(pretrained, tmp_path)
    rows = folder.read_metrics()
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["num_passes"] == 3 for row in rows)
    assert rows[-1]["loss_pass_1"] < rows[0]["loss_pass_1"]
    assert result["loss_pass_3"] == rows[-1]["loss_pass_3"]
    before, after = (
        load_model(path)
        for path in (context_of(small_config(), tmp_path, "pretrain").folder.model_dir, folder.model_dir)
    )
    assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


def test_prompts_follow_their_own_law(pretrained, tmp_path, monkeypatch):
    seen = []
    original = objective_trainer.draw_fused_mask

    def spy(position_ids, row_ids, num_passes, **law):
        seen.append((position_ids, law, original(position_ids, row_ids, num_passes, **law)))
        return seen[-1][2]

    monkeypatch.setattr(objective_trainer, "draw_fused_mask", spy)
    from_pretrained(pretrained, tmp_path, plain_prompt_probability=1.0, steps=1)
    positions, law, fused = seen[0]
    assert law["plain_prompt_probability"] == 1.0
    assert law["prompt_mask"][positions == 0].all()  # what a document begins with is a prompt
    assert fused.shape == (4, 3, 64)
    expected = (positions > 0) & ~law["prompt_mask"]  # soft decoding: plain prompt, fused completion
    assert torch.equal(fused[:, 1], expected)
    assert torch.equal(fused[:, 2], expected)
    assert expected.any()


def test_resumed_fine_tuning_equals_uninterrupted(pretrained, tmp_path):
    folder, result = from_pretrained(pretrained, tmp_path / "whole")
    shutil.copytree(folder.path, tmp_path / "again" / "stages" / "sft")
    again = context_of(small_config(), tmp_path / "again", "sft").folder
    shutil.rmtree(again.checkpoint_dir(4))
    shutil.rmtree(again.model_dir)
    assert from_pretrained(pretrained, tmp_path / "again")[1] == result
    assert losses(again) == losses(folder)


@pytest.mark.parametrize("zero_stage", [0, 2, 3])
def test_adapters_are_trained_and_merged(pretrained, tmp_path, zero_stage, monkeypatch):
    monkeypatch.setitem(small_config.__globals__["SMALL"], "deepspeed", {"zero_stage": zero_stage})
    folder, _ = from_pretrained(pretrained, tmp_path, lora={"r": 4, "dropout": 0.1}, steps=3)
    source = load_file(context_of(small_config(), tmp_path, "pretrain").folder.model_dir / "model.safetensors")
    tuned = load_file(folder.model_dir / "model.safetensors")
    assert tuned.keys() == source.keys()  # an ordinary model again
    changed = {name for name, value in source.items() if not torch.equal(value, tuned[name])}
    assert {name for name in changed if "feedback" in name} == {name for name in source if "feedback" in name}
    assert "model.text_model.layers.0.self_attn.q_proj.weight" in changed
    assert not any("norm" in name or "embed" in name or "head_gate" in name for name in changed)
    # a low-rank change
    name = "model.text_model.layers.0.mlp.up_proj.weight"
    assert torch.linalg.matrix_rank(tuned[name] - source[name], rtol=1e-3) <= 4
    assert_adapter_is_the_model(context_of(small_config(), tmp_path, "pretrain").folder.model_dir, folder)
    assert losses(folder)[-1]["loss_pass_1"] < losses(folder)[0]["loss_pass_1"]


def test_needs_a_source(tmp_path):
    stage = small_config().stages["sft"]
    assert isinstance(stage, SFTStage)
    with pytest.raises(ConfigError, match="tunes a model"):
        run(stage, context_of(small_config(), tmp_path, "pretrain"))


def test_collated_prompts_are_what_the_law_reads(tokenizer, tmp_path):
    """In a batch, a label is missing exactly on prompts, and on padding, which is never fused anyway."""
    rows, _ = build_rows(PROBLEMS, tokenizer, 64, tmp_path)
    batch = RowCollator(64, tokenizer.pad_token_id)(list(rows))
    prompt_mask = batch["labels"] == IGNORED
    for row, positions in zip(prompt_mask, batch["position_ids"], strict=True):
        starts = [*torch.nonzero(positions == 0).flatten().tolist(), len(positions)]
        for start, stop in pairwise(starts):
            document = row[start:stop].tolist()
            assert document == sorted(document, reverse=True)  # prompt first, then completion
