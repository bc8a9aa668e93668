"""What a run shows while it works: a headline per stage and how far it is, read from its metrics file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fbt_rl.artifacts import StageFolder

PLAIN_EVERY_S = 30.0
# What is worth a glance, in this order, with its short name.
SHOWN = {
    "loss": "loss",
    "reward": "reward",
    "accuracy": "accuracy",
    "length_mean": "length",
    "tokens_per_second": "tokens/s",
}


class MetricsTail:
    """The rows that a metrics file gained since the last look."""

    def __init__(self, path: Path):
        self.path = path
        self._offset = 0

    def new_rows(self) -> list[dict[str, Any]]:
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return []
        if size < self._offset:  # cut back by a stage that resumed
            self._offset = 0
        with self.path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [json.loads(line) for line in whole.splitlines() if line]


class Display:
    """Prints stage headlines; in between a live line on a terminal, else a plain line now and then."""

    def __init__(self, stream: TextIO | None = None):
        self.console = Console(file=stream, highlight=False, soft_wrap=True)
        self._live: Progress | None = None
        self._tail: MetricsTail | None = None

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def start(self, headline: str, folder: StageFolder, steps: int | None) -> None:
        """Begin a stage of ``steps`` steps; None: it has no steps, but may tell how far it is."""
        self.say(headline)
        self._folder = folder
        self._tail = MetricsTail(folder.metrics_path)
        self._steps = steps
        self._row: dict[str, Any] = {}
        self._first: tuple[float, int] | None = None  # time and count of the first look: the start of the rate
        self._said = time.monotonic()
        if self.console.is_terminal:
            columns = (TextColumn(" "), BarColumn(30), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._live = Progress(*columns, console=self.console, transient=True)
            self._task = self._live.add_task("starting" if steps else "working", total=steps)
            self._live.start()

    def update(self) -> None:
        """Show what is new; to be called a few times a second."""
        assert self._tail is not None
        for row in self._tail.new_rows():
            self._row = row
        counts = (self._row["step"], self._steps) if self._row else self._folder.read_progress()
        if counts is None:
            return
        done, total = counts
        self._first = self._first or (time.monotonic(), done)
        text = f"{self._position(done, total)}  {_brief(self._row)}".rstrip()
        if self._live is not None:
            self._live.update(self._task, completed=done, total=total, description=text)
        elif time.monotonic() - self._said >= PLAIN_EVERY_S:
            self._said = time.monotonic()
            self.say(f"  {text}")

    def stop(self, line: str | None = None) -> None:
        """End the stage's live line and say how it went."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if line is not None:
            self.say(line)

    def _position(self, done: int, total: int | None) -> str:
        if not total:
            return f"step {done}"
        assert self._first is not None
        began, first = self._first
        text = f"step {done}/{total}" if self._steps else f"{done / total:.0%} of the answers"
        if done == first:
            return text
        left = (time.monotonic() - began) / (done - first) * (total - done)
        return f"{text}, {duration(left)} left"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _brief(row: dict[str, Any]) -> str:
    shown = ((name, row[key]) for key, name in SHOWN.items() if isinstance(row.get(key), int | float))
    return "  ".join(f"{name} {value:,.0f}" if value >= 100 else f"{name} {value:.3g}" for name, value in shown)
