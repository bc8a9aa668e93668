"""GRPO under latent feedback: TRL's loop and loss, with rollouts, rewards and scoring of our own.

Two of TRL's methods are replaced: how a batch is made (decode, judge, centre), and what its loss
calls as the model (:class:`~rl.scoring.Scorer`). The order of prompts, micro-batches, repeated
updates, clipping and normalisation stay TRL's.

Letters: B rollouts of this rank, G samples of a prompt, P and N prompt and completion columns, D width.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.grpo_trainer import GRPOTrainer

from fbt_rl.config import ReplayScorer, RLStage, ScorerConfig, SequentialScorer
from fbt_rl.training.arguments import stage_seed
from fbt_rl.training.trainer import StageTrainer
from rl.advantage import group_advantages, importance_weights
from rl.monitor import Outcomes, mismatch_metrics, mismatch_sums, swapped_latents
from rl.record import append_rollouts, truncate_rollouts
from rl.rewards import StageRewards
from rl.rollout import Rollouts, mebibytes, sample_rollouts, sampling_seed
from rl.scoring import Scorer

logger = logging.getLogger(__name__)

Batch = dict[str, Tensor]
_PROBE_EVERY, _PROBE_ROWS = 10, 32  # payload dependence: how often (batches), on how many rows of a rank
_NOT_FOR_REWARDS = ("prompt", "prompt_ids", "completion")  # columns; the last is a worked solution


class RolloutTrainer(StageTrainer, GRPOTrainer):
    """Trains on the rollouts of an RL stage. The data's rows are problems with their ``prompt_ids``."""

    stage: RLStage

    def __init__(self, *, rewards: StageRewards, **arguments: Any):
        super().__init__(reward_funcs=[rewards], **arguments)
        self._rewards = rewards
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
        """Sample, judge and lay out a batch. ``inputs``: this rank's problems, each repeated G times in a row."""
        if self._clock is None:
            self._clock = time.perf_counter()
        first_row = self.accelerator.process_index * len(inputs)
        rollouts = self._sample([row["prompt_ids"] for row in inputs[:: self.stage.group_size]], first_row)
        texts = self._tokenizer.batch_decode(rollouts.token_ids, skip_special_tokens=True)
        prompts = [row["prompt"] for row in inputs]
        columns = {name: [row[name] for row in inputs] for name in inputs[0] if name not in _NOT_FOR_REWARDS}
        rewards, correct = self._rewards(prompts, texts, rollouts.token_ids, rollouts.truncated, **columns)

        lengths = [len(ids) for ids in rollouts.token_ids]
        table = torch.tensor([rewards, correct, lengths, rollouts.truncated], dtype=torch.float64)
        # Ranks come in order, so groups stay whole.
        everyone = Outcomes(*self._of_all_ranks(table.T.contiguous().to(rollouts.log_probs.device)).unbind(1))
        advantages = group_advantages(everyone.rewards, self.stage.group_size, self.stage.advantage_scale)
        advantages = advantages[first_row : first_row + len(inputs)]
        judged = ~everyone.rewards.isnan()
        self._row = everyone.metrics() | self._weight_norms()

        batch: Batch = {
            "prompt_ids": rollouts.prompt_ids,
            "prompt_mask": rollouts.prompt_mask,
            "completion_ids": rollouts.completion_ids,
            "completion_mask": rollouts.completion_mask,
            "advantages": advantages.float(),
            "num_items_in_batch": everyone.lengths[judged].sum(),
            # TRL's name for the tokens that count in the loss: none of a completion that could not be judged.
            "tool_mask": rollouts.completion_mask * judged[first_row : first_row + len(inputs), None],
            "rollout_log_probs": rollouts.log_probs,
            "policy_step": torch.tensor(self.state.global_step),  # whose weights sampled them
        }
        if rollouts.latents is not None:
            batch["latents"] = rollouts.latents
        if self.stage.updates_per_batch > 1:
            self._add_proximal_policy(batch)
        if "latents" in batch:
            logger.info(
                "stage %s, step %d: latents of %d rollouts of up to %d tokens, %.1f MiB in this rank's host memory",
                *(self.context.name, self.state.global_step + 1, *batch["latents"].shape[:2]),
                mebibytes(batch["latents"]),
            )
        if self.stage.mode != "standard" and self._batch_index() % _PROBE_EVERY == 0:
            self._row |= self._payload_dependence(batch)
        if self._batch_index() % self.stage.save_rollouts_every == 0:
            self._save_rollouts(inputs, rollouts, texts, rewards, correct, advantages)
        return batch

    def _add_proximal_policy(self, batch: Batch) -> None:
        """What several updates on ``batch`` need of the weights before the first one (METHOD 2.3).

        Log-probs by the code path of the loss, the advantages (B, N) times their importance weight, and the
        states where the rollouts kept none: later on they could not be had any more.
        """
        size = self.args.per_device_train_batch_size
        parts = [_rows(batch, slice(start, start + size)) for start in range(0, len(batch["prompt_ids"]), size)]
        if self._recomputes_latents:
            states = [self._recomputed_latents(part).cpu() for part in parts]
            batch["latents"] = torch.cat(states)
            parts = [part | {"latents": latents} for part, latents in zip(parts, states, strict=True)]
        batch["old_per_token_logps"] = torch.cat([self._log_probs(part, self.stage.scorer) for part in parts])
        cap = self.stage.importance_cap
        if cap is None:
            return
        mask = batch["tool_mask"]
        proximal, rollout = batch["old_per_token_logps"], batch["rollout_log_probs"]
        weights = importance_weights(proximal, rollout, mask, cap, self.stage.importance_level)
        batch["advantages"] = batch["advantages"][:, None] * weights
        sums = torch.stack([(weights * mask).sum(), ((weights >= cap) * mask).sum(), mask.sum()]).double()
        total, capped, count = self._of_all_ranks(sums[None]).sum(0).tolist()
        self._row |= {"importance_mean": total / max(count, 1), "importance_capped": capped / max(count, 1)}

    def _sample(self, prompts: list[list[int]], first_row: int) -> Rollouts:
        with self._whole_weights():
            return sample_rollouts(
                self._policy,
                prompts,
                self.stage,
                eos_token_ids=self.eos_token_ids,
                pad_token_id=self._tokenizer.pad_token_id,  # type: ignore[arg-type]
                seed=sampling_seed(stage_seed(self.context), self._batch_index()),
                first_row=first_row,
            )

    @contextmanager
    def _whole_weights(self) -> Iterator[None]:
        """Under ZeRO-3: weights gathered once, no hook that talks to other ranks (some decode longer than others)."""
        if not self._dist.is_zero3:
            yield
            return
        engine: Any = self.model_wrapped
        with unwrap_model_for_generation(engine, self.accelerator):
            hooks = (
                engine.module._forward_pre_hooks
            )  # DeepSpeed compares the order of modules over ranks; TRL leaves that one
            removed = dict(hooks)
            hooks.clear()
            try:
                yield
            finally:
                hooks.update(removed)

    def _batch_index(self) -> int:
        return self.state.global_step // self.stage.updates_per_batch

    def _of_all_ranks(self, values: Tensor) -> Tensor:
        gathered: Any = self.accelerator.gather(values)
        return gathered

    def _save_rollouts(
        self,
        problems: list[dict[str, Any]],
        rollouts: Rollouts,
        texts: list[str],
        rewards: list[float],
        correct: list[float],
        advantages: Tensor,
    ) -> None:
        rows = [
            {
                "step": self.state.global_step + 1,
                "problem_id": problem["problem_id"],
                "sample": index % self.stage.group_size,
                "mode": self.stage.mode,
                "prompt": problem["prompt"],
                "completion": texts[index],
                "answer": problem["answer"],
                "correct": None if math.isnan(correct[index]) else bool(correct[index]),
                "reward": None if math.isnan(rewards[index]) else rewards[index],
                "advantage": advantages[index].item(),
                "num_tokens": len(rollouts.token_ids[index]),
                "finish_reason": "length" if rollouts.truncated[index] else "stop",
            }
            for index, problem in enumerate(problems)
        ]
        everyone = gather_object(rows)
        if self.is_world_process_zero():
            append_rollouts(self.context.folder.rollouts_path, everyone)

    # --- the loss --------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: Batch) -> Tensor:
        """TRL's loss of one micro-batch, its log-probs computed by the stage's scorer."""
        if self._recomputes_latents and "latents" not in inputs:
            inputs = inputs | {"latents": self._recomputed_latents(inputs)}
        scorer = self._scorer(model, inputs, self.stage.scorer, self._policy_step())
        loss = super()._compute_loss(scorer, inputs)
        if self._step % (self._micro_batches * self.num_iterations) < self._micro_batches:
            # No update on this batch yet, so the weights are those that sampled it.
            mask, latents = inputs["completion_mask"], inputs.get("latents")
            latents = None if latents is None else latents.to(mask.device)
            sums = mismatch_sums(inputs["rollout_log_probs"], scorer.log_probs, mask, latents, scorer.states)
            self._mismatch.append(sums)
            if len(self._mismatch) == self._micro_batches:
                parts = self._of_all_ranks(torch.stack(self._mismatch))
                self.watch("log-probs of the rollouts", parts)
                self._row |= mismatch_metrics(parts)
                self._mismatch.clear()
        return loss

    def _scorer(self, model: Any, batch: Batch, scorer: ScorerConfig, policy_step: int) -> Scorer:
        # Updates after the first one of a batch find the recorded states stale.
        anchored = self.stage.updates_per_batch == 1
        body = self._policy.base_model
        return Scorer(model, body, self.stage.mode, scorer, batch, policy_step=policy_step, anchored=anchored)

    def _policy_step(self) -> int:
        """The step whose weights sampled the batch in use."""
        return self._batch_index() * self.stage.updates_per_batch

    @property
    def _recomputes_latents(self) -> bool:
        return self.stage.mode != "standard" and self.stage.latents == "recompute"

    def _recomputed_latents(self, batch: Batch) -> Tensor:
        """The states (B, N, D) that rollouts of the present weights were decoded under, by exact passes.

        Raises ValueError for rollouts of other weights.
        """
        scorer = self._scorer(self.model, batch, SequentialScorer(), self.state.global_step)
        self._score(scorer, batch)
        assert scorer.states is not None
        return scorer.states

    def _log_probs(self, batch: Batch, scorer: ScorerConfig) -> Tensor:
        """Log-probs (B, N) of completions at the current weights, by the code path of the loss."""
        return self._score(self._scorer(self.model, batch, scorer, self._policy_step()), batch)

    @torch.no_grad()
    def _score(self, scorer: Scorer, batch: Batch) -> Tensor:
        return self._get_per_token_logps_and_entropies(
            scorer,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].shape[1],
        )[0]

    # --- what is watched -------------------------------------------------------------------------

    def _payload_dependence(self, batch: Batch) -> dict[str, float]:
        """Mean log-prob that a token loses when the carried states are zeroed, or another rollout's."""
        batch = _rows(batch, slice(0, _PROBE_ROWS))
        latents, mask = batch.get("latents"), batch["completion_mask"]
        if latents is None:
            latents = self._recomputed_latents(batch)
        swapped = swapped_latents(latents, mask.sum(1).to(latents.device))
        changed = {"payload_zeroed": torch.zeros_like(latents), "payload_swapped": swapped}
        # The first token's distribution comes before the first carried state.
        mask = mask[:, 1:]
        losses = []
        for states in changed.values():
            loss = batch["rollout_log_probs"] - self._log_probs(batch | {"latents": states}, ReplayScorer(passes=0))
            losses.append((loss[:, 1:] * mask).sum())
        totals = self._of_all_ranks(torch.stack([*losses, mask.sum()]).double()[None]).sum(0).tolist()
        return {name: total / max(totals[-1], 1.0) for name, total in zip(changed, totals, strict=False)}

    def _weight_norms(self) -> dict[str, float]:
        """Frobenius norms of the feedback's matrices that are trained: W_U is ``value``, W_G ``gate``."""
        matrices = {
            name.split(".")[-2].removesuffix("_proj"): parameter
            for name, parameter in self._policy.named_parameters()
            if "feedback" in name and parameter.requires_grad
        }
        with self._dist.gather_params(list(matrices.values())):
            return {f"norm_{name}": matrix.detach().norm().item() for name, matrix in matrices.items()}

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        if "loss" in logs and self._clock is not None:
            now = time.perf_counter()
            logs = logs | self._row | {"seconds": now - self._clock}
            self._clock = now
            self._metrics["train"].pop("step_time", None)  # TRL's, without the optimiser
        super().log(logs, start_time)

    # --- resuming --------------------------------------------------------------------------------

    def extra_state(self) -> dict[str, Any]:
        return {"micro_step": self._step}  # TRL goes by it to decide when to sample, and does not keep it

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self._step = state["micro_step"]
        if self.is_world_process_zero():
            truncate_rollouts(self.context.folder.rollouts_path, self.state.global_step)


def _rows(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch; what is one number for all of it stays."""
    return {name: values[rows] if values.dim() else values for name, values in batch.items()}
