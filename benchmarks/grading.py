"""What grading beside decoding saves: one batch of rollouts, its rewards computed meanwhile or afterwards.

    OMP_NUM_THREADS=1 python benchmarks/grading.py MODEL_FOLDER [--temperature 2] [--repeats 5]

MODEL_FOLDER is a model of the arithmetic task, for example runs/demo/stages/sft/model. The reward waits, as for a judge
elsewhere, and for the whole batch as long as decoding takes. It is called in a thread, group by group, while others
are decoded, or once in the main thread when all is decoded; taking turns. Times are in units of decoding alone, so 1 is
the least that could be. A high temperature spreads the lengths, as they are spread in longer answers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fbt_rl.config import ArithmeticData, OptimizerConfig, RewardConfig, RLStage
from fbt_rl.data.tasks import encode_prompt, load_problems
from fbt_rl.data.tokenization import load_tokenizer
from fbt_rl.evaluation.evaluate import eos_token_ids
from fbt_rl.model import load_model
from reward.base import Reward
from rl.collector import Collector
from rl.rewards import StageRewards

PROMPTS, GROUP, TOKENS = 16, 8, 100


def nothing(prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[float]:
    return [0.0] * len(completions)


def waiting(seconds: float) -> Callable[..., list[float]]:
    """A reward that takes so long for one completion."""

    def wait(prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[float]:
        time.sleep(seconds * len(completions))
        return [0.0] * len(completions)

    return wait


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    model, tokenizer = load_model(args.model), load_tokenizer(args.model)
    data = ArithmeticData(size=PROMPTS, split="heldout")
    stage = RLStage(
        data=data,
        steps=1,
        prompts_per_step=PROMPTS,
        group_size=GROUP,
        max_new_tokens=TOKENS,
        temperature=args.temperature,
        length=None,
        optimizer=OptimizerConfig(learning_rate=1e-3),
    )
    problems: list[Any] = load_problems(data, seed=1).to_list()
    problems = [problem | {"prompt_ids": encode_prompt(tokenizer, problem["prompt"])} for problem in problems]
    eos = eos_token_ids(model, tokenizer)

    def seconds(reward: Reward) -> float:
        rewards = StageRewards([RewardConfig()], None, GROUP)
        rewards._rewards = [reward]
        collector = Collector(stage, tokenizer, rewards, [], [], eos_token_ids=eos, seed=1)
        start = time.perf_counter()
        collector.groups(model, problems, 0)
        return time.perf_counter() - start

    with torch.no_grad():
        bare_reward = Reward("bare", nothing)
        seconds(bare_reward)
        wait = waiting(seconds(bare_reward) / (PROMPTS * GROUP))
        cases = {
            "decoding alone": bare_reward,
            "afterwards": Reward("after", wait),
            "meanwhile": Reward("beside", wait, concurrent=True),
        }
        taken = {name: [] for name in cases}
        for _ in range(args.repeats):
            for name, reward in cases.items():
                taken[name].append(seconds(reward))
    bare = statistics.median(taken["decoding alone"])
    print(f"{PROMPTS * GROUP} rollouts of up to {TOKENS} tokens")
    for name, times in taken.items():
        print(f"{name:<15} {statistics.median(times):.2f} s, {statistics.median(times) / bare:.2f}")


if __name__ == "__main__":
    main()
