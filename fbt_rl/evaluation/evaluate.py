"""Evaluation: problems to generations to verdicts, in every mode, sharded over ranks and resumable.

Every batch of answers is written to a shard as soon as it is graded, so an interrupted evaluation
goes on with the problems that have no answer yet, whatever the number of ranks and the batch size.
What is sampled depends on the seed, the problem's place in the data and the sample's number only:
the same evaluation before and after training, or in another mode, pairs row by row.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fbt_rl.analysis.summary import summarise
from fbt_rl.analysis.table import modes_of
from fbt_rl.artifacts import StageContext, StageFolder
from fbt_rl.config import EvalStage, Mode
from fbt_rl.config.file import ConfigError
from fbt_rl.data.tasks import content_hash, encode_prompt, load_problems, prompt_text
from fbt_rl.data.tokenization import load_tokenizer
from fbt_rl.decoding import SamplingParams
from fbt_rl.evaluation.answering import MAX_SAMPLES, Answerer, Progress, write_table
from fbt_rl.grading import load_stage_reward
from fbt_rl.model import load_model
from reward.base import Reward
from reward.load import load_reward

_FINGERPRINT = b"fingerprint"


def run(stage: EvalStage, context: StageContext) -> dict[str, Any]:
    """Evaluate ``context.source``: ``{"data_sha256": ..., "modes": {mode: summary}}``, and ``generations.parquet``.

    Executed by every rank, on the run's seed: all evaluations of a run draw the same. Raises
    ConfigError, DataError or RewardError before any model is run.
    """
    if context.source is None:
        raise ConfigError(f"stages.{context.name} evaluates a model: put a training stage above it or set model.path")
    problems = load_problems(stage.data, context.config.seed, needs=("prompt", "answer"))
    table = evaluate_model(
        context.source,
        problems,
        stage.modes,
        max_new_tokens=stage.max_new_tokens,
        samples=stage.samples,
        temperature=stage.temperature,
        batch_size=stage.batch_size,
        reward=load_stage_reward(stage.reward, context.grade_remotely),
        chat=stage.chat,
        stop=stage.stop,
        reasoning_marker=stage.reasoning_marker,
        seed=context.config.seed,
        folder=context.folder.path,
        attn_implementation=context.config.model.attn_implementation,
    )
    return {"data_sha256": content_hash(problems), "modes": summarise(table)}


def evaluate_model(
    model_folder: str | Path,
    problems: Dataset,
    modes: Sequence[Mode],
    *,
    max_new_tokens: int,
    samples: int = 1,
    temperature: float = 0.0,
    batch_size: int = 256,
    reward: Reward | None = None,
    chat: bool = True,
    stop: Sequence[str] = (),
    reasoning_marker: str = "</think>",
    seed: int = 0,
    folder: str | Path | None = None,
    attn_implementation: str | None = None,
) -> pa.Table:
    """Answer and grade ``problems`` (:func:`fbt_rl.data.tasks.load_problems`) in each of ``modes``.

    Returns the rows of ``generations.parquet`` by mode, problem and sample. Under torch.distributed
    the ranks share the problems and all return the same table; ``folder``, where the work is kept
    and resumed from, is then needed, and shared. ``reward`` judges (default: ``math``). A truncated
    answer is wrong. ``chat``: prompts go through the tokenizer's template, else in as they are.
    An answer ends before the first of the texts ``stop``; what was written after it does not count.
    ``reasoning_marker``: as in :func:`reward.reasoning.answer_start`. Raises ValueError when the
    model lacks feedback for a mode or a prompt does not fit its context.
    """
    if not 1 <= samples <= MAX_SAMPLES:
        raise ValueError(f"samples is {samples}; expected 1 to {MAX_SAMPLES:,}")
    if not len(problems):
        raise ValueError("there are no problems to evaluate on")
    reward = reward or load_reward("math")
    settings = {
        "model": _weights_of(Path(model_folder)),
        "problems": content_hash(problems),
        "decoding": [samples, temperature, max_new_tokens, seed, chat, list(stop), reasoning_marker],
        "reward": [reward.name, reward.args],
    }
    fingerprint = hashlib.sha256(json.dumps(settings, default=str).encode()).hexdigest()[:16]
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        shards = Path(place) / f"shards-{fingerprint}"
        target = StageFolder(Path(place)).generations_path
        if (finished := _finished(target, fingerprint, modes)) is not None:
            return finished
        pending = {mode: sorted(set(range(len(problems))) - _answered(shards, mode)) for mode in modes}
        _barrier()  # nobody writes a shard before all have looked
        if any(pending.values()):
            model = load_model(model_folder, attn_implementation=attn_implementation)
            model = model.to(default_device())  # pyright: ignore[reportArgumentType]
            tokenizer = load_tokenizer(model_folder)
            params = SamplingParams(
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                num_samples=samples,
                eos_token_ids=eos_token_ids(model, tokenizer),
            )
            rows = problems.to_list()
            texts = [prompt_text(tokenizer, row["prompt"], chat=chat) for row in rows]
            prompt_ids = [encode_prompt(tokenizer, row["prompt"], chat=chat) for row in rows]
            answerer = Answerer(
                model=model,
                tokenizer=tokenizer,
                problems=rows,
                prompt_ids=prompt_ids,
                prompt_hashes=[hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts],
                reward=reward,
                params=params,
                stop=stop,
                reasoning_marker=reasoning_marker,
                seed=seed,
            )
            answerer.check(modes, str(model_folder))
            longest_first = {mode: sorted(left, key=lambda i: -len(prompt_ids[i])) for mode, left in pending.items()}
            shares: dict[Mode, list[int]] = {mode: longest_first[mode][_rank() :: _world_size()] for mode in modes}
            total = samples * sum(map(len, shares.values()))
            with Progress(total, StageFolder(Path(place)), leads=is_first_rank()) as progress:
                for mode, share in shares.items():
                    progress.bar.set_description(mode)
                    answerer.answer(mode, share, batch_size, shards, progress)
        _barrier()
        if is_first_rank():
            _merge(shards, target, modes, fingerprint)
        _barrier()
        return pq.read_table(target)


# --- files ---------------------------------------------------------------------------------------


def _weights_of(folder: Path) -> list[tuple[str, int, int]]:
    """What changes when another model is saved to the folder: names, sizes and times of its files."""
    files = sorted(path for path in folder.glob("*") if path.is_file())
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _finished(target: Path, fingerprint: str, modes: Sequence[Mode]) -> pa.Table | None:
    """The table of an evaluation that was complete but for its result."""
    if not target.is_file():
        return None
    table = pq.read_table(target)
    same = (table.schema.metadata or {}).get(_FINGERPRINT) == fingerprint.encode()
    return table if same and modes_of(table) == list(modes) else None


def _answered(shards: Path, mode: Mode) -> set[int]:
    """Places of the problems that have all their answers in ``mode``; shards are written whole."""
    found = (pq.read_table(path, columns=["index"])["index"].to_pylist() for path in shards.glob(f"{mode}-*.parquet"))
    return {index for indices in found for index in indices}


def _merge(shards: Path, target: Path, modes: Sequence[Mode], fingerprint: str) -> None:
    parts = []
    for mode in modes:
        of_mode = pa.concat_tables(pq.read_table(path) for path in sorted(shards.glob(f"{mode}-*.parquet")))
        parts.append(of_mode.sort_by([("index", "ascending"), ("sample", "ascending")]))
    table = pa.concat_tables(parts).drop_columns(["index"])
    write_table(target, table.replace_schema_metadata({_FINGERPRINT: fingerprint}))
    for done in target.parent.glob("shards-*"):  # those of other settings as well
        shutil.rmtree(done)


# --- process -------------------------------------------------------------------------------------


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def is_first_rank() -> bool:
    return _rank() == 0


def _world_size() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def _barrier() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def default_device() -> torch.device:
    """This rank's GPU where there is one."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every token that ends an answer: the tokenizer's, and those of the model's generation settings."""
    of_model: Any = getattr(model.generation_config, "eos_token_id", None)
    own: Any = tokenizer.eos_token_id
    known = {own, *(of_model if isinstance(of_model, list) else [of_model])} - {None}
    if not known:
        raise ValueError("neither the tokenizer nor the model's generation settings name an end token")
    return tuple(sorted(known))
