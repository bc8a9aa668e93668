"""Answers to look at: the same problem before, after and in every mode, and rollouts early and late in RL."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fbt_rl.analysis.table import modes_of
from fbt_rl.config import Mode


def examples(tables: dict[str, pa.Table], pairs: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Problems with every answer given to them, side by side."""
    there = [pair for pair in pairs if pair["before"] in tables and pair["after"] in tables]
    if there:
        return [
            {
                "title": f"{pair['before']} and {pair['after']}",
                "problems": _side_by_side(
                    {"before": tables[pair["before"]], "after": tables[pair["after"]]}, pair["mode"]
                ),
            }
            for pair in there
        ]
    return [
        {"title": name, "problems": _side_by_side({name: table}, modes_of(table)[0])} for name, table in tables.items()
    ]


def _side_by_side(sides: dict[str, pa.Table], mode: str) -> list[dict[str, Any]]:
    """A few telling problems, chosen by what happened to them in ``mode``; sample 0 of each answer."""
    answers: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for label, table in sides.items():
        for row in table.filter(pc.field("sample") == 0).to_pylist():
            answers.setdefault(row["problem_id"], {})[(row["mode"], label)] = row
    first, last = next(iter(sides)), next(reversed(sides))
    known = {name: given for name, given in answers.items() if (mode, first) in given and (mode, last) in given}

    def those(before: bool, after: bool) -> list[str]:
        return [
            name
            for name, given in known.items()
            if bool(given[mode, first]["correct"]) == before and bool(given[mode, last]["correct"]) == after
        ]

    def change(name: str) -> float:
        return known[name][mode, last]["num_tokens"] / known[name][mode, first]["num_tokens"]

    solved = sorted(those(True, True), key=lambda name: (change(name), name))
    longest = sorted(solved, key=lambda name: (-known[name][mode, first]["num_tokens"], name))
    paired = first != last
    choices = [
        (
            solved[len(solved) // 2 : len(solved) // 2 + 1],
            "Solved both times, typical change in length" if paired else "Solved",
        ),
        (longest[:1], "Solved both times, longest answer before" if paired else "Solved, longest answer"),
        (those(True, False)[:1], "Right before, wrong after"),
        (those(False, True)[:1], "Wrong before, right after"),
        (those(False, False)[:1], "Wrong both times" if paired else "Wrong"),
    ]
    chosen = {name: why for names, why in reversed(choices) for name in names}  # the first reason stays
    return [
        {
            "why": f"{why} ({mode})",
            "columns": len(sides) if paired else len(known[name]),
            "prompt": next(iter(known[name].values()))["prompt"],
            "answer": next(iter(known[name].values()))["answer"],
            "cells": [
                {"mode": row_mode, "side": label if paired else "", **_cell(row)}
                for (row_mode, label), row in sorted(known[name].items(), key=lambda item: _order(item[0], sides))
            ],
        }
        for name, why in reversed(chosen.items())
    ]


def _order(key: tuple[str, str], sides: dict[str, pa.Table]) -> tuple[int, int]:
    return mode_order(key[0]), list(sides).index(key[1])


def mode_order(mode: str) -> int:
    """The place of a decoding mode among all."""
    return get_args(Mode).index(mode)


def verdict(row: dict[str, Any]) -> str:
    """What became of an answer, in a word or two."""
    if row["finish_reason"] == "length":
        return "cut off"
    return {True: "right", False: "wrong", None: "not judged"}[row["correct"]]


def _cell(row: dict[str, Any]) -> dict[str, Any]:
    return {"text": row["completion"], "tokens": row["num_tokens"], "verdict": verdict(row)}


def rollouts(path: Path) -> list[dict[str, Any]]:
    """Of the first and the last saved step, the group whose rewards differ most: up to four rollouts each."""
    if not path.is_file():
        return []
    rows = pq.read_table(path).to_pylist()
    shown = []
    for step in sorted({row["step"] for row in rows} & {rows[0]["step"], rows[-1]["step"]}):
        of_step = sorted(
            (row for row in rows if row["step"] == step), key=lambda row: (row["problem_id"], row["sample"])
        )
        groups = [list(group) for _, group in groupby(of_step, key=lambda row: row["problem_id"])]
        group = max(groups, key=lambda rows: float(np.std([row["reward"] or 0.0 for row in rows])))
        spread = sorted(group, key=lambda row: (-(row["reward"] or 0.0), row["sample"]))
        picks = sorted({round(place) for place in np.linspace(0, len(spread) - 1, 4)})
        shown.append(
            {
                "step": step,
                "prompt": group[0]["prompt"],
                "answer": group[0]["answer"],
                "cells": [
                    {**_cell(spread[i]), "reward": spread[i]["reward"], "advantage": spread[i]["advantage"]}
                    for i in picks
                ],
            }
        )
    return shown
