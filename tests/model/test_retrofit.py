"""A foreign decoder given latent feedback keeps its standard logits bit for bit."""

import pytest
import torch
from model_helpers import small_model
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from fbt_rl.model import is_fbt, load_model
from fbt_rl.model.retrofit import convert

SHAPE = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def source_model(kind: str, tied: bool, **extra):
    torch.manual_seed(0)
    config_class, model_class = {
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[kind]
    return model_class(config_class(**SHAPE, tie_word_embeddings=tied, eos_token_id=7, **extra)).eval()


def ids(rows: int = 2, length: int = 20) -> torch.Tensor:
    return torch.randint(2, 60, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_standard_logits_are_the_sources(kind, tied, tmp_path):
    source = source_model(kind, tied)
    source.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert is_fbt(model)
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied == model.config.tie_word_embeddings

    mask = torch.ones(2, 20, dtype=torch.long)
    mask[0, :6] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)  # the source alone would count the padding
    for kwargs in ({}, {"attention_mask": mask, "position_ids": positions}, {"use_cache": False}):
        assert torch.equal(model(ids(), **kwargs).logits, source(ids(), **kwargs).logits)
    standard = model.generate(ids(), max_new_tokens=8, do_sample=False)
    assert torch.equal(standard, source.generate(ids(), max_new_tokens=8, do_sample=False))

    soft = model.generate(ids(), max_new_tokens=8, do_sample=False, decode_mode="soft")
    assert torch.equal(soft[:, 20], standard[:, 20])
    fused = model.model(ids(), num_passes=2, output_passes=True, use_cache=False)
    assert torch.equal(fused.pass_states[0], source.base_model(ids(), use_cache=False).last_hidden_state)
    assert not torch.equal(*fused.pass_states)
    assert torch.isfinite(fused.last_hidden_state).all()


def test_windowed_source(tmp_path):
    source = source_model("qwen3", True, use_sliding_window=True, sliding_window=5, max_window_layers=1)
    source.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "out", fusion="concat")
    model = load_model(tmp_path / "out")
    assert model.model.feedback.fusion == "concat"
    assert torch.equal(model(ids()).logits, source(ids()).logits)


def test_new_parts_are_initialised_and_the_rms_is_the_embeddings(tmp_path):
    source = source_model("llama", False).to(torch.bfloat16)
    source.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "out")
    model = load_model(tmp_path / "out", dtype="auto")
    assert model.dtype == torch.bfloat16
    feedback = model.model.feedback.value_proj.weight
    assert 0.01 < feedback.float().std() < 0.03
    assert torch.all(model.model.input_norm.weight == 1)
    rms = source.get_input_embeddings().weight.float().square().mean().sqrt().item()
    assert model.config.fused_input_rms == pytest.approx(rms)
    assert not model.config.plain_input_norm


def test_tokenizer_files_go_along_where_present(tmp_path):
    source_model("qwen3", True).save_pretrained(tmp_path / "source")
    (tmp_path / "source" / "tokenizer.json").write_text("{}")
    convert(tmp_path / "source", tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert not (tmp_path / "out" / "tokenizer_config.json").exists()
    assert load_model(tmp_path / "out").generation_config.eos_token_id == 7


def test_refusals(tmp_path):
    source_model("qwen3", True).save_pretrained(tmp_path / "qwen")
    with pytest.raises(ValueError, match="not a model folder"):
        convert(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ValueError, match="not an empty folder"):
        convert(tmp_path / "qwen", tmp_path / "qwen")
    with pytest.raises(ValueError, match="adds nothing"):
        convert(tmp_path / "qwen", tmp_path / "out", fusion="none")
    small_model().save_pretrained(tmp_path / "fbt")
    with pytest.raises(ValueError, match="already"):
        convert(tmp_path / "fbt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_decoders_that_cannot_stay_exact_are_refused(tmp_path):
    GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=16, n_layer=1, n_head=2)).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ValueError, match="GPT2LMHeadModel is not a decoder with embed_tokens"):
        convert(tmp_path / "gpt2", tmp_path / "out")
    GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=2.0)).save_pretrained(tmp_path / "granite")
    with pytest.raises(ValueError, match=r"GraniteForCausalLM cannot be converted.*logits differ"):
        convert(tmp_path / "granite", tmp_path / "out")
    assert not (tmp_path / "out").exists()
