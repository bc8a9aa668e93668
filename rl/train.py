"""The RL stage: GRPO on rollouts decoded under latent feedback and scored in parallel (METHOD 2)."""

from __future__ import annotations

import logging
import math
import sys
from pathlib import Path
from statistics import fmean

from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.grpo_config import GRPOConfig

from fbt_rl.artifacts import StageContext
from fbt_rl.config import RLStage
from fbt_rl.config.file import ConfigError
from fbt_rl.data.tasks import encode_prompt, load_problems
from fbt_rl.data.tokenization import load_tokenizer
from fbt_rl.model import is_fbt, load_model
from fbt_rl.training.arguments import stage_seed, training_arguments
from fbt_rl.training.lora import adapter_config, check_adapters
from fbt_rl.training.rows import ShuffledRows
from rl.dynamic import Problem
from rl.rewards import StageRewards
from rl.saved import BatchSaved, check_batch
from rl.trainer import RolloutTrainer

logger = logging.getLogger(__name__)

_FINAL_STEPS = 20  # the result is a mean over the last of them: one batch of rollouts is noisy


def run(stage: RLStage, context: StageContext) -> dict[str, float]:
    """Train from ``context.source`` and export the model; executed by every rank, resumes by itself.

    Returns the mean of each metric over the last steps, and of the largest mismatch the maximum over all.
    Raises ConfigError before any work for what the stage cannot do.
    """
    if context.source is None:
        raise ConfigError(f"stages.{context.name} tunes a model: put a training stage above it or set model.path")
    check_adapters(stage, context)
    arguments = training_arguments(
        stage,
        context,
        GRPOConfig,
        num_generations=stage.group_size,
        num_iterations=stage.updates_per_batch,
        max_completion_length=stage.max_new_tokens,
        temperature=stage.temperature,
        epsilon=stage.clip_low,
        # TRL bounds CISPO's ratio by the number itself.
        epsilon_high=1 + stage.clip_high if stage.loss_type == "cispo" else stage.clip_high,
        loss_type=stage.loss_type,
        importance_sampling_level=stage.importance_level,
        beta=0.0,
        shuffle_dataset=False,  # the data come in the order of the run
        disable_dropout=True,  # the policy that is scored has to be the one that sampled
    )
    if stage.saved_batch is not None:
        check_batch(Path(stage.saved_batch), context, arguments.world_size)
    rewards = StageRewards(
        stage.rewards, stage.length, stage.group_size, stage.reward_bound, remote=context.grade_remotely
    )
    tokenizer = load_tokenizer(context.source)
    model = load_model(context.source, attn_implementation=context.config.model.attn_implementation)
    if stage.mode != "standard" and not is_fbt(model):
        raise ConfigError(
            f"stages.{context.name}.mode is {stage.mode!r}, but the model in {context.source} has no latent feedback; "
            "only mode 'standard' can train it"
        )
    window = model.config.get_text_config().max_position_embeddings
    prompts, spare = _prompts(stage, context, tokenizer, window)
    trainer = RolloutTrainer(
        stage=stage,
        context=context,
        rewards=rewards,
        spare=spare,  # type: ignore[arg-type]
        heldout=_heldout(stage, context, tokenizer, window),
        reference=_reference(stage, context),
        model=model,
        args=arguments,
        train_dataset=prompts,
        processing_class=tokenizer,
        peft_config=adapter_config(stage.lora, model) if stage.lora else None,
    )
    if stage.mode == "standard":
        _freeze_feedback(trainer.model)
    try:
        trainer.fit()
    except BatchSaved as saved:
        trainer.export()
        return saved.metrics
    return _result(trainer)


def _freeze_feedback(model: nn.Module) -> None:
    """Standard rollouts never read the feedback: without a gradient it would only decay."""
    for name, parameter in model.named_parameters():
        if "feedback" in name:
            parameter.requires_grad_(False)


def _reference(stage: RLStage, context: StageContext) -> PreTrainedModel | None:
    """A frozen copy of the model that RL starts from, where the KL term needs one."""
    if not stage.kl_weight or stage.lora is not None:  # without its adapters the policy is its own reference
        return None
    assert context.source is not None
    dtype = "bfloat16" if context.config.deepspeed.precision == "bf16" else "float32"
    model = load_model(context.source, dtype, attn_implementation=context.config.model.attn_implementation)
    return model.requires_grad_(False)


def _prompts(
    stage: RLStage, context: StageContext, tokenizer: PreTrainedTokenizerBase, window: int
) -> tuple[Dataset, Dataset]:
    """The problems of the whole run in order, one row a prompt of a step, with ``prompt_ids``; and spare ones.

    The spare ones are those that degenerate groups may give way to, one for every attempt of each row. Prompts
    that leave no room for ``max_new_tokens`` in the model's ``window`` are passed over.
    """
    seed = stage_seed(context)
    problems = load_problems(stage.data, seed, needs=("prompt", "answer"))
    texts = problems["prompt"][:]
    batches = -(-stage.steps // stage.updates_per_batch)
    rows = batches * stage.prompts_per_step
    wanted = rows * (1 + stage.max_resamples)
    encoded: dict[int, list[int]] = {}
    too_long: set[int] = set()
    order: list[int] = []
    for row in ShuffledRows(len(problems), sys.maxsize, seed):
        if row not in encoded and row not in too_long:
            ids = encode_prompt(tokenizer, texts[row])
            if len(ids) + stage.max_new_tokens <= window:
                encoded[row] = ids
            else:
                too_long.add(row)
        if row in encoded:
            order.append(row)
        if len(order) == wanted or len(too_long) == len(problems):
            break
    _tell_of_long_prompts(stage, context, "prompts", window, len(encoded), len(too_long))

    def chosen(order: list[int]) -> Dataset:
        return problems.select(order).add_column("prompt_ids", [encoded[row] for row in order])  # type: ignore[call-arg]

    return chosen(order[:rows]), chosen(order[rows:])


def _heldout(stage: RLStage, context: StageContext, tokenizer: PreTrainedTokenizerBase, window: int) -> list[Problem]:
    """What the accuracy guard has answered, with ``prompt_ids``; prompts that do not fit are passed over."""
    if stage.guard is None:
        return []
    problems: list[Problem] = load_problems(stage.guard.data, stage_seed(context), needs=("prompt", "answer")).to_list()
    encoded = [problem | {"prompt_ids": encode_prompt(tokenizer, problem["prompt"])} for problem in problems]
    fitting = [problem for problem in encoded if len(problem["prompt_ids"]) + stage.max_new_tokens <= window]
    _tell_of_long_prompts(stage, context, "prompts of guard.data", window, len(fitting), len(encoded) - len(fitting))
    return fitting


def _tell_of_long_prompts(
    stage: RLStage, context: StageContext, what: str, window: int, fitting: int, too_long: int
) -> None:
    """Raises ConfigError if no prompt is fitting."""
    if not fitting:
        raise ConfigError(
            f"stages.{context.name}: all {what} with max_new_tokens {stage.max_new_tokens} are longer than the "
            f"model's context of {window} tokens; lower max_new_tokens or give shorter problems"
        )
    if too_long:
        logger.warning(
            "stage %s: %d of %d %s are passed over: with max_new_tokens %d they exceed the context of %d tokens",
            *(context.name, too_long, too_long + fitting, what, stage.max_new_tokens, window),
        )


def _result(trainer: RolloutTrainer) -> dict[str, float]:
    rows = [row for row in trainer.state.log_history if "loss" in row]
    values: dict[str, list[float]] = {}
    for row in rows[-_FINAL_STEPS:]:
        for name, value in row.items():
            if name not in ("step", "epoch", "seconds") and value is not None and math.isfinite(value):
                values.setdefault(name, []).append(value)
    result = {name: fmean(column) for name, column in values.items()}
    result["logprob_mismatch_max"] = max(row["logprob_mismatch_max"] for row in rows)
    return result
