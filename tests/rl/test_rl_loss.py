"""The RL stage's losses by hand, importance weights among them, and where the states come from."""

import pytest
import torch
from rl_cases import run_rl, save_source, timeless

from rl.trainer import RolloutTrainer


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return save_source(tmp_path_factory.mktemp("source"))


LOSSES = ["dapo", "dr_grpo", "grpo", "bnpo", "cispo", "gspo"]


@pytest.mark.parametrize("name", LOSSES)
def test_losses_by_hand(source, tmp_path, monkeypatch, name):
    """TRL's loss on our batch, against the formulas, in a second update where ratio and clipping count.

    Scored by too few Jacobi passes, so that pi_prox is not pi_roll and the importance weight counts as well.
    """
    seen = []
    original = RolloutTrainer._compute_loss

    def spy(self, model, inputs):
        loss = original(self, model, inputs)
        new, old = self._log_probs(inputs, self.stage.scorer), inputs["old_per_token_logps"]
        rolled = inputs["rollout_log_probs"]
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        log_ratio, log_weight = (new - old) * mask, (old - rolled) * mask
        if name == "gspo":
            log_ratio, log_weight = (
                value.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1) for value in (log_ratio, log_weight)
            )
        ratio, weight = log_ratio.exp(), log_weight.exp().clamp(max=1.5)
        advantages = inputs["advantages"] / weight  # by row
        assert ((advantages - advantages[:, :1]) * mask).abs().max() < 1e-5
        advantages = advantages[:, :1] * weight
        low, high = 1 - self.stage.clip_low, 1 + self.stage.clip_high
        tokens = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
        if name == "cispo":
            tokens = -ratio.clamp(max=high) * advantages * new
        tokens = tokens * mask
        expected = {
            "dr_grpo": tokens.sum() / (len(mask) * self.stage.max_new_tokens),
            "grpo": (tokens.sum(1) / mask.sum(1).clamp(min=1)).mean(),
        }.get(self.stage.loss_type, tokens.sum() / mask.sum())
        outside = bool(((ratio < low) | (ratio > high)).any())
        seen.append((loss.item(), expected.item(), outside, weight.min().item(), weight.max().item()))
        return loss

    monkeypatch.setattr(RolloutTrainer, "_compute_loss", spy)
    loss_type = {"loss_type": "grpo", "importance_level": "sequence"} if name == "gspo" else {"loss_type": name}
    folder, _ = run_rl(
        source,
        tmp_path,
        updates_per_batch=2,
        clip_low=0.01,
        clip_high=0.02,
        importance_cap=1.5,
        scorer={"use": "jacobi", "passes": 2},
        limits={"logprob_mismatch_mean": {"stop": None}},
        rewards=[{"use": "rl_cases:every_third_undecided"}],
        **loss_type,
    )
    assert len(seen) == 2
    assert all(loss == pytest.approx(expected, rel=1e-5, abs=1e-7) for loss, expected, *_ in seen)
    assert [outside for _, _, outside, *_ in seen] == [False, True]  # the first update is at the behaviour weights
    assert all(least < 0.9 for *_, least, _ in seen)
    if name != "gspo":  # the mean over a rollout that was sampled from pi_roll is below 1
        assert all(most == pytest.approx(1.5) for *_, most in seen)
        assert 0 < folder.read_metrics()[0]["importance_capped"] < 1


def test_latents_computed_again_are_those_of_the_rollout(source, tmp_path, caplog):
    for name, changes in (("one", {}), ("two", {"updates_per_batch": 2, "micro_batch_rows": 4})):
        caplog.clear()
        with caplog.at_level("INFO", "rl.trainer"):
            stored, _ = run_rl(source, tmp_path / name / "stored", mode="fused", **changes)
        sizes = [record.getMessage() for record in caplog.records if "MiB" in record.message]
        assert len(sizes) == (2 if name == "one" else 1)  # one line a batch of rollouts
        assert "latents of 8 rollouts of up to 8 tokens, 0.0 MiB" in sizes[0]
        again, _ = run_rl(source, tmp_path / name / "again", mode="fused", latents="recompute", **changes)
        for kept, computed in zip(timeless(stored), timeless(again), strict=True):
            assert kept.keys() == computed.keys()
            for key in {"loss", "grad_norm", "payload_swapped", "entropy"} & kept.keys():  # not every batch is probed
                assert kept[key] == pytest.approx(computed[key], rel=1e-3, abs=1e-5), key
            assert computed["logprob_mismatch_max"] <= 1e-4
            assert computed["residual"] < 1e-5
