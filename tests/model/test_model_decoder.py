"""The decoder: every part against a hand-written version, and the equalities a causal decoder owes."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from model_helpers import random_ids, small_model
from torch.nn import functional as F
from transformers import DynamicCache, StaticCache

from fbt_rl.config import ModelConfig
from fbt_rl.model import FBTForCausalLM, FBTTextConfig, from_model_config
from fbt_rl.model.decoder import rotary_tables, rotate

CLOSE = {"rtol": 0, "atol": 2e-5}


@pytest.fixture(scope="module")
def model():
    return small_model()


def states(model, ids, **kwargs):
    return model.model(ids, use_cache=False, **kwargs).last_hidden_state


def test_rotation_is_the_textbook_one():
    heads = torch.randn(2, 5, 3, 8)
    positions = torch.arange(5)[None]
    rotated = rotate(heads, rotary_tables(positions, 100.0, 8, torch.float32))
    for t in range(5):
        for pair in range(4):
            angle = t * 100.0 ** (-2 * pair / 8)
            x, y = heads[:, t, :, pair], heads[:, t, :, pair + 4]
            torch.testing.assert_close(rotated[:, t, :, pair], x * math.cos(angle) - y * math.sin(angle), **CLOSE)
            torch.testing.assert_close(rotated[:, t, :, pair + 4], x * math.sin(angle) + y * math.cos(angle), **CLOSE)


def test_decoder_equals_one_written_by_hand(model):
    """Grouped queries, QK norm, RoPE by layer kind, window, head gate, norms around branches, depth scaling."""
    config, decoder = model.config.text_config, model.model.text_model
    length, heads, groups, dim = 14, 4, 2, 8
    inputs = torch.randn(1, length, 32)
    x = inputs[0]
    for index, layer in enumerate(decoder.layers):
        full = index == 2
        rotation = rotary_tables(torch.arange(length)[None], 1000.0 if full else 100.0, dim, torch.float32)
        attention, normed = layer.self_attn, layer.pre_attention_norm(x)
        q = rotate(attention.q_norm((normed @ attention.q_proj.weight.T).view(1, length, heads, dim)), rotation)[0]
        k = rotate(attention.k_norm((normed @ attention.k_proj.weight.T).view(1, length, 2, dim)), rotation)[0]
        v = (normed @ attention.v_proj.weight.T).view(length, 2, dim)
        gates = torch.sigmoid(normed @ attention.head_gate.weight.T)
        out = torch.zeros(length, heads, dim)
        for t in range(length):
            first = 0 if full else max(0, t - config.sliding_window + 1)
            for head in range(heads):
                keys, values = k[first : t + 1, head // groups], v[first : t + 1, head // groups]
                weights = torch.softmax(keys @ q[t, head] / math.sqrt(dim), dim=0)
                out[t, head] = gates[t, head] * (weights @ values)
        x = x + layer.post_attention_norm(out.flatten(1) @ attention.o_proj.weight.T) / math.sqrt(6)
        normed = layer.pre_mlp_norm(x)
        glu = F.silu(normed @ layer.mlp.gate_proj.weight.T) * (normed @ layer.mlp.up_proj.weight.T)
        x = x + layer.post_mlp_norm(glu @ layer.mlp.down_proj.weight.T) / math.sqrt(6)
    expected = decoder.norm(x)[None]
    torch.testing.assert_close(decoder(inputs_embeds=inputs, use_cache=False).last_hidden_state, expected, **CLOSE)


def test_causality(model):
    ids = random_ids(2, 20)
    changed = ids.clone()
    changed[:, 9] = (ids[:, 9] - 2 + 1) % 38 + 2
    before, after = states(model, ids), states(model, changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert (before[:, 9:] - after[:, 9:]).abs().amax(-1).min() > 1e-4


def test_full_attention_in_every_nth_layer():
    assert FBTTextConfig(num_hidden_layers=7, full_attention_interval=3).layer_types == [
        *["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "sliding_attention",
    ]


def test_raised_rope_base_takes_effect_at_once_and_only_in_full_layers():
    ids = random_ids(1, 20)
    window_only = small_model(full_attention_interval=4)
    mixed = small_model()
    for model, changes in ((window_only, False), (mixed, True)):
        before = states(model, ids)
        model.config.text_config.rope_theta_full = 5000.0
        assert torch.equal(states(model, ids), before) != changes


@pytest.mark.parametrize("chunks", [[1] * 20, [9, 1, 1, 5, 4]])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_cached_equals_uncached(model, chunks, kind):
    ids = random_ids(2, 20)
    text = model.config.text_config
    cache = DynamicCache(config=text) if kind == "dynamic" else StaticCache(config=text, max_cache_len=24)
    pieces = [model(chunk, cache=cache, use_cache=True).logits for chunk in ids.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(ids, use_cache=False).logits, **CLOSE)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("passes", [1, 3])
def test_left_padded_equals_unpadded(attention, passes):
    model = small_model()
    model.set_attn_implementation(attention)
    ids, mask = random_ids(3, 16), torch.ones(3, 16, dtype=torch.long)
    for row, padding in enumerate((0, 5, 9)):
        mask[row, :padding] = 0
        ids[row, :padding] = 0
    padded = states(model, ids, attention_mask=mask, num_passes=passes)
    for row, padding in enumerate((0, 5, 9)):
        alone = states(model, ids[row : row + 1, padding:], num_passes=passes)
        torch.testing.assert_close(padded[row : row + 1, padding:], alone, **CLOSE)


def test_right_padding_changes_nothing(model):
    ids, mask = random_ids(1, 16), torch.ones(1, 16, dtype=torch.long)
    mask[:, 10:] = 0
    padded = states(model, ids, attention_mask=mask, num_passes=2)
    torch.testing.assert_close(padded[:, :10], states(model, ids[:, :10], num_passes=2), **CLOSE)


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_packed_equals_unpacked(model, passes, use_cache):
    lengths = [7, 1, 9, 5]
    documents = [random_ids(1, length, seed=length) for length in lengths]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    packed = model.model(
        torch.cat(documents, dim=1), position_ids=positions, num_passes=passes, use_cache=use_cache
    ).last_hidden_state
    for document, piece in zip(documents, packed.split(lengths, dim=1), strict=True):
        torch.testing.assert_close(piece, states(model, document, num_passes=passes), **CLOSE)


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_poisoned_neighbour_does_not_leak(model, passes):
    ids, positions = random_ids(1, 20), torch.cat((torch.arange(8), torch.arange(12)))[None]
    poisoned = ids.clone()
    poisoned[:, :8] = random_ids(1, 8, seed=9)
    clean = states(model, ids, position_ids=positions, num_passes=passes)
    dirty = states(model, poisoned, position_ids=positions, num_passes=passes)
    assert torch.equal(clean[:, 8:], dirty[:, 8:])
    assert not torch.equal(clean[:, :8], dirty[:, :8])


def test_attention_implementations_agree(model):
    ids = random_ids(2, 20)
    sdpa = states(model, ids)
    eager = small_model()
    eager.set_attn_implementation("eager")
    outputs = eager.model(ids, use_cache=False, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(outputs.last_hidden_state, sdpa, **CLOSE)
    assert [a.shape for a in outputs.attentions] == [(2, 4, 20, 20)] * 3
    assert len(outputs.hidden_states) == 4
    window = outputs.attentions[0][0, 0, 19]
    assert torch.all(window[:14] == 0)
    assert torch.all(window[14:] > 0)


def test_the_ablation_switches_remove_their_part():
    full = {name for name, _ in small_model().named_parameters()}
    bare = {name for name, _ in small_model(head_gate=False, qk_norm=False).named_parameters()}
    assert {name.split("self_attn.")[1] for name in full - bare} == {
        "head_gate.weight",
        "q_norm.weight",
        "k_norm.weight",
    }
    ids = random_ids(1, 9)
    assert not torch.equal(states(small_model(), ids), states(small_model(depth_scaling=False), ids))


def count(config) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in FBTForCausalLM(config).parameters())


def test_paper_1b_parameter_count():
    """By hand: D 1536, FFN 6656, 24 layers, 16 query and 8 key/value heads of 96, V 100352, tied head.

    A layer: W_Q and W_O 2 * 1536 * 1536, W_K and W_V 2 * 1536 * 768, gates 1536 * 16, QK norms 2 * 96,
    GLU 3 * 1536 * 6656, four norms 4 * 1536: 37,779,648. Times 24, the embedding 154,140,672, input and final norm.
    """
    model = ModelConfig.model_validate({"preset": "paper-1b"})
    assert count(from_model_config(model, 100_000)) == 1_060_855_296 + 2 * 1536**2 == 1_065_573_888
    plain = ModelConfig.model_validate({"preset": "paper-1b", "fusion": "none"})
    assert count(from_model_config(plain, 100_000)) == 1_060_855_296


def test_tiny_is_a_third_of_a_million():
    config = from_model_config(ModelConfig.model_validate({}), 40, pad_token_id=0, eos_token_id=1)
    assert config.get_text_config().vocab_size == 40
    assert 320_000 < count(config) < 340_000


def test_preset_fields_reach_the_config():
    model = ModelConfig.model_validate(
        {"preset": "paper-1b", "attn_implementation": "eager", "rope_theta_full": 640_000}
    )
    config = from_model_config(model, 100_000, bos_token_id=3, eos_token_id=[4, 5])
    text = config.get_text_config()
    assert (text.vocab_size, text.head_dim, text.rope_theta, text.rope_theta_full) == (100_352, 96, 250_000, 640_000)
    assert text.layer_types == (["sliding_attention"] * 5 + ["full_attention"]) * 4
    assert (text.bos_token_id, text.eos_token_id, text.pad_token_id) == (3, [4, 5], None)
    assert text._attn_implementation == "eager"
    assert (config.fusion, text.depth_scaling, config.tie_word_embeddings) == ("gate", True, True)
    others = {"fusion": "add", "depth_scaling": False, "tie_word_embeddings": False}
    config = from_model_config(ModelConfig.model_validate(others), 40)
    assert (config.fusion, config.get_text_config().depth_scaling, config.tie_word_embeddings) == ("add", False, False)


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match=r"model\.vocab_size is 10 but the tokenizer has 40"):
        from_model_config(ModelConfig.model_validate({"vocab_size": 10}), 40)
    with pytest.raises(StrictDataclassError, match="num_key_value_heads 3"):
        FBTTextConfig(num_attention_heads=4, num_key_value_heads=3)
    with pytest.raises(StrictDataclassError, match="head_dim 3 is odd"):
        FBTTextConfig(head_dim=3)
