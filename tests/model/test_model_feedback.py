"""Latent feedback: fusion, the shift, passes, masks; against references written by hand."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from model_helpers import (
    fuse_by_hand,
    plain_by_hand,
    random_ids,
    sequential_states,
    small_config,
    small_model,
    stack,
)
from torch import Tensor
from transformers import DynamicCache, StaticCache

from fbt_rl.model import FBTConfig, FBTForCausalLM, is_fbt
from fbt_rl.model.feedback import LatentFeedback, PassPlan, resolve_prefill_passes, shift_right

CLOSE = {"rtol": 0, "atol": 2e-5}
FUSIONS = ["gate", "concat", "add"]


@pytest.fixture(scope="module")
def model():
    return small_model()


def states(model, ids, **kwargs):
    return model.model(ids, use_cache=False, **kwargs).last_hidden_state


def stack_inputs(model, ids, **kwargs) -> list[Tensor]:
    """What entered the decoder in every pass of one call."""
    seen: list[Tensor] = []
    hook = model.model.text_model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["inputs_embeds"].detach()), with_kwargs=True
    )
    try:
        model.model(ids, use_cache=False, **kwargs)
    finally:
        hook.remove()
    return seen


def random_latents(rows: int, length: int, seed: int = 5) -> Tensor:
    return torch.randn(rows, length, 32, generator=torch.Generator().manual_seed(seed))


# --- fusion --------------------------------------------------------------------------------------


def test_fusions_by_hand():
    h, e, n = random_latents(2, 3, 1), random_latents(2, 3, 2), random_latents(2, 3, 3)
    gate, concat, add = (LatentFeedback(32, fusion) for fusion in FUSIONS)
    torch.testing.assert_close(
        gate(h, e, n), (h @ gate.value_proj.weight.T) * torch.sigmoid(n @ gate.gate_proj.weight.T), **CLOSE
    )
    w_h, w_e = concat.value_proj.weight.split(32, dim=1)
    torch.testing.assert_close(concat(h, e, n), h @ w_h.T + e @ w_e.T, **CLOSE)
    torch.testing.assert_close(add(h, e, n), e + h @ add.value_proj.weight.T, **CLOSE)


def test_zero_latent_gives_zero_fused_input(model):
    ids = random_ids(2, 6)
    (inputs,) = stack_inputs(model, ids, latents=torch.zeros(2, 6, 32))
    assert torch.all(inputs[:, 1:] == 0)
    assert torch.equal(inputs[:, :1], plain_by_hand(model, ids[:, :1]))


@pytest.mark.parametrize("fusion", FUSIONS)
def test_every_fusion_uses_state_and_token(fusion):
    model = small_model(fusion)
    ids, latents = random_ids(1, 6), random_latents(1, 6)
    assert is_fbt(model)
    (inputs,) = stack_inputs(model, ids, latents=latents)
    (other_state,) = stack_inputs(model, ids, latents=-latents)
    (other_token,) = stack_inputs(model, random_ids(1, 6, seed=2), latents=latents)
    assert (inputs - other_state)[:, 1:].abs().amax(-1).min() > 1e-3
    assert (inputs - other_token)[:, 1:].abs().amax(-1).min() > 1e-3
    assert torch.isfinite(states(model, ids, num_passes=3)).all()


def test_feedback_parameters():
    sizes = {fusion: sum(p.numel() for p in FBTForCausalLM(small_config(fusion)).parameters()) for fusion in FUSIONS}
    none = sum(p.numel() for p in FBTForCausalLM(small_config("none")).parameters())
    assert {fusion: size - none for fusion, size in sizes.items()} == {
        "gate": 2 * 32**2,
        "concat": 2 * 32**2,
        "add": 32**2,
    }


def test_no_fusion_is_a_standard_transformer_and_says_so():
    model, ids = small_model("none"), random_ids(1, 6)
    assert not is_fbt(model)
    assert torch.equal(states(model, ids), stack(model, plain_by_hand(model, ids)))
    for kwargs in ({"num_passes": 2}, {"latents": random_latents(1, 6)}, {"prefill_mask": ids > 0}):
        with pytest.raises(ValueError, match="no latent feedback"):
            model(ids, **kwargs)
    with pytest.raises(StrictDataclassError, match="text model itself"):
        FBTConfig(fusion="none", plain_input_norm=False)


def test_retrofit_inputs():
    """Plain inputs untouched; fused ones normalised and scaled to the given RMS."""
    torch.manual_seed(0)
    config = small_config()
    config.plain_input_norm, config.fused_input_rms = False, 0.05
    model, ids = FBTForCausalLM(config).eval(), random_ids(2, 6)
    (plain,) = stack_inputs(model, ids)
    assert torch.equal(plain, model.get_input_embeddings()(ids))
    (fused,) = stack_inputs(model, ids, latents=random_latents(2, 6))
    assert torch.equal(fused[:, 0], plain[:, 0])
    expected = 0.05 * fuse_by_hand(model, random_latents(2, 6)[:, 1:], ids[:, 1:])
    torch.testing.assert_close(fused[:, 1:], expected, **CLOSE)
    torch.testing.assert_close(fused[:, 1:].square().mean(-1).sqrt(), torch.full((2, 5), 0.05), rtol=1e-3, atol=0)


# --- passes --------------------------------------------------------------------------------------


def test_shift():
    assert shift_right(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten().tolist() == [0, 1, 2]


def test_second_pass_by_hand(model):
    ids = random_ids(2, 12)
    first = stack(model, plain_by_hand(model, ids))
    inputs = torch.cat((plain_by_hand(model, ids)[:, :1], fuse_by_hand(model, first[:, :-1], ids[:, 1:])), dim=1)
    torch.testing.assert_close(states(model, ids, num_passes=2), stack(model, inputs), **CLOSE)
    torch.testing.assert_close(states(model, ids, latents=shift_right(first)), stack(model, inputs), **CLOSE)


def test_k_passes_are_exact_on_the_first_k_states():
    model = small_model(dtype=torch.float64)
    ids = random_ids(2, 9)
    exact = sequential_states(model, ids[:, :1], ids[:, 1:], "soft")
    passes = model.model(ids, use_cache=False, num_passes=9, output_passes=True).pass_states
    assert len(passes) == 9
    for k, found in enumerate(passes, start=1):
        torch.testing.assert_close(found[:, :k], exact[:, :k], rtol=0, atol=1e-12)
        if k < 9:
            assert (found[:, k] - exact[:, k]).abs().max() > 1e-3
    assert torch.equal(passes[-1], states(model, ids, num_passes=9))


@pytest.mark.parametrize("mode", ["soft", "fused"])
@pytest.mark.parametrize("refreshes", [0, 1, 2])
def test_replay_of_recorded_states_is_the_rollout(mode, refreshes):
    """The recorded states are the fixed point: refreshing completion positions any number of times changes nothing."""
    model = small_model(dtype=torch.float64)
    prompt, completion = random_ids(2, 5), random_ids(2, 7, seed=2)
    ids = torch.cat((prompt, completion), dim=1)
    rollout = sequential_states(model, prompt, completion, mode, passes=2 if mode == "fused" else 1)
    in_completion = (torch.arange(12) >= 5).expand(2, -1)
    replayed = states(
        model,
        ids,
        latents=shift_right(rollout) * in_completion[..., None],
        fused_mask=in_completion if mode == "soft" else None,
        refresh_mask=in_completion,
        prefill_mask=~in_completion if mode == "fused" else None,
        num_passes=1 + refreshes,
    )
    torch.testing.assert_close(replayed, rollout, rtol=0, atol=1e-12)


def test_decoding_with_a_cache_and_carried_latents(model):
    prompt, completion = random_ids(2, 5), random_ids(2, 8, seed=2)
    for cache in (DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=13)):
        outputs = model.model(prompt, cache=cache, use_cache=True, num_passes=2)
        found = [outputs.last_hidden_state]
        for token in completion.split(1, dim=1):
            found.append(model.model(token, cache=cache, latents=found[-1][:, -1:], use_cache=True).last_hidden_state)
        expected = sequential_states(model, prompt, completion, "fused", passes=2)
        torch.testing.assert_close(torch.cat(found, dim=1), expected, **CLOSE)


def test_first_positions_are_never_fused(model):
    positions = torch.cat((torch.arange(4), torch.arange(5)))[None]
    ids = random_ids(1, 9)
    for kwargs in ({"latents": random_latents(1, 9)}, {"num_passes": 2}, {"prefill_mask": ids > 0}):
        inputs = stack_inputs(model, ids, position_ids=positions, **kwargs)[-1]
        plain = plain_by_hand(model, ids)
        is_plain = (inputs == plain).all(-1)[0].tolist()
        assert is_plain == [True, False, False, False, True, False, False, False, False]


def test_a_row_that_starts_inside_a_document_has_no_earlier_state(model):
    ids, positions = random_ids(1, 5), torch.arange(3, 8)[None]
    inputs = stack_inputs(model, ids, position_ids=positions, num_passes=2)
    assert torch.equal(inputs[1][:, 0], plain_by_hand(model, ids)[:, 0])
    prefilled = stack_inputs(model, ids, position_ids=positions, prefill_mask=ids > 0)
    assert torch.equal(prefilled[1][:, 0], plain_by_hand(model, ids)[:, 0])
    given = stack_inputs(model, ids, position_ids=positions, num_passes=2, latents=random_latents(1, 5))
    torch.testing.assert_close(given[1][:, :1], fuse_by_hand(model, random_latents(1, 5)[:, :1], ids[:, :1]), **CLOSE)


# --- masks ---------------------------------------------------------------------------------------


def test_fused_mask_of_two_and_three_dimensions(model):
    ids, plain = random_ids(2, 6), plain_by_hand(model, random_ids(2, 6))
    flat = torch.tensor([[1, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 1]], dtype=torch.bool)
    cut = torch.stack((torch.zeros_like(flat), flat, ~flat), dim=1)
    for inputs in stack_inputs(model, ids, latents=random_latents(2, 6), fused_mask=flat, num_passes=3):
        assert torch.equal((inputs != plain).any(-1), flat & (torch.arange(6) > 0))
    for index, inputs in enumerate(
        stack_inputs(model, ids, fused_mask=cut, num_passes=3, latents=random_latents(2, 6))
    ):
        assert torch.equal((inputs != plain).any(-1), cut[:, index] & (torch.arange(6) > 0))


def test_refresh_mask_keeps_latents_outside(model):
    ids, latents = random_ids(2, 6), random_latents(2, 6)
    refresh = (torch.arange(6) >= 3).expand(2, -1)
    first, second = stack_inputs(model, ids, latents=latents, refresh_mask=refresh, num_passes=2)
    assert torch.equal(first[:, :3], second[:, :3])
    expected = fuse_by_hand(model, stack(model, first)[:, 2:-1], ids[:, 3:])
    torch.testing.assert_close(second[:, 3:], expected, **CLOSE)
    _, without = stack_inputs(model, ids, refresh_mask=refresh, num_passes=2)
    assert torch.equal(without[:, :3], plain_by_hand(model, ids)[:, :3])


@pytest.mark.parametrize("padding", [0, 3])
def test_prefill_mask_is_a_plain_pass_over_the_prompt(model, padding):
    prompt, rest = random_ids(2, 4), random_ids(2, 5, seed=2)
    ids = torch.cat((torch.zeros(2, padding, dtype=torch.long), prompt, rest), dim=1)
    columns = torch.arange(ids.shape[1]).expand(2, -1)
    mask, latents = (columns >= padding).long(), random_latents(2, ids.shape[1])
    prefill = (columns >= padding) & (columns < padding + 4)
    kwargs = {"attention_mask": mask, "prefill_mask": prefill, "num_passes": 2}
    prompt_pass, first, second = stack_inputs(model, ids, latents=latents, **kwargs)
    for given in (~prefill, torch.ones_like(prefill)):  # prompts are never refreshed, asked or not
        assert torch.equal(stack_inputs(model, ids, latents=latents, refresh_mask=given, **kwargs)[2], second)
    assert prompt_pass.shape[1] == padding + 4  # no wider than the prompts
    expected = fuse_by_hand(model, stack(model, plain_by_hand(model, prompt))[:, :-1], prompt[:, 1:])
    for inputs in (first, second):
        torch.testing.assert_close(inputs[:, padding + 1 : padding + 4], expected, **CLOSE)
    torch.testing.assert_close(first[:, padding + 4 :], fuse_by_hand(model, latents[:, padding + 4 :], rest), **CLOSE)
    half = columns >= padding + 6
    _, first, second = stack_inputs(model, ids, refresh_mask=half, **kwargs)
    for inputs in (first, second):  # no states at hand: plain
        assert torch.equal(inputs[:, padding + 4 : padding + 6], plain_by_hand(model, rest)[:, :2])
    refreshed = fuse_by_hand(model, stack(model, first[:, padding:])[:, 5:-1], rest[:, 2:])
    torch.testing.assert_close(second[:, padding + 6 :], refreshed, **CLOSE)


def test_prefill_of_ragged_rows(model):
    ids = random_ids(2, 10)
    prefill = torch.arange(10) < torch.tensor([[3], [6]])
    together = states(model, ids, prefill_mask=prefill, num_passes=2)
    for row in range(2):
        alone = states(model, ids[row : row + 1], prefill_mask=prefill[row : row + 1], num_passes=2)
        torch.testing.assert_close(together[row : row + 1], alone, **CLOSE)


def test_prefill_without_any_column_changes_nothing(model):
    ids = random_ids(2, 5)
    assert torch.equal(states(model, ids, prefill_mask=torch.zeros(2, 5, dtype=torch.bool)), states(model, ids))


def test_jitter_only_where_asked():
    state = random_latents(2, 40)
    later = (torch.arange(40) > 0).expand(2, -1)
    still, _ = PassPlan(later).carried_into(1, state)
    moved, _ = PassPlan(later, jitter=0.02).carried_into(1, state)
    assert torch.equal(still, shift_right(state))
    noise = moved - still
    assert noise.abs().max() <= 0.0201
    assert noise.abs().max() > 0.019
    assert abs(noise.mean()) < 2e-3

    kept = ~later | (torch.arange(40) < 9)
    plan = PassPlan(later, carried=state, refresh=~kept, jitter=0.02)
    assert torch.equal(plan.carried_into(0, None)[0], state)
    assert torch.equal(plan.carried_into(1, state)[0][kept], state[kept])


def test_jitter_reaches_the_second_pass_only(model):
    ids = random_ids(1, 8)
    calm = model.model(ids, use_cache=False, num_passes=2, output_passes=True).pass_states
    shaken = model.model(ids, use_cache=False, num_passes=2, output_passes=True, jitter=0.02).pass_states
    assert torch.equal(calm[0], shaken[0])
    assert 0 < (calm[1] - shaken[1]).abs().max() < 1
    assert torch.equal(calm[1][:, 0], shaken[1][:, 0])


def test_the_causal_model_hands_every_feedback_argument_on(model):
    ids, columns = random_ids(2, 8), torch.arange(8).expand(2, -1)
    arguments = {
        "latents": random_latents(2, 8),
        "fused_mask": columns != 3,
        "refresh_mask": columns > 4,
        "prefill_mask": columns < 2,
        "num_passes": 3,
        "jitter": 0.3,
    }

    def both(**given):
        for called in (model.model, model):
            torch.manual_seed(0)  # of the jitter
            yield called(ids, use_cache=False, **given).last_hidden_state

    expected, found = both(**arguments)
    assert torch.equal(found, expected)
    for name in arguments:  # each of them counts
        without = {key: value for key, value in arguments.items() if key != name}
        assert not torch.equal(next(both(**without)), expected), name


# --- gradients -----------------------------------------------------------------------------------


def test_gradient_reaches_pass_1_through_pass_2(model):
    passes = model.model(random_ids(1, 6), use_cache=False, num_passes=2, output_passes=True).pass_states
    (gradient,) = torch.autograd.grad(passes[1][0, 4].sum(), passes[0])
    reached = gradient[0].abs().amax(-1) > 1e-6
    # State t of pass 2 reads pass 1's states before t.
    assert reached.tolist() == [True, True, True, True, False, False]


def test_gradient_flows_through_the_prefill_pass(model):
    ids = random_ids(1, 6)
    embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
    prefill = (torch.arange(6) < 4)[None]
    state = model.model(inputs_embeds=embeds, use_cache=False, prefill_mask=prefill).last_hidden_state[0, 1]
    (gradient,) = torch.autograd.grad(state.sum(), embeds)
    assert gradient[0, 0].abs().max() > 1e-6
    assert torch.all(gradient[0, 2:] == 0)


def test_gradient_checkpointing_gives_equal_gradients():
    ids, gradients = random_ids(2, 10), []
    for checkpointing in (False, True):
        model = small_model().train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(ids, labels=ids, num_passes=2, use_cache=False).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert gradients[0]["model.feedback.value_proj.weight"].abs().max() > 0
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


# --- refusals ------------------------------------------------------------------------------------


def gradients_and_kept_bytes(activations, passes, checkpointing=False):
    """Gradients of a loss on all passes, and the bytes that the graph held on to for the backward pass."""
    model = small_model(dtype=torch.float64).train()
    if checkpointing:
        model.activation_checkpointing_enable()
    own = {value.untyped_storage().data_ptr() for value in model.parameters()}
    kept: dict[int, int] = {}

    def keep(value):
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        output = model.model(
            random_ids(2, 30), use_cache=False, num_passes=passes, output_passes=True, pass_activations=activations
        )
        loss = sum(states.square().mean() for states in output.pass_states)
    loss.backward()
    return {name: value.grad for name, value in model.named_parameters()}, sum(kept.values())


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("activations", ["recompute", "offload"])
def test_activations_of_early_passes_change_no_gradient(activations, checkpointing):
    expected, _ = gradients_and_kept_bytes("keep", 3)
    gradients, _ = gradients_and_kept_bytes(activations, 3, checkpointing)
    for name, gradient in gradients.items():
        assert torch.equal(gradient, expected[name]), name


def test_recomputed_passes_hold_little_memory():
    one, three = (gradients_and_kept_bytes("keep", passes)[1] for passes in (1, 3))
    assert three > 2.8 * one
    assert gradients_and_kept_bytes("recompute", 3)[1] < 1.5 * one


def test_arguments_that_do_not_fit_are_refused(model):
    ids = random_ids(2, 4)
    cache = model(ids, use_cache=True).cache
    cases = [
        ({"num_passes": 0}, "at least one pass"),
        ({"latents": random_latents(2, 3)}, r"shape \(2, 3, 32\).*\(2, 4, 32\)"),
        ({"fused_mask": torch.ones(2, 2, 4, dtype=torch.bool), "num_passes": 3}, "2 slices for 3 passes"),
        ({"num_passes": 2, "cache": cache}, "holds 4 positions"),
        ({"prefill_mask": ids > 0, "cache": cache}, "holds 4 positions"),
        ({"inputs_embeds": random_latents(2, 4)}, "exactly one of"),
    ]
    for kwargs, message in cases:
        with pytest.raises(ValueError, match=message):
            model(ids, **kwargs)


def test_prefill_passes_of_each_mode():
    assert [resolve_prefill_passes(mode) for mode in ("standard", "soft", "fused")] == [1, 1, 2]
    assert resolve_prefill_passes("soft", 3) == resolve_prefill_passes("fused", 3) == 3
    for mode, passes, message in (
        ("standard", 2, "exactly 1"),
        ("soft", 0, "at least 1"),
        ("fused", 1, "at least 2"),
        ("hard", None, "standard, soft, fused"),
    ):
        with pytest.raises(ValueError, match=message):
            resolve_prefill_passes(mode, passes)
