"""A run folder as the pipeline leaves it, made up in a second: what the report is tested on."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fbt_rl.artifacts import RunFolder, StageFolder
from fbt_rl.config import EvalStage, RLStage, RunConfig
from fbt_rl.config.file import dump_config, load_config

HOSTILE = "<script>alert('model output')</script> & \x1b[31mred\x00 </td></body> ```\n# heading\n\\boxed{7}"


def make_run(path: Path, config: RunConfig | None = None, *, problems: int = 400, skip: tuple[str, ...] = ()) -> Path:
    """Write every stage of ``config`` (default: the demo's) but those in ``skip``, which never started."""
    config = config or load_config("tiny")
    run = RunFolder(path)
    run.path.mkdir(parents=True, exist_ok=True)
    run.config_path.write_text(dump_config(config))
    run.write_state(
        {
            "name": config.name,
            "status": "running",
            "created": "2026-12-01T10:00:00+00:00",
            "seed": config.seed,
            "command": ["fbt-rl", "run", "tiny"],
            "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
            "git": "0123abc",
            "host": {"name": "laptop", "cpus": 2},
            "stages": {name: {"kind": stage.kind, "seconds": 61.5} for name, stage in config.stages.items()},
            "error": None,
            "updated": "2026-12-01T10:10:00+00:00",
        }
    )
    rng = np.random.default_rng(0)
    trained_by_rl = {name for name, stage in config.stages.items() if isinstance(stage, RLStage)}
    for name, stage in config.stages.items():
        if name in skip:
            continue
        folder = run.stage(name)
        if isinstance(stage, EvalStage):
            write_generations(folder, stage, problems, short=config.source_of(name) in trained_by_rl)
        elif isinstance(stage, RLStage):
            for step in range(1, stage.steps + 1):
                folder.append_metrics(rl_row(step, stage.steps, rng))
            write_rollouts(folder, stage, rng)
        else:
            start = 3.2 if stage.kind == "pretrain" else 0.9
            for step in range(stage.log_every, stage.steps + 1, stage.log_every):
                weights = stage.objective.passes[-1].weights
                passes = 1 + int(rng.choice(len(weights), p=np.array(weights) / sum(weights)))
                folder.append_metrics(training_row(step, start, passes, rng))
        folder.write_result({"metrics": {}})
    return path


def training_row(step: int, start: float, passes: int, rng: np.random.Generator) -> dict:
    losses = [0.62 + start * math.exp(-step / 120) + 0.1 * k * math.exp(-step / 300) for k in range(passes)]
    losses = [loss + 0.02 * float(rng.standard_normal()) for loss in losses]
    return {
        "step": step,
        "loss": losses[0] + (sum(losses[1:]) / (passes - 1) if passes > 1 else 0.0),
        **{f"loss_pass_{k + 1}": loss for k, loss in enumerate(losses)},
        "num_passes": passes,
        "learning_rate": 4e-3,
        "grad_norm": 0.5,
        "tokens_seen": step * 3584,
        "tokens_per_second": 15_000.0 + float(rng.normal(0, 300)),
    }


def rl_row(step: int, steps: int, rng: np.random.Generator) -> dict:
    done = step / steps
    length = 10 + 11 * math.exp(-8 * done) + float(rng.normal(0, 0.5))
    accuracy = min(0.99, 0.93 - 0.12 * math.exp(-(((done - 0.25) / 0.15) ** 2)) + float(rng.normal(0, 0.015)))
    return {
        "step": step,
        "reward": accuracy * 0.78,
        "accuracy": accuracy,
        "length_mean": length + 0.6,
        "length_correct_mean": length,
        "truncated": max(0.0, 0.01 - 0.01 * done),
        "logprob_mismatch_max": 9e-6 * float(rng.uniform(0.6, 1.3)),
        "logprob_mismatch_mean": 6e-7,
        "kl_rollout_train": 1e-9,
        "residual": 0.002 + 0.001 * done,
        "effective_sample_size": 1.0,
        "ratio_outside": 0.0,
        "learning_rate": 5e-4,
        "grad_norm": 0.8,
        "loss": 0.01,
        "seconds": 0.9,
        "norm_value": 9.0 + 0.1 * done,
        "norm_gate": 9.5 - 0.05 * done,
        **({"payload_zeroed": 1.4 - 0.3 * done, "payload_swapped": 2.1 - 0.2 * done} if step % 10 == 1 else {}),
    }


def chain(index: int) -> tuple[str, list[int]]:
    """A problem and its running totals."""
    rng = np.random.default_rng(index)
    terms = [int(rng.integers(1, 10))] + [int(t) for t in rng.choice([-1, 1], 4) * rng.integers(1, 10, 4)]
    terms = terms[: 2 + index % 4]
    return "".join(f"{term:+d}" for term in terms).removeprefix("+"), [int(t) for t in np.cumsum(terms)]


def write_generations(folder: StageFolder, stage: EvalStage, problems: int, short: bool) -> None:
    rows = []
    for number, mode in enumerate(stage.modes):
        rng = np.random.default_rng(10 * number + short)
        for index in range(problems):
            prompt, totals = chain(index)
            answer, correct = str(totals[-1]), bool(rng.random() < (0.96 if short else 0.985))
            steps = totals[-1:] if short and rng.random() < 0.6 else totals[1:]
            given = answer if correct else str(totals[-1] + 1)
            text = ",".join(map(str, steps)) + f" \\boxed{{{given}}}"
            finish = "stop" if correct or rng.random() < 0.9 else "length"
            rows.append(
                {
                    "problem_id": f"arithmetic:{index}",
                    "mode": mode,
                    "sample": 0,
                    "prompt": prompt,
                    "completion": HOSTILE if short and mode == "soft" and not correct else text,
                    "answer": answer,
                    "extracted": given if finish == "stop" else None,
                    "correct": correct,
                    "error": None,
                    "finish_reason": finish,
                    "num_tokens": stage.max_new_tokens if finish == "length" else len(text) + 1,
                    "seed": 1,
                }
            )
    folder.path.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder.generations_path)


def write_rollouts(folder: StageFolder, stage: RLStage, rng: np.random.Generator) -> None:
    rows = []
    for step in range(1, stage.steps + 1, stage.save_rollouts_every):
        for index in range(2):
            prompt, totals = chain(100 + index)
            for sample in range(stage.group_size):
                correct = bool(rng.random() < 0.9)
                shown = totals[1:] if rng.random() < 1 - step / stage.steps else totals[-1:]
                text = ",".join(map(str, shown)) + f" \\boxed{{{totals[-1] if correct else 99}}}"
                rows.append(
                    {
                        "step": step,
                        "problem_id": f"arithmetic:{prompt}",
                        "sample": sample,
                        "mode": stage.mode,
                        "prompt": prompt,
                        "completion": text,
                        "answer": str(totals[-1]),
                        "correct": correct,
                        "reward": (1 - 0.01 * len(text)) if correct else 0.0,
                        "advantage": float(rng.normal()),
                        "num_tokens": len(text) + 1,
                        "finish_reason": "stop",
                    }
                )
    pq.write_table(pa.Table.from_pylist(rows), folder.rollouts_path)
