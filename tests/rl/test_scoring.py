"""The scorers against token-by-token scoring, in float64: values, gradients, and mutations that must show."""

import copy

import pytest
import torch
from torch import nn

from fbt_rl.config import ModelConfig, RLStage
from fbt_rl.config.rl import JacobiScorer, ReplayScorer, SequentialScorer
from fbt_rl.model import FBTForCausalLM, from_model_config
from rl.rollout import sample_rollouts, sampling_seed
from rl.scoring import Scorer, scoring_inputs

torch.set_num_threads(1)
PAD, EOS = 0, 1
PROMPTS = [[5, 9, 4, 7, 3], [6, 2], [8, 3, 11]]  # ragged, so the shorter ones are left-padded
GROUP = 2
EXACT = 1e-12


def make_model(seed: int = 0) -> FBTForCausalLM:
    torch.manual_seed(seed)
    shape = {
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": 4,  # shorter than the sequences
        "full_attention_interval": 2,
        "max_position_embeddings": 64,
    }
    model = FBTForCausalLM(from_model_config(ModelConfig.model_validate(shape), vocab_size=12, pad_token_id=PAD))
    # Weights of unit scale: at the usual initialisation the fed-back state would hardly matter.
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return model.double().eval()


def make_stage(mode: str) -> RLStage:
    return RLStage.model_validate(
        {
            "data": {"kind": "arithmetic", "size": 8},
            "steps": 1,
            "mode": mode,
            "prompts_per_step": len(PROMPTS),
            "group_size": GROUP,
            "max_new_tokens": 7,
            "optimizer": {"learning_rate": 1e-3},
        }
    )


def sample(model, mode, seed=0):
    return sample_rollouts(
        model, PROMPTS, make_stage(mode), eos_token_ids=[EOS], pad_token_id=PAD, seed=sampling_seed(seed, 0)
    )


def sequential(model, prompt, completion, mode):
    """Log-probs (N,) and states (N, D) of one row, token by token, without cache, padding or several passes."""
    embedded = model.model(input_ids=torch.tensor([prompt])).last_hidden_state
    carried = torch.zeros_like(embedded)
    if mode == "fused":
        carried = torch.cat([carried[:, :1], embedded[:, :-1]], dim=1)
        embedded = model.model(input_ids=torch.tensor([prompt]), latents=carried).last_hidden_state
    state, states, log_probs = embedded[0, -1], [], []
    for count, token in enumerate(completion, start=1):
        states.append(state)
        log_probs.append(model.lm_head(state).log_softmax(-1)[token])
        fused = torch.tensor([[mode == "fused"] * len(prompt) + [True] * count])
        state = model.model(
            input_ids=torch.tensor([prompt + completion[:count]]),
            latents=torch.cat([carried, torch.stack(states)[None]], dim=1),
            fused_mask=fused,
        ).last_hidden_state[0, -1]
    return torch.stack(log_probs), torch.stack(states)


def sequential_batch(model, rollouts, mode):
    rows = enumerate(rollouts.token_ids)
    return [sequential(model, PROMPTS[row // GROUP], completion, mode)[0] for row, completion in rows]


def replay(model, rollouts, mode, passes, latents=None, **options):
    latents = rollouts.latents if latents is None else latents
    return score(model, rollouts, mode, ReplayScorer(passes=passes), latents, **options)


def score(model, rollouts, mode, scorer, latents=None, *, anchored=True, **changes):
    """Log-probs of every row; ``changes`` overwrite arguments of the model (the mutations)."""
    count = rollouts.completion_ids.shape[1]
    arguments = scoring_inputs(scorer, mode, rollouts.prompt_mask, count, latents, anchored=anchored) | changes
    logits = model(
        input_ids=torch.cat([rollouts.prompt_ids, rollouts.completion_ids], dim=1),
        attention_mask=torch.cat([rollouts.prompt_mask, rollouts.completion_mask], dim=1),
        **arguments,
    ).logits
    width = rollouts.completion_ids.shape[1]
    log_probs = logits[:, -width - 1 : -1].log_softmax(-1).gather(-1, rollouts.completion_ids[..., None])[..., 0]
    return [row[: len(ids)] for row, ids in zip(log_probs, rollouts.token_ids, strict=True)]


def difference(first, second) -> float:
    return max((a - b).abs().max().item() for a, b in zip(first, second, strict=True))


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module", params=["soft", "fused"])
def case(request, model):
    rollouts = sample(model, request.param)
    with torch.no_grad():
        return request.param, rollouts, sequential_batch(model, rollouts, request.param)


def test_the_case_is_ragged_and_feedback_matters(case, model):
    mode, rollouts, exact = case
    lengths = [len(ids) for ids in rollouts.token_ids]
    assert min(lengths) < max(lengths)
    assert max(lengths) >= 6
    with torch.no_grad():
        assert difference(replay(model, rollouts, "standard", 0), exact) > 1e-2, mode
    assert rollouts.latents.dtype == torch.float64


@pytest.mark.parametrize("anchored", [True, False])
@pytest.mark.parametrize("passes", [0, 1, 2, 3])
def test_replay_equals_sequential(case, model, passes, anchored):
    mode, rollouts, exact = case
    with torch.no_grad():
        assert difference(replay(model, rollouts, mode, passes, anchored=anchored), exact) < EXACT
    assert difference([row.double() for row in _unpad(rollouts.log_probs, rollouts)], exact) < 1e-5


def test_standard_rollouts_need_nothing(model):
    rollouts = sample(model, "standard")
    assert rollouts.latents is None
    for scorer in (ReplayScorer(), JacobiScorer(), SequentialScorer()):
        assert scoring_inputs(scorer, "standard", rollouts.prompt_mask, 7) == {}
    with torch.no_grad():
        plain = replay(model, rollouts, "standard", 1)
    assert difference([row.double() for row in _unpad(rollouts.log_probs, rollouts)], plain) < 1e-5


def test_replay_needs_latents():
    with pytest.raises(ValueError, match="recorded latents"):
        scoring_inputs(ReplayScorer(), "soft", torch.ones(1, 2), 3)


def test_jacobi_is_exact_on_as_many_states_as_passes(case, model):
    mode, rollouts, exact = case
    width = rollouts.completion_ids.shape[1]
    for passes in range(1, width + 1):
        with torch.no_grad():
            scored = score(model, rollouts, mode, JacobiScorer(passes=passes, detach=passes % 2 == 0))
        assert difference([row[:passes] for row in scored], [row[:passes] for row in exact]) < EXACT
        if passes < width:  # not one state more
            following = ([row[passes] for row in rows if len(row) > passes] for rows in (scored, exact))
            assert difference(*following) > 1e-6


def test_the_sequential_scorer_is_exact(case, model):
    mode, rollouts, exact = case
    with torch.no_grad():
        assert difference(score(model, rollouts, mode, SequentialScorer()), exact) < EXACT


def test_a_scorer_refuses_latents_of_another_policy(model):
    rollouts = sample(model, "soft")
    batch = {
        "prompt_mask": rollouts.prompt_mask,
        "completion_mask": rollouts.completion_mask,
        "latents": rollouts.latents,
        "policy_step": torch.tensor(4),
    }
    Scorer(model, model.model, "soft", ReplayScorer(), batch, policy_step=4, anchored=True)
    with pytest.raises(ValueError, match=r"recorded at policy step 4, .* rollouts of policy step 6"):
        Scorer(model, model.model, "soft", ReplayScorer(), batch, policy_step=6, anchored=True)


def _unpad(values, rollouts):
    return [row[: len(ids)] for row, ids in zip(values, rollouts.token_ids, strict=True)]


# --- mutations: each of these must be seen by the comparison above -------------------------------


@pytest.mark.parametrize("passes", [0, 1])
def test_latents_shifted_by_one_are_seen(case, model, passes):
    mode, rollouts, exact = case
    own = rollouts.latents.roll(-1, dims=1)  # shift 0: the state of the position itself
    late = rollouts.latents.roll(1, dims=1)
    with torch.no_grad():
        assert difference(replay(model, rollouts, mode, passes, own), exact) > 1e-4
        assert difference(replay(model, rollouts, mode, passes, late), exact) > 1e-4


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("scorer", [ReplayScorer(passes=0), ReplayScorer(passes=2), SequentialScorer()])
def test_another_window_is_seen(case, model, scorer, change):
    mode, rollouts, exact = case
    other = copy.deepcopy(model)
    other.config.get_text_config().sliding_window += change
    with torch.no_grad():
        assert difference(score(other, rollouts, mode, scorer, rollouts.latents), exact) > 1e-4


@pytest.mark.parametrize("offset", [-1, 1])
def test_boundary_off_by_one_is_seen(case, model, offset):
    mode, rollouts, exact = case
    columns = rollouts.prompt_ids.shape[1] + rollouts.completion_ids.shape[1]
    completion = (torch.arange(columns) >= rollouts.prompt_ids.shape[1] + offset).expand(len(exact), -1)
    with torch.no_grad():
        if mode == "soft":
            assert difference(replay(model, rollouts, mode, 0, fused_mask=completion), exact) > 1e-4
            assert difference(replay(model, rollouts, mode, 1, fused_mask=completion), exact) > 1e-4
            changes = {"fused_mask": completion, "refresh_mask": completion}
            assert difference(score(model, rollouts, mode, SequentialScorer(), **changes), exact) > 1e-4
        else:
            inside = ~completion & (torch.arange(columns) < columns)
            assert difference(replay(model, rollouts, mode, 0, prefill_mask=inside), exact) > 1e-4
            assert difference(replay(model, rollouts, mode, 1, prefill_mask=inside), exact) > 1e-4
            assert difference(score(model, rollouts, mode, SequentialScorer(), prefill_mask=inside), exact) > 1e-4


def test_refreshing_the_prompt_is_seen(case, model):
    mode, rollouts, exact = case
    everywhere = torch.ones(len(exact), rollouts.prompt_ids.shape[1] + rollouts.completion_ids.shape[1]).bool()
    changes = {"refresh_mask": everywhere, "fused_mask": everywhere, "prefill_mask": None}
    with torch.no_grad():
        assert difference(replay(model, rollouts, mode, 1, **changes), exact) > 1e-4


def test_wrong_prompt_mode_is_seen(case, model):
    mode, rollouts, exact = case
    other = "fused" if mode == "soft" else "soft"
    with torch.no_grad():
        assert difference(replay(model, rollouts, other, 0), exact) > 1e-4
        assert difference(replay(model, rollouts, other, 1), exact) > 1e-4
        assert difference(score(model, rollouts, other, SequentialScorer()), exact) > 1e-4


def test_stale_latents_are_seen_and_refreshing_repairs_them(case, model):
    mode, rollouts, _ = case
    moved = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.01 * parameter.abs().mean().item())
        exact = sequential_batch(moved, rollouts, mode)
        errors = [difference(replay(moved, rollouts, mode, passes, anchored=False), exact) for passes in range(8)]
        anchored = [difference(replay(moved, rollouts, mode, passes), exact) for passes in range(8)]
    assert errors[0] > 1e-4
    assert anchored == pytest.approx([errors[0]] * 8)  # an anchored pass keeps the recorded values
    assert errors[7] < EXACT  # as many refreshing passes as completion positions


# --- gradients ------------------------------------------------------------------------------------


def gradient(model, log_probs, weights):
    model.zero_grad()
    torch.cat([row * weight for row, weight in zip(log_probs, weights, strict=True)]).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.fixture(scope="module")
def through_time(case, model):
    """Weights of the rows, and the gradient of back-propagation through token-by-token scoring."""
    mode, rollouts, exact = case
    torch.manual_seed(2)
    weights = torch.randn(len(exact), dtype=torch.float64)
    return weights, gradient(model, sequential_batch(model, rollouts, mode), weights)


def cosine(first, second) -> float:
    return torch.cosine_similarity(first, second, dim=0).item()


@pytest.mark.parametrize("anchored", [True, False])
def test_enough_refreshing_passes_give_the_gradient_through_time(case, model, through_time, anchored):
    mode, rollouts, _ = case
    weights, expected = through_time
    width = rollouts.completion_ids.shape[1]
    cosines = []
    for passes in (0, 1, width):
        scored = gradient(model, replay(model, rollouts, mode, passes, anchored=anchored), weights)
        cosines.append(cosine(scored, expected))
    assert cosines[0] < cosines[1] < 0.9999  # the states read as constants: something is missing
    assert cosines[2] >= 0.999999
    torch.testing.assert_close(scored, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_jacobi_and_sequential_give_the_gradient_through_time(case, model, through_time, checkpointed):
    mode, rollouts, _ = case
    weights, expected = through_time
    model = copy.deepcopy(model)
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    for scorer in (JacobiScorer(passes=rollouts.completion_ids.shape[1]), SequentialScorer()):
        scored = gradient(model, score(model, rollouts, mode, scorer), weights)
        assert cosine(scored, expected) >= 0.999999
        torch.testing.assert_close(scored, expected, rtol=1e-9, atol=1e-10)
    # Each pass less is one feedback edge less.
    shorter = gradient(model, score(model, rollouts, mode, JacobiScorer(passes=2)), weights)
    assert cosine(shorter, expected) < 0.9999


def test_detached_jacobi_passes_come_to_reading_recorded_states(case, model, through_time):
    mode, rollouts, exact = case
    weights, expected = through_time
    detached = JacobiScorer(passes=rollouts.completion_ids.shape[1], detach=True)
    log_probs = score(model, rollouts, mode, detached)
    assert difference(log_probs, exact) < EXACT
    scored = gradient(model, log_probs, weights)
    torch.testing.assert_close(
        scored, gradient(model, replay(model, rollouts, mode, 0), weights), rtol=1e-9, atol=1e-10
    )
    assert cosine(scored, expected) < 0.9999  # a gradient cut at one pass is seen
