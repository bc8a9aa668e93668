"""What every part of the configuration is built of, and the sections on model, tokenizer and data.

Users import these from :mod:`fbt_rl.config`. No torch here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fbt_rl.config.presets import PRESETS
from fbt_rl.config.task_presets import TASKS

Mode = Literal["standard", "soft", "fused"]
PassActivations = Literal["keep", "recompute", "offload"]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]  # of a running mean
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """Base of every section: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- model and tokenizer -------------------------------------------------------------------------


class ModelConfig(Strict):
    """Shape of the decoder and kind of feedback; every unset field comes from ``preset``.

    ``path`` starts from an existing model folder instead and then no shape may be given.
    """

    preset: Literal["tiny", "paper-1b"] = "tiny"
    path: str | None = None
    fusion: Literal["gate", "concat", "add", "none"] = "gate"
    vocab_size: Count | None = None  # None: the tokenizer's
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    sliding_window: Count
    full_attention_interval: Count  # every n-th layer attends to everything
    max_position_embeddings: Count
    rope_theta: Positive
    rope_theta_full: Positive  # of the full-attention layers
    depth_scaling: bool = True  # each residual branch times 1 / sqrt(2 layers)
    tie_word_embeddings: bool = True
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        preset = values.get("preset", "tiny")
        return {**PRESETS.get(preset, PRESETS["tiny"]), **values}

    @model_validator(mode="after")
    def _heads_fit(self) -> ModelConfig:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        return self


class TokenizerConfig(Strict):
    """``characters`` and ``bpe`` are trained on the pretraining documents; ``path`` loads one."""

    kind: Literal["characters", "bpe", "path"] = "characters"
    vocab_size: Count = 4096  # bpe only
    path: str | None = None

    @model_validator(mode="after")
    def _path_given(self) -> TokenizerConfig:
        if (self.kind == "path") != (self.path is not None):
            raise ValueError("tokenizer.path is needed with kind 'path', and only there")
        return self


# --- data ----------------------------------------------------------------------------------------


class ArithmeticData(Strict):
    """Seeded chains of one-digit ``+``/``-`` terms with worked solutions in several styles."""

    kind: Literal["arithmetic"] = "arithmetic"
    split: Literal["train", "heldout"] = "train"
    size: Count
    min_terms: Annotated[int, Field(ge=2)] = 2
    max_terms: Annotated[int, Field(ge=2, le=16)] = 5
    styles: dict[Literal["steps", "results", "skipping", "answer"], Annotated[float, Field(ge=0.0)]] = {
        "steps": 0.25,
        "results": 0.25,
        "skipping": 0.25,
        "answer": 0.25,
    }

    @model_validator(mode="after")
    def _ranges(self) -> ArithmeticData:
        if self.min_terms > self.max_terms:
            raise ValueError(f"min_terms {self.min_terms} is above max_terms {self.max_terms}")
        if sum(self.styles.values()) <= 0:
            raise ValueError("at least one style needs a positive weight")
        return self


class HubData(Strict):
    """A data set of the Hugging Face hub, or a local copy of its folder; downloaded once and kept."""

    path: str
    name: str | None = None  # of a configuration
    split: str = "test"
    revision: str | None = None


class FileData(Strict):
    """Rows of local files, or of a data set of the hub. Plain text: one document a blank-line-separated block of
    ``text_chars``.

    ``format: auto`` goes by the ending: ``.txt`` is text; ``.jsonl``, ``.json``, ``.csv`` and
    ``.parquet`` are tables whose columns are named here. ``preset`` names a known problem set and fills in what is
    not given (:mod:`fbt_rl.config.task_presets`); without ``paths`` it is taken from the hub.
    """

    kind: Literal["files"] = "files"
    preset: str | None = None
    paths: list[str] = []
    hub: HubData | None = None
    format: Literal["auto", "text", "jsonl", "json", "csv", "parquet"] = "auto"
    prompt: str | None = None  # column names; of the prompt also a text with names of columns in braces
    completion: str | None = None
    answer: str | None = None
    tests: str | None = None  # of a program, in place of the answer: see reward.code.program
    extra_tests: str | None = None  # further ones, a list as tests then are
    entry_point: str | None = None
    setup: str | None = None
    problem_id: str | None = None  # default: the file's name and the row's number
    level: str | None = None
    subject: str | None = None
    template: str = "{prompt}"  # what is asked: a text with {prompt} and names of columns in braces
    shots: Annotated[int, Field(ge=0)] = 0  # solved examples before each prompt: the first rows, which are not asked
    shots_paths: list[str] = []  # other files with the same columns, which the examples are taken from
    text_chars: Count = 2000  # target length of one document cut from plain text
    offset: Annotated[int, Field(ge=0)] = 0
    limit: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        preset = TASKS.get(values.get("preset") or "") if isinstance(values, dict) else None
        if preset is None:
            return values
        return {**preset, **({"hub": None} if values.get("paths") else {}), **values}

    @model_validator(mode="after")
    def _one_source(self) -> FileData:
        if self.preset is not None and self.preset not in TASKS:
            raise ValueError(f"no preset {self.preset!r}; there are {', '.join(TASKS)}")
        if bool(self.paths) == (self.hub is not None):
            raise ValueError("name the data files in paths, or a data set in hub, and not both")
        if self.shots and self.completion is None:
            raise ValueError("shots are solved examples: name the column of the solutions (completion)")
        return self

    @property
    def source(self) -> str:
        """What messages call the data."""
        return self.paths[0] if self.hub is None else f"{self.hub.path} ({self.hub.split})"


DataConfig = Annotated[ArithmeticData | FileData, Field(discriminator="kind")]


def has_tests(data: Any) -> bool:
    """Whether a data section, validated or not yet, has tests of programs instead of answers."""
    if isinstance(data, dict):
        return bool(data.get("tests") or TASKS.get(data.get("preset") or "", {}).get("tests"))
    return getattr(data, "tests", None) is not None
