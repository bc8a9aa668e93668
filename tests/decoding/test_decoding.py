"""Decoding against references that recompute everything at every step, one row at a time.

Legend: P prompt tokens, N completion tokens, D width, V vocabulary.
"""

import random

import numpy as np
import pytest
import torch
import transformers
from transformers import DynamicCache

from fbt_rl.decoding import SamplingParams, decode
from fbt_rl.decoding.cache import PreallocatedCache
from fbt_rl.model import FBTConfig, FBTForCausalLM, FBTTextConfig

torch.set_num_threads(1)  # more would spin on a busy machine

MODES = ("standard", "soft", "fused")
VOCAB, WINDOW, CONTEXT, NEW = 23, 6, 64, 24  # NEW > 2 windows: sliding layers move their slots


def peaked(model):
    """Random weights with a distribution that is far from uniform, so that tokens and modes differ."""
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(5)
    return model.eval()


def make_fbt(fusion="gate", dtype=torch.float64, text_config=None, **kwargs):
    torch.manual_seed(0)
    text_config = text_config or FBTTextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=WINDOW,
        full_attention_interval=3,
        max_position_embeddings=CONTEXT,
        rope_theta=100.0,
        rope_theta_full=1000.0,
    )
    return peaked(FBTForCausalLM(FBTConfig(text_config=text_config, fusion=fusion, **kwargs)).to(dtype))


@pytest.fixture(scope="module")
def model():
    return make_fbt()


def ragged_prompts(seed=1, lengths=(3, 11, 1, 8, 8, 17)):
    rng = random.Random(seed)
    prompts = [[rng.randrange(1, VOCAB) for _ in range(length)] for length in lengths]
    return [*prompts, prompts[1]]  # one prompt twice


def params(**kwargs):
    return SamplingParams(**{"max_new_tokens": NEW, "temperature": 0.0, **kwargs})


def inverse_cdf(logits, seed, key, step):
    uniform = (
        (int(np.random.Philox(key=np.array([seed, key], np.uint64)).random_raw(step + 1)[-1]) >> 32) + 0.5
    ) / 2**32
    probs = logits.double().softmax(-1).numpy()
    return int(np.argmax(np.cumsum(probs) > uniform))


@torch.no_grad()
def reference(model, prompt, mode, count, temperature=0.0, seed=0, key=0, passes=None):
    """Tokens, log-probs (N) and latents (N, D) of one row without a cache: the whole row anew for every token."""
    ids = torch.tensor([prompt])
    dim = model.config.get_text_config().hidden_size
    carried = torch.zeros(1, len(prompt), dim, dtype=model.dtype)
    fused = torch.zeros(1, len(prompt), dtype=torch.bool)
    for _ in range((passes or (2 if mode == "fused" else 1)) - 1):
        states = model.model(ids, latents=carried, fused_mask=fused, use_cache=False).last_hidden_state
        carried[:, 1:] = states[:, :-1]
        fused[:, 1:] = True
    tokens, logprobs, latents = [], [], []
    for step in range(count):
        feedback = {"latents": carried, "fused_mask": fused} if bool(fused.any()) else {}
        state = model.model(ids, use_cache=False, **feedback).last_hidden_state[:, -1]
        logits = model.lm_head(state)[0] / (temperature or 1.0)
        token = inverse_cdf(logits, seed, key, step) if temperature else int(logits.argmax())
        tokens.append(token)
        logprobs.append(logits.log_softmax(-1)[token])
        latents.append(state[0])
        ids = torch.cat((ids, torch.tensor([[token]])), dim=1)
        carried = torch.cat((carried, state[:, None]), dim=1)
        fused = torch.cat((fused, torch.tensor([[mode != "standard"]])), dim=1)
    return tokens, torch.stack(logprobs), torch.stack(latents)


def assert_same(actual, expected, atol=1e-10):
    assert [c.token_ids for c in actual] == [c.token_ids for c in expected]
    for one, other in zip(actual, expected, strict=True):
        assert one.finish_reason == other.finish_reason
        torch.testing.assert_close(one.logprobs, other.logprobs, atol=atol, rtol=0)
        torch.testing.assert_close(one.latents, other.latents, atol=atol, rtol=0)


# --- equal to recomputing, one row at a time -------------------------------------------------------


def check_against_reference(model, mode, temperature, tolerance=1e-10, num_samples=1, passes=None):
    prompts = ragged_prompts()
    settings = params(mode=mode, temperature=temperature, num_samples=num_samples, prefill_passes=passes)
    completions = decode(model, prompts, settings, seed=5, return_latents=True)
    assert [(c.prompt_index, c.sample) for c in completions] == [
        (p, s) for p in range(len(prompts)) for s in range(num_samples)
    ]
    for key, completion in enumerate(completions):
        prompt = prompts[completion.prompt_index]
        tokens, logprobs, latents = reference(model, prompt, mode, NEW, temperature, 5, key, passes)
        assert completion.token_ids == tokens
        torch.testing.assert_close(completion.logprobs, logprobs, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(completion.latents, latents, atol=tolerance, rtol=tolerance)
        assert completion.finish_reason == "length"


@pytest.mark.parametrize(("temperature", "num_samples"), [(0.0, 1), (0.8, 2)])
@pytest.mark.parametrize("mode", MODES)
def test_batched_and_cached_equals_one_by_one_and_uncached(model, mode, temperature, num_samples):
    check_against_reference(model, mode, temperature, num_samples=num_samples)


@pytest.mark.parametrize(
    ("mode", "attn_implementation"), [("standard", "sdpa"), ("soft", "sdpa"), ("soft", "eager"), ("fused", "sdpa")]
)
def test_single_precision(mode, attn_implementation):
    model = make_fbt(dtype=torch.float32, attn_implementation=attn_implementation)
    assert model.config.get_text_config()._attn_implementation == attn_implementation
    check_against_reference(model, mode, 0.8, tolerance=1e-5)


@pytest.mark.parametrize("fusion", ["concat", "add"])
def test_other_fusions(fusion):
    check_against_reference(make_fbt(fusion), "fused", 0.8)


def test_more_prefill_passes(model):
    check_against_reference(model, "soft", 0.8, passes=3)


@pytest.mark.parametrize("sliding", [True, False])
def test_feedback_around_a_foreign_decoder(sliding):
    shape = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT,
    }  # fmt: skip
    kinds = {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": WINDOW,
        "use_sliding_window": True,
    }
    text_config = (
        transformers.Qwen3Config(**shape, head_dim=8, **kinds) if sliding else transformers.LlamaConfig(**shape)
    )
    model = make_fbt(text_config=text_config, plain_input_norm=False, fused_input_rms=0.02)
    check_against_reference(model, "fused", 0.8, tolerance=1e-6)  # Qwen3 and Llama norm in float32


@pytest.mark.parametrize("mode", MODES)
def test_a_row_does_not_depend_on_its_batch(model, mode):
    prompts = ragged_prompts()
    settings = params(mode=mode, temperature=1.0, num_samples=2, eos_token_ids=(3, 7))
    expected = decode(model, prompts, settings, seed=3, return_latents=True)
    for size in (1, 5):
        assert_same(decode(model, prompts, settings, seed=3, return_latents=True, batch_size=size), expected)

    order = [5, 0, 3, 6, 1, 4, 2]
    keys = [2 * index + sample for index in order for sample in range(2)]
    shuffled = decode(model, [prompts[i] for i in order], settings, seed=3, row_keys=keys, return_latents=True)
    assert_same(shuffled, [expected[key] for key in keys])

    assert decode(model, prompts, settings, seed=4)[0].token_ids != expected[0].token_ids
    assert expected[2].token_ids != expected[3].token_ids  # samples of one prompt differ


def test_standard_and_soft_share_the_first_greedy_token_and_then_part(model):
    prompts = ragged_prompts()
    standard, soft, fused = (decode(model, prompts, params(mode=mode), return_latents=True) for mode in MODES)
    for one, other in zip(standard, soft, strict=True):
        assert one.token_ids[0] == other.token_ids[0]
        torch.testing.assert_close(one.logprobs[0], other.logprobs[0])
    assert [c.token_ids for c in standard] != [c.token_ids for c in soft]
    assert (
        max(float((one.logprobs[0] - other.logprobs[0]).abs()) for one, other in zip(soft, fused, strict=True)) > 1e-2
    )


@pytest.mark.parametrize("mode", MODES)
def test_equal_to_generate(model, mode):
    prompts = ragged_prompts()
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    generated = model.generate(
        ids, attention_mask=mask, decode_mode=mode, max_new_tokens=NEW, do_sample=False, pad_token_id=0
    )
    completions = decode(model, prompts, params(mode=mode))
    assert [c.token_ids for c in completions] == generated[:, longest:].tolist()


# --- latents ---------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("mode", ["soft", "fused"])
def test_latents_fed_back_in_one_pass_reproduce_the_logprobs(model, mode):
    prompts = ragged_prompts()

    def replay(completion, shift):
        prompt = prompts[completion.prompt_index]
        ids = torch.tensor([[*prompt, *completion.token_ids]])
        latents = torch.zeros(1, ids.shape[1], completion.latents.shape[-1], dtype=model.dtype)
        latents[0, len(prompt) :] = completion.latents.roll(shift, dims=0)
        is_completion = torch.arange(ids.shape[1])[None] >= len(prompt)
        prompt_mode = {"prefill_mask": ~is_completion} if mode == "fused" else {"fused_mask": is_completion}
        states = model.model(ids, latents=latents, **prompt_mode).last_hidden_state[0, len(prompt) - 1 : -1]
        logprobs = (model.lm_head(states) / 0.8).log_softmax(-1)
        return logprobs.gather(-1, ids[0, len(prompt) :, None])[:, 0]

    settings = params(mode=mode, temperature=0.8, eos_token_ids=(3,))
    for completion in decode(model, prompts, settings, return_latents=True):
        torch.testing.assert_close(replay(completion, 0), completion.logprobs, atol=1e-10, rtol=0)
        if len(completion.token_ids) > 5:
            assert float((replay(completion, 1) - completion.logprobs).abs().max()) > 1e-2
            assert float((replay(completion, -1) - completion.logprobs).abs().max()) > 1e-2


def test_results_can_enter_a_loss_and_hold_no_more_than_themselves(model):
    completions = decode(model, [[1, 2, 3], [4, 5]], params(mode="soft"), return_latents=True)
    for tensor in (completions[0].latents, completions[0].logprobs):
        assert not tensor.is_inference()
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    assert completions[0].latents.shape == (NEW, 32)
    assert completions[0].latents.dtype == model.dtype
    with torch.enable_grad():
        (completions[0].logprobs.sum() * model.model.feedback.value_proj(completions[0].latents).sum()).backward()
    model.zero_grad()
    assert decode(model, [[1, 2, 3]], params())[0].latents is None


def test_a_model_in_training_decodes_without_dropout_and_is_left_as_it_was():
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(FOREIGN["learned positions"]())
    settings = params(temperature=1.0)
    expected = decode(model.eval(), [[1, 2, 3]], settings)[0]
    model.train()
    model.lm_head.eval()
    assert model.config.resid_pdrop > 0
    torch.testing.assert_close(decode(model, [[1, 2, 3]], settings)[0].logprobs, expected.logprobs)
    assert model.training
    assert model.transformer.h[0].training
    assert not model.lm_head.training


# --- stopping --------------------------------------------------------------------------------------


def cut(completion, eos):
    """How long a completion decoded without EOS would have been with it."""
    return next((i + 1 for i, token in enumerate(completion.token_ids) if token in eos), len(completion.token_ids))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("eos", [(2,), (2, 9, 14), tuple(range(5, 17)), tuple(range(VOCAB)), ()])
def test_eos_cuts_a_row_and_leaves_the_others_alone(model, mode, eos):
    settings = {"mode": mode, "temperature": 1.2, "num_samples": 3}
    free = decode(model, ragged_prompts(), params(**settings), return_latents=True)
    stopped = decode(model, ragged_prompts(), params(**settings, eos_token_ids=eos), return_latents=True)
    for one, other in zip(free, stopped, strict=True):
        length = cut(one, eos)
        assert other.token_ids == one.token_ids[:length]
        assert other.finish_reason == ("stop" if one.token_ids[length - 1] in eos else "length")
        torch.testing.assert_close(other.logprobs, one.logprobs[:length], atol=1e-10, rtol=0)
        torch.testing.assert_close(other.latents, one.latents[:length], atol=1e-10, rtol=0)
    if len(eos) == 3:  # the case where rows leave one after the other
        assert len({len(c.token_ids) for c in stopped}) > 4


def test_an_eos_as_the_last_allowed_token_is_a_stop(model):
    tokens = decode(model, [[4, 5]], params(max_new_tokens=1))[0].token_ids
    (completion,) = decode(model, [[4, 5]], params(max_new_tokens=1, eos_token_ids=(tokens[0],)))
    assert (completion.token_ids, completion.finish_reason) == (tokens, "stop")


def test_nothing_is_computed_for_finished_rows_or_repeated_prompts(model):
    rows = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    ended = []
    prompts = ragged_prompts()
    settings = params(mode="soft", temperature=1.2, num_samples=3, eos_token_ids=(2, 9, 14))
    try:
        completions = decode(model, prompts, settings, on_end=lambda *row: ended.append((len(rows), *row)))
    finally:
        hook.remove()
    lengths = [len(c.token_ids) for c in completions]
    assert rows[0] == (6, 17)  # seven prompts of which two are equal, once each
    live = [sum(length > step for length in lengths) for step in range(1, max(lengths))]
    assert rows[1:] == [(count, 1) for count in live]
    told = {row: (when, tokens, reason) for when, row, tokens, reason in ended}
    assert len(ended) == len(told) == 21
    for row, completion in enumerate(completions):  # as soon as it has ended: after so many forward passes
        assert told[row] == (len(completion.token_ids), completion.token_ids, completion.finish_reason)


def test_prompts_of_like_length_are_decoded_together(model):
    widths = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        decode(model, [[4] * length for length in (2, 9, 3, 8)], params(max_new_tokens=1, num_samples=2), batch_size=4)
    finally:
        hook.remove()
    assert widths == [9, 3]


def test_rows_end_where_enough_is_said(model):
    prompts, settings = ragged_prompts(), params(mode="soft", temperature=1.2, num_samples=2, max_new_tokens=30)
    whole = decode(model, prompts, settings, return_latents=True)
    asked = []

    def stopped(token_ids):
        asked.append(len(token_ids))
        return token_ids[0] % 2 == 0 and len(token_ids) >= 10

    found = decode(model, prompts, settings, stopped=stopped, return_latents=True)
    assert set(asked) == {8, 16, 24}
    assert {row.token_ids[0] % 2 for row in whole} == {0, 1}
    for row, full in zip(found, whole, strict=True):
        length, reason = (16, "stop") if full.token_ids[0] % 2 == 0 else (30, "length")
        assert (row.token_ids, row.finish_reason) == (full.token_ids[:length], reason)
        torch.testing.assert_close(row.latents, full.latents[:length])
        torch.testing.assert_close(row.logprobs, full.logprobs[:length])


# --- distributions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("top_k", "top_p"), [(4, None), (None, 0.6), (6, 0.5)])
def test_top_k_and_top_p_restrict_and_renormalise(model, top_k, top_p):
    prompts = ragged_prompts()
    settings = params(temperature=0.9, num_samples=3, top_k=top_k, top_p=top_p)
    with torch.no_grad():
        for completion in decode(model, prompts, settings):
            prompt = prompts[completion.prompt_index]
            logits = model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0, len(prompt) - 1 : -1] / 0.9
            for row, token, logprob in zip(logits, completion.token_ids, completion.logprobs, strict=True):
                kept = row.argsort(descending=True)[: top_k or VOCAB]
                if top_p is not None:  # the fewest likeliest tokens that together reach top_p
                    kept = kept[: int((row[kept].softmax(-1).cumsum(-1) < top_p).sum()) + 1]
                assert token in kept.tolist()
                expected = row[token] - row[kept].logsumexp(-1)
                torch.testing.assert_close(logprob, expected, atol=1e-5, rtol=0)


def test_samples_follow_the_distribution(model):
    count, temperature = 8_000, 1.3
    settings = params(max_new_tokens=1, temperature=temperature, num_samples=count)
    tokens = torch.tensor([c.token_ids[0] for c in decode(model, [[5, 6, 7]], settings)])
    with torch.no_grad():
        probs = (model(torch.tensor([[5, 6, 7]])).logits[0, -1] / temperature).softmax(-1)
    sigma = (probs * (1 - probs) / count).sqrt()
    assert float(((tokens.bincount(minlength=VOCAB) / count - probs).abs() / sigma).max()) < 4


# --- other models ----------------------------------------------------------------------------------

FOREIGN = {
    "sliding and full attention": lambda: transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=CONTEXT, sliding_window=WINDOW,
        use_sliding_window=True, layer_types=["sliding_attention", "full_attention"],
    ),
    "learned positions": lambda: transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=2, n_positions=CONTEXT, bos_token_id=0, eos_token_id=0
    ),
    "convolutions": lambda: transformers.Lfm2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, layer_types=["conv", "full_attention"], max_position_embeddings=CONTEXT,
    ),
    "no attention": lambda: transformers.MambaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=4
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FOREIGN)
def test_any_causal_language_model_decodes_in_standard_mode(kind):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(FOREIGN[kind]()).eval()
    prompts = ragged_prompts()
    completions = decode(model, prompts, params(temperature=0.8, num_samples=2, eos_token_ids=(2, 9, 14)))
    assert len({len(c.token_ids) for c in completions}) > 2
    with torch.no_grad():
        for completion in completions:
            prompt = prompts[completion.prompt_index]
            ids = torch.tensor([[*prompt, *completion.token_ids]])
            logprobs = (model(ids).logits[0, len(prompt) - 1 : -1] / 0.8).log_softmax(-1)
            expected = logprobs.gather(-1, ids[0, len(prompt) :, None])[:, 0]
            torch.testing.assert_close(completion.logprobs, expected, atol=1e-5, rtol=0)


def test_modes_that_need_feedback_are_refused_without_it():
    plain = make_fbt(fusion="none")
    assert len(decode(plain, [[1, 2]], params())[0].token_ids) == NEW
    foreign = transformers.AutoModelForCausalLM.from_config(FOREIGN["learned positions"]())
    for model, name in ((plain, "FBTForCausalLM"), (foreign, "GPT2LMHeadModel")):
        for mode in ("soft", "fused"):
            with pytest.raises(ValueError, match=f"mode '{mode}' asked of a {name} without latent feedback"):
                decode(model, [[1, 2]], params(mode=mode))
        with pytest.raises(ValueError, match=f"latents asked of a {name}"):
            decode(model, [[1, 2]], params(), return_latents=True)


# --- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "settings", "options", "message"),
    [
        ([[1], []], {}, {}, "prompt 1 is empty"),
        ([[1] * 41], {}, {}, "prompt 0 has 41 tokens and max_new_tokens is 24: together more than .* context of 64"),
        ([[1], [VOCAB]], {}, {}, "prompt 1 holds token ids from 23 to 23; the model knows 0 to 22"),
        ([[1], [-1]], {}, {}, "prompt 1 holds token ids from -1"),
        ([[1]], {"num_samples": 2}, {"row_keys": [0]}, "1 row_keys for 2 rows"),
        ([[1]], {}, {"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_bad_input_is_refused_before_any_work(model, prompts, settings, options, message):
    hook = model.register_forward_pre_hook(lambda *_: pytest.fail("work was done"))
    try:
        with pytest.raises(ValueError, match=message):
            decode(model, prompts, params(**settings), **options)
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0), ("mode", "fast"), ("temperature", -0.1), ("temperature", float("nan")), ("top_k", 0),
        ("top_p", 0.0), ("top_p", 1.1), ("num_samples", 0), ("prefill_passes", 0),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field}|mode"):
        params(**{field: value})


def test_limits(model):
    assert decode(model, [], params()) == []
    assert len(decode(model, [[1] * (CONTEXT - NEW)], params(mode="fused"))[0].token_ids) == NEW
    assert len(decode(model, [[1]], params(mode="soft", max_new_tokens=CONTEXT - 1))[0].token_ids) == CONTEXT - 1


def test_weights_that_are_not_finite_are_reported():
    model = make_fbt()
    torch.nn.init.constant_(model.model.feedback.value_proj.weight, float("nan"))
    assert decode(model, [[1, 2]], params(temperature=1.0))
    with pytest.raises(FloatingPointError, match="not finite"):
        decode(model, [[1, 2]], params(mode="soft", temperature=1.0))


# --- the cache by itself ---------------------------------------------------------------------------


def test_preallocated_cache_equals_the_dynamic_one(model):
    torch.manual_seed(0)
    prefill = DynamicCache(config=model.config)
    expected = DynamicCache(config=model.config)
    states = torch.randn(2, 3, 4, 2, 9, 8)  # key or value, layer, row, head, position, width
    rows = torch.tensor([2, 0, 0, 3, 1])
    for layer in range(3):
        prefill.update(*states[:, layer], layer_idx=layer)
        expected.update(*states[:, layer][:, rows], layer_idx=layer)
    cache = PreallocatedCache(prefill, rows, new_tokens=20)
    addresses = [layer.keys.data_ptr() for layer in cache.layers]
    for step in range(20):
        assert cache.get_seq_length() == expected.get_seq_length()
        if step == 7:  # rows 0 and 3 leave; the last row takes the place of the first
            cache.drop_rows(torch.tensor([0]), torch.tensor([4]), count=3)
            expected.batch_select_indices(torch.tensor([4, 1, 2]))
        new = torch.randn(2, 3, 5 if step < 7 else 3, 2, 1, 8)
        for layer in range(3):
            assert cache.get_mask_sizes(1, layer) == expected.get_mask_sizes(1, layer)
            for actual, wanted in zip(
                cache.update(*new[:, layer], layer_idx=layer),
                expected.update(*new[:, layer], layer_idx=layer),
                strict=True,
            ):
                torch.testing.assert_close(actual, wanted, atol=0, rtol=0)
    assert [layer.keys.data_ptr() for layer in cache.layers] == addresses
    assert [layer.keys.shape[2] for layer in cache.layers] == [2 * WINDOW, 2 * WINDOW, 29]
