"""What can be known to go wrong before any worker starts, found without torch or ray."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from fbt_rl.artifacts import read_json
from fbt_rl.config import EvalStage, FileData, ModelConfig, RewardConfig, RLStage, RunConfig, StageConfig
from fbt_rl.config.sections import DataConfig
from fbt_rl.data.problems import DataError, Role, check_data, read_rows
from fbt_rl.driver.resources import Available, ResourceError, plan_group
from fbt_rl.training.deepspeed import deepspeed_settings, split_batch

_NEEDS: dict[str, tuple[Role, ...]] = {
    "pretrain": (),
    "extend": (),
    "sft": ("prompt", "completion"),
    "rl": ("prompt", "answer"),
    "eval": ("prompt", "answer"),
}
_SAMPLE = {"problem_id": "sample-1", "prompt": "3+4", "completion": "3+4=7 \\boxed{7}", "answer": "7"}
_SPARE_BYTES = 200 * 2**20  # logs, metrics, generations, the report


class PreflightError(ValueError):
    """The run cannot work as configured; one line per fault."""


def check_run(config: RunConfig, run_dir: Path, stages: list[str], available: Available) -> None:
    """Look over what ``stages``, those still to run, will need; all faults are in one :class:`PreflightError`."""
    faults: list[str] = []

    def attempt(where: str, check: Callable[[], object]) -> None:
        try:
            check()
        except (ValueError, OSError) as error:
            faults.append(f"{where}{error}")

    workers: int | None = None
    try:
        workers = plan_group(config.resources, available).workers
    except ResourceError as error:
        faults.append(str(error))
    attempt("trackers: ", lambda: _check_trackers(config.trackers))
    attempt("model.path: ", lambda: _check_model(config, stages))
    if config.tokenizer.path is not None:
        attempt("tokenizer.path: ", lambda: _check_tokenizer(Path(config.tokenizer.path or "")))
    attempt("", lambda: _check_room(config, run_dir, stages))
    for name in stages:
        for where, check in _stage_checks(config, config.stages[name], workers):
            attempt(f"stages.{name}{where}: ", check)
    if faults:
        raise PreflightError("\n".join(dict.fromkeys(faults)))


def _stage_checks(
    config: RunConfig, stage: StageConfig, workers: int | None
) -> Iterator[tuple[str, Callable[[], object]]]:
    parts = stage.data if isinstance(stage.data, list) else [stage.data]
    for part in parts:
        yield ".data", lambda part=part: check_data(part, _NEEDS[stage.kind])
    if isinstance(stage, RLStage) and stage.guard is not None:
        guard = stage.guard
        yield ".guard.data", lambda: check_data(guard.data, _NEEDS["rl"])
    if isinstance(stage, RLStage) and stage.saved_batch is not None:
        batch = Path(stage.saved_batch)
        yield ".saved_batch", lambda: _check_batch(batch)
    rewards = stage.rewards if isinstance(stage, RLStage) else [stage.reward] if isinstance(stage, EvalStage) else []
    for reward in rewards:
        yield "", lambda reward=reward: _check_reward(reward, parts[0])
    if not isinstance(stage, EvalStage) and workers is not None:
        limit = stage.optimizer.max_grad_norm
        yield "", lambda: deepspeed_settings(config.deepspeed, split_batch(stage, workers), limit)


def _check_reward(config: RewardConfig, data: DataConfig) -> None:
    """It can be loaded and answers for one row, the first of the data; built-in ones test themselves."""
    from reward.load import BUILT_IN, load_reward

    reward = load_reward(config.use, config.args)
    if config.use in BUILT_IN:
        return
    row = _SAMPLE
    if isinstance(data, FileData):
        try:
            (row,) = read_rows(data.model_copy(update={"limit": 1}), _NEEDS["rl"])
        except DataError:  # told of by the check of the data
            return
    columns = {name: value for name, value in row.items() if name not in ("prompt", "completion")}
    reward.dry_call(row["prompt"], row["completion"] or row["answer"], **columns)


def _check_trackers(names: Sequence[str]) -> None:
    absent = [name for name in names if find_spec(name) is None]
    if absent:
        raise ValueError(f"{', '.join(absent)} cannot be imported: pip install {' '.join(absent)}, or take it out")


def _check_model(config: RunConfig, stages: list[str]) -> None:
    """The given model folder is there, and has feedback where a stage that starts from it needs it."""
    if config.model.path is None:
        return
    folder = Path(config.model.path).expanduser()
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is not a model folder: it has no config.json (looked from {Path.cwd()})")
    settings = read_json(folder / "config.json")
    if settings.get("model_type") == "fbt" and settings.get("fusion") != "none":
        return
    needing = [name for name in stages if _from_given_model(config, name) and _needs_feedback(config.stages[name])]
    if needing:
        raise ValueError(
            f"the model in {folder} has no latent feedback (model_type {settings.get('model_type')!r}), which "
            f"stages {', '.join(needing)} use: convert it (fbt-rl convert), or use mode 'standard' and one pass only"
        )


def _from_given_model(config: RunConfig, name: str) -> bool:
    while (source := config.source_of(name)) is not None:
        name = source
    return config.stages[name].kind != "pretrain"


def _needs_feedback(stage: StageConfig) -> bool:
    if isinstance(stage, EvalStage):
        return any(mode != "standard" for mode in stage.modes)
    if isinstance(stage, RLStage):
        return stage.mode != "standard"
    return any(weight > 0 for phase in stage.objective.passes for weight in phase.weights[1:])


def _check_tokenizer(folder: Path) -> None:
    if not (folder.expanduser() / "tokenizer_config.json").is_file():
        raise ValueError(f"{folder} is not a tokenizer folder: it has no tokenizer_config.json")


def _check_batch(folder: Path) -> None:
    if not (folder.expanduser() / "batch.json").is_file():
        raise ValueError(f"{folder} is not a saved batch, it has no batch.json; only_rollouts writes one")


def _check_room(config: RunConfig, run_dir: Path, stages: list[str]) -> None:
    """The run folder can be written, and its disk has room for every checkpoint and model."""
    place = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(f"cannot write into {place}: choose another --run-dir")
    need = _SPARE_BYTES
    for name in stages:
        stage = config.stages[name]
        if not isinstance(stage, EvalStage):
            # Weights with two Adam moments in fp32 a checkpoint, one more while saving; then the model.
            copies = 3 * (stage.keep_checkpoints + 1) + 1
            need += 4 * copies * _parameters(config.model)
    free = shutil.disk_usage(place).free
    if free < need:
        raise ValueError(
            f"the run needs about {need / 2**30:.1f} GiB, {place} has {free / 2**30:.1f} GiB free: make room, choose "
            "another --run-dir or lower keep_checkpoints"
        )


def _parameters(model: ModelConfig) -> int:
    """About how many weights the model has; of a given model, from the size of its files."""
    if model.path is not None:
        return sum(file.stat().st_size for file in Path(model.path).expanduser().glob("*.safetensors")) // 2
    width, head = model.hidden_size, model.hidden_size // model.num_attention_heads
    attention = 2 * width * width + 2 * width * head * model.num_key_value_heads
    block = attention + 3 * width * model.intermediate_size
    return model.num_hidden_layers * block + (model.vocab_size or 4096) * width + 2 * width * width
