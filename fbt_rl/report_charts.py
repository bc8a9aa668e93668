"""The charts of a report: which there are, with file name, caption and a text for those who cannot see them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from fbt_rl import report_figures as figures
from fbt_rl.evaluation.table import modes_of
from fbt_rl.report_figures import Chart, Rows, Series

Lengths = Mapping[str, Mapping[str, np.ndarray]]  # label -> mode -> lengths of the right answers


def comparison_charts(end: str, comparisons: Rows, summaries: Series, lengths: Lengths) -> list[Chart]:
    """Before against after; ``end`` is added to the file names."""
    modes = [entry["mode"] for entry in comparisons]
    ratios = "; ".join(
        f"{e['mode']} {e['paired_length_ratio']:.2f}" for e in comparisons if e["paired_length_ratio"] is not None
    )
    return [
        *evaluation_charts(summaries, lengths, end),
        figures.draw(
            f"length_ratio{end}",
            "Tokens spent after RL for every token before, on the problems that both sides solve; bar: 95% interval "
            "of a bootstrap over problems. The only one of these charts that compares lengths like with like.",
            f"Paired length ratio by mode: {ratios or 'not available'}.",
            lambda axes: figures.paint_ratios(axes, comparisons),
        ),
        *(_distribution(mode, {label: by_mode[mode] for label, by_mode in lengths.items()}, end) for mode in modes),
    ]


def _distribution(mode: str, lengths: Mapping[str, np.ndarray], end: str) -> Chart:
    return figures.draw(
        f"length_distribution_{mode}{end}",
        f"How long right answers in {mode} mode are, before (dashed) and after.",
        f"Histograms of the lengths of right answers in {mode} mode, before and after.",
        lambda axes: figures.paint_distribution(axes, lengths, f"Lengths of right answers, {mode}"),
    )


def evaluation_charts(summaries: Series, lengths: Lengths, end: str = "") -> list[Chart]:
    """Accuracy and length of each evaluation in each mode."""
    shares = "; ".join(
        f"{label} {mode} {100 * s['accuracy']:.1f}%"
        for label, of in summaries.items()
        for mode, s in of.items()
        if s["accuracy"] is not None
    )
    medians = "; ".join(
        f"{label} {mode} {np.median(values):g}"
        for label, of in lengths.items()
        for mode, values in of.items()
        if len(values)
    )
    return [
        figures.draw(
            f"accuracy{end}",
            "Share of right answers in each mode, with 95% Wilson intervals.",
            f"Accuracy: {shares or 'not available'}.",
            lambda axes: figures.paint_accuracy(axes, summaries),
        ),
        figures.draw(
            f"length{end}",
            "Median length over right answers and the middle half of them. Two medians are over different problems "
            "where different problems are solved.",
            f"Median tokens of right answers: {medians or 'none is right'}.",
            lambda axes: figures.paint_lengths(axes, lengths),
        ),
    ]


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
