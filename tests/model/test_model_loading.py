"""The model as a citizen of transformers and PEFT: saving, Auto classes, heads, adapters, clear errors."""

import json

import pytest
import torch
from model_helpers import random_ids, small_config, small_model
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from fbt_rl.model import FBTForCausalLM, FBTModel, FBTTextModel, is_fbt, load_model


@pytest.fixture
def saved(tmp_path):
    model = small_model()
    model.save_pretrained(tmp_path)
    return model, tmp_path


def logits(model, **kwargs):
    return model(random_ids(2, 9), use_cache=False, **kwargs).logits


@pytest.mark.parametrize("fusion", ["gate", "concat", "add", "none"])
def test_save_and_load_give_the_same_logits(fusion, tmp_path):
    model = small_model(fusion)
    model.save_pretrained(tmp_path)
    passes = 1 if fusion == "none" else 3
    for loaded in (
        load_model(tmp_path),
        FBTForCausalLM.from_pretrained(tmp_path),
        AutoModelForCausalLM.from_pretrained(tmp_path),
    ):
        assert type(loaded) is FBTForCausalLM
        assert torch.equal(logits(loaded, num_passes=passes), logits(model, num_passes=passes))
        assert loaded.lm_head.weight is loaded.get_input_embeddings().weight


def test_base_and_text_model_load_by_themselves(saved, tmp_path):
    model, folder = saved
    base = AutoModel.from_pretrained(folder).eval()
    assert type(base) is FBTModel
    ids = random_ids(2, 9)
    assert torch.equal(base(ids, num_passes=2).last_hidden_state, model.model(ids, num_passes=2).last_hidden_state)
    model.model.text_model.save_pretrained(tmp_path / "text")
    text = AutoModel.from_pretrained(tmp_path / "text").eval()
    assert type(text) is FBTTextModel
    assert torch.equal(text(ids).last_hidden_state, model.model.text_model(ids).last_hidden_state)


def test_config_round_trip(saved):
    model, folder = saved
    config = AutoConfig.from_pretrained(folder)
    config._name_or_path = model.config._name_or_path
    assert config.to_dict() == model.config.to_dict()
    assert config.get_text_config().layer_types == ["sliding_attention", "sliding_attention", "full_attention"]
    assert "head_dim" in json.loads((folder / "config.json").read_text())["text_config"]


def test_untied_head(tmp_path):
    config = small_config()
    config.tie_word_embeddings = False
    model = FBTForCausalLM(config).eval()
    assert model.lm_head.weight is not model.get_input_embeddings().weight
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(load_model(tmp_path)), logits(model))


def test_dtype_and_attention_are_chosen_at_loading(saved):
    _, folder = saved
    model = load_model(folder, dtype="bfloat16", attn_implementation="eager")
    assert model.dtype == torch.bfloat16
    assert model.model.text_model.config._attn_implementation == "eager"
    assert torch.isfinite(logits(model, num_passes=2)).all()


def test_resized_embeddings_stay_tied(saved):
    model, _ = saved
    model.resize_token_embeddings(48)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert logits(model).shape == (2, 9, 48)


def test_loss_is_the_mean_next_token_loss_of_the_last_pass():
    model, ids = small_model(), random_ids(2, 9)
    labels = ids.clone()
    labels[:, :3] = -100
    outputs = model(ids, labels=labels, num_passes=2, use_cache=False)
    logprobs = outputs.logits[:, 2:-1].log_softmax(-1)
    expected = -logprobs.gather(-1, ids[:, 3:, None]).mean()
    torch.testing.assert_close(outputs.loss, expected)
    torch.testing.assert_close(logits(model, num_passes=2, logits_to_keep=1), outputs.logits[:, -1:])


def test_lora_with_the_feedback_trained_whole(tmp_path):
    model = small_model()
    before = logits(model, num_passes=2)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=targets, modules_to_save=["feedback"]))
    assert is_fbt(adapted)
    assert torch.equal(logits(adapted, num_passes=2), before)
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    whole = {name for name in trained if ".feedback." in name}
    assert {name.rsplit(".", 2)[-2] for name in whole} == {"value_proj", "gate_proj"}
    assert all("lora" in name for name in trained - whole)
    assert not any("lora" in name for name in whole)

    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.5)
    adapted(random_ids(2, 9), labels=random_ids(2, 9), num_passes=2).loss.backward()
    optimizer.step()
    after = logits(adapted, num_passes=2)
    assert not torch.equal(after, before)
    torch.testing.assert_close(logits(adapted.merge_and_unload(), num_passes=2), after, rtol=0, atol=1e-4)


def test_a_standard_model_loads_and_is_not_an_fbt(tmp_path):
    config = Qwen3Config(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert not is_fbt(model)
    assert not model.training
    assert logits(model).shape == (2, 9, 40)


def test_folders_that_hold_no_model(saved, tmp_path):
    _, folder = saved
    with pytest.raises(ValueError, match=r"has no config\.json"):
        load_model(tmp_path / "nowhere")
    config = json.loads((folder / "config.json").read_text())

    (folder / "config.json").write_text(json.dumps(config | {"model_type": "no_such_model"}))
    with pytest.raises(ValueError, match=r"cannot load .*no_such_model"):
        load_model(folder)
    wide = config | {"text_config": config["text_config"] | {"intermediate_size": 64}}
    (folder / "config.json").write_text(json.dumps(wide))
    with pytest.raises(ValueError, match=r"do not fit its config.json|cannot load"):
        load_model(folder)
    deep = config | {"text_config": config["text_config"] | {"num_hidden_layers": 4, "layer_types": []}}
    (folder / "config.json").write_text(json.dumps(deep))
    with pytest.raises(ValueError, match=r"do not fit its config.json.*missing_keys.*layers.3"):
        load_model(folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(ValueError, match="cannot load"):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot load"):
        load_model(folder)
