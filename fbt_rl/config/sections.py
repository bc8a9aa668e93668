"""What every part of the configuration is built of, and the sections on model, tokenizer and data.

Users import these from :mod:`fbt_rl.config`. No torch here.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fbt_rl.config.presets import PRESETS
from fbt_rl.config.task_presets import TASKS

_LARGEST = 2**31 - 1


def _no_truth_value(value: Any) -> Any:
    """To Python ``true`` is the number 1; in a config it is a slip."""
    if isinstance(value, bool):
        raise ValueError("Input should be a number, not true or false")
    return value


def _plain(value: Any, depth: int = 0) -> Any:
    """Refuse what JSON has not: dates, NaN and infinity, keys that are no text."""
    if depth > 20:
        raise ValueError("Input is nested more than 20 deep")
    if isinstance(value, dict):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"Input has the key {odd[0]!r}: expected text")
        for entry in value.values():
            _plain(entry, depth + 1)
    elif isinstance(value, list):
        for entry in value:
            _plain(entry, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"Input holds {value}: expected finite numbers")
    elif not isinstance(value, str | int | float | bool | None):
        raise ValueError(f"Input holds a {type(value).__name__}: expected text, numbers, true, false, null, lists")
    return value


Mode = Literal["standard", "soft", "fused"]
PassActivations = Literal["keep", "recompute", "offload"]
Text = Annotated[str, Field(min_length=1)]
Settings = Annotated[dict[str, Any], AfterValidator(_plain)]  # of something that knows their meaning

# Every number of a config is one of these, with a bound at both ends: beyond it a value is a slip.
Int = Annotated[int, BeforeValidator(_no_truth_value)]
Float = Annotated[float, BeforeValidator(_no_truth_value)]  # finite (Strict)
Count = Annotated[Int, Field(ge=1, le=_LARGEST)]
Natural = Annotated[Int, Field(ge=0, le=_LARGEST)]
Seed = Annotated[Int, Field(ge=0, lt=2**32)]
Fraction = Annotated[Float, Field(ge=0.0, le=1.0)]
Decay = Annotated[Float, Field(ge=0.0, lt=1.0)]  # of a running mean
Positive = Annotated[Float, Field(gt=0.0, le=1e9)]
NotNegative = Annotated[Float, Field(ge=0.0, le=1e9)]
Signed = Annotated[Float, Field(ge=-1e9, le=1e9)]
RopeBase = Annotated[Float, Field(ge=10.0, le=1e12)]


class KeyFault(ValueError):
    """What a section's validator raises: ``key``, which lies below the section, does not fit the others."""

    def __init__(self, key: str, message: str):
        super().__init__(message)
        self.key = key


def named(table: dict[str, Any], name: Any) -> Any:
    """The entry of that name; None where there is none, or where ``name``, not validated yet, is no text."""
    return table.get(name) if isinstance(name, str) else None


class Strict(BaseModel):
    """Base of every section: immutable, an unknown key is an error, and numbers are finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


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
    rope_theta: RopeBase
    rope_theta_full: RopeBase  # of the full-attention layers
    depth_scaling: bool = True  # each residual branch times 1 / sqrt(2 layers)
    tie_word_embeddings: bool = True
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {**(named(PRESETS, values.get("preset")) or PRESETS["tiny"]), **values}

    @model_validator(mode="after")
    def _heads_fit(self) -> ModelConfig:
        if self.hidden_size % self.num_attention_heads:
            raise KeyFault(
                "hidden_size",
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}",
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise KeyFault(
                "num_attention_heads",
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}",
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
            raise KeyFault("path", "a path is needed with kind 'path', and only there")
        return self


# --- data ----------------------------------------------------------------------------------------


class ArithmeticData(Strict):
    """Seeded chains of one-digit ``+``/``-`` terms with worked solutions in several styles."""

    kind: Literal["arithmetic"] = "arithmetic"
    split: Literal["train", "heldout"] = "train"
    size: Count
    min_terms: Annotated[Int, Field(ge=2, le=16)] = 2
    max_terms: Annotated[Int, Field(ge=2, le=16)] = 5
    styles: dict[Literal["steps", "results", "skipping", "answer"], NotNegative] = {
        "steps": 0.25,
        "results": 0.25,
        "skipping": 0.25,
        "answer": 0.25,
    }

    @model_validator(mode="after")
    def _ranges(self) -> ArithmeticData:
        if self.min_terms > self.max_terms:
            raise KeyFault("min_terms", f"min_terms {self.min_terms} is above max_terms {self.max_terms}")
        if sum(self.styles.values()) <= 0:
            raise KeyFault("styles", "at least one style needs a positive weight")
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
    shots: Natural = 0  # solved examples before each prompt: the first rows, which are not asked
    shots_paths: list[str] = []  # other files with the same columns, which the examples are taken from
    text_chars: Count = 2000  # target length of one document cut from plain text
    offset: Natural = 0
    limit: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        preset = named(TASKS, values.get("preset")) if isinstance(values, dict) else None
        if preset is None:
            return values
        return {**preset, **({"hub": None} if values.get("paths") else {}), **values}

    @model_validator(mode="after")
    def _one_source(self) -> FileData:
        if self.preset is not None and self.preset not in TASKS:
            raise KeyFault("preset", f"no preset {self.preset!r}; there are {', '.join(TASKS)}")
        if bool(self.paths) == (self.hub is not None):
            raise KeyFault("paths", "name the data files in paths, or a data set in hub, and not both")
        if self.shots and self.completion is None:
            raise KeyFault("shots", "shots are solved examples: name the column of the solutions (completion)")
        return self

    @property
    def source(self) -> str:
        """What messages call the data."""
        return self.paths[0] if self.hub is None else f"{self.hub.path} ({self.hub.split})"


def _with_kind(values: Any) -> Any:
    """Where rows come from says of what kind a data section is, if nothing else does."""
    named = isinstance(values, dict) and "kind" not in values and {"paths", "hub", "preset"} & values.keys()
    return {"kind": "files", **values} if named else values


DataConfig = Annotated[ArithmeticData | FileData, Field(discriminator="kind"), BeforeValidator(_with_kind)]


def has_tests(data: Any) -> bool:
    """Whether a data section, validated or not yet, has tests of programs instead of answers."""
    if isinstance(data, dict):
        return bool(data.get("tests") or (named(TASKS, data.get("preset")) or {}).get("tests"))
    return getattr(data, "tests", None) is not None
