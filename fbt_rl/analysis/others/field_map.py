"""Where a file of generations keeps what: a map from our columns to paths in its rows.

A path is keys with dots between; ``*`` is every entry of a list (samples) or of a mapping (systems, told apart in the
column ``mode``), a number one entry of a list (``-1`` the last); a list at the end of a path is gone through, however
deep. What a file lacks may stand in a file of problems: its row is found under ``problem``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fbt_rl.analysis.others.written_answers import FORMS
from fbt_rl.config import RewardConfig, Strict
from fbt_rl.config.file import ConfigError, read_mapping, validate
from fbt_rl.data.tables import DataError, format_of, table_rows

_INDEX = re.compile(r"-?\d{1,9}")
_PAIR = re.compile(r",(?=\w+=)")


class GenerationsMap(Strict):
    """Where a file keeps what (paths), and how its answers are found and judged."""

    completion: str | None = None
    extracted: str | None = None  # the answer its system found, judged instead of the completion
    answer: str | None = None  # the right one
    tests: str | None = None  # of code; with entry_point and setup instead of answer
    entry_point: str | None = None
    setup: str | None = None
    problem_id: str | None = None  # default: by the prompt; without one, the row
    prompt: str | None = None
    mode: str | None = None  # the system; default: the keys that * stands for, else the file's name
    claimed: str | None = None  # the file's own verdict
    finish_reason: str | None = None
    num_tokens: str | None = None
    level: str | None = None
    subject: str | None = None

    answer_pattern: str | None = None  # regular expression; the last match (its first group) is the answer
    stop: tuple[str, ...] = ()  # a completion ends before the first of these
    reward: RewardConfig = RewardConfig()
    rows: str | None = None  # where in a file of JSON its rows are
    problems: str | None = None  # a file of problems; rows have theirs as ``problem``
    problems_key: str | None = None  # what says there which one it is; default: as here (problem_id, else prompt)


SETTINGS = {"answer_pattern", "stop", "reward", "rows", "problems", "problems_key"}


def read_map(given: Sequence[str]) -> GenerationsMap:
    """``column=path`` pairs (several with commas between), or YAML files of them; later ones win.

    Raises ConfigError.
    """
    values: dict[str, Any] = {}
    for text in given:
        if "=" not in text:
            if not Path(text).is_file():
                raise ConfigError(f"--map {text}: neither column=path nor a YAML file")
            values |= read_mapping(Path(text))
            continue
        for pair in _PAIR.split(text):
            key, _, value = pair.partition("=")
            key, value = key.strip(), value.strip()
            stop = [value.replace("\\n", "\n")]
            values[key] = stop if key == "stop" else {"use": value} if key == "reward" else value
    if "tests" in values:
        values.setdefault("reward", {"use": "code"})
    columns = validate(GenerationsMap, values, "--map")
    if columns.completion is None and columns.extracted is None:
        raise ConfigError("--map: name the completion, for example completion=output (or extracted, a bare answer)")
    if columns.answer is None and columns.tests is None:
        raise ConfigError("--map: name the right answer (answer=...), or the tests of a program (tests=...)")
    if columns.problems is not None and not (columns.problem_id or columns.prompt):
        raise ConfigError("--map problems: name the problem_id (or the prompt) that says which problem a row answers")
    try:
        re.compile(columns.answer_pattern or "")
    except re.error as error:
        raise ConfigError(f"--map answer_pattern: not a regular expression ({error})") from error
    return columns


def reward_settings(columns: GenerationsMap) -> RewardConfig:
    """The map's reward. Answers to mathematics are also taken from "The answer is ...", which others' systems write."""
    if columns.reward.use != "math":
        return columns.reward
    return RewardConfig(use="math", args={"forms": list(FORMS), **columns.reward.args})


class Found(NamedTuple):
    keys: tuple[str | int, ...]  # the entries that * and nested lists stand for
    value: Any


def find(value: Any, path: str, *, flat: bool = True, keys: tuple[str | int, ...] = ()) -> Iterator[Found]:
    """All that ``path`` leads to; ``flat`` goes through lists at its end. Raises DataError where it leads nowhere."""
    if not path:
        if flat and isinstance(value, list):
            for index, entry in enumerate(value):
                yield from find(entry, "", flat=flat, keys=(*keys, index))
        else:
            yield Found(keys, value)
        return
    head, _, rest = path.partition(".")
    if isinstance(value, dict) and path in value:  # a key that itself holds dots
        yield from find(value[path], "", flat=flat, keys=keys)
    elif head == "*" and isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            try:
                yield from find(entry, rest, flat=flat, keys=(*keys, key))
            except DataError as error:  # of this entry only: the others stand
                yield Found((*keys, key), error)
    elif isinstance(value, dict) and head in value:
        yield from find(value[head], rest, flat=flat, keys=keys)
    elif isinstance(value, list) and _INDEX.fullmatch(head) and -len(value) <= int(head) < len(value):
        yield from find(value[int(head)], rest, flat=flat, keys=keys)
    else:
        keys_there = f", its keys are {', '.join(map(str, value))}" if isinstance(value, dict) else ""
        raise DataError(f"no {head!r} in {kind_of(value)}{keys_there}")


class Problems:
    """The rows of a file of problems, by what tells them apart."""

    def __init__(self, columns: GenerationsMap) -> None:
        """Raises DataError."""
        self._path = Path(columns.problems or "")
        self._here = columns.problem_id or columns.prompt or ""
        there = columns.problems_key or self._here
        self._rows: dict[str, dict[str, Any]] = {}
        for number, row in enumerate(table_rows(self._path, format_of(self._path)), start=1):
            if isinstance(row, DataError):
                raise row
            try:
                self._rows[_key(row, there)] = row
            except DataError as error:
                raise DataError(f"{self._path}, row {number}: problems_key: {error}") from error

    def joined(self, row: dict[str, Any]) -> dict[str, Any]:
        """``row`` with its ``problem``. Raises DataError."""
        key = _key(row, self._here)
        if key not in self._rows:
            raise DataError(f"no problem {key[:80]!r} in {self._path}")
        return {**row, "problem": self._rows[key]}


def _key(row: dict[str, Any], path: str) -> str:
    return " ".join(str(next(iter(find(row, path, flat=False))).value).split())


def value_at(keys: tuple[str | int, ...], name: str, entries: list[Found]) -> Any:
    """The one of ``entries`` that belongs to the sample at ``keys``: that of the same entries, or of them all."""
    fitting = [entry for entry in entries if entry.keys == keys[: len(entry.keys)]]
    if not fitting and len(entries) == 1:
        fitting = entries  # [gold]: a list of one
    if not fitting:
        raise DataError(f"{name} has {len(entries)} values, and none for this sample")
    value = max(fitting, key=lambda entry: len(entry.keys)).value
    if isinstance(value, DataError):
        raise value
    return value


def kind_of(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
