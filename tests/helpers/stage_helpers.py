"""Training stages small enough for tests, run in this process or on several ranks."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from fbt_rl.artifacts import RunFolder, StageContext, StageFolder
from fbt_rl.config import RunConfig
from fbt_rl.config.file import parse_config
from fbt_rl.training.deepspeed import _free_port

PASSES = [{"weights": [0.4, 0.4, 0.2]}]

SMALL: dict[str, Any] = {
    "name": "test",
    "seed": 3,
    "model": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "full_attention_interval": 2,
        "sliding_window": 16,
    },
    "stages": {
        "pretrain": {
            "kind": "pretrain",
            "data": [{"kind": "arithmetic", "size": 150}],
            "steps": 10,
            "batch_rows": 4,
            "row_length": 64,
            "optimizer": {"learning_rate": 4e-3, "warmup_steps": 3},
            "objective": {"passes": PASSES},
            "checkpoint_every": 5,
            "log_every": 1,
        },
        "extend": {
            "kind": "extend",
            "data": [{"kind": "arithmetic", "size": 60, "max_terms": 10}],
            "steps": 2,
            "batch_rows": 2,
            "row_length": 160,
            "rope_theta_full": 50_000.0,
            "optimizer": {"learning_rate": 1e-3, "warmup_steps": 1},
            "objective": {"passes": [{"weights": [0, 0, 1]}]},
            "log_every": 1,
        },
        "sft": {
            "kind": "sft",
            "data": {"kind": "arithmetic", "size": 100},
            "steps": 4,
            "batch_rows": 4,
            "row_length": 64,
            "optimizer": {"learning_rate": 1e-3, "warmup_steps": 1},
            "objective": {"passes": [{"weights": [0, 0, 1]}]},
            "checkpoint_every": 2,
            "log_every": 1,
        },
    },
}


def small_config(**changes: Any) -> RunConfig:
    """``SMALL`` with changes by dotted key, dots written as ``__``: ``stages__pretrain__steps=5``."""
    values = _copied(SMALL)
    for key, value in changes.items():
        *parents, last = key.split("__")
        node = values
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = value
    return parse_config(values)


def context_of(config: RunConfig, run_dir: Path, name: str) -> StageContext:
    source = config.source_of(name)
    folder = RunFolder(run_dir).stage(name)
    return StageContext(config, name, folder, RunFolder(run_dir).stage(source).model_dir if source else None)


def run_stage(config: RunConfig, run_dir: Path, name: str) -> tuple[StageFolder, dict[str, float]]:
    """Run one stage in this process, leaving no process-wide state behind."""
    from pretrain.train import run as train_rows
    from sft.train import run as fine_tune

    context = context_of(config, run_dir, name)
    stage: Any = config.stages[name]
    with clean_process():
        return context.folder, (fine_tune if stage.kind == "sft" else train_rows)(stage, context)


@contextmanager
def clean_process():
    environment = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        unset_hf_deepspeed_config()


def start_ranks(script: str, *arguments: str, ranks: int = 2) -> list[subprocess.Popen]:
    """Start ``script`` (Python source) once a rank, as a launcher would."""
    port, processes = _free_port(), []
    for rank in range(ranks):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parent),
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", script, *arguments],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return processes


def finish_ranks(processes: list[subprocess.Popen], timeout_s: float = 240) -> list[tuple[int, str]]:
    """(exit code, output) of each rank; none outlives the test."""
    try:
        # All are read at once: a rank whose pipe is full would keep the others waiting.
        with ThreadPoolExecutor(len(processes)) as pool:
            outputs = list(pool.map(lambda process: process.communicate(timeout=timeout_s)[0], processes))
        return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]
    finally:
        for process in processes:
            process.kill()


def assert_adapter_is_the_model(source: Path, folder: StageFolder) -> None:
    """Plain PEFT puts the stage's adapter on its source, and that is the stage's model."""
    import fbt_rl.model  # noqa: F401  (the architecture)

    tuned: Any = AutoModelForCausalLM.from_pretrained(folder.model_dir)
    adapted: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(source), str(folder.adapter_dir))
    ids = torch.arange(24).reshape(2, 12)
    fed_back: dict[str, Any] = {"num_passes": 3} if hasattr(tuned.config, "fusion") else {}
    with torch.inference_mode():
        for settings in ({}, fed_back):
            difference = (adapted(ids, **settings).logits - tuned(ids, **settings).logits).abs().max()
            assert difference <= 1e-5
    kept = load_file(folder.adapter_dir / "adapter_model.safetensors")
    assert all(value.numel() for value in kept.values())
    assert any("lora_A" in name for name in kept)
    assert any("feedback" in name for name in kept) == bool(fed_back)
    assert not list(folder.path.glob(".*.tmp"))


def losses(folder: StageFolder) -> list[dict[str, Any]]:
    """The metrics rows without the figures that depend on the clock."""
    return [{key: row[key] for key in row if key != "tokens_per_second"} for row in folder.read_metrics()]


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value
