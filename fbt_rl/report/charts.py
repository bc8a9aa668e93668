"""The charts of a report: which there are, with file name, caption and a text for those who cannot see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from fbt_rl.analysis.table import Rows as Samples
from fbt_rl.analysis.table import modes_of, of_mode
from fbt_rl.report import paint as figures
from fbt_rl.report.groups import Groups, groups_of
from fbt_rl.report.paint import Chart, Rows, Series

Lengths = Mapping[str, Mapping[str, np.ndarray]]  # label -> mode -> lengths of the right answers
MOST_GROUPS = 12  # with a row each in a chart; more are left to the table


def comparison_charts(end: str, comparisons: Rows, summaries: Series, lengths: Lengths) -> list[Chart]:
    """Before against after in every mode; ``end`` is added to the file names."""
    charts = evaluation_charts(summaries, lengths, end)
    ratios = [
        f"{e['mode']} {e['paired_length_ratio']:.2f}" for e in comparisons if e["paired_length_ratio"] is not None
    ]
    if ratios:
        charts.append(
            figures.draw(
                f"length_ratio{end}",
                "Tokens spent after RL for every token before, on the problems that both sides solve; bar: 95% "
                "interval of a bootstrap over problems. The only one of these charts that compares lengths like with "
                "like.",
                f"Paired length ratio by mode: {'; '.join(ratios)}.",
                lambda axes: figures.paint_ratios(axes, comparisons),
            )
        )
    return charts


def mode_charts(mode: str, end: str, sides: Mapping[str, pa.Table], summaries: Series) -> list[Chart]:
    """One mode before and after, which are the labels of ``sides`` and ``summaries``."""
    tables = [of_mode(table, mode) for table in sides.values()]
    lengths = {label: correct_lengths(table)[mode] for label, table in zip(sides, tables, strict=True)}
    charts = detail_charts(f"{mode}{end}", mode, lengths, {label: of[mode] for label, of in summaries.items()})
    before, after = paired_lengths(*tables)
    if len(before):
        shares = ", ".join(
            f"{100 * np.mean(part):.0f}% {word}"
            for part, word in ((after < before, "shorter"), (after == before, "as long"), (after > before, "longer"))
        )
        charts.append(
            figures.draw(
                f"length_pairs_{mode}{end}",
                f"The {len(before):,} problems solved both times in {mode} mode, each at its length before and after: "
                f"{shares} after RL. Below the line is shorter; a larger mark stands for more problems.",
                f"Scatter of the lengths of problems solved both times in {mode} mode: {shares} after RL.",
                lambda axes: figures.paint_pairs(axes, before, after, f"Problems solved both times, {mode}"),
            )
        )
    return charts


def evaluation_charts(summaries: Series, lengths: Lengths, end: str = "") -> list[Chart]:
    """Accuracy and length of each evaluation in each mode."""
    shares = [
        f"{label} {mode} {100 * s['accuracy']:.1f}%"
        for label, of in summaries.items()
        for mode, s in of.items()
        if s["accuracy"] is not None
    ]
    medians = [
        f"{label} {mode} {np.median(values):g}"
        for label, of in lengths.items()
        for mode, values in of.items()
        if len(values)
    ]
    charts = []
    if shares:
        charts.append(
            figures.draw(
                f"accuracy{end}",
                "Share of right answers in each mode, with 95% Wilson intervals.",
                f"Accuracy: {'; '.join(shares)}.",
                lambda axes: figures.paint_accuracy(axes, summaries),
            )
        )
    if medians:
        charts.append(
            figures.draw(
                f"length{end}",
                "Median length over right answers and the middle half of them. Two medians are over different problems "
                "where different problems are solved.",
                f"Median tokens of right answers: {'; '.join(medians)}.",
                lambda axes: figures.paint_lengths(axes, lengths),
            )
        )
    return charts


def detail_charts(
    end: str, what: str, lengths: Mapping[str, np.ndarray], summaries: Mapping[str, Mapping[str, Any]]
) -> list[Chart]:
    """Lengths, accuracy at budgets and accuracy by level and subject of ``what``; the labels are sides or modes."""
    charts = []
    if any(len(values) for values in lengths.values()):
        medians = "; ".join(f"{label} {np.median(values):g}" for label, values in lengths.items() if len(values))
        charts.append(
            figures.draw(
                f"length_distribution_{end}",
                f"How long right answers are, {what}: {' (dashed), '.join(lengths)}.",
                f"Histograms of the lengths of right answers, {what}; medians: {medians}.",
                lambda axes: figures.paint_distribution(axes, lengths, f"Lengths of right answers, {what}"),
            )
        )
    curves = {label: summary["budgets"] for label, summary in summaries.items() if any(summary["budgets"].values())}
    if curves:
        charts.append(
            figures.draw(
                f"budgets_{end}",
                f"Share of right answers, {what}, were every answer cut at so many tokens: a cut answer is wrong.",
                f"Accuracy against the token budget, {what}; {_steepest(curves)}.",
                lambda axes: figures.paint_budgets(axes, curves, f"Accuracy at a budget, {what}"),
            )
        )
    charts += [_group_chart(end, what, groups) for groups in groups_of(summaries) if len(groups.rows) <= MOST_GROUPS]
    return charts


def _group_chart(end: str, what: str, groups: Groups) -> Chart:
    shares = "; ".join(
        f"{label} {row['name']} {100 * row['figures'][label]['accuracy']:.0f}%"
        for label in groups.labels
        for row in groups.rows
        if row["figures"][label]["accuracy"] is not None
    )
    return figures.draw(
        f"{groups.kind}s_{end}",
        f"Share of right answers by {groups.kind}, {what}, with 95% Wilson intervals.",
        f"Accuracy by {groups.kind}, {what}: {shares}.",
        lambda axes: figures.paint_groups(axes, groups, f"Accuracy by {groups.kind}, {what}"),
    )


def _steepest(curves: Mapping[str, Mapping[str, float]]) -> str:
    """The least budget of each curve that gives nine tenths of its accuracy."""
    return "; ".join(
        f"{label} reaches nine tenths of {100 * max(curve.values()):.1f}% at "
        f"{next(budget for budget, share in curve.items() if share >= 0.9 * max(curve.values()))} tokens"
        for label, curve in curves.items()
    )


def loss_charts(stage: str, rows: Rows) -> list[Chart]:
    """The losses of a pretrain, extend or sft stage."""
    last = {key: row[key] for row in rows for key in row if key.startswith("loss_pass_")}
    shown = ", ".join(
        f"{key.removeprefix('loss_').replace('_', ' ')} {value:.3f}" for key, value in sorted(last.items())
    )
    return [
        figures.draw(
            f"loss_{stage}",
            f"{stage}: next-token loss of each pass. Pass 1 is the plain forward; later passes are fused with the "
            "states of the one before.",
            f"Losses over the steps of {stage}; last values: {shown or 'none logged'}.",
            lambda axes: figures.paint_losses(axes, rows, stage),
        )
    ]


def rl_charts(stage: str, rows: Rows) -> list[Chart]:
    """The curves of an rl stage, of what it logged."""
    largest = figures.column(rows, "logprob_mismatch_max")[1].max(initial=0)
    panels = (
        (
            "scores",
            "accuracy",
            figures.paint_rl_scores,
            "share of right rollouts and mean reward. Rollouts are sampled: fewer are right than in greedy decoding.",
        ),
        ("lengths", "length_mean", figures.paint_rl_lengths, "mean length of all rollouts and of the right ones."),
        (
            "mismatch",
            "logprob_mismatch_max",
            figures.paint_mismatch,
            f"difference of log-probs, rollout against training at equal weights. Largest of all steps: {largest:.1e}.",
        ),
        (
            "drift",
            "ratio_outside",
            figures.paint_drift,
            "residual of the replayed states, probability ratios outside [0.8, 1.2], rollouts cut off at the limit.",
        ),
        (
            "payload",
            "payload_zeroed",
            figures.paint_payload,
            "log-prob a token loses when the carried states are zeroed or taken from another rollout. At 0 the model "
            "would no longer use them.",
        ),
        (
            "norms",
            "norm_value",
            figures.paint_norms,
            "norms of the feedback's matrices, as change since the first step.",
        ),
    )
    return [
        figures.draw(
            f"rl_{name}_{stage}",
            f"{stage}: {text}",
            f"Curves over the steps of {stage}: {text}",
            lambda axes, paint=paint: paint(axes, rows),
        )
        for name, key, paint, text in panels
        if len(figures.column(rows, key)[0])
    ]


def overview_chart(comparisons: Rows, summaries: Series, lengths: Lengths, mode: str) -> Chart:
    """Accuracy, paired length ratio and the lengths in ``mode`` in one row, for a README."""
    of_mode = {label: by_mode[mode] for label, by_mode in lengths.items()}
    return figures.draw(
        "overview",
        f"Before and after RL: accuracy, tokens on the same problems, and lengths of right answers in {mode} mode.",
        f"Three charts: accuracy by mode, paired length ratio by mode, and lengths of right answers in {mode} mode.",
        lambda axes: figures.paint_accuracy(axes, summaries),
        lambda axes: figures.paint_ratios(axes, comparisons),
        lambda axes: figures.paint_distribution(axes, of_mode, f"Lengths of right answers, {mode}"),
    )


def correct_lengths(table: pa.Table) -> dict[str, np.ndarray]:
    """Lengths of the right answers by mode."""
    lengths = table["num_tokens"].to_numpy()
    modes = np.asarray(table["mode"].to_pylist(), dtype=object)
    correct = table["correct"].fill_null(False).to_numpy()
    return {mode: lengths[(modes == mode) & correct] for mode in modes_of(table)}


def paired_lengths(before: pa.Table, after: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Mean length over the right samples of each problem that both sides solve; tables of one mode."""
    old, new = Samples.of(before), Samples.of(after)
    there = set(new.ids)
    common = [name for name in old.ids if name in there]
    lengths = [side.restricted(common).solved_lengths() for side in (old, new)]
    both = np.isfinite(lengths).all(axis=0)
    return lengths[0][both], lengths[1][both]
