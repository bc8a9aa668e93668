"""GRPO under latent feedback: TRL's loop, with rollouts, rewards, scoring and loss of our own.

Two of TRL's methods are replaced: how a batch is made (decode, judge, centre), and the loss of a micro-batch
(:mod:`rl.scoring`, :mod:`rl.loss`). The order of prompts, micro-batches, repeated updates, gradient clipping and
logging stay TRL's.

Letters: B rollouts of this rank, G samples of a prompt, P and N prompt and completion columns, D width.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel
from trl.models.utils import prepare_deepspeed, unwrap_model_for_generation
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from fbt_rl.config import Mode, RLStage
from fbt_rl.config.rl import ReplayScorer, ScorerConfig, SequentialScorer
from fbt_rl.training.arguments import stage_seed
from fbt_rl.training.trainer import StageTrainer
from rl.advantage import group_advantages, importance_weights
from rl.collector import Collector, Groups, Problem, degenerate, each_of
from rl.guard import AccuracyGuard
from rl.limits import LimitWatch
from rl.loss import Division, batch_loss, clipped, kl_to_reference, policy_ratio, token_losses, token_mean
from rl.monitor import (
    ProbeRow,
    feedback_norms,
    gradient_cosines,
    jacobi_states,
    mismatch_metrics,
    mismatch_sums,
    payload_sums,
    policy_gradient,
    probe_rows,
)
from rl.record import append_rollouts, truncate_rollouts
from rl.rewards import StageRewards
from rl.rollout import Batch, lay_out, mebibytes, padded, rows_of
from rl.saved import BatchSaved, load_batch, save_batch
from rl.scoring import Scores, score

logger = logging.getLogger(__name__)

_PROBE_ROWS, _GRADIENT_ROWS = 32, 8  # of a rank: for payload dependence, for gradient cosines


@contextmanager
def whole_weights(engine: Any, accelerator: Any) -> Iterator[None]:
    """Under ZeRO-3: weights gathered once, no hook that talks to other ranks (some decode longer than others)."""
    plugin = accelerator.state.deepspeed_plugin
    if plugin is None or plugin.zero_stage != 3:
        yield
        return
    with unwrap_model_for_generation(engine, accelerator):
        # DeepSpeed compares the order of modules over ranks; TRL leaves that one.
        hooks = engine.module._forward_pre_hooks
        removed = dict(hooks)
        hooks.clear()
        try:
            yield
        finally:
            hooks.update(removed)


class RolloutTrainer(StageTrainer, GRPOTrainer):
    """Trains on the rollouts of an RL stage. The data's rows are problems with their ``prompt_ids``."""

    stage: RLStage

    def __init__(
        self,
        *,
        rewards: StageRewards,
        spare: Sequence[Problem] = (),
        heldout: Sequence[Problem] = (),
        reference: PreTrainedModel | None = None,
        **arguments: Any,
    ):
        """``spare``, ``heldout``: see :class:`Collector`; ``reference``: what RL starts from, frozen, for the KL."""
        super().__init__(reward_funcs=[rewards], **arguments)
        stage = self.stage
        self._collector = Collector(
            stage,
            self._tokenizer,
            rewards,
            spare,
            heldout,
            eos_token_ids=tuple(self.eos_token_ids),
            seed=stage_seed(self.context),
            rank=self.accelerator.process_index,
            ranks=self.accelerator.num_processes,
        )
        self._reference: Any = reference
        if reference is not None:
            add_fused_lm_head(reference, temperature=stage.temperature, outputs=("log_probs", "entropy"))
            if self._dist.is_zero3:  # then it is partitioned, as the policy is
                self._reference = prepare_deepspeed(reference, self.accelerator)
            else:
                reference.to(self._policy.device)  # type: ignore[arg-type]
        weight = stage.length and stage.length.weight
        self._guard = AccuracyGuard(stage.guard, weight) if stage.guard and weight else None
        self._probe: list[ProbeRow] | None = None  # of this rank
        self._limits = LimitWatch(stage.limits, self.context.name, quiet=not self.is_world_process_zero())
        self._micro_batches = self.args.gradient_accumulation_steps  # of one batch of rollouts
        self._row: dict[str, float] = {}  # metrics of the batch in use
        self._mismatch: list[Tensor] = []  # of its micro-batches so far
        self._clock: float | None = None

    @property
    def _policy(self) -> PreTrainedModel:
        """The model without PEFT's wrapper (adapters stay in it)."""
        model: Any = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        return model

    # --- a batch of rollouts ---------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Batch:
        """A batch of rollouts with all that the loss needs. ``inputs``: this rank's problems, each G times in a row.

        Raises :class:`rl.saved.BatchSaved` where rollouts are all that is wanted.
        """
        self._clock = self._clock or time.perf_counter()
        stage = self.stage
        if stage.saved_batch is None:
            batch = self._sampled_batch(inputs)
        else:
            batch, self._row = load_batch(Path(stage.saved_batch), self.accelerator.process_index, self._policy.device)
        if stage.only_rollouts:
            save_batch(self.context, batch, self._row, self.accelerator.process_index, self.accelerator.num_processes)
            raise BatchSaved(self._row)
        if stage.mode != "standard" and self._batch_index() % stage.probe_every == 0:
            self._row |= self._payload_dependence(batch) | self._gradient_cosines(batch)
        if stage.kl_weight:
            batch["reference_log_probs"] = self._in_parts(batch, self._reference_log_probs)
        if stage.updates_per_batch > 1:
            self._add_proximal_policy(batch)
        if (latents := batch.get("latents")) is not None:
            logger.info(
                "stage %s, step %d: latents of %d rollouts of up to %d tokens, %.1f MiB in this rank's host memory",
                *(self.context.name, self.state.global_step + 1, *latents.shape[:2], mebibytes(latents)),
            )
        return batch

    def _sampled_batch(self, inputs: list[dict[str, Any]]) -> Batch:
        """Sample, judge and lay out a batch."""
        stage, group = self.stage, self.stage.group_size
        guarded = self._guard_accuracy()
        with whole_weights(self.model_wrapped, self.accelerator):
            groups = self._collector.groups(self._policy, inputs[::group], self._batch_index())
        batch = lay_out(
            [problem["prompt_ids"] for problem in each_of(groups.problems, group)],
            groups.completions,
            self._tokenizer.pad_token_id,  # type: ignore[arg-type]
            self._policy.device,
        )
        # Ranks come in order, so groups stay whole.
        everyone = groups.outcomes(self._policy.device).of_all_ranks(self._of_all_ranks)
        rows = len(groups.completions)
        mine = slice(first := self.accelerator.process_index * rows, first + rows)
        flat = torch.tensor(degenerate(everyone.correct.tolist(), group), device=self._policy.device)
        flat = flat.repeat_interleave(group)
        kept = ~flat if stage.degenerate_groups == "drop" else torch.ones_like(flat)
        counted = kept & ~everyone.rewards.isnan()
        rewards = everyone.rewards.masked_fill(~counted, torch.nan)
        advantages = group_advantages(rewards, group, stage.advantage_scale)[mine]
        self._row = everyone.metrics(flat) | guarded | feedback_norms(self._policy, self._dist)
        if self._batch_index() % stage.save_rollouts_every == 0:
            self._save_rollouts(groups, advantages)

        batch |= {
            "counted": batch["completion_mask"] * counted[mine, None],
            "advantages": advantages.float(),
            "counted_tokens": everyone.lengths[counted].sum(),
            "policy_step": torch.tensor(self.state.global_step),  # whose weights sampled them
            # Of the rows; losses that average over rows are divided by it, so that dropped ones do not count.
            "kept_share": kept.double().mean().float(),
        }
        if stage.standard_weight:
            correct = counted & (everyone.correct == 1)
            batch["standard_mask"] = batch["completion_mask"] * correct[mine, None]
            batch["standard_tokens"] = everyone.lengths[correct].sum()
        return batch

    def _add_proximal_policy(self, batch: Batch) -> None:
        """What several updates on ``batch`` need of the weights before the first one (METHOD 2.3).

        Log-probs by the code path of the loss, importance weights (B, N), and the states where the rollouts kept
        none: later on they could not be had any more.
        """
        if self._recomputes_latents:
            batch["latents"] = self._in_parts(batch, lambda part: self._recomputed_latents(part).cpu())
        batch["old_log_probs"] = self._in_parts(batch, lambda part: self._log_probs(part, self.stage.scorer))
        cap = self.stage.importance_cap
        if cap is None:
            return
        mask = batch["counted"]
        proximal, rollout = batch["old_log_probs"], batch["rollout_log_probs"]
        batch["importance"] = weights = importance_weights(proximal, rollout, mask, cap, self.stage.importance_level)
        sums = torch.stack([(weights * mask).sum(), ((weights >= cap) * mask).sum(), mask.sum()]).double()
        total, capped, count = self._of_all_ranks(sums[None]).sum(0).tolist()
        self._row |= {"importance_mean": total / max(count, 1), "importance_capped": capped / max(count, 1)}

    def _guard_accuracy(self) -> dict[str, float]:
        """Measure held-out accuracy where that is due, and set the length weight w by it."""
        guard = self._guard
        if guard is None:
            return {}
        metrics = {}
        if guard.is_due(self.state.global_step):
            with whole_weights(self.model_wrapped, self.accelerator):
                counts = self._collector.heldout_counts(self._policy, guard.config.batch_size)
            right, judged = self._of_all_ranks(torch.tensor([counts], device=self._policy.device)).sum(0).tolist()
            metrics["heldout_accuracy"] = right / judged if judged else math.nan
            guard.update(metrics["heldout_accuracy"])
        self._collector.rewards.length_weight = guard.weight
        return metrics | {"length_weight": guard.weight}

    def _batch_index(self) -> int:
        return self.state.global_step // self.stage.updates_per_batch

    def _of_all_ranks(self, values: Tensor) -> Tensor:
        return self.accelerator.gather(values)  # type: ignore[return-value]

    def _save_rollouts(self, groups: Groups, advantages: Tensor) -> None:
        rows = self._collector.rows(self.state.global_step + 1, groups, advantages.tolist())
        everyone = gather_object(rows)
        if self.is_world_process_zero():
            append_rollouts(self.context.folder.rollouts_path, everyone)

    # --- the loss --------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: Batch) -> Tensor:
        """The part of one micro-batch in the loss, its log-probs computed by the stage's scorer."""
        stage, batch = self.stage, self._with_latents(inputs)
        scores = self._score(model, batch, stage.scorer)
        log_probs, counted = scores.log_probs, batch["counted"]
        advantages = batch["advantages"][:, None] * batch.get("importance", 1.0)
        ratio = policy_ratio(log_probs, batch.get("old_log_probs", log_probs.detach()), counted, stage.importance_level)
        bounds = stage.loss_type, stage.clip_low, stage.clip_high
        losses = token_losses(ratio, log_probs, advantages, *bounds)
        figures = {"entropy": scores.entropy}
        if stage.kl_weight:
            figures["kl"] = kl_to_reference(log_probs, batch["reference_log_probs"])
            losses = losses + stage.kl_weight * figures["kl"]
        division = Division(
            batch["counted_tokens"],
            batch["kept_share"],
            self._micro_batches,
            self.accelerator.num_processes,
            stage.max_new_tokens,
        )
        loss = batch_loss(losses, counted, stage.loss_type, division)
        if stage.entropy_bonus:
            mean = token_mean(scores.entropy, counted, division.tokens, division.ranks)
            loss = loss - stage.entropy_bonus * mean
        if stage.standard_weight:
            loss = loss + stage.standard_weight * self._standard_loss(model, batch)
        self._note_figures(figures, clipped(ratio, advantages, *bounds), counted)
        if self._step % (self._micro_batches * self.num_iterations) < self._micro_batches:
            # No update on this batch yet, so the weights are those that sampled it.
            self._note_mismatch(batch, scores)
        return loss

    def _standard_loss(self, model: Any, batch: Batch) -> Tensor:
        """The next-token loss of a plain pass over correct rollouts, at the sampling temperature."""
        # Also without a correct row here: every rank runs the same passes under ZeRO-3.
        log_probs = self._score(model, batch, self.stage.scorer, mode="standard").log_probs
        loss = token_mean(-log_probs, batch["standard_mask"], batch["standard_tokens"], self.accelerator.num_processes)
        # The log averages over micro-batches what adds up over them.
        whole: Any = self.accelerator.reduce(loss.detach(), "mean")
        self._metrics["train"]["standard_loss"].append(whole.item() * self._micro_batches)
        return loss

    def _score(
        self,
        model: Any,
        batch: Batch,
        scorer: ScorerConfig,
        *,
        mode: Mode | None = None,
        policy_step: int | None = None,
        body: Any = None,
    ) -> Scores:
        """``policy_step``: of the weights that sampled ``batch``; default: those of the batch in use."""
        with self.accelerator.autocast():
            return score(
                model,
                self._policy.base_model if body is None else body,
                mode or self.stage.mode,
                scorer,
                batch,
                policy_step=self._batch_index() * self.stage.updates_per_batch if policy_step is None else policy_step,
                # Updates after the first one of a batch find the recorded states stale.
                anchored=self.stage.updates_per_batch == 1,
            )

    @property
    def _recomputes_latents(self) -> bool:
        return self.stage.mode != "standard" and self.stage.latents == "recompute"

    def _with_latents(self, batch: Batch) -> Batch:
        """``batch``, with the states it was sampled under where the rollouts kept none."""
        if not self._recomputes_latents or "latents" in batch:
            return batch
        return batch | {"latents": self._recomputed_latents(batch)}

    @torch.no_grad()
    def _recomputed_latents(self, batch: Batch) -> Tensor:
        """The states (B, N, D) that rollouts of the present weights were decoded under, by exact passes.

        Raises ValueError for rollouts of other weights.
        """
        states = self._score(self.model, batch, SequentialScorer(), policy_step=self.state.global_step).states
        assert states is not None
        return states

    @torch.no_grad()
    def _log_probs(self, batch: Batch, scorer: ScorerConfig) -> Tensor:
        """Log-probs (B, N) of completions at the current weights, by the code path of the loss."""
        return self._score(self.model, batch, scorer).log_probs

    @torch.no_grad()
    def _reference_log_probs(self, batch: Batch) -> Tensor:
        """Log-probs (B, N) of completions under the model that RL starts from, for the KL term.

        It reads the states that the **policy** recorded, as replay with n = 0 does: in the decision process
        of METHOD 2.1 the state is the tokens and the carried h, and the KL is that of two policies in the
        same state. (In fused mode the states carried into the prompt are its own.) With adapters it is the
        model without them, else a frozen copy.
        """
        batch = self._with_latents(batch)
        if isinstance(self.model, PeftModel):
            with self.model.disable_adapter():
                return self._log_probs(batch, ReplayScorer(passes=0))
        body = getattr(self._reference, "module", self._reference).base_model
        return self._score(self._reference, batch, ReplayScorer(passes=0), body=body).log_probs

    def _in_parts(self, batch: Batch, function: Callable[[Batch], Tensor]) -> Tensor:
        """``function`` of the batch, (B, ...), a micro-batch at a time."""
        size = self.args.per_device_train_batch_size
        starts = range(0, len(batch["completion_ids"]), size)
        return torch.cat([function(rows_of(batch, slice(start, start + size))) for start in starts])

    # --- what is watched -------------------------------------------------------------------------

    def _note_figures(self, figures: dict[str, Tensor], bounded: dict[str, Tensor], counted: Tensor) -> None:
        """Means over all ranks of a micro-batch's ``figures`` (B, N), and of where ratios were ``bounded``.

        Of the latter also the rollouts with the smallest share bounded below and the largest above.
        """
        metrics = self._metrics["train"]
        name = "cispo_clip_ratio" if self.stage.loss_type == "cispo" else "clip_ratio/{}_mean"
        figures = figures | {name.format(side): flags for side, flags in bounded.items()}
        sums = [
            torch.stack([values.sum(), values.new_tensor(len(values))])
            if values.shape[1] == 1  # one value a rollout
            else torch.stack([(values * counted).sum(), counted.sum().float()])
            for values in figures.values()
        ]
        total, count = self.accelerator.reduce(torch.stack(sums).detach(), "sum").unbind(1)  # type: ignore[union-attr]
        for name, mean in zip(figures, (total / count.clamp(min=1.0)).tolist(), strict=True):
            metrics[name].append(mean)
        if "low" in bounded:
            flags = torch.stack([bounded["low"].expand_as(counted), bounded["high"].expand_as(counted)])
            low, high = self._of_all_ranks(((flags * counted).sum(-1) / counted.sum(-1)).T).unbind(1)
            judged = ~low.isnan()  # rollouts with a token that counts
            metrics["clip_ratio/low_min"].append(low[judged].min().item() if judged.any() else math.nan)
            metrics["clip_ratio/high_max"].append(high[judged].max().item() if judged.any() else math.nan)

    def _note_mismatch(self, batch: Batch, scores: Scores) -> None:
        """How far the scores are from what was recorded while sampling; metrics once the batch is complete."""
        mask, latents = batch["completion_mask"], batch.get("latents")
        latents = None if latents is None else latents.to(mask.device)
        log_probs = scores.log_probs.detach()
        self._mismatch.append(mismatch_sums(batch["rollout_log_probs"], log_probs, mask, latents, scores.states))
        if len(self._mismatch) == self._micro_batches:
            parts = self._of_all_ranks(torch.stack(self._mismatch))
            self.watch("log-probs of the rollouts", parts)
            self._row |= mismatch_metrics(parts)
            self._mismatch.clear()
            self._limits.check(self._row, self.state.global_step + 1)

    def _payload_dependence(self, batch: Batch) -> dict[str, float]:
        """Mean log-prob that a token of the fixed probe loses when its states are zeroed, or another rollout's.

        The probe is the first of the batches that this is called with, and kept.
        """
        if self._probe is None:
            self._probe = probe_rows(batch, _PROBE_ROWS)
        device = self._policy.device
        probe = padded(*zip(*self._probe, strict=True), self._tokenizer.pad_token_id, device)  # type: ignore[arg-type]
        probe["policy_step"] = torch.tensor(self.state.global_step)  # states are made with the weights of the day
        states = jacobi_states(self._policy.base_model, self.stage.mode, probe)
        sums = payload_sums(
            lambda latents: self._log_probs(probe | {"latents": latents}, ReplayScorer(passes=0)),
            states,
            probe["completion_mask"],
        )
        zeroed, swapped, tokens = self._of_all_ranks(sums[None]).sum(0).tolist()
        return {"payload_zeroed": zeroed / max(tokens, 1.0), "payload_swapped": swapped / max(tokens, 1.0)}

    def _gradient_cosines(self, batch: Batch) -> dict[str, float]:
        """Of the policy gradient on a few rows, scored with n = 0, 1 and 2; the mean over ranks.

        A rank's own affair, on the bare module: nothing is accumulated, reduced or stepped. Under ZeRO-3 a
        rank does not hold the weights, and this is left out.
        """
        if self._dist.is_zero3:
            return {}
        rows = batch["advantages"].abs().topk(min(_GRADIENT_ROWS, len(batch["advantages"]))).indices
        batch = self._with_latents(rows_of(batch, rows))
        weights = batch["advantages"][:, None] * batch["counted"]
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]

        def log_probs(passes: int) -> Tensor:
            return self._score(self.model, batch, ReplayScorer(passes=passes)).log_probs

        cosines = gradient_cosines([policy_gradient(log_probs, passes, weights, parameters) for passes in range(3)])
        everyone = self._of_all_ranks(torch.tensor([[*cosines.values()]], device=weights.device))
        return dict(zip(cosines, everyone.nanmean(0).tolist(), strict=True))

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        if "loss" in logs and self._clock is not None:
            now = time.perf_counter()
            logs = logs | self._row | {"seconds": now - self._clock}
            self._clock = now
            self._metrics["train"].pop("step_time", None)  # TRL's, without the optimiser
        super().log(logs, start_time)

    # --- resuming --------------------------------------------------------------------------------

    def extra_state(self) -> dict[str, Any]:
        return {
            "micro_step": self._step,  # TRL goes by it to decide when to sample, and does not keep it
            "guard": self._guard and self._guard.state(),
            "probe": gather_object([self._probe]),  # one entry a rank
        }

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self._step = state["micro_step"]
        if self._guard is not None:
            self._guard.load_state(state["guard"])
        self._probe = state["probe"][self.accelerator.process_index]
        if self.is_world_process_zero():
            truncate_rollouts(self.context.folder.rollouts_path, self.state.global_step)
