"""What a training step costs: passes, optimisers, the loss's memory, and a plain Llama beside it.

    OMP_NUM_THREADS=1 python benchmarks/training.py [passes] [optimizers] [memory] [llama]

One thread, hidden width 512, 8 layers, 1,024 tokens a step, fp32, all in one process and taking turns (``memory``:
a process each), so that the ratios hold on a busy machine. Medians over the rounds.

``passes``: a step (forward, backward, AdamW) of K passes over K steps of one pass.
``optimizers``: NorMuon's step and AdamW's alone, and as a part of a one-pass training step.
``memory``: peak of loss and gradient at a vocabulary of 32,768: in chunks against full logits.
``llama``: tokens * passes a second of the project's trainer (75/22/3 passes, DeepSpeed's stage 0) over tokens a
second of a Llama of the same shape under transformers' Trainer; 2,048 tokens a step.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fbt_rl.config import ModelConfig, OptimizerConfig

VOCAB, LENGTH = 8192, 1024
ROWS = 2  # a step, beside the Llama
SHAPE: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": LENGTH,
}
ADAMW = OptimizerConfig(learning_rate=1e-4)
NORMUON = OptimizerConfig(name="normuon", learning_rate=1e-3, adam_learning_rate=1e-4)


def model_of() -> Any:
    from fbt_rl.model import FBTForCausalLM, from_model_config

    torch.manual_seed(0)
    config = ModelConfig(**SHAPE, vocab_size=VOCAB, sliding_window=LENGTH, full_attention_interval=1)
    return FBTForCausalLM(from_model_config(config, VOCAB)).train()


def rounds(work: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each, taking turns after one unmeasured round."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for index in range(repeats + 1):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            if index:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def backward(model: Any, ids: torch.Tensor, passes: int) -> None:
    from fbt_rl.training.objective import multi_pass_loss

    losses, squares = model(input_ids=ids, labels=ids, pass_losses=True, num_passes=passes)
    multi_pass_loss(losses / LENGTH, squares / LENGTH, feedback_weight=1.0, z_weight=0.0).backward()


def passes(repeats: int) -> None:
    from fbt_rl.training.objective import add_pass_losses
    from fbt_rl.training.optimizer import build_optimizer

    model, ids = model_of(), torch.randint(VOCAB, (1, LENGTH))
    add_pass_losses(model)
    optimizer = build_optimizer(model, ADAMW)

    def step(number: int) -> None:
        backward(model, ids, number)
        optimizer.step()
        optimizer.zero_grad()

    times = rounds({str(number): lambda number=number: step(number) for number in (1, 2, 3)}, repeats)
    for number in (1, 2, 3):
        ratio = times[str(number)] / (number * times["1"])
        print(f"passes: K = {number}: {times[str(number)]:.2f} s a step, {ratio:.3f} of K one-pass steps")


def optimizers(repeats: int) -> None:
    from fbt_rl.training.objective import add_pass_losses
    from fbt_rl.training.optimizer import build_optimizer

    model, ids = model_of(), torch.randint(VOCAB, (1, LENGTH))
    add_pass_losses(model)
    adamw, normuon = build_optimizer(model, ADAMW), build_optimizer(model, NORMUON)

    def gradients() -> None:
        model.zero_grad()
        backward(model, ids, 2)  # so that the feedback takes part

    times = rounds({"gradients": gradients, "adamw": adamw.step, "normuon": normuon.step}, repeats)
    whole = (times["gradients"] + times["normuon"]) / (times["gradients"] + times["adamw"])
    print(
        f"optimizers: AdamW {times['adamw'] * 1000:.0f} ms, NorMuon {times['normuon'] * 1000:.0f} ms a step: "
        f"x {times['normuon'] / times['adamw']:.1f}; a whole two-pass step x {whole:.2f}"
    )


def head_memory(kind: str) -> None:
    """In a process of its own: loss and gradients of the head at a vocabulary of 32,768; prints MiB at the peak."""
    from fbt_rl.training.objective import token_loss_sums

    vocab, length = 32_768, 4096
    head, states = nn.Linear(512, vocab, bias=False), torch.randn(1, length, 512, requires_grad=True)
    labels = torch.randint(vocab, (1, length))
    head.weight.grad, states.grad = torch.zeros_like(head.weight), torch.zeros_like(states)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident_peak()
    if kind == "chunked":
        loss = token_loss_sums(head, states, labels, vocab)[0]
    else:
        loss = F.cross_entropy(head(states)[0, :-1], labels[0, 1:], reduction="sum")
    loss.backward()
    print(resident_peak() - before)


def resident_peak() -> float:
    """MiB (Linux). Not getrusage's, which a process inherits from the one that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def memory(repeats: int) -> None:
    peaks = {}
    for kind in ("chunked", "full"):
        command = [sys.executable, __file__, "--head-memory", kind]
        peaks[kind] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(
        f"memory: 4,096 tokens, V = 32,768, fp32: chunked {peaks['chunked']:.0f} MiB, full logits "
        f"{peaks['full']:.0f} MiB: {peaks['chunked'] / peaks['full']:.2f} of it"
    )


def llama(repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rates: dict[str, list[float]] = {"fbt": [], "llama": []}
        for index in range(2):
            rates["llama"].append(llama_rate(Path(folder), steps=Clock.SKIPPED + 2 * repeats))
            rates["fbt"].append(fbt_rate(Path(folder) / str(index), steps=Clock.SKIPPED + 2 * repeats))
        ratio = statistics.mean(rates["fbt"]) / statistics.mean(rates["llama"])
        print(
            f"llama: {statistics.mean(rates['llama']):,.0f} tokens a second; this project's trainer "
            f"{statistics.mean(rates['fbt']):,.0f} tokens * passes a second: x {ratio:.2f}"
        )


def llama_rate(folder: Path, steps: int) -> float:
    """Tokens a second of transformers' Trainer on a Llama, without its first two steps."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder / "llama"),
        max_steps=steps,
        per_device_train_batch_size=ROWS,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=10,
        disable_tqdm=True,
    )
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(VOCAB, (steps * ROWS, LENGTH))]
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, vocab_size=VOCAB, tie_word_embeddings=True))
    clock = Clock(steps)
    Trainer(model, arguments, train_dataset=rows, callbacks=[clock.callback()]).train()  # type: ignore[arg-type]
    return ROWS * LENGTH * (steps - clock.SKIPPED) / clock.seconds


def fbt_rate(folder: Path, steps: int) -> float:
    """Tokens * passes a second of the project's trainer, without its first two steps."""
    from datasets import Dataset

    from fbt_rl.artifacts import RunFolder, StageContext
    from fbt_rl.config.file import parse_config
    from fbt_rl.training.arguments import training_arguments
    from fbt_rl.training.objective_trainer import ObjectiveTrainer
    from fbt_rl.training.rows import RowCollator

    config = parse_config(
        {
            "name": "bench",
            "model": {"max_position_embeddings": LENGTH},  # of the rows; the model is given
            "deepspeed": {"zero_stage": 0},
            "stages": {
                "pretrain": {
                    "kind": "pretrain",
                    "data": [{"kind": "arithmetic", "size": 1}],
                    "steps": steps,
                    "batch_rows": ROWS,
                    "row_length": LENGTH,
                    "optimizer": {"learning_rate": 1e-4},
                    "objective": {"passes": [{"weights": [75, 22, 3]}]},
                    "checkpoint_every": steps + 1,
                }
            },
        }
    )
    stage: Any = config.stages["pretrain"]
    context = StageContext(config, "pretrain", RunFolder(folder).stage("pretrain"), None)
    arguments = training_arguments(stage, context)
    rows = torch.randint(VOCAB, (steps * ROWS, LENGTH))
    data = {"input_ids": rows.tolist(), "seq_lengths": [[LENGTH]] * len(rows), "row_id": list(range(len(rows)))}
    clock = Clock(steps)
    trainer = ObjectiveTrainer(
        model_of(),
        arguments,
        stage=stage,
        context=context,
        data_collator=RowCollator(LENGTH, 0),
        train_dataset=Dataset.from_dict(data),
        callbacks=[clock.callback()],
    )
    trainer.train()
    total = sum(trainer.num_passes(step) for step in range(clock.SKIPPED, steps))
    return ROWS * LENGTH * total / clock.seconds


class Clock:
    """Seconds from the end of step ``SKIPPED`` to the end of the last one."""

    SKIPPED = 2

    def __init__(self, steps: int) -> None:
        self.steps, self.seconds, self._start = steps, 0.0, 0.0

    def callback(self) -> Any:
        from transformers import TrainerCallback

        clock = self

        class Ticks(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                if state.global_step == clock.SKIPPED:
                    clock._start = time.perf_counter()
                if state.global_step == clock.steps:
                    clock.seconds = time.perf_counter() - clock._start

        return Ticks()


PARTS = {"passes": passes, "optimizers": optimizers, "memory": memory, "llama": llama}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--head-memory", choices=["chunked", "full"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.head_memory:
        head_memory(arguments.head_memory)
        return
    for part in arguments.parts or PARTS:
        PARTS[part](arguments.repeats)


if __name__ == "__main__":
    main()
