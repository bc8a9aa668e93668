"""A small RL stage for tests: a random model of unit scale, and rewards it can earn by chance."""

import math
from pathlib import Path
from typing import Any

import torch
from stage_helpers import clean_process
from torch import nn

from fbt_rl.artifacts import StageContext, StageFolder
from fbt_rl.config import ModelConfig, RLStage, RunConfig, TokenizerConfig
from fbt_rl.data.tokenization import build_tokenizer
from fbt_rl.model import FBTForCausalLM, from_model_config

RL: dict[str, Any] = {
    "kind": "rl",
    "data": {"kind": "arithmetic", "size": 40},
    "steps": 2,
    "prompts_per_step": 2,
    "group_size": 4,
    "max_new_tokens": 8,
    "rewards": [{"use": "rl_cases:odd_length"}],
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 1, "weight_decay": 0.0},
}
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "sliding_window": 8,
    "max_position_embeddings": 32,
}


def odd_length(prompts, completions, completion_ids, **columns):
    return [float(len(ids) % 2) for ids in completion_ids]


def always_one(prompts, completions, completion_ids, **columns):
    return [1.0] * len(completions)


def undecided(prompts, completions, completion_ids, **columns):
    return [None] * len(completions)


def every_third_undecided(prompts, completions, completion_ids, **columns):
    return [None if row % 3 == 0 else float(len(ids) % 2) for row, ids in enumerate(completion_ids)]


def always(prompts, completions, completion_ids, *, value, **columns):
    return [{"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(value, value)] * len(completions)


def odd_but_one(prompts, completions, completion_ids, *, row, value, **columns):
    """As odd_length, but for ``row`` of the batch."""
    return [value if index == row else float(len(ids) % 2) for index, ids in enumerate(completion_ids)]


def mixed(prompts, completions, completion_ids, **columns):
    """As settled_by_prompt, with some that cannot be judged: all by the completion alone, whatever rank it is on."""
    scores = settled_by_prompt(prompts, completions, completion_ids)
    return [None if len(ids) == 3 else score for ids, score in zip(completion_ids, scores, strict=True)]


def settled_by_prompt(prompts, completions, completion_ids, **columns):
    """Prompts that begin with an odd digit are always answered rightly."""
    return [
        1.0 if int(prompt[0]) % 2 else float(len(ids) % 2) for prompt, ids in zip(prompts, completion_ids, strict=True)
    ]


def save_source(folder: Path, **shape: Any) -> Path:
    """A model folder: random weights of unit scale, so that rows end at different lengths and states matter."""
    tokenizer = build_tokenizer(TokenizerConfig(), [])
    torch.manual_seed(0)
    config = from_model_config(
        ModelConfig.model_validate(SHAPE | shape),
        len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = FBTForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    with torch.no_grad():  # an end now and then
        model.get_input_embeddings().weight[tokenizer.eos_token_id] *= 3
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def rl_context(source: Path, folder: Path, deepspeed: dict[str, Any] | None = None, **changes: Any) -> StageContext:
    values = {"name": "test", "seed": 3, "model": {"path": str(source)}, "deepspeed": deepspeed or {}}
    config = RunConfig.model_validate({**values, "stages": {"rl": RL | changes}})
    return StageContext(config, "rl", StageFolder(folder), source)


def run_rl(source: Path, folder: Path, **changes: Any) -> tuple[StageFolder, dict[str, float]]:
    from rl.train import run

    context = rl_context(source, folder, **changes)
    stage = context.config.stages["rl"]
    assert isinstance(stage, RLStage)
    with clean_process():
        return context.folder, run(stage, context)


def timeless(folder: StageFolder) -> list[dict[str, Any]]:
    """The metrics rows without the one that depends on the clock."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in folder.read_metrics()]
