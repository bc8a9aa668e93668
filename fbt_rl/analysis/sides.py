"""Any two or more evaluations beside each other: which are paired with which, and the result as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from fbt_rl.analysis.compare import compare
from fbt_rl.analysis.table import modes_of, of_mode, read_generations
from fbt_rl.artifacts import write_json


class Side(NamedTuple):
    """An evaluation, or one mode of it."""

    name: str
    modes: dict[str, pa.Table]


def compare_evaluations(names: Sequence[str], margin: float, out: Path | None) -> list[dict[str, Any]]:
    """Entries of :func:`fbt_rl.analysis.compare.compare` for evaluations given as ``PATH`` or ``PATH:MODE``.

    The first is compared with each of the others, in the modes that both have; where one of two has a single mode, in
    every mode of the other. One evaluation alone: its first mode with its others. Raises ValueError.
    """
    sides = _unlike_names([_load(name) for name in names])
    if len(sides) == 1:
        [(name, modes)] = sides
        if len(modes) < 2:
            raise ValueError(f"{name} has one mode only: name a second evaluation to compare it with")
        sides = [Side(mode, {name: table}) for mode, table in modes.items()]
    entries = [entry for other in sides[1:] for entry in _compare_pair(sides[0], other, margin)]
    if out is not None:
        write_json(out, {"comparisons": entries})
    return entries


def _load(name: str) -> Side:
    path, mode = Path(name), None
    if not path.exists() and ":" in name:
        path, mode = Path(name.rpartition(":")[0]), name.rpartition(":")[2]
    file = path / "generations.parquet" if path.is_dir() else path
    if not file.is_file():
        below = sorted(str(found.parent) for found in path.glob("*/generations.parquet"))
        raise ValueError(
            f"no evaluation {name}: give a folder that holds generations.parquet, or such a file"
            + (f"; below it are {', '.join(below)}" if below else "")
        )
    if file.suffix in (".jsonl", ".json", ".csv"):
        raise ValueError(f"{name} is not judged yet: fbt-rl eval --generations {name} --map ... --out FOLDER")
    table = read_generations(file, prompt=True)
    if mode is not None and mode not in modes_of(table):
        raise ValueError(f"{path} has no mode {mode!r}; it has {', '.join(modes_of(table))}")
    modes = [mode] if mode is not None else modes_of(table)
    return Side(name.rstrip("/"), {one: of_mode(table, one) for one in modes})


def _unlike_names(sides: list[Side]) -> list[Side]:
    """Sides called by the last part of their paths, as far as those differ."""
    short = [Path(side.name).name.removesuffix(".parquet") for side in sides]
    if len({*short}) < len(sides):
        return sides
    return [Side(name, side.modes) for name, side in zip(short, sides, strict=True)]


def _compare_pair(first: Side, other: Side, margin: float) -> list[dict[str, Any]]:
    if len(first.modes) == 1 or len(other.modes) == 1:
        pairs = [(old, new) for old in first.modes for new in other.modes]
    else:
        pairs = [(mode, mode) for mode in first.modes if mode in other.modes]
    if not pairs:
        raise ValueError(
            f"{first.name} has modes {', '.join(first.modes)}, {other.name} has {', '.join(other.modes)}: name one of "
            "each, as PATH:MODE"
        )
    return [
        compare(
            *_paired_by(first.modes[old], other.modes[new]),
            before_name=first.name,
            after_name=other.name,
            mode=old if old == new else f"{old} → {new}",
            margin=margin,
        )
        for old, new in pairs
    ]


def _paired_by(*tables: pa.Table) -> list[pa.Table]:
    """The tables as they are, or with the prompt for problem id where they share no id but have prompts."""
    ids = [set(table["problem_id"].to_pylist()) for table in tables]
    if set.intersection(*ids) or any("prompt" not in table.column_names for table in tables):
        return list(tables)
    prompts = [table["prompt"].to_pylist() for table in tables]
    if any(None in column for column in prompts):
        return list(tables)
    renamed = []
    for table, column in zip(tables, prompts, strict=True):
        names = [" ".join(prompt.split()) for prompt in column]
        place = table.column_names.index("problem_id")
        renamed.append(table.set_column(place, "problem_id", pa.array(names, pa.string())))
    return renamed


def comparison_text(entries: Sequence[dict[str, Any]]) -> str:
    """The paired table and the findings, as Markdown."""
    lines = [
        "| compared | mode | n | right | difference, points | McNemar p | median of right | paired ratio | cut off |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for entry in entries:
        both = {
            key: tuple(entry[f"{key}_{side}"] for side in ("before", "after"))
            for key in ("accuracy", "median_length_correct", "truncated")
        }
        low, high = entry["accuracy_diff_ci"]
        cells = [
            f"{entry['before']} → {entry['after']}",
            entry["mode"],
            f"{entry['n']:,}",
            " → ".join(_shown(value, "{:.1%}") for value in both["accuracy"]),
            f"{100 * entry['accuracy_diff']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]",
            f"{entry['mcnemar_p']:.3g}",
            " → ".join(_shown(value, "{:g}") for value in both["median_length_correct"]),
            f"{_shown(entry['paired_length_ratio'], '{:.3f}')} "
            f"[{', '.join(_shown(end, '{:.3f}') for end in entry['paired_length_ratio_ci'])}]",
            " → ".join(_shown(value, "{:.1%}") for value in both["truncated"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for entry in entries:
        lines += ["", f"{entry['before']} → {entry['after']}, {entry['mode']}:"]
        lines += [f"- {sentence}" for sentence in entry["findings"]]
    return "\n".join(lines)


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
