"""How good is each way to score rollouts, and what does it cost? (METHOD 2.2)

    OMP_NUM_THREADS=1 python benchmarks/estimators.py MODEL_FOLDER [--mode soft] [--out runs/estimators]

MODEL_FOLDER is a model of the arithmetic task, for example runs/demo/stages/sft/model. It samples groups of rollouts
at temperature 1; those of 24 to 64 tokens, with the advantages that RL would give them, make a few batches. For each
estimator, over the batches and in float64, at the weights that sampled:

- bias: mean and largest |log p - log p of token-by-token scoring| of the sampled tokens;
- angle: 1 - cosine of its policy gradient to that of back-propagation through time, over all parameters (mean, worst
  batch) and over the feedback's own two matrices, and the ratio of the norms of all and of the latter;
- processor time of one forward and backward pass (on one thread of an idle machine that is the time by the clock;
  median, estimators taking turns) and the peak of memory that tensors took in it, both in float32.

Prints a Markdown table and writes estimators.json and estimators.png. A few minutes on one core.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fbt_rl.config import ArithmeticData, LengthConfig, Mode, OptimizerConfig, RewardConfig, RLStage
from fbt_rl.config.rl import JacobiScorer, ReplayScorer, ScorerConfig, SequentialScorer

SHORTEST, LONGEST, GROUP = 24, 64, 8
ESTIMATORS: dict[str, ScorerConfig] = {
    **{f"jacobi, K = {passes}": JacobiScorer(passes=passes) for passes in range(1, 7)},
    **{f"jacobi, K = {passes}, detached": JacobiScorer(passes=passes, detach=True) for passes in range(2, 7)},
    **{f"replay, n = {passes}": ReplayScorer(passes=passes) for passes in range(4)},
    "sequential": SequentialScorer(),
}


@dataclass(frozen=True)
class Batch:
    """B rollouts of P prompt and N completion columns, width D."""

    prompt_ids: Tensor  # (B, P), padded on the left
    prompt_mask: Tensor  # (B, P)
    completion_ids: Tensor  # (B, N), padded on the right
    completion_mask: Tensor  # (B, N)
    latents: Tensor  # (B, N, D)
    advantages: Tensor  # (B,)

    def to(self, dtype: torch.dtype) -> Batch:
        return Batch(
            *(self.prompt_ids, self.prompt_mask, self.completion_ids, self.completion_mask),
            self.latents.to(dtype),
            self.advantages.to(dtype),
        )


@dataclass
class Row:
    """What was found about one estimator."""

    estimator: str
    passes: int  # of the whole sequence, forward; the extra plain pass over fused prompts not counted
    bias_mean: float
    bias_max: float
    angle: float  # 1 - cosine, mean over the batches
    angle_max: float
    norm: float  # ‖gradient‖ / ‖gradient through time‖, mean
    feedback_angle: float  # the same two over the feedback's own parameters
    feedback_norm: float
    seconds: float = 0.0
    mebibytes: float = 0.0


# --- rollouts ------------------------------------------------------------------------------------


def sample_batches(model: Any, folder: Path, mode: Mode, count: int, rows: int) -> list[Batch]:
    """``count`` batches of ``rows`` finished rollouts of 24 to 64 tokens, with the advantages of their whole groups."""
    from fbt_rl.data.tasks import encode_prompt, load_problems
    from fbt_rl.data.tokenization import load_tokenizer
    from rl.advantage import group_advantages
    from rl.rewards import StageRewards
    from rl.rollout import sample_rollouts

    tokenizer: Any = load_tokenizer(folder)
    prompts = -(-2 * count * rows // GROUP)  # some completions are too short
    data = ArithmeticData(size=prompts, min_terms=4, split="heldout")
    stage = RLStage(
        data=data,
        steps=1,
        mode=mode,
        prompts_per_step=prompts,
        group_size=GROUP,
        max_new_tokens=LONGEST,
        optimizer=OptimizerConfig(learning_rate=1e-3),
    )
    problems = load_problems(data, seed=1)
    rollouts = sample_rollouts(
        model,
        [encode_prompt(tokenizer, text) for text in problems["prompt"]],
        stage,
        eos_token_ids=[tokenizer.eos_token_id],
        pad_token_id=tokenizer.pad_token_id,
        seed=1,
    )
    texts = tokenizer.batch_decode(rollouts.token_ids, skip_special_tokens=True)
    columns = {name: [value for value in problems[name] for _ in range(GROUP)] for name in ("prompt", "answer")}
    judge = StageRewards([RewardConfig(args={"numeric": True})], LengthConfig(), GROUP)
    judged = judge(columns.pop("prompt"), texts, rollouts.token_ids, rollouts.truncated, **columns)
    rewards = torch.tensor([judgement.reward for judgement in judged], dtype=torch.float64)
    advantages = group_advantages(rewards, GROUP)
    lengths = rollouts.completion_mask.sum(1)
    fits = (lengths >= SHORTEST) & ~torch.tensor(rollouts.truncated)
    chosen = fits.nonzero()[:, 0]
    chosen = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(1))]
    if len(chosen) < count * rows:
        raise SystemExit(f"only {len(chosen)} rollouts have {SHORTEST} to {LONGEST} tokens; {count * rows} are needed")
    assert rollouts.latents is not None
    batches = []
    for part in chosen[: count * rows].view(count, rows):
        longest = int(lengths[part].max())
        batches.append(
            Batch(
                rollouts.prompt_ids[part],
                rollouts.prompt_mask[part],
                rollouts.completion_ids[part, :longest],
                rollouts.completion_mask[part, :longest],
                rollouts.latents[part, :longest],
                advantages[part],
            )
        )
    return batches


# --- one estimator -------------------------------------------------------------------------------


def log_probs(model: Any, batch: Batch, scorer: ScorerConfig, mode: Mode) -> Tensor:
    """(B, N) of the sampled tokens, 0 on padding."""
    from rl.scoring import scoring_inputs

    count = batch.completion_ids.shape[1]
    states = model.model(
        input_ids=torch.cat([batch.prompt_ids, batch.completion_ids], dim=1),
        attention_mask=torch.cat([batch.prompt_mask, batch.completion_mask], dim=1),
        use_cache=False,
        **scoring_inputs(scorer, mode, batch.prompt_mask, count, batch.latents),
    ).last_hidden_state[:, -count - 1 : -1]
    scores = model.lm_head(states).log_softmax(-1).gather(-1, batch.completion_ids[..., None])[..., 0]
    return scores * batch.completion_mask


def policy_gradient(model: Any, batch: Batch, scorer: ScorerConfig, mode: Mode) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs (B, N), and the gradient of the token-mean loss as one vector: all of it, and the feedback's part."""
    model.zero_grad()
    scores = log_probs(model, batch, scorer, mode)
    (-(scores * batch.advantages[:, None]).sum() / batch.completion_mask.sum()).backward()
    named = {
        name: (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).flatten()
        for name, parameter in model.named_parameters()
    }
    feedback = [value for name, value in named.items() if "feedback" in name]
    return scores.detach(), torch.cat(list(named.values())), torch.cat(feedback)


def num_passes(scorer: ScorerConfig, batch: Batch) -> int:
    if scorer.use == "sequential":
        return batch.completion_ids.shape[1]
    return scorer.passes + (scorer.use == "replay")


def accuracy(model: Any, batches: list[Batch], mode: Mode) -> list[Row]:
    """Bias and gradient of every estimator against sequential scoring."""
    exact = [policy_gradient(model, batch, SequentialScorer(), mode) for batch in batches]
    rows = []
    for name, scorer in ESTIMATORS.items():
        errors, angles, norms = [], [], []  # of all parameters, of the feedback's
        for batch, (true_scores, *true_gradients) in zip(batches, exact, strict=True):
            scores, *gradients = policy_gradient(model, batch, scorer, mode)
            errors.append((scores - true_scores).abs()[batch.completion_mask.bool()])
            pairs = list(zip(gradients, true_gradients, strict=True))
            angles.append([1 - torch.cosine_similarity(found, true, dim=0).item() for found, true in pairs])
            norms.append([(found.norm() / true.norm()).item() for found, true in pairs])
        error, (whole, feedback), ratios = torch.cat(errors), zip(*angles, strict=True), zip(*norms, strict=True)
        norm, feedback_norm = map(statistics.fmean, ratios)
        rows.append(
            Row(
                estimator=name,
                passes=max(num_passes(scorer, batch) for batch in batches),
                bias_mean=error.mean().item(),
                bias_max=error.max().item(),
                angle=statistics.fmean(whole),
                angle_max=max(whole),
                norm=norm,
                feedback_angle=statistics.fmean(feedback),
                feedback_norm=feedback_norm,
            )
        )
    return rows


# --- what it costs -------------------------------------------------------------------------------


class PeakMemory(TorchDispatchMode):
    """Bytes of all storages that operations made and that live at once, at their most: ``peak``."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._live = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._see(tensor.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            self._live += storage.nbytes()
            self.peak = max(self.peak, self._live)
            weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._live -= size


def measure_costs(model: Any, batch: Batch, mode: Mode, rows: list[Row], rounds: int) -> None:
    """Fill in seconds and MiB of one forward and backward pass over ``batch``."""
    for row in rows:
        with PeakMemory() as memory:
            policy_gradient(model, batch, ESTIMATORS[row.estimator], mode)
        row.mebibytes = memory.peak / 2**20
    times: dict[str, list[float]] = {row.estimator: [] for row in rows}
    for _ in range(rounds):
        for name, taken in times.items():
            start = time.process_time()
            policy_gradient(model, batch, ESTIMATORS[name], mode)
            taken.append(time.process_time() - start)
    for row in rows:
        row.seconds = statistics.median(times[row.estimator])


# --- what is shown -------------------------------------------------------------------------------


def table(rows: list[Row]) -> str:
    base = next(row for row in rows if row.estimator == "replay, n = 0")
    lines = [
        "| estimator | passes | bias, mean | max | 1 − cos | worst | norm | feedback: 1 − cos | norm | time | MiB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.estimator} | {row.passes} | {row.bias_mean:.1e} | {row.bias_max:.1e} | {row.angle:.1e} "
            f"| {row.angle_max:.1e} | {row.norm:.3f} | {row.feedback_angle:.1e} | {row.feedback_norm:.3f} "
            f"| × {row.seconds / base.seconds:.1f} | {row.mebibytes:.0f} |"
        )
    return "\n".join(lines)


def draw(rows: list[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    kinds = {
        "jacobi": [row for row in rows if row.estimator.startswith("jacobi") and "detached" not in row.estimator],
        "jacobi, detached": [row for row in rows if "detached" in row.estimator],
        "replay": [row for row in rows if row.estimator.startswith("replay")],
    }
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    panels = {
        "bias_mean": "mean |Δ log p|",
        "angle": "1 − cosine, all parameters",
        "feedback_angle": "1 − cosine, feedback's matrices",
    }
    for axes, (key, label) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        for name, chosen in kinds.items():
            values = [max(getattr(row, key), 1e-18) for row in chosen]
            axes.plot([row.passes for row in chosen], values, "o-", label=name)
        axes.set(yscale="log", xlabel="forward passes", ylabel=label)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--mode", choices=("soft", "fused"), default="soft")
    parser.add_argument("--out", type=Path, default=Path("runs/estimators"))
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rows", type=int, default=32, help="rollouts of a batch")
    parser.add_argument("--rounds", type=int, default=5, help="of the timing")
    arguments = parser.parse_args()

    from fbt_rl.model import load_model

    model: Any = load_model(arguments.model).double().eval()
    batches = sample_batches(model, arguments.model, arguments.mode, arguments.batches, arguments.rows)
    rows = accuracy(model, batches, arguments.mode)
    single = copy.deepcopy(model).float()
    measure_costs(single, batches[0].to(torch.float32), arguments.mode, rows, arguments.rounds)

    lengths = torch.cat([batch.completion_mask.sum(1) for batch in batches])
    about = {
        "model": arguments.model.parts[-3:],
        "mode": arguments.mode,
        "batches": arguments.batches,
        "rows": arguments.rows,
        "tokens": {"min": int(lengths.min()), "median": int(lengths.median()), "max": int(lengths.max())},
        "estimators": [asdict(row) for row in rows],
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "estimators.json").write_text(json.dumps(about, indent=1))
    draw(rows, arguments.out / "estimators.png")
    print(f"{arguments.mode}, {len(lengths)} rollouts of {lengths.min()} to {lengths.max()} tokens\n\n{table(rows)}")


if __name__ == "__main__":
    main()
