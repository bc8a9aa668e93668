"""ZeRO 0-3 on two ranks against one plain torch loop: gradients and steps, AdamW and NorMuon (METHOD 1.3, 1.4)."""

import json

import pytest
import torch
import torch.nn.functional as F
from stage_helpers import clean_process, context_of, finish_ranks, small_config, start_ranks
from transformers import set_seed

from fbt_rl.data.tokenization import build_tokenizer
from fbt_rl.model import FBTForCausalLM, from_model_config, load_model
from fbt_rl.training.arguments import stage_seed
from fbt_rl.training.objective import draw_fused_mask
from fbt_rl.training.optimizer import parameter_groups
from fbt_rl.training.rows import RowCollator, ShuffledRows
from fbt_rl.training.schedule import wsd_multiplier
from pretrain.data import build_rows, read_documents

pytestmark = pytest.mark.timeout(900)

PASSES = [1, 2, 3, 1, 1, 3, 2, 1]
STEPS, ROWS = len(PASSES), 8
ADAMW = {"learning_rate": 1e-3, "warmup_steps": 2, "weight_decay": 0.1, "max_grad_norm": 0.5}
NORMUON = {**ADAMW, "name": "normuon", "learning_rate": 1e-2, "adam_learning_rate": 1e-3}

# name -> (optimizer, tied head, gradient checkpointing, accumulation), each at every stage
CASES = {
    "tied": (ADAMW, True, False, 1),
    "untied-checkpointed": (ADAMW, False, True, 2),
    "normuon": (NORMUON, True, True, 2),
    "normuon-untied": (NORMUON, False, False, 1),
}
RUNS = [(case, stage) for case in CASES for stage in (0, 1, 2, 3)]


def config_of(case, stage):
    optimizer, tied, checkpointing, accumulation = CASES[case]
    weights = [{"start_fraction": step / STEPS, "weights": [0] * (k - 1) + [1]} for step, k in enumerate(PASSES)]
    return {
        "model__tie_word_embeddings": tied,
        "stages__pretrain__steps": STEPS,
        "stages__pretrain__batch_rows": ROWS,
        "stages__pretrain__micro_batch_rows": ROWS // 2 // accumulation,
        "stages__pretrain__gradient_checkpointing": checkpointing,
        "stages__pretrain__optimizer": optimizer,
        "stages__pretrain__objective": {"passes": weights, "jitter": 0.0, "z_loss": 1e-2},
        "stages__pretrain__checkpoint_every": 100,
        "deepspeed__zero_stage": stage,
    }


# Every rank runs all cases; before each optimiser step the raw gradients are kept by the first.
SCRIPT = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.utils import safe_get_full_grad
from fbt_rl.training import objective
from stage_helpers import context_of, run_stage, small_config

taken = []
step = DeepSpeedEngine.step
def keep(self, *args, **kwargs):
    if self.is_gradient_accumulation_boundary():
        gradients = {name: safe_get_full_grad(parameter) for name, parameter in self.module.named_parameters()}
        taken.append({name: value.clone() for name, value in gradients.items() if value is not None})
    return step(self, *args, **kwargs)
DeepSpeedEngine.step = keep

for run_dir, changes, guarded in json.loads(sys.argv[1]):
    taken.clear()
    if not guarded:  # these come last
        objective.idle_feedback = lambda *args: 0.0
    run_stage(small_config(**changes), Path(run_dir), "pretrain")
    if torch.distributed.get_rank() == 0:
        torch.save(taken, Path(run_dir) / "gradients.pt")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder of all runs on two ranks: ``<case>-<stage>``, and ``unguarded``."""
    base = tmp_path_factory.mktemp("zero")
    jobs = [(str(base / f"{case}-{stage}"), config_of(case, stage), True) for case, stage in RUNS]
    jobs.append((str(base / "unguarded"), config_of("tied", 3), False))
    finished = finish_ranks(start_ranks(SCRIPT, json.dumps(jobs)), timeout_s=800)
    assert [code for code, _ in finished] == [0, 0], "\n".join(output for _, output in finished)
    return base


def outcome(run_dir):
    """(raw gradients of each step, final weights) of a run on two ranks."""
    model = load_model(run_dir / "stages" / "pretrain" / "model")
    return torch.load(run_dir / "gradients.pt"), dict(model.named_parameters())


# --- the reference: one process, plain torch -------------------------------------------------------


class NorMuonReference:
    """METHOD 1.4, a matrix at a time. A gradient of zeros leaves everything as it is."""

    def __init__(self, matrices, peak, decay, mu=0.95, beta2=0.95, eps=1e-8):
        self.matrices, self.peak, self.decay, self.mu, self.beta2, self.eps = matrices, peak, decay, mu, beta2, eps
        self.momentum = [torch.zeros_like(matrix) for matrix in matrices]
        self.moment = [torch.zeros(len(matrix)) for matrix in matrices]

    @torch.no_grad()
    def step(self, rate):
        for matrix, momentum, moment in zip(self.matrices, self.momentum, self.moment, strict=True):
            if not matrix.grad.any():
                continue
            momentum.mul_(self.mu).add_(matrix.grad)
            x = momentum.T if momentum.shape[0] > momentum.shape[1] else momentum
            x = x / x.norm()
            for _ in range(5):
                a = x @ x.T
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
            o = x.T if momentum.shape[0] > momentum.shape[1] else x
            moment.mul_(self.beta2).add_((o * o).mean(1), alpha=1 - self.beta2)
            normed = o / (moment.sqrt()[:, None] + self.eps)
            normed = normed * (o.norm() / normed.norm())
            rows, columns = matrix.shape
            matrix.mul_(1 - rate**2 / self.peak * self.decay)
            matrix.sub_(rate * (rows / columns) ** 0.5 * normed)


def reference(case, tmp_path):
    """(raw gradients of each step, final weights) of ``case`` in one process without any trainer."""
    with clean_process():
        config = small_config(**config_of(case, 0))
        context = context_of(config, tmp_path, "pretrain")
        stage, seed = config.stages["pretrain"], stage_seed(context)
        documents = read_documents(stage.data, seed)
        tokenizer = build_tokenizer(config.tokenizer, documents["text"])
        rows, _ = build_rows(documents, tokenizer, stage.row_length)
        collate = RowCollator(stage.row_length, tokenizer.pad_token_id)
        ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")}
        model_config = from_model_config(config.model, len(tokenizer), **ids)
        set_seed(seed)
        model = FBTForCausalLM(model_config).train()
    matrices, others = (list(group.values()) for group in parameter_groups(model))
    settings = stage.optimizer
    if settings.name == "normuon":
        adam = torch.optim.AdamW(others, lr=settings.adam_learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
        normuon = NorMuonReference(matrices, settings.learning_rate, settings.weight_decay)
    else:
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        adam, normuon = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95)), None
    peaks = [group["lr"] for group in adam.param_groups]

    order, gradients = list(ShuffledRows(len(rows), STEPS * ROWS, seed)), []
    for step, passes in enumerate(PASSES):
        batch = collate([rows[index] for index in order[step * ROWS : (step + 1) * ROWS]])
        mask = draw_fused_mask(batch["position_ids"], batch["row_ids"], passes, seed=seed, step=step)
        states = model.model(
            batch["input_ids"],
            position_ids=batch["position_ids"],
            num_passes=passes,
            fused_mask=mask,
            output_passes=True,
            use_cache=False,
        ).pass_states
        cooling = step >= STEPS - round(settings.decay_fraction * STEPS)
        labels, losses = batch["labels"][:, 1:].flatten(), []
        for state in states:
            logits = model.lm_head(state[:, :-1]).flatten(0, 1)
            squares = logits[labels != -100].logsumexp(-1).square().mean()
            losses.append(F.cross_entropy(logits, labels, ignore_index=-100) + (1e-2 * squares if cooling else 0))
        loss = losses[0] + (sum(losses[1:]) / (passes - 1) if passes > 1 else 0)
        model.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        factor = wsd_multiplier(step, STEPS, settings)
        for group, peak in zip(adam.param_groups, peaks, strict=True):
            group["lr"] = peak * factor
        adam.step()
        if normuon:
            normuon.step(settings.learning_rate * factor)
    return gradients, dict(model.named_parameters())


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    return {case: reference(case, tmp_path_factory.mktemp(case)) for case in CASES}


def relative_errors(values, expected):
    """Per parameter, by norm; one whose gradient is zero throughout must be zero exactly."""
    assert set(values) == set(expected)
    return {
        name: float((values[name] - expected[name]).detach().norm() / expected[name].detach().norm().clamp(min=1e-30))
        for name in expected
    }


@pytest.mark.parametrize(("case", "stage"), RUNS)
def test_two_ranks_equal_plain_torch(trained, references, case, stage):
    gradients, weights = outcome(trained / f"{case}-{stage}")
    expected_gradients, expected_weights = references[case]
    assert len(gradients) == STEPS
    for step in range(STEPS):
        errors = relative_errors(gradients[step], expected_gradients[step])
        assert max(errors.values()) <= 1e-5, (step, max(errors, key=errors.get), max(errors.values()))
    errors = relative_errors(weights, expected_weights)
    assert max(errors.values()) <= 1e-5, (max(errors, key=errors.get), max(errors.values()))


def test_without_the_guard_stage_3_repeats_old_feedback_gradients(trained, references):
    """A one-pass batch after a several-pass one: what the guard of the objective is there for."""
    gradients, _ = outcome(trained / "unguarded")
    errors = relative_errors(gradients[3], references["tied"][0][3])
    feedback = {name: error for name, error in errors.items() if ".feedback." in name}
    assert min(feedback.values()) > 1
