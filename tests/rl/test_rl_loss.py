"""The RL stage's losses by hand, importance weights among them, and where the states come from."""

import pyarrow.parquet as pq
import pytest
import torch
from rl_cases import run_rl, save_source, timeless

from fbt_rl.config.rl import ReplayScorer
from rl.advantage import group_advantages
from rl.trainer import RolloutTrainer


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return save_source(tmp_path_factory.mktemp("source"))


LOSSES = ["dapo", "dr_grpo", "grpo", "bnpo", "cispo", "gspo"]


@pytest.mark.parametrize("name", LOSSES)
def test_losses_by_hand(source, tmp_path, monkeypatch, name):
    """The loss of a stage's batch, against the formulas, in a second update where ratio and clipping count.

    Scored by too few Jacobi passes, so that pi_prox is not pi_roll and the importance weight counts as well.
    """
    seen = []
    original = RolloutTrainer._compute_loss

    def spy(self, model, inputs):
        loss = original(self, model, inputs)
        new, old = self._log_probs(inputs, self.stage.scorer), inputs["old_log_probs"]
        rolled = inputs["rollout_log_probs"]
        mask = inputs["counted"]
        log_ratio, log_weight = (new - old) * mask, (old - rolled) * mask
        if name == "gspo":
            log_ratio, log_weight = (
                value.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1) for value in (log_ratio, log_weight)
            )
        ratio, weight = log_ratio.exp(), log_weight.exp().clamp(max=1.5)
        advantages = inputs["advantages"][:, None] * weight
        assert ((inputs["importance"] - weight) * mask).abs().max() < 1e-5
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
        if name == "gspo" and outside:  # a ratio a token would have given another loss
            apart = (new - old).exp()
            apart = -torch.minimum(apart * advantages, apart.clamp(low, high) * advantages) * mask
            assert abs((apart.sum(1) / mask.sum(1).clamp(min=1)).mean() - expected) > 1e-3
        seen.append((loss.item(), expected.item(), outside, weight.min().item(), weight.max().item()))
        return loss

    monkeypatch.setattr(RolloutTrainer, "_compute_loss", spy)
    loss_type = {"loss_type": name, "clip_low": 0.01, "clip_high": 0.02}
    if name == "gspo":  # wider: with all tokens clipped, as they would be, a ratio a token gives the very same loss
        loss_type = {"loss_type": "grpo", "importance_level": "sequence", "clip_low": 0.5, "clip_high": 0.6}
    folder, _ = run_rl(
        source,
        tmp_path,
        updates_per_batch=2,
        importance_cap=1.5,
        scorer={"use": "jacobi", "passes": 2},
        limits={"logprob_mismatch_mean": {"stop": None}},
        rewards=[{"use": "reward_functions:every_third_undecided"}],
        **loss_type,
    )
    assert len(seen) == 2
    assert all(loss == pytest.approx(expected, rel=1e-5, abs=1e-7) for loss, expected, *_ in seen)
    assert [outside for _, _, outside, *_ in seen] == [False, True]  # the first update is at the behaviour weights
    assert all(least < 0.9 for *_, least, _ in seen)
    if name != "gspo":  # the mean over a rollout that was sampled from pi_roll is below 1
        assert all(most == pytest.approx(1.5) for *_, most in seen)
        assert 0 < folder.read_metrics()[0]["importance_capped"] < 1


@pytest.mark.parametrize("updates", [1, 2])
def test_stale_states_are_kept_only_where_a_batch_has_one_update(source, tmp_path, monkeypatch, updates):
    """After an update recorded states are stale, and passes that re-fuse have to show the change."""
    moved = []
    original = RolloutTrainer._compute_loss

    def spy(self, model, inputs):
        with torch.no_grad():
            for name, value in self.model.named_parameters():
                if "feedback" in name:  # as an update would, only more
                    value.mul_(1.01)
        read, fused_again = (self._log_probs(inputs, ReplayScorer(passes=passes)) for passes in (0, 2))
        moved.append(((fused_again - read) * inputs["completion_mask"]).abs().max().item())
        return original(self, model, inputs)

    monkeypatch.setattr(RolloutTrainer, "_compute_loss", spy)
    limits = {"logprob_mismatch_mean": {"stop": None}}
    run_rl(source, tmp_path, updates_per_batch=updates, checkpoint_every=2, limits=limits)
    assert len(moved) == 2
    assert max(moved) < 1e-5 if updates == 1 else min(moved) > 1e-4


@pytest.mark.parametrize("scale", ["group", "none"])
def test_advantages_are_scaled_as_configured(source, tmp_path, scale):
    folder, _ = run_rl(source, tmp_path, steps=1, prompts_per_step=4, advantage_scale=scale, save_rollouts_every=1)
    rows = pq.read_table(folder.rollouts_path).to_pylist()
    rewards, advantages = (torch.tensor([row[name] for row in rows]) for name in ("reward", "advantage"))
    found = {name: group_advantages(rewards, 4, name) for name in ("batch", "group", "none")}
    torch.testing.assert_close(advantages, found.pop(scale), rtol=1e-5, atol=1e-6)
    assert all((advantages - other).abs().max() > 1e-2 for other in found.values())


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
