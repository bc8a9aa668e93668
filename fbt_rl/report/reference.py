"""Published numbers, to be laid beside one's own (``reference: paper``). They are of other models and sizes.

Source of ``paper``: Wang et al. 2026, arXiv 2608.08888; zero-shot after extension and SFT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from fbt_rl.analysis.statistics import pass_at_k
from fbt_rl.analysis.table import Rows, modes_of, of_mode
from fbt_rl.config import FileData, Mode, RunConfig
from fbt_rl.config.task_presets import TASKS

SOURCE = "Wang et al. 2026, Full-bandwidth transformer, arXiv 2608.08888"
CONDITIONS = (
    "A model of 1B parameters trained on 200B, 400B or 1T tokens, zero-shot after extension and SFT. Code: Pass@3 from "
    "10 samples at the best of the temperatures 0.3, 0.5 and 0.7 of each setting."
)
LENGTHS = (
    "On MATH-500 the paper's model before SFT reasons for a median of about 500 tokens in standard mode and of 460 to "
    "485 in soft and fused mode, at equal or better accuracy; after SFT that difference is gone."
)
_MODELS = (
    "full-bandwidth, 200B tokens",
    "full-bandwidth, 400B tokens",
    "plain transformer, 200B tokens",
    "plain transformer, 400B tokens",
    "plain transformer, 1T tokens",
)
# preset: (name, k of Pass@k, right answers in % of each model in standard, soft and fused mode)
_PAPER: dict[str, tuple[str, int, tuple[tuple[float, ...], ...]]] = {
    "gsm8k": ("GSM8K", 1, ((64.5, 67.9, 67.6), (67.9, 71.0, 71.8), (62.9,), (68.4,), (70.1,))),
    "math500": ("MATH-500", 1, ((43.8, 45.6, 45.6), (46.0, 45.4, 48.4), (42.4,), (46.4,), (47.4,))),
    "humaneval": ("HumanEval", 3, ((42.5, 45.1, 45.9), (46.5, 47.2, 47.6), (37.2,), (44.9,), (50.0,))),
    "mbpp": ("MBPP", 3, ((38.4, 39.8, 41.2), (40.5, 40.6, 41.7), (38.6,), (40.3,), (41.9,))),
}


def beside_published(config: RunConfig, tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    """By task the published shares of right answers and those of the run's evaluations, by mode.

    An evaluation belongs to a task when its data names the preset, or the same data set of the hub. Its share is
    Pass@k where every problem has k samples, else Pass@1; ``k`` says which.
    """
    tasks = []
    for preset, (name, k, values) in _PAPER.items():
        published = [
            {"model": model, "k": k, "modes": dict(zip(get_args(Mode), np.divide(shares, 100).tolist(), strict=False))}
            for model, shares in zip(_MODELS, values, strict=True)
        ]
        own = [
            {"evaluation": stage, "source": config.source_of(stage), **_shares(table, k)}
            for stage, table in tables.items()
            if _is_of(config.stages[stage].data, preset)
        ]
        tasks.append({"task": name, "published": published, "own": own})
    return {"source": SOURCE, "conditions": CONDITIONS, "lengths": LENGTHS, "tasks": tasks}


def _is_of(data: Any, preset: str) -> bool:
    if not isinstance(data, FileData):
        return False
    return data.preset == preset or (data.hub is not None and data.hub.path == TASKS[preset]["hub"]["path"])


def _shares(table: pa.Table, k: int) -> dict[str, Any]:
    by_mode = {mode: Rows.of(of_mode(table, mode)) for mode in modes_of(table)}
    by_mode = {mode: rows for mode, rows in by_mode.items() if rows.ids}
    counts = {mode: np.bincount(rows.problem) for mode, rows in by_mode.items()}
    if any(samples.min() < k for samples in counts.values()):
        k = 1
    shares = {
        mode: pass_at_k(np.bincount(rows.problem, weights=rows.correct).astype(int), counts[mode], k)
        for mode, rows in by_mode.items()
    }
    return {"k": k, "modes": shares}
