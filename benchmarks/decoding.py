"""Tokens per second of ``fbt_rl.decoding.decode`` against transformers' ``generate``.

The same model in the same process, taking turns, so that the ratio holds on a busy machine too:

    OMP_NUM_THREADS=1 python benchmarks/decoding.py [--prompts 16] [--samples 8] [--new-tokens 60] [--repeats 5]

``ragged``: prompts of 5 to 20 tokens, several samples of each, rows that stop at different times; only
tokens up to a row's EOS count. ``full``: the same rows without EOS, as milliseconds a step.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import torch

from fbt_rl.config import Mode, ModelConfig
from fbt_rl.decoding import SamplingParams, decode
from fbt_rl.model import FBTForCausalLM, from_model_config

VOCAB = 40
EOS = 1


def seconds(work: Callable[[], int]) -> tuple[float, int]:
    """How long ``work`` took, and the number of tokens it made."""
    start = time.perf_counter()
    tokens = work()
    return time.perf_counter() - start, tokens


def by_decode(model: FBTForCausalLM, prompts: list[list[int]], params: SamplingParams) -> int:
    completions = decode(model, prompts, params, return_latents=params.mode != "standard")
    return sum(len(completion.token_ids) for completion in completions)


def by_generate(model: FBTForCausalLM, prompts: list[list[int]], params: SamplingParams) -> int:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = model.generate(
        ids,
        attention_mask=mask,
        decode_mode=params.mode,
        num_return_sequences=params.num_samples,
        do_sample=True,
        top_k=0,
        max_new_tokens=params.max_new_tokens,
        pad_token_id=0,
        eos_token_id=list(params.eos_token_ids) or None,
    )[:, longest:]
    ended_before = (output == EOS).cumsum(-1) - (output == EOS).long()
    return int((ended_before == 0).sum()) if params.eos_token_ids else output.numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("prompts", 16), ("samples", 8), ("new-tokens", 60), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = FBTForCausalLM(from_model_config(ModelConfig.model_validate({}), VOCAB)).eval()
    rng = random.Random(0)
    prompts = [[rng.randrange(2, VOCAB) for _ in range(rng.randint(5, 20))] for _ in range(args.prompts)]

    width = model.config.get_text_config().hidden_size
    print(f"{args.prompts * args.samples} rows, D {width}, one thread, best of {args.repeats}")
    modes: tuple[Mode, ...] = ("standard", "soft", "fused")
    for mode in modes:
        for eos in ((EOS,), ()):
            params = SamplingParams(args.new_tokens, mode, num_samples=args.samples, eos_token_ids=eos)
            runs = {run: [] for run in (by_decode, by_generate)}
            for _ in range(args.repeats):
                for run, times in runs.items():
                    taken, tokens = seconds(lambda run=run, params=params: run(model, prompts, params))
                    times.append(taken / (tokens if eos else args.new_tokens))
            ours, theirs = (min(times) for times in runs.values())
            if eos:
                line = f"ragged: decode {1 / ours:6.0f} tokens/s, generate {1 / theirs:6.0f} tokens/s"
            else:
                line = f"full:   decode {ours * 1e3:6.2f} ms/step,  generate {theirs * 1e3:6.2f} ms/step"
            print(f"{mode:8} {line}, ratio {theirs / ours:.2f}", flush=True)


if __name__ == "__main__":
    main()
