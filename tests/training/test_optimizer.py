"""Parameter groups, and NorMuon in one process; under ZeRO: test_deepspeed_zero.py."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from fbt_rl.config import ModelConfig, OptimizerConfig
from fbt_rl.model import FBTForCausalLM, from_model_config
from fbt_rl.training.normuon import MatrixOptimizer, normalized_update, orthogonalize
from fbt_rl.training.optimizer import build_optimizer, matrix_blocks, parameter_groups
from fbt_rl.training.zero_layout import OwnerExchange, balanced_owners


def model_of(**changes):
    return FBTForCausalLM(from_model_config(ModelConfig(preset="tiny", **changes), vocab_size=40))


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_is_in_exactly_one_group(tied):
    model = model_of(tie_word_embeddings=tied)
    matrices, others = parameter_groups(model)
    assert sorted([*matrices, *others]) == sorted(name for name, _ in model.named_parameters())
    assert {"model.feedback.value_proj.weight", "model.feedback.gate_proj.weight"} <= set(matrices)
    assert {name.split(".")[-2] for name in matrices} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "value_proj")
    }
    assert "model.text_model.embed_tokens.weight" in others
    assert ("lm_head.weight" in others) is not tied
    assert {name for name, value in others.items() if value.dim() == 2} == {
        "model.text_model.embed_tokens.weight",
        *(["lm_head.weight"] if not tied else []),
        *(f"model.text_model.layers.{layer}.self_attn.head_gate.weight" for layer in range(3)),
    }


def test_groups_are_logged(caplog):
    with caplog.at_level("INFO", logger="fbt_rl"):
        build_optimizer(model_of(), OptimizerConfig(learning_rate=1e-3))
    matrices, others = caplog.messages
    assert "adamw: 23 matrices" in matrices
    assert "model.feedback.gate_proj.weight" in matrices
    assert "model.text_model.embed_tokens.weight" in others


def test_frozen_parameters_are_in_no_group():
    model = model_of()
    model.model.text_model.requires_grad_(False)
    matrices, others = parameter_groups(model)
    assert set(matrices) == {"model.feedback.value_proj.weight", "model.feedback.gate_proj.weight"}
    assert set(others) == {"model.input_norm.weight"}


def test_rates_of_the_two_kinds():
    config = OptimizerConfig(name="normuon", learning_rate=1e-2, adam_learning_rate=5e-4)
    optimizer = build_optimizer(model_of(), config)
    assert [(group["lr"], group["betas"], group["weight_decay"]) for group in optimizer.param_groups] == [
        (1e-2, (0.95, 0.95), 0.01),
        (5e-4, (0.9, 0.95), 0.0),
    ]
    apart = {"normuon_betas": (0.8, 0.7), "betas": (0.6, 0.5), "weight_decay": 0.3}
    optimizer = build_optimizer(model_of(), OptimizerConfig.model_validate(dict(config) | apart))
    assert [(group["betas"], group["weight_decay"]) for group in optimizer.param_groups] == [
        ((0.8, 0.7), 0.3),
        ((0.6, 0.5), 0.0),
    ]
    optimizer = build_optimizer(model_of(), OptimizerConfig(learning_rate=1e-2, betas=(0.6, 0.5), weight_decay=0.3))
    assert [(group["lr"], group["betas"], group["weight_decay"]) for group in optimizer.param_groups] == [
        (1e-2, (0.6, 0.5), 0.3),
        (1e-2, (0.6, 0.5), 0.0),
    ]
    with pytest.raises(ValueError, match="needs adam_learning_rate"):
        OptimizerConfig(name="normuon", learning_rate=1e-2)
    with pytest.raises(ValueError, match="AdamW has one learning_rate"):
        OptimizerConfig(learning_rate=1e-2, adam_learning_rate=1e-3)


# --- fused projections of foreign decoders -----------------------------------------------------------


def blocks_of(model):
    matrices, _ = parameter_groups(model)
    return {
        name.split(".")[-2]: matrix_blocks(name, matrix, model.config)
        for name, matrix in matrices.items()
        if ".layers.0." in name
    }


SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_fused_projections_are_several_matrices():
    phi = Phi3ForCausalLM(Phi3Config(**SHAPE, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    assert blocks_of(phi) == {
        "qkv_proj": (32, 16, 16),
        "o_proj": (32,),
        "gate_up_proj": (48, 48),
        "down_proj": (32,),
    }
    assert set(blocks_of(LlamaForCausalLM(LlamaConfig(**SHAPE))).values()) == {(32,), (16,), (48,)}


def test_blocks_are_updated_like_matrices_of_their_own():
    torch.manual_seed(0)
    fused = nn.Parameter(torch.randn(12, 6))
    apart = [nn.Parameter(part.clone()) for part in fused.detach().split((8, 4))]
    rates = {"learning_rate": 0.1, "adam_learning_rate": 0.1}
    one = MatrixOptimizer([fused], [], blocks=[(8, 4)], **rates)
    two = MatrixOptimizer(apart, [], blocks=[(8,), (4,)], **rates)
    for _ in range(3):
        fused.grad = torch.randn(12, 6)
        for parameter, gradient in zip(apart, fused.grad.split((8, 4)), strict=True):
            parameter.grad = gradient.clone()
        one.step()
        two.step()
    torch.testing.assert_close(fused, torch.cat(apart))


# --- one step by hand --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 20), (20, 5)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape):
    torch.manual_seed(0)
    for scale in (1e-6, 1e3):
        values = torch.linalg.svdvals(orthogonalize(scale * torch.randn(3, *shape)))
        assert 0.6 < values.min() <= values.max() < 1.25
    assert not orthogonalize(torch.zeros(2, *shape)).any()


def test_singular_values_go_five_times_through_the_polynomial():
    """Also where they lie far apart, so that the number of steps counts."""
    torch.manual_seed(0)
    values = torch.tensor([1.0, 0.3, 0.1, 0.03, 0.01], dtype=torch.float64)
    u, _, v = torch.linalg.svd(torch.randn(5, 8, dtype=torch.float64), full_matrices=False)
    expected = values / values.norm()
    for _ in range(5):
        expected = 3.4445 * expected - 4.7750 * expected**3 + 2.0315 * expected**5
    torch.testing.assert_close(orthogonalize(u @ values.diag() @ v), u @ expected.diag() @ v)
    assert expected.min() > 0.6


@pytest.mark.parametrize(("rows", "columns"), [(6, 4), (4, 6)])
def test_rows_are_normalised_and_the_norm_is_kept(rows, columns):
    torch.manual_seed(0)
    momentum = torch.randn(1, rows, columns)
    update, moment = normalized_update(momentum, torch.zeros(1, rows), beta2=0.95)
    o = orthogonalize(momentum)
    torch.testing.assert_close(moment, 0.05 * o.square().mean(-1))
    # In the first step v is a multiple of the rows' own mean square: all rows come out equally long.
    lengths = update.norm(dim=-1)
    torch.testing.assert_close(lengths, lengths.mean().expand_as(lengths))
    torch.testing.assert_close(update.norm(), o.norm() * (rows / columns) ** 0.5)


def test_two_steps_by_hand_with_mu_and_beta2_apart():
    torch.manual_seed(0)
    matrix = nn.Parameter(torch.randn(4, 3))
    expected, momentum, moment = matrix.detach().clone(), torch.zeros(4, 3), torch.zeros(1, 4)
    rates = {"learning_rate": 0.1, "adam_learning_rate": 0.1, "weight_decay": 0.0}
    optimizer = MatrixOptimizer([matrix], [], blocks=[(4,)], betas=(0.9, 0.6), **rates)
    for _ in range(2):
        matrix.grad = torch.randn(4, 3)
        momentum = 0.9 * momentum + matrix.grad
        update, moment = normalized_update(momentum[None], moment, 0.6)
        expected -= 0.1 * update[0]
        optimizer.step()
        torch.testing.assert_close(matrix.detach(), expected)


def test_decay_falls_with_the_square_of_the_rate():
    matrix = nn.Parameter(torch.ones(2, 3))
    optimizer = MatrixOptimizer(
        [matrix], [], blocks=[(2,)], learning_rate=0.1, adam_learning_rate=0.1, weight_decay=0.5
    )
    group = optimizer.param_groups[0]
    group["initial_lr"], group["lr"] = 0.1, 0.05  # as a schedule does, half-way down
    matrix.grad = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, 0.0]])
    expected = (1 - 0.05**2 / 0.1 * 0.5) * matrix.detach() - 0.05 * normalized_update(
        matrix.grad[None], torch.zeros(1, 2), 0.95
    )[0][0]
    optimizer.step()
    torch.testing.assert_close(matrix.detach(), expected)


def test_a_matrix_without_gradient_rests():
    torch.manual_seed(0)
    moving, resting = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
    optimizer = MatrixOptimizer([moving, resting], [], blocks=[(4,), (4,)], learning_rate=0.1, adam_learning_rate=0.1)
    moving.grad, resting.grad = torch.randn(4, 4), torch.randn(4, 4)
    optimizer.step()
    before = resting.detach().clone()
    state = {name: value.clone() for name, value in optimizer.state[resting].items()}
    for gradient in (torch.zeros(4, 4), None):
        old = moving.detach().clone()
        resting.grad = gradient
        optimizer.step()
        assert torch.equal(resting, before)
        assert torch.equal(optimizer.state[resting]["exp_avg"], state["exp_avg"])
        assert not torch.equal(moving, old)


def test_rate_zero_leaves_the_weights():
    model = model_of()
    config = OptimizerConfig(name="normuon", learning_rate=0.0, adam_learning_rate=0.0)
    optimizer = build_optimizer(model, config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


# --- sharing the work --------------------------------------------------------------------------------


def test_owners_share_the_work():
    costs = [5.0, 3.0, 3.0, 2.0, 1.0]
    owners = balanced_owners(costs, 2)
    loads = [sum(cost for cost, owner in zip(costs, owners, strict=True) if owner == rank) for rank in range(2)]
    assert loads == [7.0, 7.0]
    assert balanced_owners(costs, 1) == [0] * 5


def test_one_rank_owns_everything():
    exchange = OwnerExchange([0, 0], [(0, 4), (0, 2)], [(1, 2), (0, 2)])
    whole = exchange.to_owners([torch.arange(4.0), torch.arange(2.0)])
    parts = exchange.from_owners(whole, torch.empty(0))
    assert [part.tolist() for part in parts] == [[1.0, 2.0], [0.0, 1.0]]
