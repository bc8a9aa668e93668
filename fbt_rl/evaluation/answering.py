"""Answering problems with a model and judging the answers: what one rank of an evaluation does."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fbt_rl.analysis.table import SCHEMA, before_stop
from fbt_rl.artifacts import StageFolder
from fbt_rl.config import Mode
from fbt_rl.decoding import STOP_CHECK_EVERY, Completion, SamplingParams, decode
from fbt_rl.grading import grading_threads
from fbt_rl.model import is_fbt
from reward.base import Reward
from reward.reasoning import reasoning_tokens

logger = logging.getLogger(__name__)

MAX_SAMPLES = 1 << 16  # a row's key is index * 65,536 + sample, so more samples keep the first ones
SHARD_SCHEMA = SCHEMA.append(pa.field("index", pa.int64()))  # the problem's place in the data
_BATCHES_BEHIND = 2  # that grading may be behind decoding
_TELL_EVERY_S = 1.0


@dataclass(frozen=True)
class Answerer:
    """A model with all that is needed to answer problems and judge the answers."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    problems: list[dict[str, str]]
    prompt_ids: list[list[int]]  # of each problem
    prompt_hashes: list[str]
    reward: Reward
    params: SamplingParams  # but for the mode
    stop: Sequence[str]
    reasoning_marker: str
    seed: int

    def check(self, modes: Sequence[Mode], name: str) -> None:
        """Refuse what cannot be answered, before any work."""
        latent = [mode for mode in modes if mode != "standard"]
        if latent and not is_fbt(self.model):
            raise ValueError(
                f"modes {', '.join(latent)} need a model with latent feedback; the one in {name} has none. "
                "Evaluate it in mode 'standard' only"
            )
        window = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        lengths = [len(ids) for ids in self.prompt_ids]
        if window is not None and max(lengths) + self.params.max_new_tokens > window:
            problem = self.problems[lengths.index(max(lengths))]
            raise ValueError(
                f"problem {problem['problem_id']!r} has a prompt of {max(lengths)} tokens; with max_new_tokens "
                f"{self.params.max_new_tokens} that is more than the model's context of {window}. Lower max_new_tokens "
                "or leave such problems out: an evaluation passes over none by itself"
            )

    def answer(self, mode: Mode, share: list[int], batch_size: int, shards: Path, progress: Progress) -> None:
        """Answer the problems ``share`` and write a shard for each batch, graded while the next one is decoded."""
        samples = self.params.num_samples
        size = max(1, batch_size // samples)
        grading: deque[Future[None]] = deque()
        with grading_threads() as thread:
            for start in range(0, len(share), size):
                batch = share[start : start + size]
                began = time.perf_counter()
                completions = decode(
                    self.model,
                    [self.prompt_ids[index] for index in batch],
                    replace(self.params, mode=mode),
                    seed=self.seed,
                    row_keys=[index * MAX_SAMPLES + sample for index in batch for sample in range(samples)],
                    batch_size=batch_size,
                    stopped=stop_check(self.tokenizer, self.stop),
                    on_end=lambda *_: progress.advance(),
                )
                seconds = (time.perf_counter() - began) / len(completions)
                shard = shards / f"{mode}-{min(batch):08d}.parquet"
                if self.reward.concurrent:
                    grading.append(thread.submit(self._grade, mode, batch, completions, seconds, shard))
                    if len(grading) > _BATCHES_BEHIND:
                        grading.popleft().result()
                else:
                    self._grade(mode, batch, completions, seconds, shard)
            for graded in grading:
                graded.result()

    def _grade(self, mode: Mode, batch: list[int], completions: list[Completion], seconds: float, shard: Path) -> None:
        """Judge a batch's answers and write them to ``shard``; ``seconds`` is what decoding took for each."""
        write_table(shard, pa.Table.from_pylist(self._rows(mode, batch, completions, seconds), SHARD_SCHEMA))

    def _rows(
        self, mode: Mode, batch: list[int], completions: list[Completion], seconds: float
    ) -> list[dict[str, Any]]:
        indices = [batch[completion.prompt_index] for completion in completions]
        problems = [self.problems[index] for index in indices]
        token_ids = [completion.token_ids for completion in completions]
        written = self.tokenizer.batch_decode(token_ids, skip_special_tokens=True)
        texts = [before_stop(text, self.stop) for text in written]
        verdicts, taken = self.reward.timed_verdicts(
            prompts=[problem["question"] for problem in problems],
            completions=texts,
            completion_ids=token_ids,
            answer=[problem["answer"] for problem in problems],
            problem_id=[problem["problem_id"] for problem in problems],
        )
        rate = len(texts) / max(taken, 1e-9)
        logger.info("reward %r: %d completions in %.2f s, %.0f a second", self.reward.name, len(texts), taken, rate)
        thoughts = [reasoning_tokens(ids, self.tokenizer.decode, self.reasoning_marker) for ids in token_ids]  # pyright: ignore[reportArgumentType]
        kept = self._count(texts) if self.stop else [0] * len(texts)
        rows = []
        for place, (index, problem, completion, text, verdict) in enumerate(
            zip(indices, problems, completions, texts, verdicts, strict=True)
        ):
            stopped = text != written[place]
            finish = "stop" if stopped else completion.finish_reason
            length = min(kept[place], len(completion.token_ids)) if stopped else len(completion.token_ids)
            thought = min(thoughts[place], length)
            rows.append(
                {
                    "index": index,
                    "problem_id": problem["problem_id"],
                    "mode": mode,
                    "sample": completion.sample,
                    "prompt": problem["question"],
                    "prompt_hash": self.prompt_hashes[index],
                    "completion": text,
                    "answer": problem["answer"],
                    "extracted": verdict.extracted,
                    "correct": False if finish == "length" else verdict.correct,
                    "error": verdict.error,
                    "finish_reason": finish,
                    "num_tokens": length,
                    "reasoning_tokens": thought,
                    "answer_tokens": length - thought,
                    "seconds": seconds,
                    "level": problem["level"] or None,
                    "subject": problem["subject"] or None,
                    "seed": self.seed,
                }
            )
        return rows

    def _count(self, texts: list[str]) -> list[int]:
        ids: Any = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return list(map(len, ids))


def stop_check(tokenizer: Any, stop: Sequence[str]) -> Callable[[list[int]], bool] | None:
    """For ``decode``: whether an answer so far has one of the texts ``stop``; None where there are none."""
    if not stop:
        return None
    # It is asked every few tokens, so it looks at the last ones first; no token is less than a byte.
    window = max(len(text.encode()) for text in stop) + STOP_CHECK_EVERY

    def ends(token_ids: list[int]) -> bool:
        text = tokenizer.decode(token_ids, skip_special_tokens=True)
        return before_stop(text, stop) != text

    return lambda token_ids: ends(token_ids[-window:]) and ends(token_ids)


class Progress:
    """How far a rank is: of the one that ``leads`` a bar on a terminal, and a file for whoever follows the work."""

    def __init__(self, total: int, folder: StageFolder, *, leads: bool):
        self.bar = tqdm(total=total, unit="answer", disable=None if leads else True)  # None: on a terminal only
        self._total, self._folder, self._leads = total, folder, leads
        self._done, self._told = 0, 0.0

    def advance(self) -> None:
        self.bar.update()
        self._done += 1
        if self._leads and time.monotonic() - self._told > _TELL_EVERY_S:
            self._told = time.monotonic()
            self._folder.write_progress(self._done, self._total)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self._leads:
            self._folder.progress_path.unlink(missing_ok=True)


def write_table(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, temporary)
    temporary.replace(path)
