"""``model.generate`` under latent feedback: equal to an uncached reference loop; the rest is refused."""

import pytest
import torch
from model_helpers import greedy_by_hand, random_ids, sequential_states, small_model

MODES = [("standard", 1), ("soft", 1), ("soft", 3), ("fused", 2), ("fused", 3)]


@pytest.fixture(scope="module")
def model():
    # Double precision: strong random feedback amplifies rounding from token to token.
    return small_model(eos_token_id=None, dtype=torch.float64)


def left_padded(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(lengths)
    ids, mask = random_ids(len(lengths), width), torch.ones(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, : width - length], mask[row, : width - length] = 0, 0
    return ids, mask


def generate(model, ids, mode, passes=None, tokens=12, **kwargs):
    return model.generate(ids, decode_mode=mode, prefill_passes=passes, max_new_tokens=tokens, **kwargs)


@pytest.mark.parametrize(("mode", "passes"), MODES)
def test_greedy_equals_the_reference_loop(model, mode, passes):
    lengths = [7, 1, 4]
    ids, mask = left_padded(lengths)
    dynamic, static = (
        generate(model, ids, mode, passes, attention_mask=mask, do_sample=False, cache_implementation=cache)
        for cache in ("dynamic", "static")
    )
    for row, length in enumerate(lengths):
        expected = greedy_by_hand(model, ids[row : row + 1, 7 - length :], mode, passes, tokens=12)
        assert torch.equal(dynamic[row : row + 1, 7:], expected)
        assert torch.equal(static[row : row + 1, 7:], expected)


@pytest.mark.parametrize(("mode", "passes"), MODES)
def test_sampled_tokens_have_the_reference_distribution(model, mode, passes):
    torch.manual_seed(0)
    prompt = random_ids(2, 5)
    outputs = generate(
        model,
        prompt,
        mode,
        passes,
        do_sample=True,
        num_return_sequences=3,
        return_dict_in_generate=True,
        output_logits=True,
    )
    completions = outputs.sequences[:, 5:]
    assert len({tuple(row) for row in completions.tolist()}) == 6
    repeated = prompt.repeat_interleave(3, dim=0)
    expected = model.lm_head(sequential_states(model, repeated, completions[:, :-1], mode, passes)[:, 4:])
    torch.testing.assert_close(torch.stack(outputs.logits, dim=1), expected.float(), rtol=0, atol=1e-5)


def test_modes_differ_but_soft_and_standard_share_the_first_token(model):
    prompt = random_ids(6, 5)
    standard, soft, fused = (generate(model, prompt, m, do_sample=False) for m in ("standard", "soft", "fused"))
    assert torch.equal(standard[:, :6], soft[:, :6])
    assert not torch.equal(standard, soft)
    assert not torch.equal(soft[:, 5], fused[:, 5])


def test_the_default_is_standard(model):
    prompt = random_ids(2, 5)
    default = model.generate(prompt, max_new_tokens=8, do_sample=False)
    assert torch.equal(default, generate(model, prompt, "standard", tokens=8, do_sample=False))


def test_rows_stop_at_eos(model):
    prompt = random_ids(4, 5)
    free = generate(model, prompt, "soft", do_sample=False)
    eos = int(free[0, 8])
    stopped = generate(model, prompt, "soft", do_sample=False, eos_token_id=eos)
    for row in range(4):
        tokens = free[row, 5:].tolist()
        end = tokens.index(eos) + 1 if eos in tokens else len(tokens)
        assert stopped[row, 5 : 5 + end].tolist() == tokens[:end]
        assert set(stopped[row, 5 + end :].tolist()) <= {0}


def test_chunked_prefill_of_one_pass(model):
    prompt = random_ids(2, 9)
    whole = generate(model, prompt, "soft", do_sample=False)
    assert torch.equal(generate(model, prompt, "soft", do_sample=False, prefill_chunk_size=4), whole)
    with pytest.raises(ValueError, match="chunked prefill works with one prefill pass only"):
        generate(model, prompt, "fused", do_sample=False, prefill_chunk_size=4)


def test_refusals(model):
    prompt = random_ids(1, 5)
    for kwargs in ({"num_beams": 2}, {"prompt_lookup_num_tokens": 3}, {"assistant_model": small_model()}):
        with pytest.raises(ValueError, match="only supports"):
            generate(model, prompt, "soft", do_sample=False, **kwargs)
    with pytest.raises(ValueError, match="needs use_cache=True"):
        generate(model, prompt, "soft", use_cache=False)
    with pytest.raises(ValueError, match="choose one of standard, soft, fused"):
        generate(model, prompt, "hard")
    with pytest.raises(ValueError, match="takes exactly 1"):
        generate(model, prompt, "standard", passes=2)
    with pytest.raises(ValueError, match="fusion is 'none'"):
        generate(small_model("none"), prompt, "soft")
    with pytest.raises(NotImplementedError, match="does not carry latent states"):
        model.generate_batch([[2, 3]])
    with pytest.raises(NotImplementedError, match="does not carry latent states"):
        generate(model, prompt, "soft", cache_implementation="paged")
