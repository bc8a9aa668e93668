"""The trainer of pretraining, extension and fine-tuning: rows in a fixed order, the multi-pass loss."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from datasets import Dataset
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from fbt_rl.artifacts import StageContext, write_json
from fbt_rl.config import DataConfig, RowsStage, SFTStage
from fbt_rl.data.problems import content_of
from fbt_rl.training.arguments import stage_seed
from fbt_rl.training.objective import add_pass_losses, draw_fused_mask, has_feedback, multi_pass_loss
from fbt_rl.training.rows import IGNORED, ShuffledRows, kept_rows
from fbt_rl.training.schedule import draw_num_passes, in_cooldown, mean_passes
from fbt_rl.training.trainer import StageTrainer

logger = logging.getLogger(__name__)

_LOSS, _TOKENS, _PASSES = 0, 1, 2  # places in the window: the losses of the passes come last


def stage_rows(
    stage: RowsStage,
    context: StageContext,
    data: DataConfig | list[DataConfig],
    tokenizer: PreTrainedTokenizerBase,
    make: Callable[[Path], tuple[Dataset, dict[str, int]]],
) -> Dataset:
    """The stage's rows, made by one rank (:func:`fbt_rl.training.rows.kept_rows`) in ``<stage>/rows/``.

    The log says what the data came to and how much of it the run will use; the first rank keeps it as ``data.json``.
    """
    first = not dist.is_initialized() or dist.get_rank() == 0
    parts = data if isinstance(data, list) else [data]
    made_from = {
        "data": [part.model_dump(mode="json", exclude={"paths", "shots_paths"}) for part in parts],
        "files": [content_of(part) for part in parts],
        "tokenizer": [tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template],  # type: ignore[attr-defined]
        "row_length": stage.row_length,
        "seed": stage_seed(context),
    }
    rows, counts = kept_rows(_rows_folder(context), made_from, make, first=first)
    note = {
        **counts,
        "tokens_per_row": counts["tokens"] / counts["rows"],
        "epochs": stage.steps * stage.batch_rows / counts["rows"],
        "mean_passes": mean_passes(stage.objective.passes, stage.steps),
    }
    logger.info("stage %s: %s", context.name, note)
    if first:
        write_json(context.folder.path / "data.json", note)
    return rows


def _rows_folder(context: StageContext) -> Path:
    return context.folder.path / "rows"


class ObjectiveTrainer(StageTrainer):
    """Trains on packed rows (:mod:`fbt_rl.training.rows`) with :mod:`fbt_rl.training.objective`.

    Whatever is drawn (order, passes, prefixes, noise) is a pure function of the seed, the step and
    the rows, so nothing of it has to be kept for a resumed run.
    """

    stage: RowsStage
    any_number_of_ranks = True
    loss_is_scaled_for_ga = True  # divided by the tokens of the whole step, not of the micro-batch

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        model: Any = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        add_pass_losses(model)
        self.model_accepts_loss_kwargs = True  # the Trainer counts the labels of the whole step
        self._several_passes = has_feedback(model)
        longest = max(len(phase.weights) for phase in self.stage.objective.passes)
        # Sums since the last logged row: kept in checkpoints, so a resumed run logs the same row.
        self._window = torch.zeros(_PASSES + longest, dtype=torch.float64, device=self.args.device)
        self._window_start = 0  # the step of the last logged row
        self._tokens_seen = self._passes_run = 0
        self._clock, self._untimed_tokens = 0.0, 0  # the clock starts with the first batch

    def fit(self) -> dict[str, float]:
        result = super().fit()
        if self.is_world_process_zero():
            shutil.rmtree(_rows_folder(self.context), ignore_errors=True)  # nobody reads them again
        return result

    def _get_train_sampler(self, train_dataset: Any = None) -> ShuffledRows:
        rows = len(self.train_dataset if train_dataset is None else train_dataset)
        return ShuffledRows(rows, self.stage.steps * self.stage.batch_rows, self.args.seed)

    def num_passes(self, step: int) -> int:
        """K of ``step``; 1 throughout for a model without feedback."""
        if not self._several_passes:
            return 1
        return draw_num_passes(self.stage.objective.passes, self.args.seed, step, self.stage.steps)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """This rank's share of the loss: averaged over ranks and summed over micro-batches it is the step's."""
        self._clock = self._clock or time.perf_counter()
        objective, optimizer, step = self.stage.objective, self.stage.optimizer, self.state.global_step
        row_ids, num_tokens = inputs.pop("row_ids"), inputs.pop("num_tokens")
        passes = self.num_passes(step)
        feedback: dict[str, Any] = {}
        if passes > 1:
            feedback |= {"jitter": objective.jitter, "pass_activations": self.stage.pass_activations}
            if objective.prefix_mixing:
                feedback["fused_mask"] = self._fused_mask(inputs, row_ids, passes, step)
        noise = np.random.SeedSequence([self.args.seed, step, row_ids[0]]).generate_state(1, np.uint64)
        torch.manual_seed(int(noise[0]))  # jitter, and an adapter's dropout

        sums, squares = model(**inputs, pass_losses=True, num_passes=passes, **feedback)
        share = self.accelerator.num_processes / torch.as_tensor(num_items_in_batch).clamp(min=1)
        ntp = sums * share
        cooling = in_cooldown(step, self.stage.steps, optimizer.decay_fraction)
        z_weight = objective.z_loss if cooling else 0.0
        loss = multi_pass_loss(ntp, squares * share, feedback_weight=objective.feedback_weight, z_weight=z_weight)

        for index, value in enumerate(ntp.detach(), start=1):
            self.watch(f"loss of pass {index}", value)
        ranks = self.accelerator.num_processes
        self._window[_LOSS] += loss.detach() / ranks
        self._window[_TOKENS] += num_tokens
        self._window[_PASSES : _PASSES + passes] += ntp.detach() / ranks
        return loss

    def _fused_mask(self, inputs: dict[str, Tensor], row_ids: list[int], passes: int, step: int) -> Tensor:
        law: dict[str, Any] = {}
        if isinstance(self.stage, SFTStage):
            law["prompt_mask"] = inputs["labels"] == IGNORED
            law["plain_prompt_probability"] = self.stage.plain_prompt_probability
        return draw_fused_mask(inputs["position_ids"], row_ids, passes, seed=self.args.seed, step=step, **law)

    # --- metrics ---------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:  # a step's row, not the closing summary
            logs.update(self._close_window())
        super().log(logs, start_time)

    def _gather_window(self) -> list[float]:
        """The window over all ranks; afterwards the first rank holds it all."""
        if dist.is_initialized():
            dist.all_reduce(self._window)
        total = self._window.tolist()
        if not self.is_world_process_zero():
            self._window.zero_()
        return total

    def _close_window(self) -> dict[str, float]:
        loss, tokens, *passes = self._gather_window()
        drawn = [self.num_passes(step) for step in range(self._window_start, self.state.global_step)]
        now = time.perf_counter()
        self._tokens_seen += int(tokens)
        self._passes_run += sum(drawn)
        row: dict[str, float] = {"loss": loss / len(drawn)}
        for index, total in enumerate(passes, start=1):
            if times := sum(number >= index for number in drawn):
                row[f"loss_pass_{index}"] = total / times
        row |= {
            "num_passes": sum(drawn) / len(drawn),
            "mean_passes": self._passes_run / self.state.global_step,
            "batch_tokens": tokens / len(drawn),
            "tokens_seen": self._tokens_seen,
            "tokens_per_second": (tokens - self._untimed_tokens) / (now - self._clock),
        }
        self._window.zero_()
        self._window_start, self._clock, self._untimed_tokens = self.state.global_step, now, 0
        return row

    def extra_state(self) -> dict[str, Any]:
        window = self._gather_window()
        counts = {"tokens_seen": self._tokens_seen, "passes_run": self._passes_run}
        return {"window": window, "window_start": self._window_start, **counts}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        if self.is_world_process_zero():
            self._window.copy_(torch.tensor(state["window"], dtype=torch.float64))
        self._window_start = state["window_start"]
        self._tokens_seen, self._passes_run = state["tokens_seen"], state["passes_run"]
        self._untimed_tokens = state["window"][_TOKENS]
