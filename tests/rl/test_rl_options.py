"""What an RL stage can be told to do beside GRPO: guard, dynamic sampling, further terms, limits; and bad rewards."""

import dataclasses
import shutil

import pyarrow.parquet as pq
import pytest
import torch
from rl_cases import rl_context, run_rl, save_source, timeless
from safetensors.torch import load_file

from fbt_rl.config import RewardConfig, RLStage
from fbt_rl.config.rl import ReplayScorer
from fbt_rl.data.tasks import encode_prompt, load_problems
from fbt_rl.data.tokenization import load_tokenizer
from fbt_rl.decoding import SamplingParams, decode
from fbt_rl.model import load_model
from fbt_rl.training.trainer import TrainingError
from rl.collector import Collector
from rl.rewards import StageRewards
from rl.rollout import sample_completions, sampling_seed
from rl.scoring import scoring_inputs
from rl.trainer import RolloutTrainer

HELDOUT = {"kind": "arithmetic", "split": "heldout", "size": 9}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return save_source(tmp_path_factory.mktemp("source"))


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(first, second):
    return all(torch.equal(value, second[name]) for name, value in first.items())


def rollouts(folder):
    return pq.read_table(folder.rollouts_path).to_pylist()


@pytest.fixture
def untruncated(monkeypatch):
    """Every rollout counts as finished, so that rewards are what the reward function says."""

    def finished(*args, **kwargs):
        return [dataclasses.replace(row, finish_reason="stop") for row in sample_completions(*args, **kwargs)]

    monkeypatch.setattr("rl.collector.sample_completions", finished)


# --- the accuracy guard --------------------------------------------------------------------------


def test_held_out_answers_are_greedy_and_shared_by_ranks(source, tmp_path):
    stage = rl_context(source, tmp_path, mode="fused").config.stages["rl"]
    assert isinstance(stage, RLStage)
    model, tokenizer = load_model(source), load_tokenizer(source)
    problems = load_problems(rl_context(source, tmp_path, data=HELDOUT).config.stages["rl"].data, 3).to_list()
    problems = [problem | {"prompt_ids": encode_prompt(tokenizer, problem["prompt"])} for problem in problems]
    rewards = StageRewards(stage.rewards, stage.length, stage.group_size)
    eos = (tokenizer.eos_token_id,)

    def counts(rank, ranks):
        collector = Collector(
            stage, tokenizer, rewards, [], problems, eos_token_ids=eos, seed=0, rank=rank, ranks=ranks
        )
        return collector.heldout_counts(model, batch_size=4)

    params = SamplingParams(mode="fused", max_new_tokens=stage.max_new_tokens, temperature=0.0, eos_token_ids=eos)
    alone = [decode(model, [problem["prompt_ids"]], params)[0] for problem in problems]
    right = sum(row.finish_reason == "stop" and len(row.token_ids) % 2 for row in alone)
    assert 0 < right < 9
    assert counts(0, 1) == (right, 9)
    shares = [counts(rank, 2) for rank in (0, 1)]
    assert [judged for _, judged in shares] == [5, 4]
    assert sum(correct for correct, _ in shares) == right
    assert counts(9, 10) == (0, 0)  # a rank without a problem
    rewards = StageRewards([RewardConfig(use="reward_functions:every_third_undecided")], stage.length, stage.group_size)
    cut = sum(row.truncated for row in alone[::3])  # truncated is wrong, whether it can be judged or not
    assert counts(0, 1)[1] == 6 + cut < 9


def test_the_guard_lowers_the_weight_also_across_a_resume(source, tmp_path, monkeypatch, untruncated):
    embeddings = load_model(source).get_input_embeddings().weight.detach()

    def counts(self, model, batch_size):  # all right before RL, half of them after
        moved = not torch.equal(model.get_input_embeddings().weight, embeddings)
        return (5 if moved else 10, 10)

    monkeypatch.setattr(Collector, "heldout_counts", counts)
    changes = {"steps": 6, "checkpoint_every": 4, "keep_checkpoints": 9, "save_rollouts_every": 2}
    changes |= {"guard": {"data": HELDOUT, "every": 2, "factor": 0.5}}
    folder, _ = run_rl(source, tmp_path / "whole", **changes)
    rows = timeless(folder)
    assert [row["length_weight"] for row in rows] == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    assert [row.get("heldout_accuracy") for row in rows] == [1.0, None, 0.5, None, 0.5, None]
    for step, weight in ((1, 0.5), (3, 0.25), (5, 0.125)):  # what a right answer is paid at least
        assert all(row["reward"] >= 1 - weight for row in rollouts(folder) if row["step"] == step and row["correct"])
    assert any(row["reward"] < 1 - 0.125 for row in rollouts(folder) if row["correct"])

    shutil.copytree(folder.path, tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step-000006")
    again, _ = run_rl(source, tmp_path / "again", **changes)
    assert timeless(again) == rows


# --- what counts as length ---


def test_only_reasoning_is_pressed_where_that_is_asked_for(source, tmp_path, untruncated):
    length = {"use": "linear", "max_length": 8, "weight": 0.5, "count": "reasoning"}
    changes = {"steps": 1, "save_rollouts_every": 1, "prompts_per_step": 8, "reasoning_marker": "3"}
    folder, _ = run_rl(source, tmp_path, length=length, **changes)
    rows = rollouts(folder)
    for row in rows:
        if len(row["completion"]) == row["num_tokens"] - (row["num_tokens"] < 8):  # characters, and perhaps an end
            marked = row["completion"].find("3") + 1
            assert row["reasoning_tokens"] == (marked or row["num_tokens"])
        scores = dict(row["scores"])
        assert scores["reward_functions:odd_length"] == row["correct"]
        assert scores["length"] == pytest.approx(-row["correct"] * 0.5 * row["reasoning_tokens"] / 8)
        assert row["reward"] == pytest.approx(sum(scores.values()))
    assert any(row["correct"] and row["reasoning_tokens"] < row["num_tokens"] for row in rows)


# --- dynamic sampling ----------------------------------------------------------------------------

DROPPING = {
    "rewards": [{"use": "reward_functions:settled_by_prompt"}],
    "degenerate_groups": "drop",
    "prompts_per_step": 4,
}


def test_each_batch_is_sampled_with_a_seed_of_its_own(source, tmp_path, monkeypatch):
    seeds = []
    monkeypatch.setattr("rl.collector.sampling_seed", lambda *given: seeds.append(given) or sampling_seed(*given))
    run_rl(source, tmp_path, steps=2)
    assert seeds == [(seeds[0][0], batch, 0) for batch in (0, 1)]


def settled(problem):
    return int(problem["prompt"][0]) % 2 == 1


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "bnpo"])
def test_dropped_groups_do_not_count(source, tmp_path, monkeypatch, untruncated, loss_type):
    seen = []
    original = RolloutTrainer._compute_loss

    def spy(self, model, inputs):
        loss = original(self, model, inputs)
        seen.append((loss.item(), {name: value.clone() for name, value in inputs.items()}))
        return loss

    monkeypatch.setattr(RolloutTrainer, "_compute_loss", spy)
    folder, _ = run_rl(source, tmp_path, steps=1, loss_type=loss_type, save_rollouts_every=1, **DROPPING)
    rows = rollouts(folder)
    groups = [rows[start : start + 4] for start in range(0, 16, 4)]
    dropped = [len({row["correct"] for row in group}) == 1 for group in groups]
    assert any(dropped)
    assert not all(dropped)
    assert all(not row["advantage"] for group, out in zip(groups, dropped, strict=True) for row in group if out)
    kept = [row for group, out in zip(groups, dropped, strict=True) for row in group if not out]
    rewards = torch.tensor([row["reward"] for row in kept])
    centred = (rewards.view(-1, 4) - rewards.view(-1, 4).mean(1, keepdim=True)).flatten()
    advantages = centred / (rewards.std() + 1e-4)  # those of the dropped groups are not in the deviation
    torch.testing.assert_close(torch.tensor([row["advantage"] for row in kept]), advantages, rtol=1e-5, atol=1e-6)

    lengths = torch.tensor([float(row["num_tokens"]) for row in kept])
    expected = {  # at the behaviour weights every ratio is 1
        "dapo": -(advantages * lengths).sum() / lengths.sum(),
        "bnpo": -(advantages * lengths).sum() / lengths.sum(),
        "grpo": -advantages.mean(),
        "dr_grpo": -(advantages * lengths).sum() / (len(kept) * 8),
    }[loss_type]
    (loss, inputs) = seen[0]
    assert loss == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    assert inputs["counted_tokens"].item() == lengths.sum().item()
    row = folder.read_metrics()[0]
    assert row["degenerate_groups"] == sum(dropped) / 4
    assert row["resamples"] == 0


def test_degenerate_groups_are_kept_unless_told(source, tmp_path, untruncated):
    folder, _ = run_rl(source, tmp_path, steps=1, save_rollouts_every=1, **(DROPPING | {"degenerate_groups": "keep"}))
    rows = rollouts(folder)
    groups = [rows[start : start + 4] for start in range(0, 16, 4)]
    flat = [group for group in groups if len({row["correct"] for row in group}) == 1]
    assert any(row["advantage"] for group in flat for row in group)  # lengths differ
    assert folder.read_metrics()[0]["degenerate_groups"] == len(flat) / 4


def test_degenerate_groups_give_way_to_fresh_prompts(source, tmp_path, untruncated):
    changes = {"steps": 4, "checkpoint_every": 2, "keep_checkpoints": 9, "save_rollouts_every": 1}
    without, _ = run_rl(source, tmp_path / "without", **changes, **DROPPING)
    folder, _ = run_rl(source, tmp_path / "with", **changes, **DROPPING, max_resamples=3)
    first = [[row for row in rollouts(one) if row["step"] == 1] for one in (without, folder)]
    replaced = 0
    for start in range(0, 16, 4):
        before, after = (rows[start : start + 4] for rows in first)
        if len({row["correct"] for row in before}) > 1:
            columns = ("problem_id", "completion", "reward")
            assert [[row[name] for name in columns] for row in before] == [
                [row[name] for name in columns] for row in after
            ]
        else:
            replaced += 1
            assert before[0]["problem_id"] != after[0]["problem_id"]
    assert replaced
    rows = timeless(folder)
    assert sum(row["degenerate_groups"] > 0 for row in rows) == sum(row["resamples"] > 0 for row in rows)
    assert rows[0]["accuracy_first"] == timeless(without)[0]["accuracy"]

    shutil.copytree(folder.path, tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step-000004")
    again, _ = run_rl(source, tmp_path / "again", **changes, **DROPPING, max_resamples=3)
    assert timeless(again) == rows
    assert rollouts(again) == rollouts(folder)


# --- further terms -------------------------------------------------------------------------------


def log_probs_by_hand(model, inputs, temperature, **arguments):
    """Log-probs of all tokens (B, N, V), from logits."""
    logits = model(
        input_ids=torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
        attention_mask=torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
        **arguments,
    ).logits
    columns = inputs["completion_ids"].shape[1]
    return (logits[:, -columns - 1 : -1] / temperature).log_softmax(-1)


@pytest.mark.parametrize(("mode", "loss_type", "lora"), [("soft", "dapo", None), ("fused", "grpo", {"r": 2})])
def test_terms_by_hand(source, tmp_path, monkeypatch, untruncated, mode, loss_type, lora):
    """In the second step the policy is no longer the model that RL started from."""
    start = load_model(source)
    coefficients = {"entropy_bonus": 0.3, "kl_weight": 0.7, "standard_weight": 0.2}
    seen = []
    original = RolloutTrainer._compute_loss

    def spy(self, model, inputs):
        loss = original(self, model, inputs)
        mask = inputs["counted"]
        chosen = inputs["completion_ids"][..., None]
        configured, self.stage = self.stage, self.stage.model_copy(update=dict.fromkeys(coefficients, 0.0))
        policy_loss = original(self, model, inputs)
        self.stage = configured
        given = inputs["prompt_mask"], inputs["completion_ids"].shape[1], inputs["latents"]
        with torch.no_grad():
            replayed = scoring_inputs(ReplayScorer(passes=1), mode, *given)
            ours = log_probs_by_hand(self.model, inputs, 0.8, **replayed)
            one_pass = scoring_inputs(ReplayScorer(passes=0), mode, *given)
            theirs = log_probs_by_hand(start, inputs, 0.8, **one_pass)
            plain = log_probs_by_hand(self.model, inputs, 0.8).gather(-1, chosen)[..., 0]
        entropy = -(ours.exp() * ours).sum(-1)
        log_ratio = (theirs - ours).gather(-1, chosen)[..., 0]
        kl = log_ratio.exp() - log_ratio - 1
        tokens = inputs["counted_tokens"]
        if loss_type == "dapo":
            kl = (kl * mask).sum() / tokens
        else:
            kl = ((kl * mask).sum(1) / mask.sum(1).clamp(min=1)).mean() / self._micro_batches
        standard = (plain * inputs["standard_mask"]).sum() / inputs["standard_tokens"]
        terms = {"entropy_bonus": -(entropy * mask).sum() / tokens, "kl_weight": kl, "standard_weight": -standard}
        total = sum(coefficients[name] * value for name, value in terms.items())
        seen.append((loss - policy_loss, total, kl, inputs))
        return loss

    monkeypatch.setattr(RolloutTrainer, "_compute_loss", spy)
    folder, _ = run_rl(
        source,
        tmp_path,
        mode=mode,
        loss_type=loss_type,
        lora=lora,
        micro_batch_rows=4,
        temperature=0.8,
        rewards=[{"use": "reward_functions:odd_but_one", "args": {"row": 0, "value": None}}],
        **coefficients,
    )
    assert len(seen) == 4  # two steps of two micro-batches
    for difference, total, _, _ in seen:
        assert difference.item() == pytest.approx(total.item(), rel=2e-4)
    assert all(kl < 1e-8 for _, _, kl, _ in seen[:2])
    assert all(kl > 1e-5 for _, _, kl, _ in seen[2:])
    for step in (seen[:2], seen[2:]):  # the parts make up a mean over the tokens of correct rollouts
        tokens = sum(inputs["standard_mask"].sum() for *_, inputs in step)
        assert tokens == step[0][3]["standard_tokens"]
        assert 0 < tokens < step[0][3]["counted_tokens"]
    rows = folder.read_metrics()
    assert all(row["standard_loss"] > 0 for row in rows)


def test_the_standard_term_moves_what_a_plain_pass_reads(source, tmp_path, untruncated):
    """With nothing else to learn from, the decoder moves and the feedback does not."""
    folder, _ = run_rl(
        source, tmp_path, rewards=[{"use": "reward_functions:always_one"}], length=None, standard_weight=0.1
    )
    before, after = weights(source), weights(folder.model_dir)
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert moved == {name for name in before if "feedback" not in name}


def test_an_entropy_bonus_raises_the_entropy(source, tmp_path, untruncated):
    reward = {"use": "reward_functions:always_one"}
    folder, _ = run_rl(source, tmp_path, steps=5, rewards=[reward], length=None, entropy_bonus=1.0)
    entropies = [row["entropy"] for row in folder.read_metrics()]
    assert entropies[-1] > entropies[0] + 0.1


# --- what is watched -----------------------------------------------------------------------------


def test_a_limit_stops_the_run_with_the_reason(source, tmp_path):
    limits = {"truncated": {"stop": 0.0}}
    with pytest.raises(TrainingError, match=r"stage rl, step 1: truncated is 0\.\d+ \(limits.truncated.stop: 0\)"):
        run_rl(source, tmp_path, limits=limits)


def test_without_a_learning_rate_nothing_drifts(source, tmp_path):
    optimizer = {"learning_rate": 0.0, "warmup_steps": 1, "weight_decay": 0.0}
    folder, _ = run_rl(source, tmp_path, steps=20, optimizer=optimizer, probe_every=4, kl_weight=0.1)
    rows = folder.read_metrics()
    assert same(weights(source), weights(folder.model_dir))
    assert max(row["logprob_mismatch_max"] for row in rows) <= 1e-5
    assert all(row["kl"] < 1e-9 for row in rows)
    assert len({(row["norm_value"], row["norm_gate"]) for row in rows}) == 1
    probes = [(row["payload_zeroed"], row["payload_swapped"]) for row in rows if "payload_zeroed" in row]
    assert len(probes) == 5
    assert len(set(probes)) == 1  # one fixed batch, one model
    assert len({row["length_mean"] for row in rows}) > 5  # while the batches differ


def test_the_probe_stays_the_same_across_a_resume(source, tmp_path):
    changes = {"steps": 6, "checkpoint_every": 2, "keep_checkpoints": 9, "probe_every": 2}
    folder, _ = run_rl(source, tmp_path / "whole", mode="fused", **changes)
    rows = timeless(folder)
    probes = [row for row in rows if "payload_zeroed" in row]
    assert [row["step"] for row in probes] == [1, 3, 5]
    assert len({row["payload_zeroed"] for row in probes}) == 3
    cosines = [[row[f"gradient_cosine_{pair}"] for pair in ("0_1", "0_2", "1_2")] for row in probes]
    assert all(0 < cosine < 1 - 1e-4 for row in cosines for cosine in row)
    shutil.copytree(folder.path, tmp_path / "again")
    for step in (4, 6):
        shutil.rmtree(tmp_path / "again" / "checkpoints" / f"step-{step:06d}")
    assert timeless(run_rl(source, tmp_path / "again", mode="fused", **changes)[0]) == rows


def test_probing_leaves_training_as_it_is(source, tmp_path):
    often, _ = run_rl(source, tmp_path / "often", probe_every=1, deepspeed={"zero_stage": 2})
    once, _ = run_rl(source, tmp_path / "once", probe_every=9, deepspeed={"zero_stage": 2})
    assert same(weights(often.model_dir), weights(once.model_dir))


# --- bad rewards ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        (0.0, {}),
        (1.0, {}),
        (None, {"unjudged": 8}),
        ("nan", {"unjudged": 8, "not_finite": 8}),
        ("inf", {"unjudged": 8, "not_finite": 8}),
        ("-inf", {"unjudged": 8, "not_finite": 8}),
        (1e9, {"unjudged": 8, "out_of_bounds": 8}),
    ],
)
def test_a_reward_that_says_nothing_moves_nothing(source, tmp_path, untruncated, value, reported):
    reward = {"use": "reward_functions:always", "args": {"value": value}}
    folder, _ = run_rl(source, tmp_path, rewards=[reward], length=None)
    assert same(weights(source), weights(folder.model_dir))
    for row in folder.read_metrics():
        assert {name: row[name] for name in ("unjudged", "not_finite", "out_of_bounds")} == {
            **{"unjudged": 0, "not_finite": 0, "out_of_bounds": 0},
            **reported,
        }
        assert row["loss"] == 0
        assert row["reward"] == (None if reported else value)


def test_the_bound_of_a_reward_is_the_stages(source, tmp_path, untruncated):
    reward = {"use": "reward_functions:always", "args": {"value": 2.0}}
    folder, _ = run_rl(source, tmp_path, rewards=[reward], length=None, steps=1, reward_bound=1.5)
    assert folder.read_metrics()[0]["out_of_bounds"] == 8


@pytest.mark.parametrize("value", [1e9, -1e9, 1e300])
@pytest.mark.parametrize("length", [None, {"weight": 0.5}])
def test_an_outlier_is_as_if_it_had_not_been_judged(source, tmp_path, untruncated, value, length):
    def run(name, value):
        reward = {"use": "reward_functions:odd_but_one", "args": {"row": 2, "value": value}}
        return run_rl(source, tmp_path / name, rewards=[reward], length=length, save_rollouts_every=1)[0]

    outlier, unjudged = run("outlier", value), run("unjudged", None)
    assert same(weights(outlier.model_dir), weights(unjudged.model_dir))
    assert not same(weights(outlier.model_dir), weights(source))
    assert all(row["out_of_bounds"] == 1 for row in outlier.read_metrics())
    for row, other in zip(rollouts(outlier), rollouts(unjudged), strict=True):
        assert row == other | {"error": row["error"]}
    assert [row["error"] for row in rollouts(outlier)[:4]] == [None, None, "out_of_bounds", None]
    assert rollouts(outlier)[2]["reward"] is None
    assert rollouts(outlier)[2]["advantage"] == 0
