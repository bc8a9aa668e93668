"""Where a rollout ends: padding with the very EOS, several EOS, at once, never. What is masked must not matter."""

import pyarrow.parquet as pq
import pytest
import torch
from rl_cases import run_rl, save_source, timeless
from safetensors.torch import load_file

from fbt_rl.data.tokenization import load_tokenizer
from fbt_rl.model import load_model


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return save_source(tmp_path_factory.mktemp("source"))


def changed(source, folder, *, eos=None, pad=None, eos_token=None):
    """The same model with other ends: ``eos`` are the ids of its generation settings."""
    model, tokenizer = load_model(source), load_tokenizer(source)
    if pad is not None:
        tokenizer.pad_token = pad
    if eos_token is not None:
        tokenizer.add_special_tokens({"eos_token": eos_token})
    if eos is not None:
        model.generation_config.eos_token_id = eos
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def rollouts(folder):
    return pq.read_table(folder.rollouts_path).to_pylist()


@pytest.mark.parametrize("mode", ["soft", "fused"])
def test_padding_with_the_end_token_changes_nothing(source, tmp_path, mode):
    changes = {"mode": mode, "standard_weight": 0.1, "kl_weight": 0.1, "save_rollouts_every": 1}
    own, _ = run_rl(source, tmp_path / "own", **changes)
    same = changed(source, tmp_path / "source", pad=load_tokenizer(source).eos_token)
    assert load_tokenizer(same).pad_token_id == load_tokenizer(same).eos_token_id
    other, _ = run_rl(same, tmp_path / "other", **changes)
    assert rollouts(other) == rollouts(own)
    assert len({row["num_tokens"] for row in rollouts(own)}) > 2  # there is padding
    for row, again in zip(timeless(own), timeless(other), strict=True):
        assert row.keys() == again.keys()
        for name in row.keys() & {"loss", "grad_norm", "entropy", "kl", "standard_loss", "payload_swapped"}:
            assert again[name] == pytest.approx(row[name], rel=1e-5, abs=1e-9), name


def test_any_of_several_end_tokens_ends(source, tmp_path):
    tokenizer = load_tokenizer(source)
    digits = [tokenizer.convert_tokens_to_ids(digit) for digit in "0123456789"]
    folder, _ = run_rl(changed(source, tmp_path / "source", eos=digits), tmp_path / "out", save_rollouts_every=1)
    rows = rollouts(folder)
    ends = [row["completion"][-1] for row in rows if row["finish_reason"] == "stop" and row["completion"]]
    assert any(end in "0123456789" for end in ends)
    assert not any(character in "0123456789" for row in rows for character in row["completion"][:-1])
    assert all(row["logprob_mismatch_max"] <= 1e-4 for row in folder.read_metrics())


def test_ending_at_once(source, tmp_path):
    everything = list(range(len(load_tokenizer(source))))
    folder, _ = run_rl(changed(source, tmp_path / "source", eos=everything), tmp_path / "out", save_rollouts_every=1)
    assert all((row["num_tokens"], row["finish_reason"]) == (1, "stop") for row in rollouts(folder))
    for row in folder.read_metrics():
        assert row["logprob_mismatch_max"] <= 1e-4
        assert (row["length_mean"], row["truncated"], row["accuracy"]) == (1.0, 0.0, 1.0)


def test_never_ending(source, tmp_path):
    """An end token that the model does not have: every rollout is cut, so wrong, so nothing is learned."""
    size = load_model(source).get_input_embeddings().weight.shape[0]
    endless = changed(source, tmp_path / "source", eos=size, eos_token="<|never|>")
    assert load_tokenizer(endless).eos_token_id >= size
    folder, _ = run_rl(endless, tmp_path / "out", save_rollouts_every=1)
    assert all(
        (row["num_tokens"], row["finish_reason"], row["correct"]) == (8, "length", False) for row in rollouts(folder)
    )
    for row in folder.read_metrics():
        assert (row["truncated"], row["accuracy"], row["reward"], row["loss"]) == (1.0, 0.0, 0.0, 0.0)
    before, after = (load_file(place / "model.safetensors") for place in (source, folder.model_dir))
    assert all(torch.equal(value, after[name]) for name, value in before.items())
