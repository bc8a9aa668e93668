"""What ``fbt-rl reward`` does: list rewards, check one, score a file of completions.

Files are JSON lines. A row has ``completion`` (text, or chat messages), mostly ``prompt``, and the columns
that the reward needs; all are read and graded a batch at a time, so that files may be large.
"""

from __future__ import annotations

import inspect
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from reward.apart import RewardApart
from reward.base import Completion, Reward, RewardError, Verdict, group_labels
from reward.length import LENGTH_REWARDS
from reward.load import BUILT_IN, installed

BAD_ROW = "bad_row"  # error of a line that cannot be graded
BATCH = 256
_NO_COLUMNS = ("prompt", "prompts", "completion", "completions", "completion_ids")

# Without data a check takes these: a math problem, which a reward of the user's is given too, and a program.
_SAMPLES: dict[str, dict[str, Any]] = {
    "math": {"prompt": "What is 3+4?", "answer": "7", "problem_id": "sample-1"},
    "code": {"prompt": "Write f, which adds 1.", "tests": ["assert f(1) == 2"], "completion": "def f(x): return x + 1"},
}
_GARBAGE = (
    "\\boxed{",
    "qwerty \x00 \ud83d 1/0 \\boxed{\\foo_{}^}",
    "def def (:\n```",
    "\\boxed{-987654.321}\n#### nothing",
)


class Line(NamedTuple):
    """One line of a file. What is no JSON object has the row ``{"raw": text}``."""

    number: int  # from 1
    row: dict[str, Any]
    fault: str = ""  # why it cannot be graded


# --- list ----------------------------------------------------------------------------------------


def list_rewards() -> Iterator[str]:
    """What can be named in a config, as lines of text."""
    yield "built in, for rewards: [{use: NAME}]"
    for name, place in BUILT_IN.items():
        yield f"  {name:<16} {_first_line(import_module(place.partition(':')[0]))}"
    yield "installed (entry points of the group fbt_rl.rewards)"
    yield from [f"  {name:<16} {' or '.join(places)}" for name, places in installed().items()] or ["  none"]
    yield "your own: package.module:function or path/to/file.py:function"
    yield "for short answers, length: {use: NAME}"
    for name, function in LENGTH_REWARDS.items():
        yield f"  {name:<16} {_first_line(function)}"


def _first_line(documented: Any) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0].replace("``", "")


# --- check ---------------------------------------------------------------------------------------


@dataclass
class Trial:
    """How one kind of completion was judged: ``gold`` has to score 1, ``empty`` and ``garbage`` 0."""

    kind: str
    wanted: float
    rows: int = 0
    as_wanted: int = 0
    unjudged: int = 0
    seconds: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    odd: list[str] = field(default_factory=list)  # the first few that came out otherwise

    def __str__(self) -> str:
        other = self.rows - self.as_wanted - self.unjudged
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.errors.most_common())
        return (
            f"{self.kind:<8} {self.rows:,} rows: {self.as_wanted:,} score {self.wanted:g}, {other:,} another, "
            f"{self.unjudged:,} not judged; {self.rows / max(self.seconds, 1e-9):,.0f} a second"
            + (f"; errors: {kinds}" if kinds else "")
        )


def check_reward(
    reward: Reward,
    data: Path | None = None,
    limit: int | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> list[Trial]:
    """Judge the right completion of each row, an empty one, and garbage.

    The right one is the row's ``completion``, else its ``answer`` (in a box, unless it has one). Without
    ``data`` one row is made up. ``say`` is told what is being done. Raises :class:`RewardError` for bad rows, and for a
    reward that fails its :meth:`~reward.base.Reward.dry_call`.
    """
    if data is None:
        lines = iter([Line(1, _SAMPLES.get(reward.name, _SAMPLES["math"]))])
    else:
        lines = islice(read_lines(data, reward, needs_completion=False), limit)
    trials = [Trial("gold", 1.0), Trial("empty", 0.0), Trial("garbage", 0.0)]
    for batch in batches(lines, reward):
        if faults := [f"{data}, line {line.number}: {line.fault}" for line in batch if line.fault]:
            raise RewardError("\n".join(faults[:10]))
        rows = [line.row for line in batch]
        if not trials[0].rows:
            within = f", limit {reward.time_limit_s:g} s" if isinstance(reward, RewardApart) else ""
            say(f"trying {reward.name!r} on 4 rows{within}")
            reward.dry_call([_problem(rows[0]), _problem(rows[1 if len(rows) > 1 else 0])])
            say("judging right, empty and garbage completions")
        garbage = [_GARBAGE[line.number % len(_GARBAGE)] for line in batch]
        for trial, completions in zip(trials, ([_gold(row) for row in rows], [""] * len(rows), garbage), strict=True):
            _try(trial, reward, batch, completions)
    if not trials[0].rows:
        raise RewardError(f"{data} holds no rows")
    return trials


def _try(trial: Trial, reward: Reward, batch: list[Line], completions: Sequence[Completion]) -> None:
    start = time.perf_counter()
    verdicts = _verdicts(reward, [line.row for line in batch], completions)
    trial.seconds += time.perf_counter() - start
    trial.rows += len(batch)
    for line, verdict in zip(batch, verdicts, strict=True):
        trial.as_wanted += verdict.score == trial.wanted
        trial.unjudged += verdict.score is None
        trial.errors.update([verdict.error] if verdict.error else [])
        if verdict.score != trial.wanted and len(trial.odd) < 5:
            trial.odd.append(f"line {line.number}: {trial.kind} scored {verdict.score} ({verdict.error})")


def _problem(row: dict[str, Any]) -> dict[str, Any]:
    """The row as a dry call takes it."""
    columns = {name: value for name, value in row.items() if name not in _NO_COLUMNS}
    return columns | {"prompt": row.get("prompt", ""), "completion": _gold(row)}


def _gold(row: dict[str, Any]) -> Completion:
    if "completion" in row:
        return row["completion"]
    answer = str(row.get("answer", ""))
    return answer if "\\boxed" in answer or "####" in answer else f"\\boxed{{{answer}}}"


# --- score ---------------------------------------------------------------------------------------


@dataclass
class Scored:
    """What came of a file."""

    rows: int = 0
    right: int = 0
    wrong: int = 0
    total: float = 0.0  # of all scores
    seconds: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)  # the first few bad rows

    def __str__(self) -> str:
        judged = self.right + self.wrong
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.errors.most_common())
        return (
            f"{self.rows:,} rows in {self.seconds:.1f} s ({self.rows / max(self.seconds, 1e-9):,.0f} a second): "
            f"{self.right:,} right, {self.wrong:,} wrong, {self.rows - judged:,} not judged"
            + (f", mean score {self.total / judged:.4g}" if judged else "")
            + (f"; errors: {kinds}" if kinds else "")
        )


def score_file(
    reward: Reward,
    data: Path,
    out: Path,
    *,
    force: bool = False,
    progress: Callable[[int], object] = lambda done: None,
) -> Scored:
    """Write each row of ``data`` to ``out`` with ``score``, ``correct`` and ``error``; all else stays as it is.

    ``terms`` and ``metadata`` are written where the reward gives any.

    A line that cannot be graded is written with the error ``bad_row`` (one that is no JSON object under
    ``raw``). ``out`` is not overwritten without ``force``, and never the input. ``progress`` is told of each
    batch's rows. Raises :class:`RewardError`, also where there was no good row at all.
    """
    check_target(data, out, force=force)
    scored = Scored()
    start = time.perf_counter()
    with out.open("w", encoding="utf-8") as file:
        for batch in batches(read_lines(data, reward), reward):
            good = [line.row for line in batch if not line.fault]
            found = iter(_verdicts(reward, good, [row["completion"] for row in good]))
            for line in batch:
                verdict = Verdict(None, None, error=BAD_ROW) if line.fault else next(found)
                if line.fault and len(scored.bad) < 10:
                    scored.bad.append(f"line {line.number}: {line.fault}")
                result = {"score": verdict.score, "correct": verdict.correct, "error": verdict.error}
                kept = {name: value for name in ("terms", "metadata") if (value := getattr(verdict, name))}
                file.write(json.dumps(line.row | result | kept, default=str) + "\n")
                scored.rows += 1
                scored.right += verdict.correct is True
                scored.wrong += verdict.correct is False
                scored.total += verdict.score or 0.0
                scored.errors.update([verdict.error] if verdict.error else [])
            progress(len(batch))
    scored.seconds = time.perf_counter() - start
    if scored.rows == scored.errors[BAD_ROW]:
        raise RewardError("\n".join([f"{data} has no row that can be graded", *scored.bad]))
    return scored


def check_target(data: Path, out: Path, *, force: bool) -> None:
    """Raises :class:`RewardError` where ``out`` must not be written."""
    _check_file(data)
    if out.exists() and out.samefile(data):
        raise RewardError(f"--out {out} is the input: name another file")
    if out.exists() and not (force and out.is_file()):
        raise RewardError(f"{out} exists: name another file" + (", or give --force" if out.is_file() else ""))
    if not out.parent.is_dir():
        raise RewardError(f"no folder {out.parent} to write {out.name} into")


# --- rows ----------------------------------------------------------------------------------------


def read_lines(path: Path, reward: Reward, *, needs_completion: bool = True) -> Iterator[Line]:
    """The lines of a file but for blank ones, each with its row, or what is wrong with it for ``reward``."""
    _check_file(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            raw = {"raw": line.decode("utf-8", "replace").rstrip("\r\n")}
            try:
                row = json.loads(line.decode("utf-8-sig"))
            except (ValueError, RecursionError) as error:
                yield Line(number, raw, f"not valid JSON ({error})")
                continue
            if isinstance(row, dict):
                yield Line(number, row, _fault(row, reward, needs_completion))
            else:
                yield Line(number, raw, f"expected an object, found {type(row).__name__}")


def _fault(row: dict[str, Any], reward: Reward, needs_completion: bool) -> str:
    if "completion" in row or needs_completion:
        completion = row.get("completion")
        chat = isinstance(completion, list) and all(isinstance(message, dict) for message in completion)
        if not (chat or isinstance(completion, str)):
            return "no column 'completion'" if completion is None else "'completion' is neither text nor chat messages"
    missing = [name for name in sorted(reward.needs) if row.get(name) is None]
    return f"no column {', '.join(map(repr, missing))}" if missing else ""


def batches(lines: Iterable[Line], reward: Reward, size: int = BATCH) -> Iterator[list[Line]]:
    """``lines`` in parts of ``size``; for a group-aware reward groups, whose rows follow each other, stay whole."""
    batch: list[Line] = []
    for line in lines:
        if len(batch) >= size and not (reward.group_aware and _label(line.row) == _label(batch[-1].row)):
            yield batch
            batch = []
        batch.append(line)
    if batch:
        yield batch


def _label(row: dict[str, Any]) -> Any:
    """What the rows of a group have in common."""
    return row.get("group", row.get("problem_id", row.get("prompt", "")))


def _verdicts(reward: Reward, rows: list[dict[str, Any]], completions: Sequence[Completion]) -> list[Verdict]:
    """With the rows' other fields as columns; a row without a field has None there."""
    if not rows:
        return []
    names = dict.fromkeys(name for row in rows for name in row if name not in _NO_COLUMNS)
    columns = {name: [row.get(name) for row in rows] for name in names}
    columns["group"] = group_labels([_label(row) for row in rows])
    ids = [row["completion_ids"] for row in rows if row.get("completion_ids") is not None]
    prompts = [row.get("prompt", "") for row in rows]
    return reward.verdicts(prompts, completions, ids if len(ids) == len(rows) else None, **columns)


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise RewardError(f"no data file {path} (looked from {Path.cwd()})")
