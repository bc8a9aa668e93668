"""The run configuration: one YAML file, validated before any work starts.

Everything a run does is decided here, so this module imports neither torch nor ray. Every model is
frozen and refuses unknown keys; :mod:`fbt_rl.config.file` reads, overrides and writes it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, field_validator, model_serializer, model_validator

from fbt_rl.config.presets import LENGTHS
from fbt_rl.config.rl import GuardConfig, JacobiScorer, LimitsConfig, ReplayScorer, ScorerConfig
from fbt_rl.config.sections import ArithmeticData as ArithmeticData
from fbt_rl.config.sections import (
    Count,
    DataConfig,
    Decay,
    Fraction,
    Mode,
    ModelConfig,
    NotNegative,
    PassActivations,
    Positive,
    Strict,
    TokenizerConfig,
    has_tests,
)
from fbt_rl.config.sections import FileData as FileData
from fbt_rl.config.sections import HubData as HubData

# --- training ------------------------------------------------------------------------------------


class PassPhase(Strict):
    """From ``start_fraction`` of the steps on, pass count K is drawn with ``weights`` (K = 1, 2, ...)."""

    start_fraction: Fraction = 0.0
    weights: Annotated[list[Annotated[float, Field(ge=0.0)]], Field(min_length=1)]

    @field_validator("weights")
    @classmethod
    def _not_all_zero(cls, weights: list[float]) -> list[float]:
        if sum(weights) <= 0:
            raise ValueError("at least one pass count needs a positive weight")
        return weights


class OptimizerConfig(Strict):
    """AdamW, or NorMuon for matrices and Adam for the rest, with a warm-up, stable, decay (WSD) schedule."""

    name: Literal["adamw", "normuon"] = "adamw"
    learning_rate: Annotated[float, Field(ge=0.0)]  # normuon: of the matrices
    adam_learning_rate: Annotated[float, Field(ge=0.0)] | None = None  # normuon: of everything else
    betas: tuple[Decay, Decay] = (0.9, 0.95)  # Adam's
    normuon_betas: tuple[Decay, Decay] = (0.95, 0.95)  # momentum, and the decay of the row moments
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01  # of matrices
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    decay_fraction: Fraction = 0.25  # the last part of the run, cooled to zero
    decay: Literal["linear", "sqrt"] = "linear"
    max_grad_norm: Annotated[float, Field(ge=0.0)] = 1.0  # 0: no clipping

    @model_validator(mode="after")
    def _two_rates_with_normuon(self) -> OptimizerConfig:
        if (self.name == "normuon") != (self.adam_learning_rate is not None):
            raise ValueError(
                "name normuon needs adam_learning_rate, the rate of embeddings, norms and gates"
                if self.name == "normuon"
                else "adam_learning_rate is for name normuon; AdamW has one learning_rate"
            )
        return self


class ObjectiveConfig(Strict):
    """The multi-pass loss (METHOD: ``NTP_1 + lambda / (K - 1) * sum of NTP_2..K``)."""

    passes: Annotated[list[PassPhase], Field(min_length=1)]
    feedback_weight: Annotated[float, Field(ge=0.0)] = 1.0  # lambda
    jitter: Annotated[float, Field(ge=0.0)] = 0.02
    prefix_mixing: bool = True
    z_loss: Annotated[float, Field(ge=0.0)] = 1e-5  # in the cool-down only

    @model_validator(mode="after")
    def _phases_in_order(self) -> ObjectiveConfig:
        starts = [phase.start_fraction for phase in self.passes]
        if starts[0] != 0.0 or starts != sorted(set(starts)):
            raise ValueError(f"start_fractions must rise from 0, got {starts}")
        return self


class StageBase(Strict):
    init_from: str | None = None  # a stage above; default: the latest training stage above
    seed: Annotated[int, Field(ge=0)] | None = None  # stages with the same one draw the same; default: by its name


class TrainingStage(StageBase):
    steps: Count
    checkpoint_every: Count = 100
    keep_checkpoints: Count = 2
    log_every: Count = 10
    gradient_checkpointing: bool = False


class RowsStage(TrainingStage):
    batch_rows: Count  # rows of one optimiser step, over all ranks
    micro_batch_rows: Count | None = None  # rows of one forward on one rank; default: all of its share
    row_length: Annotated[int, Field(ge=8)]
    # Of passes before the last: kept, computed again in the backward pass, or kept in the host's memory.
    pass_activations: PassActivations = "keep"
    optimizer: OptimizerConfig
    objective: ObjectiveConfig


class PretrainStage(RowsStage):
    kind: Literal["pretrain"] = "pretrain"
    data: Annotated[list[DataConfig], Field(min_length=1)]


class ExtendStage(RowsStage):
    """Pretraining's loop on longer rows with another RoPE base on the full-attention layers."""

    kind: Literal["extend"] = "extend"
    data: Annotated[list[DataConfig], Field(min_length=1)]
    rope_theta_full: Positive


class LoraConfig(Strict):
    """Low-rank adapters by PEFT; the feedback module is always trained whole."""

    r: Count = 16
    alpha: Positive = 32.0
    dropout: Fraction = 0.0
    target_modules: list[str] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class SFTStage(RowsStage):
    kind: Literal["sft"] = "sft"
    data: DataConfig
    plain_prompt_probability: Fraction = 0.5  # else only the first position stays plain
    lora: LoraConfig | None = None


class RewardConfig(Strict):
    """One reward: a built-in name, ``module:function`` or ``path/to/file.py:function``."""

    use: str = "math"
    weight: FiniteFloat = 1.0
    args: dict[str, Any] = {}


class LengthConfig(Strict):
    """The reward for short answers (:mod:`reward.length`) by name, and its settings; lengths in tokens."""

    use: str = "relative"
    count: Literal["all", "reasoning"] = "all"  # reasoning: without the answer's tokens
    weight: Annotated[float, Field(ge=0.0, le=0.5)] | None = None
    sigma_min: Positive | None = None
    alpha: Annotated[float, Field(ge=0.0)] | None = None
    beta: Annotated[float, Field(ge=0.0)] | None = None
    max_penalty: Annotated[float, Field(ge=0.0)] | None = None
    target: Count | None = None
    max_length: Count | None = None
    buffer: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, values: Any) -> Any:
        return LENGTHS.get(str(values.get("use", "relative")), {}) | values if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _settings_fit(self) -> LengthConfig:
        if (takes := LENGTHS.get(self.use)) is None:
            raise ValueError(f"no length reward {self.use!r}; there are {', '.join(LENGTHS)}")
        given = self.settings()
        if set(given) != set(takes):
            raise ValueError(f"{self.use!r} takes {', '.join(takes)}, all of them and no other, got {sorted(given)}")
        return self

    def settings(self) -> dict[str, Any]:
        """What the reward is called with."""
        return {name: value for name, value in self if name not in ("use", "count") and value is not None}

    @model_serializer(mode="wrap")
    def _without_the_unset(self, handler: Any) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


class RLStage(TrainingStage):
    """GRPO with rollouts decoded in ``mode`` and scored by ``scorer``.

    Rollouts of mode ``standard`` carry no latents: to them ``scorer`` and ``latents`` make no difference.
    """

    kind: Literal["rl"] = "rl"
    data: DataConfig
    log_every: Count = 1  # the mismatch is to be seen at every step
    mode: Mode = "soft"
    scorer: ScorerConfig = ReplayScorer()
    latents: Literal["store", "recompute"] = "store"  # kept in the host's memory, or computed again before scoring
    prompts_per_step: Count
    group_size: Annotated[int, Field(ge=2)]
    micro_batch_rows: Count | None = None  # rollouts of one forward on one rank
    max_new_tokens: Count
    temperature: Positive = 1.0
    updates_per_batch: Count = 1
    clip_low: Positive = 0.2
    clip_high: Positive = 0.28  # cispo: its one bound on the ratio is 1 + clip_high
    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo"] = "dapo"
    importance_level: Literal["token", "sequence"] = "token"  # one ratio a token, or one a rollout (GSPO)
    importance_cap: Annotated[float, Field(ge=1.0)] | None = 2.0  # of pi_prox / pi_roll, with several updates a batch
    advantage_scale: Literal["batch", "group", "none"] = "batch"
    rewards: Annotated[list[RewardConfig], Field(min_length=1)] = [RewardConfig()]  # the first judges correctness
    reward_bound: Positive = 1e3  # a score beyond it is an error of the reward's, and not judged
    length: LengthConfig | None = LengthConfig()
    reasoning_marker: str = "</think>"  # ends the reasoning; else the last \boxed or line #### does
    guard: GuardConfig | None = None  # of accuracy, against length.weight
    degenerate_groups: Literal["keep", "drop"] = "keep"  # groups all right or all wrong
    max_resamples: Annotated[int, Field(ge=0, le=64)] = 0  # times a degenerate group is tried again with a fresh prompt
    entropy_bonus: NotNegative = 0.0  # times the mean entropy of a token
    kl_weight: NotNegative = 0.0  # times the mean KL of a token to the model that RL starts from
    standard_weight: NotNegative = 0.0  # times the next-token loss of plain passes over correct rollouts
    optimizer: OptimizerConfig
    only_rollouts: bool = False  # write the first batch to <stage>/batch/ and end there, the model as it was
    saved_batch: str | None = None  # such a folder, trained on instead of sampling
    save_rollouts_every: Count = 20  # batches of rollouts
    probe_every: Count = 10  # batches of rollouts: payload dependence, gradient cosines
    limits: LimitsConfig = LimitsConfig()
    lora: LoraConfig | None = None

    @model_validator(mode="after")
    def _checkpoints_between_batches(self) -> RLStage:
        if self.checkpoint_every % self.updates_per_batch:
            raise ValueError(
                f"checkpoint_every {self.checkpoint_every} is not a multiple of updates_per_batch "
                f"{self.updates_per_batch}: a checkpoint lies between batches of rollouts"
            )
        return self

    @model_validator(mode="after")
    def _scoring_makes_sense(self) -> RLStage:
        if self.mode != "standard" and isinstance(self.scorer, JacobiScorer) and self.scorer.passes == 1:
            raise ValueError(
                f"scorer jacobi with passes 1 never reads the feedback: it scores mode 'standard', not {self.mode!r}; "
                "set scorer.passes to 2 or more"
            )
        if self.latents == "recompute" and self.scorer.use != "replay":
            raise ValueError(
                f"latents 'recompute' is for scorer replay; {self.scorer.use} reads no recorded states: set latents "
                "to 'store'"
            )
        if self.importance_level == "sequence" and self.loss_type != "grpo":
            raise ValueError(
                f"importance_level 'sequence' has one ratio for a whole rollout, but loss_type {self.loss_type!r} sums "
                "over tokens, so that rollouts would count by their length: set loss_type to 'grpo' (GSPO)"
            )
        return self

    @model_validator(mode="after")
    def _guard_has_something_to_turn(self) -> RLStage:
        if self.guard is None:
            return self
        if self.length is None or not self.length.weight:
            raise ValueError("guard lowers length.weight while accuracy suffers: set a length reward, or drop guard")
        if self.guard.every % self.updates_per_batch:
            raise ValueError(
                f"guard.every {self.guard.every} is not a multiple of updates_per_batch {self.updates_per_batch}: "
                "accuracy is measured between batches of rollouts"
            )
        return self

    @model_validator(mode="after")
    def _one_half_at_a_time(self) -> RLStage:
        if self.saved_batch is not None and self.only_rollouts:
            raise ValueError("only_rollouts writes a batch and saved_batch trains on one: set one of them")
        if self.saved_batch is not None and self.steps != self.updates_per_batch:
            raise ValueError(
                f"saved_batch holds one batch, good for updates_per_batch {self.updates_per_batch} steps, but steps is "
                f"{self.steps}: make them equal"
            )
        return self

    @model_validator(mode="after")
    def _options_fit_together(self) -> RLStage:
        if self.max_resamples and self.degenerate_groups == "keep":
            raise ValueError("max_resamples replaces degenerate groups: set degenerate_groups to drop")
        if self.standard_weight and self.mode == "standard":
            raise ValueError("standard_weight protects mode 'standard' while another is trained: drop it, or set mode")
        return self


class EvalStage(StageBase):
    kind: Literal["eval"] = "eval"
    data: DataConfig
    modes: Annotated[list[Mode], Field(min_length=1)] = ["standard", "soft", "fused"]
    samples: Count = 1
    temperature: Annotated[float, Field(ge=0.0)] = 0.0  # 0: greedy
    max_new_tokens: Count
    batch_size: Count = 256
    chat: bool = True  # prompts go through the tokenizer's chat template, else in as they are
    stop: list[Annotated[str, Field(min_length=1)]] = []  # an answer ends before the first of these texts
    reasoning_marker: str = "</think>"  # ends the reasoning; else the last \boxed or line #### does
    reward: RewardConfig = RewardConfig()  # default: code where the data has tests, else math

    @model_validator(mode="before")
    @classmethod
    def _reward_fits_data(cls, values: Any) -> Any:
        if isinstance(values, dict) and "reward" not in values and has_tests(values.get("data")):
            return {**values, "reward": {"use": "code"}}
        return values


StageConfig = Annotated[PretrainStage | ExtendStage | SFTStage | RLStage | EvalStage, Field(discriminator="kind")]


# --- the run -------------------------------------------------------------------------------------


class ResourcesConfig(Strict):
    """What a stage's worker group asks of Ray. ``auto``: all GPUs, or up to two CPU ranks."""

    workers: Literal["auto"] | Count = "auto"
    cpus_per_worker: Count = 1
    gpus_per_worker: Annotated[float, Field(ge=0.0)] = 0.0
    threads: Count = 1  # torch threads of one worker
    grading: Literal["node", "ray"] = (
        "node"  # rewards are computed by the workers, or by Ray tasks on the CPUs that they leave
    )
    max_failures: Annotated[int, Field(ge=0)] = 1  # a lost worker group is started again this often


class DeepSpeedConfig(Strict):
    zero_stage: Literal[0, 1, 2, 3] = 2
    offload_optimizer: bool = False
    precision: Literal["fp32", "bf16"] = "fp32"
    extra: dict[str, Any] = {}  # merged into the derived DeepSpeed settings


class RunConfig(Strict):
    """A whole run: resolved, validated, and written to ``<run>/config.yaml``."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
    seed: Annotated[int, Field(ge=0)] = 0
    run_dir: str | None = None  # default: runs/<name>
    model: ModelConfig = Field(default_factory=lambda: ModelConfig.model_validate({}))
    tokenizer: TokenizerConfig = TokenizerConfig()
    trackers: list[Literal["wandb", "trackio", "mlflow"]] = []  # beside TensorBoard and metrics.jsonl
    resources: ResourcesConfig = ResourcesConfig()
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()
    reference: Literal["paper"] | None = None  # published numbers that the report lays beside the run's
    stages: Annotated[dict[str, StageConfig], Field(min_length=1)]

    @model_validator(mode="after")
    def _rows_fit_the_model(self) -> RunConfig:
        longest = self.model.max_position_embeddings
        for name, stage in self.stages.items():
            if isinstance(stage, PretrainStage) and self.model.path is None and stage.row_length > longest:
                raise ValueError(
                    f"stages.{name}.row_length is {stage.row_length}, above model.max_position_embeddings {longest}"
                )
        return self

    @model_validator(mode="after")
    def _stages_are_joined_up(self) -> RunConfig:
        trained: list[str] = []
        for name, stage in self.stages.items():
            if not name.replace("_", "").replace("-", "").isalnum():
                raise ValueError(f"stage name {name!r} may hold letters, digits, '-' and '_' only")
            if stage.init_from is not None and stage.init_from not in trained:
                raise ValueError(
                    f"stages.{name}.init_from is {stage.init_from!r}; the training stages above it are {trained}"
                )
            if stage.kind == "pretrain" and stage.init_from is not None:
                raise ValueError(f"stages.{name}: a pretrain stage starts afresh and takes no init_from")
            if stage.kind != "pretrain" and not trained and self.model.path is None:
                raise ValueError(f"stages.{name} needs a model: put a training stage above it or set model.path")
            if self.model.fusion == "none":
                modes = [stage.mode] if stage.kind == "rl" else stage.modes if stage.kind == "eval" else []
                if any(mode != "standard" for mode in modes):
                    raise ValueError(f"stages.{name} asks for {modes}; model.fusion 'none' has only mode 'standard'")
            if stage.kind != "eval":
                trained.append(name)
        return self

    def source_of(self, name: str) -> str | None:
        """Name of the stage whose model ``name`` starts from; None: ``model.path`` or a new model."""
        stage = self.stages[name]
        if stage.init_from is not None or stage.kind == "pretrain":
            return stage.init_from
        above = list(self.stages)[: list(self.stages).index(name)]
        trained = [other for other in above if self.stages[other].kind != "eval"]
        return trained[-1] if trained else None
