"""Choosing a sampling temperature without choosing the result: on one half of the problems, reported on the other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from fbt_rl.analysis.summary import summarise
from fbt_rl.analysis.table import Rows, modes_of, of_mode


def is_dev(problem_id: str) -> bool:
    """Whether a problem is in the half to choose on: by its id alone, so the same for every model and mode."""
    return hashlib.blake2b(problem_id.encode(), digest_size=8).digest()[0] % 2 == 0


def require_halves(problem_ids: Iterable[str]) -> None:
    """Raises ValueError where all problems fall into one half."""
    if len({is_dev(name) for name in problem_ids}) < 2:
        raise ValueError("too few problems to choose a temperature on one half of them: raise the limit, or name one")


def choose_temperature(tables: Mapping[float, pa.Table]) -> dict[str, dict[str, Any]]:
    """Per mode the temperature that is most accurate on the dev half, and its summary on the other half alone.

    ``tables``: the generations at each temperature, on the same problems. Of equally good ones the lowest. Raises
    ValueError where a half is empty.
    """
    chosen = {}
    for mode in modes_of(next(iter(tables.values()))):
        dev: dict[float, float] = {}
        rest: dict[float, pa.Table] = {}
        for temperature, table in sorted(tables.items()):
            table = of_mode(table, mode)
            names = table["problem_id"].to_pylist()
            require_halves(names)
            in_dev = np.array([is_dev(name) for name in names])
            dev[temperature] = float(Rows.of(table.filter(pa.array(in_dev))).correct.mean())
            rest[temperature] = table.filter(pa.array(~in_dev))
        best = max(dev, key=lambda temperature: dev[temperature])
        chosen[mode] = {
            "temperature": best,
            "dev_accuracy": {str(temperature): accuracy for temperature, accuracy in dev.items()},
            "summary": summarise(rest[best])[mode],
        }
    return chosen
