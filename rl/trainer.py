"""GRPO under latent feedback: TRL's loop and loss, with rollouts, rewards and scoring of our own.

Two of TRL's methods are replaced: how a batch is made (decode, judge, centre), and what its loss
calls as the model (:class:`~rl.replay.ReplayScorer`). The order of prompts, micro-batches, repeated
updates, clipping and normalisation stay TRL's.

Letters: B rollouts of this rank, G samples of a prompt, P and N prompt and completion columns, D width.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOTrainer
from trl.models import unwrap_model_for_generation
from trl.trainer.utils import split_tensor_dict

from fbt_rl.config import RLStage
from fbt_rl.training.arguments import stage_seed
from fbt_rl.training.trainer import StageTrainer
from rl import record
from rl.advantage import group_advantages
from rl.monitor import Outcomes, mismatch_metrics, mismatch_sums, swapped_latents
from rl.replay import ReplayScorer
from rl.rewards import StageRewards
from rl.rollout import Rollouts, sample_rollouts, sampling_seed

Batch = dict[str, Tensor]
_PROBE_EVERY, _PROBE_ROWS = 10, 32  # payload dependence: how often (batches), on how many rows of a rank


class ReplayTrainer(StageTrainer, GRPOTrainer):
    """Trains on the rollouts of an RL stage. The data's rows are problems with their ``prompt_ids``."""

    stage: RLStage

    def __init__(self, *, rewards: StageRewards, **arguments: Any):
        super().__init__(reward_funcs=[rewards], **arguments)
        self._rewards = rewards
        self._row: dict[str, Any] = {}  # metrics of the batch in use
        self._mismatch: list[Tensor] = []  # of its micro-batches so far
        self._clock: float | None = None
        model = self.accelerator.unwrap_model(self.model)
        self._policy = model.get_base_model() if hasattr(model, "get_base_model") else model  # without PEFT's wrapper

    # --- a batch of rollouts ---------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Sample, judge and lay out a batch. ``inputs``: this rank's problems, each repeated G times in a row."""
        if self._clock is None:
            self._clock = time.perf_counter()
        rollouts = self._sample(inputs)
        texts = self._tokenizer.batch_decode(rollouts.token_ids, skip_special_tokens=True)
        columns = {name: [row[name] for row in inputs] for name in inputs[0]}
        prompts = columns.pop("prompt")
        columns = {name: values for name, values in columns.items() if name not in ("prompt_ids", "completion")}
        judged = self._rewards(prompts, texts, rollouts.token_ids, rollouts.truncated, **columns)

        lengths = [len(ids) for ids in rollouts.token_ids]
        table = torch.tensor([*judged, lengths, rollouts.truncated], dtype=torch.float64, device=rollouts.prompt_ids.device)
        everyone = Outcomes(*self.accelerator.gather(table.T.contiguous()).unbind(1))  # ranks in order: groups stay whole
        mine = slice(self._first_row(inputs), self._first_row(inputs) + len(inputs))
        advantages = group_advantages(everyone.rewards, self.num_generations, self.stage.advantage_scale)[mine]
        self._row = everyone.metrics() | self._weight_norms()

        judged_rows = ~everyone.rewards.isnan()
        batch: Batch = {
            "prompt_ids": rollouts.prompt_ids,
            "prompt_mask": rollouts.prompt_mask,
            "completion_ids": rollouts.completion_ids,
            "completion_mask": rollouts.completion_mask,
            "advantages": advantages.float(),
            "num_items_in_batch": everyone.lengths[judged_rows].sum(),
            # TRL's name for the tokens that count in the loss: none of a completion that could not be judged.
            "tool_mask": rollouts.completion_mask * judged_rows[mine][:, None],
            "rollout_log_probs": rollouts.log_probs,
        }
        if rollouts.latents is not None:
            batch["latents"] = rollouts.latents
            if self._batch_index() % _PROBE_EVERY == 0:
                self._row |= self._payload_dependence(batch)
        if self.stage.updates_per_batch > 1:
            parts = split_tensor_dict(batch, self.args.steps_per_generation)
            scored = [self._log_probs(part, self.stage.replay_passes) for part in parts]
            batch["old_per_token_logps"] = torch.cat(scored)
        self._save_rollouts(inputs, rollouts, texts, *judged, advantages)
        return batch

    def _sample(self, inputs: list[dict[str, Any]]) -> Rollouts:
        prompts = [row["prompt_ids"] for row in inputs[:: self.num_generations]]
        # Under ZeRO-3 the weights are gathered once; ranks decode for different numbers of steps.
        whole = unwrap_model_for_generation(self.model_wrapped, self.accelerator) if self._dist.is_zero3 else nullcontext()
        with whole:
            return sample_rollouts(
                self._policy,
                prompts,
                self.stage,
                eos_token_ids=self.eos_token_ids,
                pad_token_id=self._tokenizer.pad_token_id,
                seed=sampling_seed(stage_seed(self.context), self._batch_index()),
                first_row=self._first_row(inputs),
            )

    def _first_row(self, inputs: list[dict[str, Any]]) -> int:
        return self.accelerator.process_index * len(inputs)

    def _batch_index(self) -> int:
        return self.state.global_step // self.stage.updates_per_batch

    def _save_rollouts(
        self,
        inputs: list[dict[str, Any]],
        rollouts: Rollouts,
        texts: list[str],
        rewards: list[float],
        correct: list[float],
        advantages: Tensor,
    ) -> None:
        """Keep every ``save_rollouts_every``-th batch."""
        if self._batch_index() % self.stage.save_rollouts_every:
            return
        rows = [
            {
                "step": self.state.global_step + 1,
                "problem_id": problem["problem_id"],
                "sample": index % self.num_generations,
                "mode": self.stage.mode,
                "prompt": problem["prompt"],
                "completion": texts[index],
                "answer": problem["answer"],
                "correct": None if correct[index] != correct[index] else bool(correct[index]),
                "reward": None if rewards[index] != rewards[index] else rewards[index],
                "advantage": advantages[index].item(),
                "num_tokens": len(rollouts.token_ids[index]),
                "finish_reason": "length" if rollouts.truncated[index] else "stop",
            }
            for index, problem in enumerate(inputs)
        ]
        everyone = gather_object(rows)
        if self.is_world_process_zero():
            record.append_rollouts(self.context.folder.rollouts_path, everyone)

    # --- the loss --------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: Batch) -> Tensor:
        """TRL's loss of one micro-batch, its log-probs computed by replay."""
        scorer = self._scorer(model, inputs, self.stage.replay_passes)
        loss = super()._compute_loss(scorer, inputs)
        micro_batches = self.args.steps_per_generation
        if self._step % (micro_batches * self.num_iterations) < micro_batches:  # the weights are still the behaviour's
            mask, latents = inputs["completion_mask"], inputs.get("latents")
            sums = mismatch_sums(inputs["rollout_log_probs"], scorer.log_probs, mask, latents, scorer.states)
            self._mismatch.append(sums)
            if len(self._mismatch) == micro_batches:
                everyone = self.accelerator.gather(torch.stack(self._mismatch))  # (ranks × micro-batches, sums)
                self.watch("log-probs of the rollouts", everyone)
                self._row |= mismatch_metrics(everyone)
                self._mismatch.clear()
        return loss

    def _scorer(self, model: Any, batch: Batch, passes: int) -> ReplayScorer:
        return ReplayScorer(model, self._policy.base_model, self.stage.mode, passes, batch)

    @torch.no_grad()
    def _log_probs(self, batch: Batch, passes: int) -> Tensor:
        """Log-probs (B, N) of a batch's completions at the current weights, by the code path of the loss."""
        return self._get_per_token_logps_and_entropies(
            self._scorer(self.model, batch, passes),
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].shape[1],
        )[0]

    # --- what is watched -------------------------------------------------------------------------

    def _payload_dependence(self, batch: Batch) -> dict[str, float]:
        """Mean log-prob a token loses when the carried states are zeroed, or another rollout's."""
        rows = {name: value[:_PROBE_ROWS] if value.dim() else value for name, value in batch.items()}
        # The first token's distribution comes before the first carried state.
        mask = rows["completion_mask"][:, 1:]
        states, lengths = rows["latents"], rows["completion_mask"].sum(1)
        changed = {"payload_zeroed": torch.zeros_like(states), "payload_swapped": swapped_latents(states, lengths)}
        losses = [
            ((rows["rollout_log_probs"] - self._log_probs(rows | {"latents": latents}, 0))[:, 1:] * mask).sum()
            for latents in changed.values()
        ]
        totals = self.accelerator.reduce(torch.stack([*losses, mask.sum()]).double(), reduction="sum")
        return {name: (total / totals[-1].clamp(min=1)).item() for name, total in zip(changed, totals, strict=False)}

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
        return {"micro_step": self._step}  # TRL goes by it to decide when to sample, and forgets it

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self._step = state["micro_step"]
        if self.is_world_process_zero():
            record.truncate_rollouts(self.context.folder.rollouts_path, self.state.global_step)
