"""The policy loss by hand, and against TRL's on random batches: every type, value and gradient."""

from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from rl.loss import Division, batch_loss, clipped, kl_to_reference, policy_ratio, token_losses, token_mean

TYPES = [("dapo", "token"), ("bnpo", "token"), ("cispo", "token"), ("dr_grpo", "token"), ("grpo", "token")]
TYPES += [("grpo", "sequence")]  # GSPO
LOW, HIGH, LONGEST = 0.2, 0.28, 9


def ours(log_probs, batch, loss_type, level, *, kl_weight=0.0, micro_batches=1, ranks=1, kept_share=1.0):
    ratio = policy_ratio(log_probs, batch["old"], batch["counted"], level)
    losses = token_losses(ratio, log_probs, batch["advantages"], loss_type, LOW, HIGH)
    if kl_weight:
        losses = losses + kl_weight * kl_to_reference(log_probs, batch["reference"])
    division = Division(batch["tokens"], torch.tensor(kept_share), micro_batches, ranks, LONGEST)
    return batch_loss(losses, batch["counted"], loss_type, division)


def trl(log_probs, batch, loss_type, level, *, kl_weight=0.0, micro_batches=1, ranks=1):
    """TRL's ``_compute_loss`` on the same numbers, without a model, a trainer or other ranks."""
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (log_probs, torch.ones_like(log_probs), None),
        accelerator=SimpleNamespace(
            num_processes=ranks, reduce=lambda x, reduction: x, gather=lambda x: x, autocast=nullcontext
        ),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=micro_batches),
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        current_gradient_accumulation_steps=micro_batches,
        epsilon_low=LOW,
        epsilon_high=1 + HIGH if loss_type == "cispo" else HIGH,
        importance_sampling_level=level,
        loss_type=loss_type,
        max_completion_length=LONGEST,
        beta=kl_weight,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
    )
    inputs = {
        **{name: torch.ones_like(log_probs) for name in ("prompt_ids", "prompt_mask", "completion_ids")},
        "completion_mask": batch["counted"],
        "advantages": batch["advantages"],
        "old_per_token_logps": batch["old"],
        "ref_per_token_logps": batch["reference"],
        "num_items_in_batch": batch["tokens"],
    }
    return GRPOTrainer._compute_loss(trainer, None, inputs), trainer._metrics["train"]


def random_batch(seed: int):
    """Ratios on both sides of both bounds, advantages of both signs, rows of every length, one empty."""
    draw = torch.Generator().manual_seed(seed)
    rows, columns = 6, 9
    log_probs = -3 * torch.rand(rows, columns, generator=draw, dtype=torch.float64)
    lengths = torch.randint(1, columns + 1, (rows, 1), generator=draw)
    lengths[seed % rows] = 0
    advantages = torch.randn(rows, 1, generator=draw, dtype=torch.float64)
    if seed % 2:  # with an importance weight on each token
        advantages = advantages * torch.rand(rows, columns, generator=draw, dtype=torch.float64)
    return log_probs.requires_grad_(), {
        "old": log_probs.detach() + 0.5 * torch.randn(rows, columns, generator=draw, dtype=torch.float64),
        "reference": log_probs.detach() + torch.randn(rows, columns, generator=draw, dtype=torch.float64),
        "counted": (torch.arange(columns) < lengths).double(),
        "advantages": advantages,
        "tokens": lengths.sum() + 7,  # of other micro-batches
    }


@pytest.mark.parametrize(("loss_type", "level"), TYPES)
def test_every_type_is_trls(loss_type, level):
    bounded = set()
    for seed in range(40):
        log_probs, batch = random_batch(seed)
        options = {"kl_weight": 0.3 * (seed % 3), "micro_batches": 1 + seed % 4, "ranks": 1 + seed % 2}
        mine = ours(log_probs, batch, loss_type, level, **options)
        theirs, metrics = trl(log_probs, batch, loss_type, level, **options)
        assert mine.item() == pytest.approx(theirs.item(), rel=1e-6, abs=1e-9)
        (gradient,) = torch.autograd.grad(mine, log_probs)
        torch.testing.assert_close(gradient, *torch.autograd.grad(theirs, log_probs), rtol=1e-6, atol=1e-9)
        ratio = policy_ratio(log_probs, batch["old"], batch["counted"], level)
        for side, flags in clipped(ratio, batch["advantages"], loss_type, LOW, HIGH).items():
            known = metrics["cispo_clip_ratio" if loss_type == "cispo" else f"clip_ratio/{side}_mean"]
            mask = batch["counted"] if flags.shape[1] > 1 else torch.ones(len(flags), 1)
            share = ((flags * mask).sum() / mask.sum()).item()
            assert share == pytest.approx(known[0])
            bounded |= {side} if 0 < share < 1 else set()
    assert bounded == ({"high"} if loss_type == "cispo" else {"low", "high", "region"})


def by_hand():
    """Two rollouts of two tokens and one: ratios 2, 1/2 and 1; a token of the second row does not count."""
    log_probs = torch.tensor([[2.0, 0.5], [1.0, 9.0]]).log().requires_grad_()
    return log_probs, {
        "old": torch.zeros(2, 2),
        "reference": torch.tensor([[4.0, 0.5], [1.0, 9.0]]).log(),
        "counted": torch.tensor([[1.0, 1.0], [1.0, 0.0]]),
        "advantages": torch.tensor([[1.0], [-2.0]]),
        "tokens": torch.tensor(3),
    }


# The surrogate of the tokens is -1.28 (bounded above), -0.5 and +2; of the first rollout as a whole, ratio 1, it is -1.
LOG2 = 0.6931471805599453
VALUES = {
    ("dapo", "token"): (-1.28 - 0.5 + 2) / 3,
    ("bnpo", "token"): (-1.28 - 0.5 + 2) / 3,
    ("dr_grpo", "token"): (-1.28 - 0.5 + 2) / (2 * LONGEST),
    ("grpo", "token"): ((-1.28 - 0.5) / 2 + 2) / 2,
    ("grpo", "sequence"): (-1 + 2) / 2,
    ("cispo", "token"): (-1.28 * LOG2 + 0.5 * LOG2 + 0) / 3,
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_by_hand(kind):
    log_probs, batch = by_hand()
    assert ours(log_probs, batch, *kind).item() == pytest.approx(VALUES[kind], rel=1e-6)


def test_a_bounded_token_has_no_gradient_but_under_cispo():
    log_probs, batch = by_hand()
    (gradient,) = torch.autograd.grad(ours(log_probs, batch, "dapo", "token"), log_probs)
    torch.testing.assert_close(gradient, torch.tensor([[0, -0.5], [2.0, 0]]) / 3)
    (gradient,) = torch.autograd.grad(ours(log_probs, batch, "cispo", "token"), log_probs)
    torch.testing.assert_close(gradient, torch.tensor([[-1.28, -0.5], [2.0, 0]]) / 3)


def test_the_kl_estimate_is_that_of_policy_to_reference():
    """K3 with samples of the policy: ref/pi - log(ref/pi) - 1; the other direction is another number."""
    log_probs, batch = by_hand()
    expected = torch.tensor([[2 - LOG2 - 1, 0], [0, 0]])
    torch.testing.assert_close(kl_to_reference(log_probs, batch["reference"]), expected)
    assert kl_to_reference(batch["reference"], log_probs)[0, 0].item() == pytest.approx(0.5 + LOG2 - 1, rel=1e-5)


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo"])
def test_dropped_rollouts_are_not_in_the_mean_over_rollouts(loss_type):
    log_probs, batch = by_hand()
    batch["counted"][1] = 0  # the second rollout is of a dropped group
    alone = {name: values[:1] if values.dim() else values for name, values in batch.items()}
    expected = ours(log_probs[:1], alone, loss_type, "token")
    assert ours(log_probs, batch, loss_type, "token", kept_share=0.5).item() == pytest.approx(expected.item())


@pytest.mark.parametrize(("loss_type", "level"), [kind for kind in TYPES if kind[0] != "bnpo"])
def test_parts_make_up_the_batch(loss_type, level):
    """Gradients of micro-batches are added, those of ranks averaged; bnpo's mean is the micro-batch's own."""
    log_probs, batch = random_batch(1)
    batch["tokens"] = batch["counted"].sum()
    whole = ours(log_probs, batch, loss_type, level)
    parts = []
    for rows in (slice(0, 1), slice(1, 2), slice(2, 3), slice(3, 4), slice(4, 5), slice(5, 6)):  # three on each rank
        part = {name: values[rows] if values.dim() else values for name, values in batch.items()}
        parts.append(ours(log_probs[rows], part, loss_type, level, micro_batches=3, ranks=2))
    assert (sum(parts) / 2).item() == pytest.approx(whole.item(), rel=1e-9)


def test_token_mean_is_a_mean_over_the_tokens_of_all():
    values, mask = torch.tensor([[1.0, 2.0], [4.0, 8.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    assert token_mean(values, mask, torch.tensor(3), 1).item() == pytest.approx(7 / 3)
    assert token_mean(values, mask, torch.tensor(6), 2).item() == pytest.approx(7 / 3)  # as much on the other rank
    assert token_mean(values, 0 * mask, torch.tensor(0), 1).item() == 0.0
