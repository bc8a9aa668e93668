"""What every training stage's trainer shares, over transformers' Trainer and TRL's subclasses of it.

``StageTrainer`` settles optimiser, schedule, metrics, checkpoints and the exported model. It goes in
front of a TRL trainer: ``class MyTrainer(StageTrainer, GRPOTrainer)``.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import PeftModel
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer_callback import PrinterCallback

from fbt_rl.artifacts import StageContext, checkpoint_step, read_json, write_json
from fbt_rl.config import RLStage, RowsStage
from fbt_rl.integrity import seal
from fbt_rl.training.lora import whole_model
from fbt_rl.training.optimizer import build_optimizer
from fbt_rl.training.resharding import load_universal, reshard, resharded
from fbt_rl.training.schedule import wsd_multiplier

logger = logging.getLogger(__name__)


class TrainingError(RuntimeError):
    """Training cannot go on; the message says at which step and why. Earlier checkpoints are whole."""


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


class MetricsWriter(TrainerCallback):
    """Writes each logged row to the stage's metrics file, the local truth; always logs the last step."""

    def __init__(self, context: StageContext) -> None:
        self.folder = context.folder

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            control.should_log = True

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any):
        if state.is_world_process_zero and logs and "train_runtime" not in logs:  # that one is a summary
            row = {key: _json_number(value) for key, value in logs.items() if key != "epoch"}
            self.folder.append_metrics({"step": state.global_step, **row})


def _json_number(value: Any) -> Any:
    """NaN and infinity, which JSON does not know, as null: a mean over nothing, say."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class StageTrainer(Trainer):
    """A Trainer that keeps its state in the run folder. Further arguments are the Trainer's own."""

    model: Any
    model_wrapped: Any
    processing_class: Any
    train_dataset: Any
    any_number_of_ranks = False  # whether a checkpoint's further course is the same on another number of ranks

    def __init__(self, *args: Any, stage: RowsStage | RLStage, context: StageContext, **kwargs: Any) -> None:
        self.stage, self.context = stage, context
        self._watched: dict[str, Tensor] = {}
        super().__init__(*args, **kwargs)
        self.remove_callback(PrinterCallback)
        self.add_callback(MetricsWriter(context))

    # --- the run ---------------------------------------------------------------------------------

    def fit(self) -> dict[str, float]:
        """Train to the last step, from the newest checkpoint where there is one, and export the model.

        Returns the last logged row, the same on every rank, without the figures that depend on the clock.
        """
        folder = self.context.folder
        if self.is_world_process_zero():
            for sentence in folder.drop_damaged_checkpoints():
                logger.warning(sentence)
        barrier()
        checkpoint = folder.latest_checkpoint()
        if checkpoint is not None:
            self._check_layout(checkpoint)
        barrier()
        if self.is_world_process_zero():
            folder.prune_checkpoints(self.stage.keep_checkpoints)
            folder.truncate_metrics(checkpoint_step(checkpoint) if checkpoint else 0)
        barrier()
        self.train(resume_from_checkpoint=str(self._readable(checkpoint)) if checkpoint else None)
        self.export()
        last = next(row for row in reversed(self.state.log_history) if "loss" in row)
        return {
            key: value for key, value in last.items() if key not in ("epoch", "step", "tokens_per_second", "seconds")
        }

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = build_optimizer(
                self.model if model is None else model,
                self.stage.optimizer,
                lambda: getattr(self.model_wrapped, "optimizer", None),
            )
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(
                optimizer or self.optimizer,
                lambda step: wsd_multiplier(step, num_training_steps, self.stage.optimizer),
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def floating_point_ops(self, inputs: Any) -> int:
        return 0  # an estimate nobody reads, made by walking over all parameters in every step

    # --- a loss that is not finite ---------------------------------------------------------------

    def watch(self, name: str, value: Tensor) -> None:
        """Stop every rank at the end of this step if ``value`` is not finite on any of them."""
        finite = value.detach().isfinite().all()
        self._watched[name] = self._watched[name] & finite if name in self._watched else finite

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        self.watch("loss", loss)
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        # The one place that every rank passes once a step, after the backward pass and before a checkpoint.
        finite = torch.stack(list(self._watched.values())).to(torch.int32)
        if dist.is_initialized():
            dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        names = [name for name, flag in zip(self._watched, finite.tolist(), strict=True) if not flag]
        self._watched.clear()
        grad_norm = super()._get_grad_norm(model, grad_norm)
        if not names and grad_norm is not None and not math.isfinite(grad_norm):
            names = ["gradient norm"]
        if names:
            newest = self.context.folder.latest_checkpoint()
            raise TrainingError(
                f"stage {self.context.name}, step {self.state.global_step + 1}: {' and '.join(names)} not finite. "
                f"Nothing of this step was saved; the newest checkpoint is {newest.name if newest else 'none'}. "
                "Lower optimizer.learning_rate, or look for bad rows in the data."
            )
        return grad_norm

    # --- checkpoints -----------------------------------------------------------------------------

    def extra_state(self) -> dict[str, Any]:
        """JSON kept in a checkpoint beside the Trainer's own state; called on every rank."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`extra_state` gave."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = self.context.folder
        final = folder.checkpoint_dir(self.state.global_step)
        temporary = final.with_name(f".{final.name}.tmp")
        extra = self.extra_state()
        writer = self.is_world_process_zero()
        try:
            if writer:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
            barrier()
            self._save_optimizer_and_scheduler(str(temporary))  # DeepSpeed's engine: the weights as well
            self._save_rng_state(str(temporary))
            if writer:
                self.state.save_to_json(str(temporary / "trainer_state.json"))
                write_json(temporary / "stage_state.json", {"layout": self._layout(), **extra})
            barrier()
            if writer:
                seal(temporary)
                shutil.rmtree(final, ignore_errors=True)
                temporary.rename(final)
                folder.prune_checkpoints(self.stage.keep_checkpoints)
            barrier()
        except Exception as error:  # torch and DeepSpeed report a full disk as this and that
            shutil.rmtree(temporary, ignore_errors=True)
            raise save_error(final, error, folder.latest_checkpoint()) from error

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.load_extra_state(read_json(Path(checkpoint) / "stage_state.json"))

    def _layout(self) -> dict[str, int]:
        return {"ranks": self.args.world_size, "zero_stage": self.context.config.deepspeed.zero_stage}

    def _check_layout(self, checkpoint: Path) -> None:
        written, layout = read_json(checkpoint / "stage_state.json")["layout"], self._layout()
        same_stage = written["zero_stage"] == layout["zero_stage"]
        if written == layout or (same_stage and self.any_number_of_ranks and layout["zero_stage"] <= 2):
            return
        if same_stage:
            why = "ZeRO stage 3" if self.any_number_of_ranks else f"stage {self.context.name}"
            why = f": {why} can only go on with the same number of ranks (resources.workers)"
        else:
            why = ": go on with the same deepspeed.zero_stage"
        raise TrainingError(f"{checkpoint} was written with {written}, this run has {layout}{why}")

    def _readable(self, checkpoint: Path) -> Path:
        """``checkpoint``, or what it becomes for another number of ranks."""
        written, layout = read_json(checkpoint / "stage_state.json")["layout"], self._layout()
        if written["ranks"] == layout["ranks"] or layout["zero_stage"] == 0:
            return checkpoint
        if self.is_world_process_zero():
            reshard(checkpoint)
        barrier()
        load_universal(self.args)
        return resharded(checkpoint)

    # --- the finished model ----------------------------------------------------------------------

    def export(self) -> None:
        """Save full weights, configuration and tokenizer for later stages, and adapters by themselves as well.

        Gathers ZeRO-3's partitions and merges adapters. Called on every rank; the first one writes.
        """
        weights: Any = self.accelerator.get_state_dict(self.model_wrapped)
        if self.is_world_process_zero():
            folder, model = self.context.folder, self.model
            try:
                if isinstance(model, PeftModel):
                    adapted = whole_model(model, weights, self.args)
                    with written(folder.adapter_dir) as place:
                        adapted.save_pretrained(str(place), save_embedding_layers=False)
                    model: Any = adapted.merge_and_unload()
                    weights = model.state_dict()
                # Gathered one by one, tied weights are apart and would be saved twice.
                weights = {name: value for name, value in weights.items() if name not in model.all_tied_weights_keys}
                save_model(folder.model_dir, model, self.processing_class, weights)
            except Exception as error:  # safetensors reports a full disk in its own way
                raise save_error(folder.model_dir, error, folder.latest_checkpoint()) from error
        barrier()

    def _send_telemetry(self) -> None:
        """TRL would call home."""


@contextmanager
def written(target: Path) -> Iterator[Path]:
    """A folder to fill, which gets its checksums and the name ``target`` when it is complete."""
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        yield temporary
        seal(temporary)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def save_model(target: Path, model: Any, tokenizer: Any, weights: dict[str, Tensor] | None = None) -> None:
    """Write model (``weights``: in place of its own), tokenizer and their checksums to the folder ``target``."""
    with written(target) as folder:
        model.save_pretrained(folder, state_dict=weights)
        tokenizer.save_pretrained(folder)


def save_error(target: Path, error: Exception, newest: Path | None) -> TrainingError:
    """The one message for a failed save: what, why, the room left and what is still there."""
    free = shutil.disk_usage(next(path for path in target.parents if path.exists())).free / 2**20
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return TrainingError(
        f"could not save {target}: {reason} ({free:,.0f} MiB free on that disk). "
        f"The newest complete checkpoint is {newest or 'none'}; make room and give the same command again."
    )
