import numpy as np
import pytest
import torch
from model_helpers import random_ids, small_model
from torch.nn import functional as F

from fbt_rl.training import objective
from fbt_rl.training.objective import add_pass_losses, draw_fused_mask, multi_pass_loss, token_loss_sums
from fbt_rl.training.rows import IGNORED

# Two documents and two tokens of padding in one row of 12; one document fills the other.
POSITIONS = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0, 0], list(range(12))])


# --- the formula -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ntp", "z", "weight", "z_weight", "expected"),
    [
        ([2.0], [9.0], 1.0, 0.0, 2.0),
        ([2.0], [9.0], 1.0, 0.1, 2.9),
        ([2.0, 3.0], [0.0, 0.0], 1.0, 0.0, 2.0 + 3.0),
        ([2.0, 3.0, 5.0], [0.0, 0.0, 0.0], 1.0, 0.0, 2.0 + (3.0 + 5.0) / 2),
        ([2.0, 3.0, 5.0], [0.0, 0.0, 0.0], 0.5, 0.0, 2.0 + 0.5 / 2 * (3.0 + 5.0)),
        # the z-loss rides on every pass: 2 + 0.1 * 10 + 0.5 * (3 + 0.1 * 20 + 5 + 0.1 * 40)
        ([2.0, 3.0, 5.0], [10.0, 20.0, 40.0], 1.0, 0.1, 3.0 + 0.5 * (5.0 + 9.0)),
    ],
)
def test_multi_pass_loss(ntp, z, weight, z_weight, expected):
    loss = multi_pass_loss(torch.tensor(ntp), torch.tensor(z), feedback_weight=weight, z_weight=z_weight)
    assert loss.item() == pytest.approx(expected)


def head_and_states(requires_grad: bool = True):
    torch.manual_seed(0)
    head = torch.nn.Linear(6, 11, bias=False).double()
    states = torch.randn(2, 9, 6, dtype=torch.float64, requires_grad=requires_grad)
    labels = torch.randint(0, 11, (2, 9))
    labels[0, :4] = IGNORED
    labels[1, -1] = IGNORED
    return head, states, labels


def test_token_loss_sums_by_hand():
    head, states, labels = head_and_states()
    losses, squares = token_loss_sums(head, states, labels, 11)
    expected_loss = expected_square = 0.0
    for row in range(2):
        for position in range(8):
            target = int(labels[row, position + 1])
            if target != IGNORED:
                logits = (head.weight @ states[row, position]).detach()
                partition = logits.exp().sum().log()
                expected_loss += float(partition - logits[target])
                expected_square += float(partition**2)
    assert losses.item() == pytest.approx(expected_loss, rel=1e-12)
    assert squares.item() == pytest.approx(expected_square, rel=1e-12)


def test_token_loss_sums_equal_cross_entropy():
    head, states, labels = head_and_states()
    losses, _ = token_loss_sums(head, states, labels, 11)
    logits = head(states)[:, :-1].flatten(0, 1)
    expected = F.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum", ignore_index=IGNORED)
    torch.testing.assert_close(losses, expected)


@pytest.mark.parametrize("chunk", [1, 3, 5])
def test_chunked_equals_unchunked(monkeypatch, chunk):
    def gradients():
        head, states, labels = head_and_states()
        sums = token_loss_sums(head, states, labels, 11)
        (sums[0] + 0.3 * sums[1]).backward()
        return *(value.detach() for value in sums), head.weight.grad, states.grad

    whole = gradients()
    monkeypatch.setattr(objective, "_CHUNK_LOGITS", chunk * 11)
    for a, b in zip(whole, gradients(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_batch_without_labels_has_zero_loss_and_gradient():
    head, states, labels = head_and_states()
    losses, squares = token_loss_sums(head, states, torch.full_like(labels, IGNORED), 11)
    (losses + squares).backward()
    assert losses.item() == squares.item() == 0.0
    assert states.grad is not None
    assert states.grad.abs().max() == 0.0


# --- through the model -----------------------------------------------------------------------------


def labels_of(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return ids.masked_fill(positions == 0, IGNORED)


def test_pass_losses_are_those_of_the_models_passes():
    """Pass k of K is what the model itself gives when it is run with k passes."""
    model = small_model(dtype=torch.float64)
    ids = random_ids(2, 12)
    labels = labels_of(ids, POSITIONS)
    fused = draw_fused_mask(POSITIONS, [0, 1], 3, seed=0, step=0)
    expected = []
    for passes in (1, 2, 3):
        logits = model(ids, position_ids=POSITIONS, num_passes=passes, fused_mask=fused[:, :passes]).logits
        flat = logits[:, :-1].flatten(0, 1)
        expected.append(F.cross_entropy(flat, labels[:, 1:].flatten(), reduction="sum", ignore_index=IGNORED))
    add_pass_losses(model)
    sums, squares = model(
        input_ids=ids, position_ids=POSITIONS, labels=labels, num_passes=3, fused_mask=fused, pass_losses=True
    )
    torch.testing.assert_close(sums, torch.stack(expected), rtol=1e-12, atol=0)
    assert squares.shape == (3,)
    assert len(set(sums.tolist())) == 3  # the passes do differ


def test_gradient_reaches_the_first_pass_through_the_second():
    model = small_model()
    add_pass_losses(model)
    ids = random_ids(1, 12)
    captured = []
    original = model.model.feedback.forward
    model.model.feedback.forward = lambda latents, *rest: (captured.append(latents), original(latents, *rest))[1]
    sums, _ = model(input_ids=ids, labels=ids, num_passes=2, pass_losses=True)
    (gradient,) = torch.autograd.grad(sums[1], captured[0])
    assert gradient.abs().sum() > 0


def test_idle_feedback_takes_part_with_zero_gradient():
    model = small_model()
    add_pass_losses(model)
    ids = random_ids(2, 12)
    sums, _ = model(input_ids=ids, labels=ids, num_passes=1, pass_losses=True)
    sums.sum().backward()
    for parameter in model.model.feedback.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() == 0.0


def test_model_without_feedback_has_one_pass():
    model = small_model(fusion="none")
    add_pass_losses(model)
    ids = random_ids(2, 12)
    sums, _ = model(input_ids=ids, labels=ids, num_passes=1, pass_losses=True)
    assert sums.shape == (1,)
    assert not objective.has_feedback(model)


def test_other_calls_are_unchanged():
    plain, patched = small_model(), small_model()
    add_pass_losses(patched)
    ids = random_ids(2, 12)
    torch.testing.assert_close(plain(ids, num_passes=2).logits, patched(ids, num_passes=2).logits, rtol=0, atol=0)


def test_packed_documents_lose_as_much_as_alone():
    """The loss of two documents in one row, all passes, equals that of each in a row of its own."""
    model = small_model(dtype=torch.float64)
    add_pass_losses(model)
    ids = random_ids(1, 12)

    def sums(part: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        labels = labels_of(part, positions)
        return model(input_ids=part, position_ids=positions, labels=labels, num_passes=3, pass_losses=True)[0]

    packed = sums(ids, POSITIONS[:1])
    alone = [sums(ids[:, start:stop], torch.arange(stop - start)[None]) for start, stop in ((0, 6), (6, 10))]
    torch.testing.assert_close(packed, alone[0] + alone[1], rtol=1e-12, atol=0)


# --- prefix mixing ---------------------------------------------------------------------------------


def fused_masks(draws: int, **law) -> torch.Tensor:
    """(draws, K, 12) for the first of POSITIONS' rows."""
    positions = POSITIONS[:1].expand(draws, -1)
    return draw_fused_mask(positions, list(range(draws)), 3, seed=5, step=2, **law)


def test_first_pass_first_positions_and_padding_stay_plain():
    fused = fused_masks(200)
    assert not fused[:, 0].any()
    assert not fused[:, :, POSITIONS[0] == 0].any()


def test_prefix_is_uniform_over_the_document_and_independent():
    fused = fused_masks(6000)
    first = 6 - fused[:, 1:, :6].sum(-1)  # plain positions of the first document, (draws, 2)
    second = 4 - fused[:, 1:, 6:10].sum(-1)
    for lengths, longest in ((first, 6), (second, 4)):
        for column in range(2):
            shares = np.bincount(lengths[:, column], minlength=longest + 1) / 6000
            assert shares[0] == 0  # at least one position is plain
            assert shares[1:] == pytest.approx([1 / longest] * longest, abs=0.02)
    for a, b in ((first[:, 0], first[:, 1]), (first[:, 0], second[:, 0])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.05
    # and what is plain is a prefix: once fused, fused to the document's end
    assert not (fused[:, :, 1:5] & ~fused[:, :, 2:6]).any()


def test_prompts_are_plain_or_fused_as_a_whole():
    prompt = torch.zeros(1, 12, dtype=torch.bool)
    prompt[0, :4] = prompt[0, 6:8] = True
    fused = fused_masks(4000, prompt_mask=prompt.expand(4000, -1), plain_prompt_probability=0.3)
    for start, prompt_end, stop in ((0, 4, 6), (6, 8, 10)):
        document = fused[:, 1:, start:stop]
        assert document[..., prompt_end - start :].all()  # completions are always fused
        whole = document[..., 1 : prompt_end - start]
        plain = ~whole.any(-1)
        assert (plain | whole.all(-1)).all()
        assert plain.float().mean() == pytest.approx(0.3, abs=0.02)
        assert np.corrcoef(plain[:, 0], plain[:, 1])[0, 1] < 0.05  # drawn anew in each pass


def test_masks_depend_on_the_row_not_on_its_micro_batch():
    together = draw_fused_mask(POSITIONS, [8, 3], 3, seed=1, step=4)
    apart = [draw_fused_mask(POSITIONS[i : i + 1], [row], 3, seed=1, step=4) for i, row in ((0, 8), (1, 3))]
    assert torch.equal(together, torch.cat(apart))
    wide = POSITIONS.repeat(20, 1)
    rows = list(range(40))
    assert not torch.equal(
        draw_fused_mask(wide, rows, 3, seed=1, step=4), draw_fused_mask(wide, rows, 3, seed=1, step=5)
    )
