"""The report: finished stage folders in, ``report/index.html``, ``report.md``, ``report.json``, figures out.

A pure function of the run folder: writing it again gives the same bytes. It works on a partial run and
says what is missing. Whatever a model wrote is untrusted: it is escaped, its control characters are made
visible, and the page allows no network and no script but its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fbt_rl.analysis.arms import difference_in_differences
from fbt_rl.analysis.compare import compare
from fbt_rl.analysis.summary import summarise
from fbt_rl.analysis.table import modes_of, of_mode
from fbt_rl.artifacts import RunFolder, write_json, write_text
from fbt_rl.config import EvalStage, RLStage, RunConfig
from fbt_rl.config.file import dump_config, load_config
from fbt_rl.report.answers import all_answers
from fbt_rl.report.charts import (
    comparison_charts,
    correct_lengths,
    detail_charts,
    evaluation_charts,
    loss_charts,
    mode_charts,
    overview_chart,
    rl_charts,
)
from fbt_rl.report.examples import examples, rollouts
from fbt_rl.report.groups import groups_of
from fbt_rl.report.paint import Chart
from fbt_rl.report.reference import beside_published
from fbt_rl.report.text import page_script, render


class ReportError(ValueError):
    """The folder holds no run to report on."""


def write_report(run_dir: str | Path, reference: str | None = None) -> Path:
    """Write the report of a run and return the path of its page. Raises :class:`ReportError`.

    ``reference``: "paper" for its published numbers beside the run's; default: what the config says.
    """
    run = RunFolder(Path(run_dir))
    if not run.config_path.is_file():
        raise ReportError(f"{run.path} is not a run folder: it holds no config.yaml")
    config = load_config(run.config_path)
    tables = {
        name: pq.read_table(run.stage(name).generations_path)
        for name, stage in config.stages.items()
        if isinstance(stage, EvalStage) and run.stage(name).finished()
    }
    pairs = pairs_of(config)
    report = collect(run, config, tables, pairs)
    if reference or config.reference:
        report["reference"] = beside_published(config, tables)
    charts = _charts(run, config, tables, pairs, report)
    all_charts = [chart for group in charts.values() for chart in group]
    report["figures"] = [{"file": f"figures/{chart.name}.png", "caption": chart.caption} for chart in all_charts]

    folder = run.report_dir
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for stale in (folder / "figures").glob("*.png"):
        stale.unlink()
    for chart in all_charts:
        (folder / "figures" / f"{chart.name}.png").write_bytes(chart.png)
    view = {
        "reference": None,
        **report,
        "pairs": pairs,
        "charts": charts,
        "loss_charts": [chart for name in config.stages if name not in report["rl"] for chart in charts.get(name, [])],
        "headlines": _headlines(report["comparisons"]),
        "examples": examples(tables, pairs),
        "answers": all_answers(tables),
        "files": {name: _files(run.stage(name).path) for name in config.stages},
        "rollouts": {name: rollouts(run.stage(name).rollouts_path) for name in report["rl"]},
        "groups_of": groups_of,
        "run_facts": _run_facts(report["run"]),
        "config_text": dump_config(config),
        **page_script(),
    }
    write_text(folder / "report.md", render("report.md.j2", view))
    write_text(folder / "index.html", render("index.html.j2", view))
    write_json(folder / "report.json", report)
    return folder / "index.html"


# --- what is reported ----------------------------------------------------------------------------


def pairs_of(config: RunConfig) -> list[dict[str, str]]:
    """Evaluations to compare: ``before`` (of an rl stage's source) and ``after`` (of the stage) on equal data.

    ``arm`` is the rl stage and ``mode`` the mode it was trained in.
    """
    evaluations = {name: stage for name, stage in config.stages.items() if isinstance(stage, EvalStage)}
    return [
        {"arm": arm, "mode": stage.mode, "before": before, "after": after}
        for arm, stage in config.stages.items()
        if isinstance(stage, RLStage)
        for after in evaluations
        if config.source_of(after) == arm
        for before in evaluations
        if config.source_of(before) == config.source_of(arm) and evaluations[before].data == evaluations[after].data
    ]


def collect(
    run: RunFolder, config: RunConfig, tables: dict[str, pa.Table], pairs: list[dict[str, str]]
) -> dict[str, Any]:
    """What ``report.json`` holds, but for the list of figures."""
    missing = _missing(run, config, pairs)
    comparisons: list[dict[str, Any]] = []
    mode_comparisons: list[dict[str, Any]] = []

    def add(entries: list[dict[str, Any]], tables: list[pa.Table], names: list[str], mode: str, **more: Any) -> None:
        try:
            entries.append({**compare(*tables, before_name=names[0], after_name=names[1], mode=mode), **more})
        except ValueError as error:
            missing.append(f"{names[1]} cannot be compared with {names[0]} ({mode}): {error}.")

    for pair in pairs:
        names = [pair["before"], pair["after"]]
        if tables.keys() >= set(names):
            for mode in [mode for mode in modes_of(tables[names[1]]) if mode in modes_of(tables[names[0]])]:
                sides = [of_mode(tables[name], mode) for name in names]
                add(comparisons, sides, names, mode, arm=pair["arm"], trained_mode=pair["mode"])
    arms = _arms(tables, pairs, add)
    for name, table in tables.items():
        for mode in [mode for mode in modes_of(table) if mode != "standard" and "standard" in modes_of(table)]:
            names = ["standard", mode]
            sides = [of_mode(table, one) for one in names]
            label = f"{mode} against standard"
            add(mode_comparisons, sides, names, label, evaluation=name, source=config.source_of(name))
    return {
        "name": config.name,
        "seed": config.seed,
        "run": {key: value for key, value in run.read_state().items() if key not in ("status", "error", "updated")},
        "missing": missing,
        "stages": {name: _stage_facts(run, config, name) for name in config.stages},
        "evaluations": {
            name: {"source": config.source_of(name), "modes": summarise(table)} for name, table in tables.items()
        },
        "comparisons": comparisons,
        "mode_comparisons": mode_comparisons,
        "arms": arms,
        "rl": {
            name: _rl_facts(stage, run.stage(name).read_metrics())
            for name, stage in config.stages.items()
            if isinstance(stage, RLStage) and run.stage(name).read_metrics()
        },
    }


def _arms(tables: dict[str, pa.Table], pairs: list[dict[str, str]], add: Callable[..., None]) -> list[dict[str, Any]]:
    """RL stages that can be laid beside one another: those compared with the same evaluation before.

    The first that was trained in standard mode (else the first) is the ``baseline`` of the others; ``against_baseline``
    compares them with it mode by mode, ``differences`` are differences in differences.
    """
    groups = []
    for before in dict.fromkeys(pair["before"] for pair in pairs if pair["before"] in tables):
        arms = [pair for pair in pairs if pair["before"] == before and pair["after"] in tables]
        if len(arms) < 2:
            continue
        baseline = next((arm for arm in arms if arm["mode"] == "standard"), arms[0])
        against: list[dict[str, Any]] = []
        differences = []
        for arm in [arm for arm in arms if arm is not baseline]:
            sides = [tables[baseline["after"]], tables[arm["after"]]]
            modes = [mode for mode in modes_of(sides[1]) if mode in modes_of(sides[0])]
            for mode in modes:
                names = [baseline["arm"], arm["arm"]]
                add(against, [of_mode(side, mode) for side in sides], names, mode, arm=arm["arm"])
                if mode != "standard" and "standard" in modes:
                    with suppress(ValueError):  # add has said what cannot be compared
                        differences.append(
                            difference_in_differences(
                                *sides, baseline_name=baseline["arm"], arm_name=arm["arm"], mode=mode
                            )
                        )
        groups.append(
            {
                "before": before,
                "arms": [{key: arm[key] for key in ("arm", "mode", "after")} for arm in arms],
                "baseline": baseline["arm"],
                "against_baseline": against,
                "differences": differences,
            }
        )
    return groups


def _missing(run: RunFolder, config: RunConfig, pairs: list[dict[str, str]]) -> list[str]:
    """Sentences on what this report cannot show, and why."""
    sentences = []
    unfinished = [name for name in config.stages if not run.stage(name).finished()]
    if unfinished:
        sentences.append(f"Not finished: {', '.join(unfinished)}.")
    for name, stage in config.stages.items():
        if isinstance(stage, RLStage) and name not in {pair["arm"] for pair in pairs}:
            sentences.append(
                f"Nothing compares before and after {name}: that takes an eval stage of {name} and one of its source "
                f"({config.source_of(name) or 'model.path'}) with the same data."
            )
    for pair in pairs:
        before, after = config.stages[pair["before"]], config.stages[pair["after"]]
        assert isinstance(before, EvalStage)
        assert isinstance(after, EvalStage)
        unlike = [
            key
            for key in ("samples", "temperature", "max_new_tokens", "reward")
            if getattr(before, key) != getattr(after, key)
        ]
        if unlike:
            sentences.append(
                f"{pair['before']} and {pair['after']} differ in {', '.join(unlike)}: read them with care."
            )
    return sentences


def _stage_facts(run: RunFolder, config: RunConfig, name: str) -> dict[str, Any]:
    stage, folder = config.stages[name], run.stage(name)
    facts: dict[str, Any] = {
        "kind": stage.kind,
        "source": config.source_of(name),
        "finished": folder.finished(),
        "seconds": run.read_state().get("stages", {}).get(name, {}).get("seconds"),
    }
    if not isinstance(stage, EvalStage):
        rows = folder.read_metrics()
        speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
        facts["steps"] = rows[-1]["step"] if rows else 0
        facts["planned_steps"] = stage.steps
        facts["last"] = rows[-1] if rows else {}
        facts["tokens_per_second"] = float(np.median(speeds)) if speeds else None
    return facts


def _rl_facts(stage: RLStage, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The first and last tenth of an rl stage, and the worst mismatch of all its steps."""
    tenth = max(1, len(rows) // 10)
    mismatches = [row["logprob_mismatch_max"] for row in rows if row.get("logprob_mismatch_max") is not None]
    return {
        "mode": stage.mode,
        "steps": rows[-1]["step"],
        "logprob_mismatch_max": max(mismatches, default=None),
        **{
            f"{key}_{when}": _mean(row.get(key) for row in part)
            for key in ("accuracy", "reward", "length_mean", "length_correct_mean", "truncated")
            for when, part in (("first", rows[:tenth]), ("last", rows[-tenth:]))
        },
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


# --- charts --------------------------------------------------------------------------------------


def _charts(
    run: RunFolder,
    config: RunConfig,
    tables: dict[str, pa.Table],
    pairs: list[dict[str, str]],
    report: dict[str, Any],
) -> dict[str, list[Chart]]:
    """Charts by what they belong to: a pair ("before after"), a mode of one ("before after mode"), an evaluation that
    is not paired, a training stage, or, where nothing is paired, "all evaluations". "the overview" is of the first
    pair, for files that have room for one picture.
    """
    charts: dict[str, list[Chart]] = {}
    summaries = {name: report["evaluations"][name]["modes"] for name in tables}
    lengths = {name: correct_lengths(table) for name, table in tables.items()}
    paired = set()
    for pair in pairs:
        if entries := _entries_of(pair, report["comparisons"]):
            names = {side: pair[side] for side in ("before", "after")}
            paired |= set(names.values())
            by_side = {side: summaries[name] for side, name in names.items()}
            lengths_by_side = {side: lengths[name] for side, name in names.items()}
            if not charts:
                [headline] = _headlines(entries)
                charts["the overview"] = [overview_chart(entries, by_side, lengths_by_side, headline["mode"])]
            key, end = " ".join(names.values()), f"_{pair['after']}" if len(pairs) > 1 else ""
            charts[key] = comparison_charts(end, entries, by_side, lengths_by_side)
            for mode in [entry["mode"] for entry in entries]:
                sides = {side: tables[name] for side, name in names.items()}
                charts[f"{key} {mode}"] = mode_charts(mode, end, sides, by_side)
    if tables and not charts:
        charts["all evaluations"] = evaluation_charts(summaries, lengths)
    for name in [name for name in tables if name not in paired]:
        charts[name] = detail_charts(name, name, lengths[name], summaries[name])
    for name in config.stages:
        rows = run.stage(name).read_metrics()
        if rows:
            charts[name] = rl_charts(name, rows) if name in report["rl"] else loss_charts(name, rows)
    return charts


def _entries_of(pair: dict[str, str], comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in comparisons if (entry["before"], entry["after"]) == (pair["before"], pair["after"])]


# --- text ----------------------------------------------------------------------------------------


def _headlines(comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each pair the comparison in the mode that was trained (else the first), with its one-line summary."""
    chosen: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in comparisons:
        key = entry["before"], entry["after"]
        if key not in chosen or entry["mode"] == entry["trained_mode"]:
            chosen[key] = entry
    return [{**entry, "headline": _headline(entry)} for entry in chosen.values()]


def _headline(entry: dict[str, Any]) -> str:
    tokens = {
        "shorter": "{:.0f}% fewer tokens for the same problems",
        "longer": "{:.0f}% more tokens for the same problems",
        "unchanged": "no change in length is shown",
        "unknown": "too few problems solved to compare lengths",
    }[entry["length_verdict"]].format(100 * abs(1 - (entry["paired_length_ratio"] or 1)))
    accuracy = {
        "higher": "accuracy {:.1f} points higher",
        "lower": "accuracy {:.1f} points lower",
        "no worse": "accuracy no worse (margin {margin:g} points)",
        "unclear": "too few problems to tell about accuracy",
    }[entry["accuracy_verdict"]].format(100 * abs(entry["accuracy_diff"]), margin=100 * entry["margin"])
    return f"After {entry['arm']}, {entry['mode']} mode: {tokens}; {accuracy}"


def _files(stage: Path) -> list[str]:
    """Names of the files of a stage that a reader may want, as far as they are there."""
    names = ("stage.json", "metrics.jsonl", "rollouts.parquet", "generations.parquet", "result.json")
    return [name for name in names if (stage / name).is_file()]


def _run_facts(state: dict[str, Any]) -> list[tuple[str, str]]:
    """run.json in short lines; what it says of single stages is left to the stage table."""

    def line(value: Any) -> str:
        if isinstance(value, dict):
            return ", ".join(f"{name} {part}" for name, part in value.items())
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)

    return [(key, line(value)) for key, value in state.items() if key != "stages" and value is not None]
