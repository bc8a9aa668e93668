"""What more passes over the prompt are worth: loss and accuracy after k prefill passes, k = 1 to 30.

    python benchmarks/prefill.py MODEL [--problems 500]

MODEL is the folder of a model that solves the arithmetic task, such as runs/demo/stages/rl/model. ``loss`` is that of
the worked solutions (every step written) of held-out problems, nats a token, after k parallel passes over prompt and
solution. ``right`` and ``tokens`` are greedy soft decoding after k passes over the prompt: k = 1 is mode soft, k = 2 is
mode fused. A minute on one core; prints a table.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

PASSES = (1, 2, 3, 4, 6, 10, 20, 30)


@torch.inference_mode()
def solution_loss(model: Any, examples: list[tuple[list[int], list[int]]], passes: int) -> float:
    """Mean over the solutions' tokens; ``examples`` are (input ids, completion mask), one row at a time."""
    total, count = 0.0, 0
    for ids, mask in examples:
        input_ids, on = torch.tensor([ids]), torch.tensor(mask[1:]).bool()
        states = model.model(input_ids, num_passes=passes, use_cache=False).last_hidden_state
        logits = model.lm_head(states[0, :-1][on])
        total += float(torch.nn.functional.cross_entropy(logits, input_ids[0, 1:][on], reduction="sum"))
        count += int(on.sum())
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--max-new-tokens", type=int, default=80)
    arguments = parser.parse_args()

    from fbt_rl.analysis.statistics import median_over_correct, wilson_interval
    from fbt_rl.config import ArithmeticData
    from fbt_rl.data.tasks import encode_example, encode_prompt, load_problems
    from fbt_rl.data.tokenization import load_tokenizer
    from fbt_rl.decoding import SamplingParams, decode
    from fbt_rl.evaluation.evaluate import eos_token_ids
    from fbt_rl.model import load_model
    from reward.load import load_reward

    torch.set_num_threads(1)  # several that spin on shared cores are slower than one
    model, tokenizer = load_model(arguments.model).eval(), load_tokenizer(arguments.model)
    data = ArithmeticData(split="heldout", size=arguments.problems, styles={"steps": 1.0})
    problems = load_problems(data, seed=1).to_list()
    examples = [encode_example(tokenizer, row["prompt"], row["completion"]) for row in problems[:200]]
    prompts = [encode_prompt(tokenizer, row["prompt"]) for row in problems]
    reward = load_reward("math", {"numeric": True})
    print("| passes | loss | right | 95 % interval | tokens of right answers |\n|--:|--:|--:|--:|--:|")
    for passes in PASSES:
        params = SamplingParams(
            mode="soft",
            prefill_passes=passes,
            max_new_tokens=arguments.max_new_tokens,
            temperature=0.0,
            eos_token_ids=eos_token_ids(model, tokenizer),
        )
        done = decode(model, prompts, params, batch_size=256)
        texts = tokenizer.batch_decode([one.token_ids for one in done], skip_special_tokens=True)
        verdicts = reward.verdicts(prompts, texts, answer=[row["answer"] for row in problems])
        right = [bool(verdict.correct) and not one.truncated for verdict, one in zip(verdicts, done, strict=True)]
        low, high = wilson_interval(sum(right), len(right))
        median = median_over_correct([len(one.token_ids) for one in done], right)
        loss = solution_loss(model, examples, passes)
        print(f"| {passes} | {loss:.4f} | {sum(right) / len(right):.1%} | {low:.1%} to {high:.1%} | {median:g} |")


if __name__ == "__main__":
    main()
