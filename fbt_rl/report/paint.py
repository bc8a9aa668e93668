"""The report's charts, drawn once each: a PNG file, and an SVG that follows the reader's light or dark theme.

Lengths are completion tokens, accuracies shares in 0..1 (shown as percentages).
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fbt_rl.report.groups import Groups
from fbt_rl.report.text import shortened, width

Rows = Sequence[Mapping[str, Any]]  # lines of metrics.jsonl
Series = Mapping[str, Mapping[str, Any]]  # label -> mode -> values

# Every colour has its own light value, which the SVG names by variable: (light, dark).
COLOURS = {
    "ink": ("#1d2433", "#e7eaf0"),
    "muted": ("#5a6577", "#a3adbd"),
    "grid": ("#e3e7ee", "#2d3542"),
    "before": ("#76839a", "#97a5bd"),
    "after": ("#0b857e", "#3ec9bd"),
    "first": ("#3b5fa6", "#8fb0f5"),
    "second": ("#c46f14", "#f2a65a"),
    "third": ("#9a3d8f", "#dd90d4"),
    "alarm": ("#bf3a30", "#ff8a7d"),
}
INK, MUTED, GRID, BEFORE, AFTER, FIRST, SECOND, THIRD, ALARM = (light for light, _ in COLOURS.values())
SIDES = (BEFORE, AFTER, SECOND, THIRD)
PASSES = (FIRST, SECOND, THIRD, AFTER, ALARM, BEFORE)
MARKERS = ("o", "D", "s", "^")  # so that no chart depends on colour alone

STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture everywhere
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a subject's name may hold dollar signs
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,
    "axes.titlepad": 24,  # room for the legend, a row between title and axes
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "fbt-rl",
}
SYSTEM_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class Chart:
    """A finished chart. ``svg`` stands alone and can be shown by ``<img src=data_uri>``."""

    name: str
    caption: str
    alt: str
    png: bytes
    svg: str

    @property
    def data_uri(self) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


def draw(name: str, caption: str, alt: str, *paints: Callable[[Axes], None]) -> Chart:
    """Let each of ``paints`` fill a pair of axes, side by side; the same input gives the same bytes."""
    panels = len(paints)
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a box in the PNG file; the page has the reader's fonts
        figure = Figure(figsize=(4.7 * panels, 3.2))
        # Fixed places: laying out by measuring every text would double the time.
        figure.subplots_adjust(left=0.145 / panels, right=1 - 0.027 / panels, top=0.82, bottom=0.155, wspace=0.22)
        for paint, axes in zip(paints, figure.subplots(1, panels, squeeze=False).flat, strict=True):
            axes.xaxis.set_label_coords(0.5, -0.125)
            axes.yaxis.set_label_coords(-0.138, 0.5)
            paint(axes)
        png, svg = io.BytesIO(), io.StringIO()
        figure.savefig(png, format="png", dpi=160, facecolor="white", metadata={"Software": None})
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    return Chart(name, caption, alt, png.getvalue(), _themed(svg.getvalue()))


def _themed(svg: str) -> str:
    for name, (light, _) in COLOURS.items():
        svg = svg.replace(light, f"var(--{name})")
    light, dark = ("".join(f"--{name}:{pair[i]};" for name, pair in COLOURS.items()) for i in (0, 1))
    style = f"<style>:root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}</style>"
    svg = svg.replace("'DejaVu Sans'", SYSTEM_FONT)
    head, sign, body = svg[svg.index("<svg") :].partition(">")
    return head + sign + style + body


# --- training ------------------------------------------------------------------------------------


def paint_losses(axes: Axes, rows: Rows, stage: str) -> None:
    """Next-token loss of every pass over the steps."""
    passes = sorted(
        {int(key.removeprefix("loss_pass_")) for row in rows for key in row if key.startswith("loss_pass_")}
    )
    for index in passes:
        steps, values = column(rows, f"loss_pass_{index}")
        dots = {"marker": MARKERS[(index - 1) % 4], "markersize": 3.5} if len(steps) < 60 else {}
        axes.plot(*_thinned(steps, values), color=PASSES[(index - 1) % 6], label=f"pass {index}", **dots)
    _finish(axes, f"Loss of each pass, {stage}", "nats per token", legend=len(passes) > 1)


def paint_rl_scores(axes: Axes, rows: Rows) -> None:
    """Share of right rollouts and mean reward, per step."""
    _smooth(axes, rows, "accuracy", FIRST, "right answers")
    _smooth(axes, rows, "reward", SECOND, "mean reward")
    _finish(axes, "Rollout accuracy and reward", "share, reward")


def paint_rl_lengths(axes: Axes, rows: Rows) -> None:
    """Mean completion length, of all rollouts and of the right ones."""
    _smooth(axes, rows, "length_mean", BEFORE, "all rollouts")
    _smooth(axes, rows, "length_correct_mean", AFTER, "right answers")
    _finish(axes, "Rollout length", "tokens (mean)")


def paint_mismatch(axes: Axes, rows: Rows) -> None:
    """How far training's log-probs are from those of the rollout, at the same weights."""
    axes.set_yscale("log")
    axes.minorticks_off()
    for key, colour, label in (("logprob_mismatch_max", ALARM, "largest"), ("logprob_mismatch_mean", FIRST, "mean")):
        steps, values = column(rows, key)
        if values.max(initial=0) > 0:  # exactly 0 everywhere cannot be drawn on a log axis
            axes.plot(*_thinned(steps, values), color=colour, label=label)
    axes.axhline(1e-4, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label="fp32 tolerance 1e-4")
    _finish(axes, "Log-prob mismatch, rollout to training", "|Δ log p|")


def paint_drift(axes: Axes, rows: Rows) -> None:
    """Fixed-point residual of the replayed states, probability ratios outside [0.8, 1.2], truncated rollouts."""
    _smooth(axes, rows, "residual", THIRD, "residual")
    _smooth(axes, rows, "ratio_outside", SECOND, "ratios outside [0.8, 1.2]")
    _smooth(axes, rows, "truncated", ALARM, "cut off")
    _finish(axes, "Replay residual, off-policy share, truncation", "share, relative norm")


def paint_payload(axes: Axes, rows: Rows) -> None:
    """What the carried states are worth: log-prob a token loses without them. 0: the channel has collapsed."""
    for key, colour, label in (("payload_zeroed", ALARM, "zeroed"), ("payload_swapped", SECOND, "another rollout's")):
        axes.plot(*_thinned(*column(rows, key)), color=colour, label=label, marker="o", markersize=3.5)
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    _finish(axes, "Worth of the carried states", "log-prob lost per token")


def paint_norms(axes: Axes, rows: Rows) -> None:
    """Change of the Frobenius norms of the feedback's two matrices since the first step."""
    for key, colour, label in (("norm_value", FIRST, "value"), ("norm_gate", SECOND, "gate")):
        steps, norms = column(rows, key)
        axes.plot(*_thinned(steps, 100 * (norms / norms[:1] - 1)), color=colour, label=label)
    _finish(axes, "Norms of the feedback's matrices", "% change since the first step")


# --- before and after ----------------------------------------------------------------------------


def paint_accuracy(axes: Axes, summaries: Series) -> None:
    """Accuracy and its interval; ``summaries[label][mode]`` as of ``summary.summarise``."""

    def point(summary: Mapping[str, Any]) -> tuple[float, float, float]:
        return 100 * summary["accuracy"], 100 * summary["accuracy_ci"][0], 100 * summary["accuracy_ci"][1]

    judged = {
        label: {mode: point(summary) for mode, summary in of.items() if summary["accuracy"] is not None}
        for label, of in summaries.items()
    }
    _by_mode(axes, judged, "{:.1f}")
    _finish(axes, "Accuracy", "% right, 95% interval", step_axis=False)


def paint_groups(axes: Axes, groups: Groups, title: str) -> None:
    """Accuracy and its interval of every label, in a row for each level or subject."""
    for index, label in enumerate(groups.labels):
        found = {place: row["figures"][label] for place, row in enumerate(groups.rows)}
        points = [
            (place + 0.26 * (index - (len(groups.labels) - 1) / 2), of["accuracy"], *of["accuracy_ci"])
            for place, of in found.items()
            if of["accuracy"] is not None
        ]
        places, shares, lows, highs = np.array(points).reshape(-1, 4).T
        axes.hlines(places, 100 * lows, 100 * highs, color=SIDES[index], linewidth=2)
        style: dict[str, Any] = {"color": SIDES[index], "marker": MARKERS[index], "markersize": 5, "linestyle": "none"}
        axes.plot(100 * shares, places, label=label, **style)
    _finish(axes, title, "", step_axis=False)
    axes.set_xlabel("% right, 95% interval")
    names = [shortened(row["name"], 24) for row in groups.rows]
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.figure.subplots_adjust(left=0.06 + 0.014 * max(map(width, names)))


def paint_lengths(axes: Axes, lengths: Series) -> None:
    """Median length over right answers with the middle half; ``lengths[label][mode]`` an array."""
    points = {
        label: {mode: tuple(np.quantile(of_mode, (0.5, 0.25, 0.75))) for mode, of_mode in of.items() if len(of_mode)}
        for label, of in lengths.items()
    }
    _by_mode(axes, points, "{:g}")
    axes.set_ylim(0, 1.08 * max((high for of in points.values() for _, _, high in of.values()), default=1))
    _finish(axes, "Length of right answers", "tokens: median, middle half", step_axis=False)


def paint_ratios(axes: Axes, comparisons: Rows) -> None:
    """Paired length ratio of each mode with its interval, 1 being unchanged."""
    shown = [entry for entry in comparisons if entry["paired_length_ratio_ci"][0] is not None]
    for place, entry in enumerate(shown):
        ratio, (low, high) = entry["paired_length_ratio"], entry["paired_length_ratio_ci"]
        axes.plot([low, high], [place, place], color=AFTER, solid_capstyle="butt", linewidth=3)
        axes.plot([ratio], [place], color=AFTER, marker="D", markersize=7)
        axes.annotate(
            f"{ratio:.2f}  [{low:.2f}, {high:.2f}]", (ratio, place), (0, 9), textcoords="offset points", ha="center"
        )
    axes.axvline(1, color=INK, linewidth=1.2)
    axes.set_yticks(range(len(shown)), [entry["mode"] for entry in shown])
    axes.set_ylim(len(shown) - 0.4, -0.7)
    ends = [end for entry in shown for end in entry["paired_length_ratio_ci"]]
    axes.set_xlim(min([0.5, *ends]) - 0.1, max([1.1, *ends]) + 0.1)
    axes.grid(axis="y", visible=False)
    axes.set_title("Tokens after : before, same problems")
    axes.set_xlabel("shorter ←  1 = unchanged  → longer")


def paint_distribution(axes: Axes, lengths: Mapping[str, np.ndarray], title: str) -> None:
    """Share of right answers at each length, overlaid; ``lengths[label]`` an array."""
    known = [values for values in lengths.values() if len(values)]
    shortest = min((int(values.min()) for values in known), default=0)
    longest = max((int(np.quantile(values, 0.995)) for values in known), default=1)
    width = max(1, -(-(longest - shortest) // 60))
    edges = np.arange(shortest - width, longest + 3 * width, width) - 0.5
    for index, (label, values) in enumerate(lengths.items()):
        share = np.histogram(values, edges)[0] / max(len(values), 1)
        axes.stairs(100 * share, edges, fill=True, color=SIDES[index], alpha=0.28)
        axes.stairs(
            100 * share, edges, color=SIDES[index], linewidth=1.8, label=label, linestyle=("-", "--")[index == 0]
        )
    _finish(axes, title, "% of right answers", step_axis=False)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("tokens")


def paint_budgets(axes: Axes, curves: Mapping[str, Mapping[str, float]], title: str) -> None:
    """Accuracy were answers cut at so many tokens; ``curves[label][budget]``."""
    longest = max(int(budget) for curve in curves.values() for budget in curve)
    for index, (label, curve) in enumerate(curves.items()):
        budgets, shares = [int(budget) for budget in curve], [100 * share for share in curve.values()]
        if budgets[-1] < longest:  # beyond the longest answer nothing changes
            budgets, shares = [*budgets, longest], [*shares, shares[-1]]
        style: dict[str, Any] = {"color": SIDES[index], "marker": MARKERS[index], "markersize": 3.5}
        axes.plot(budgets, shares, label=label, linestyle=("-", "--")[index == 0], **style)
    axes.set_xscale("log")
    _plain_ticks(axes.xaxis)
    axes.set_ylim(bottom=0)
    _finish(axes, title, "% right", step_axis=False)
    axes.set_xlabel("tokens allowed")


def paint_pairs(axes: Axes, before: np.ndarray, after: np.ndarray, title: str) -> None:
    """Lengths of problems solved both times, those that fall on one mark drawn once and larger."""
    points = np.stack([before, after])
    if np.unique(points, axis=1).shape[1] > 500:  # a grid in the logarithm keeps the file small
        step = np.ptp(np.log(points)) / 60
        points = np.exp(np.round(np.log(points) / step) * step)
    points, counts = np.unique(points, axis=1, return_counts=True)
    axes.scatter(*points, s=12 + 90 * (counts - 1) / max(1, counts.max() - 1), color=AFTER, alpha=0.45, linewidths=0)
    ends = [0.9 * points.min(), 1.1 * points.max()]
    axes.plot(ends, ends, color=INK, linewidth=1.2)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        _plain_ticks(axis)
    _finish(axes, title, "tokens after", legend=False, step_axis=False)
    axes.set_xlabel("tokens before")


# --- shared --------------------------------------------------------------------------------------


def _by_mode(axes: Axes, points: Series, form: str) -> None:
    """(value, low, high) of every label side by side within each mode."""
    modes = list(dict.fromkeys(mode for of in points.values() for mode in of))
    for index, (label, of) in enumerate(points.items()):
        shift = 0.26 * (index - (len(points) - 1) / 2)
        text: dict[str, Any] = (
            {"xytext": (-7, 0), "ha": "right"} if index == 0 < len(points) - 1 else {"xytext": (7, 0)}
        )
        for mode, (value, low, high) in of.items():
            place = modes.index(mode) + shift
            axes.plot([place, place], [low, high], color=SIDES[index], linewidth=2.5, solid_capstyle="butt")
            axes.plot(
                [place],
                [value],
                color=SIDES[index],
                marker=MARKERS[index],
                markersize=7,
                linestyle="none",
                label=label if mode == next(iter(of)) else None,
            )
            axes.annotate(
                form.format(value), (place, value), textcoords="offset points", va="center", fontsize=8, **text
            )
    axes.set_xticks(range(len(modes)), modes)
    axes.set_xlim(-0.6, len(modes) - 0.4)
    axes.grid(axis="x", visible=False)


def _plain_ticks(axis: Axis) -> None:
    """1, 2, 5, 10, 20, ... on a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _finish(axes: Axes, title: str, unit: str, *, legend: bool = True, step_axis: bool = True) -> None:
    axes.set_title(title)
    axes.set_ylabel(unit)
    if step_axis:
        axes.set_xlabel("step")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        low, high = axes.get_xlim()
        if high - low < 1:  # a single step
            axes.set_xlim(low - 1, high + 1)
    if axes.get_yscale() == "linear":
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:.4g}")
        )
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=4,
            borderaxespad=0.3,
            borderpad=0,
            handlelength=1.6,
            columnspacing=1.4,
        )


def column(rows: Rows, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and finite values of ``key``, where a row has it."""
    pairs = [(row["step"], row[key]) for row in rows if isinstance(row.get(key), int | float) and np.isfinite(row[key])]
    steps, values = zip(*pairs, strict=True) if pairs else ((), ())
    return np.asarray(steps, dtype=float), np.asarray(values, dtype=float)


def _thinned(steps: np.ndarray, values: np.ndarray, most: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Means over consecutive points, so that a long run keeps a small file."""
    size = -(-len(steps) // most) or 1
    starts = np.arange(0, len(steps), size)
    if size == 1:
        return steps, values
    counts = np.diff(np.append(starts, len(steps)))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(values, starts) / counts


def _smooth(axes: Axes, rows: Rows, key: str, colour: str, label: str) -> None:
    """The values faintly, and their running mean over a thirtieth of the run."""
    steps, values = column(rows, key)
    if not len(steps):
        return
    axes.plot(*_thinned(steps, values), color=colour, alpha=0.3, linewidth=0.8)
    window = max(1, len(steps) // 30)
    sums = np.convolve(values, np.ones(window), "same") / np.convolve(np.ones(len(values)), np.ones(window), "same")
    axes.plot(*_thinned(steps, sums), color=colour, label=label)
