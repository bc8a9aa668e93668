"""Rows and documents of local files, read without torch, with errors that name file and row.

Used by :mod:`fbt_rl.data.tasks` and, before any worker starts, by the pipeline (:func:`check_data`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from fbt_rl.config import DataConfig, FileData
from fbt_rl.data.tables import DataError, check_file, format_of, table_rows

Role = Literal["prompt", "completion", "answer"]
T = TypeVar("T")

_GUTENBERG_START = re.compile(r"^\*\*\* ?START OF TH(?:E|IS) PROJECT GUTENBERG.*$", re.MULTILINE)
_GUTENBERG_END = re.compile(r"^\*\*\* ?END OF TH(?:E|IS) PROJECT GUTENBERG.*$", re.MULTILINE)
# GSM8K ends a worked solution with "#### <answer>" and marks sums as <<3+4=7>>.
_GSM8K_ANSWER = re.compile(r"^####[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_GSM8K_MARK = re.compile(r"<<[^<>\n]*>>")
_NAMED = re.compile(r"\{(\w+)\}")


def check_data(data: DataConfig, needs: Sequence[Role] = ()) -> None:
    """Cheap check before a run: every file can be read and its first row (or the text) is usable.

    ``needs``: the roles a stage works with (SFT: prompt and completion; RL and evaluation: prompt
    and answer; pretraining: none). Raises :class:`DataError`.
    """
    if not isinstance(data, FileData):
        return
    if is_text(data):
        if needs:
            raise DataError(f"{data.source} is plain text; {_join(needs)} need a table (jsonl, json, csv, parquet)")
        for name in data.paths:
            _read_text(Path(name))
        return
    require_roles(data, needs)
    for name in (*data.paths, *data.shots_paths):
        next(_problems(Path(name), data))


def is_text(data: FileData) -> bool:
    """Whether the files are plain text rather than tables. Raises :class:`DataError` on a mixture."""
    formats = {format_of(Path(name), data.format) for name in data.paths}
    if "text" in formats and len(formats) > 1:
        raise DataError(f"plain text and tables cannot be mixed in one data section: {_join(data.paths)}")
    return formats == {"text"}


def read_texts(data: FileData) -> list[str]:
    """Plain text files cut into documents of at most ``text_chars`` characters, in order.

    A cut falls on the last paragraph break that fits (else line break, else space); the header and
    licence of a Project Gutenberg file are left out. ``offset`` and ``limit`` count documents.
    Raises :class:`DataError`.
    """
    pieces = (piece for name in data.paths for piece in _cut(_read_text(Path(name)), data.text_chars))
    return _selected(pieces, data)


def read_rows(data: FileData, needs: Sequence[Role] = ()) -> list[dict[str, str]]:
    """Table rows as ``problem_id``, ``prompt`` (what is asked, with template and examples), ``question`` (the prompt as
    the data has it), ``completion``, ``answer``, ``level``, ``subject``; "" where no column is named.

    An answer that holds a line ``#### x`` (GSM8K) means ``x``, and a completion with such a line
    loses its calculator marks ``<<3+4=7>>``; else only outer blanks go. Tests, with what they need, are an answer in
    JSON. ``problem_id`` is the file's name and the row's number in it, where no column is named. Raises
    :class:`DataError`.
    """
    require_roles(data, needs)
    rows = (row for name in data.paths for row in _problems(Path(name), data))
    return select_rows(rows, data)


def select_rows(rows: Iterable[dict[str, str]], data: FileData) -> list[dict[str, str]]:
    """The rows that are asked, of those of the whole data set: with examples before them. Raises :class:`DataError`."""
    if not data.shots:
        return _selected(rows, data)
    rows = list(rows)
    of_examples = (row for name in data.shots_paths for row in _problems(Path(name), data))
    examples = list(islice(of_examples, data.shots)) if data.shots_paths else rows[: data.shots]
    if len(examples) < data.shots:
        raise DataError(f"{data.source}: shots is {data.shots}, but there are {len(examples)} rows to take them from")
    shown = [] if data.shots_paths else [row["problem_id"] for row in examples]
    lead = "".join(f"{row['prompt']}\n{row['completion']}\n\n" for row in examples)
    rest = [row for row in rows[data.offset :] if row["problem_id"] not in shown]
    return [row | {"prompt": lead + row["prompt"]} for row in _selected(rows[: data.offset] + rest, data)]


def _selected(items: Iterable[T], data: FileData) -> list[T]:
    end = None if data.limit is None else data.offset + data.limit
    selected = list(islice(items, data.offset, end))
    if not selected:
        raise DataError(
            f"nothing is left of {_join(data.paths) or data.source} after offset {data.offset}: lower data.offset"
        )
    return selected


def require_roles(data: FileData, needs: Sequence[Role]) -> None:
    """Raises :class:`DataError` where no column is named for what is needed."""
    missing = [role for role in needs if getattr(data, role) is None and not (role == "answer" and data.tests)]
    if not missing and data.prompt is None and data.completion is None:
        missing = ["prompt"]
    if missing:
        raise DataError(
            f"{data.source}: name the column of {_join(missing)} (data.{missing[0]}: <column>) in the config"
        )


# --- tables --------------------------------------------------------------------------------------


def _problems(path: Path, data: FileData) -> Iterator[dict[str, str]]:
    return problems_of(table_rows(path, format_of(path, data.format)), data, str(path), path.stem)


def problems_of(
    rows: Iterable[dict[str, Any] | DataError], data: FileData, name: str, stem: str
) -> Iterator[dict[str, str]]:
    """Rows of a table called ``name`` as problems (:func:`read_rows`), one by one. Raises :class:`DataError`."""
    for number, row in enumerate(rows, start=1):
        if isinstance(row, DataError):
            raise row
        where = f"{name}, row {number}"
        code = data.tests is not None  # where blanks at the ends matter
        completion = _value(where, row, data.completion, strip=not code) if data.completion else ""
        if _GSM8K_ANSWER.search(completion):
            completion = _GSM8K_MARK.sub("", completion)
        answer = _value(where, row, data.answer) if data.answer else ""
        if answers := _GSM8K_ANSWER.findall(answer):
            answer = answers[-1]
        question = ""
        if data.prompt:
            named = "{" in data.prompt
            question = _filled(where, row, data.prompt) if named else _value(where, row, data.prompt, strip=not code)
        yield {
            "problem_id": _value(where, row, data.problem_id) if data.problem_id else f"{stem}-{number}",
            "prompt": _filled(where, {**row, "prompt": question}, data.template) if question else "",
            "question": question,
            "completion": completion,
            "answer": _tests(where, row, data) if data.tests else answer,
            "level": _value(where, row, data.level, empty=True) if data.level else "",
            "subject": _value(where, row, data.subject, empty=True) if data.subject else "",
        }


def _tests(where: str, row: dict[str, Any], data: FileData) -> str:
    """The tests of a program and what they need, as the reward ``code`` takes them from one column."""
    tests = _column(where, row, data.tests or "")
    if data.extra_tests:
        further = _column(where, row, data.extra_tests)
        if not isinstance(tests, list) or not isinstance(further, list):
            raise DataError(f"{where}: extra_tests are added to a list of tests, both columns have to hold lists")
        tests = tests + further
    if not tests:
        raise DataError(f"{where}: column {data.tests!r} is empty")
    needed: dict[str, Any] = {"tests": tests}
    if data.entry_point:
        needed["entry_point"] = _value(where, row, data.entry_point)
    if data.setup:
        needed["setup"] = _shown(_column(where, row, data.setup))
    try:
        return json.dumps(needed)
    except TypeError as error:
        raise DataError(f"{where}: column {data.tests!r} holds what cannot be written as JSON ({error})") from error


def _filled(where: str, row: dict[str, Any], text: str) -> str:
    """``text`` with the names of columns in braces replaced; other braces stay."""
    return _NAMED.sub(lambda match: _shown(_column(where, row, match[1])), text)


def _shown(value: Any) -> str:
    """A value in a prompt or as code: a list is one entry a line."""
    return "\n".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _column(where: str, row: dict[str, Any], column: str) -> Any:
    if column not in row:
        there = _join(str(key) for key in row if key is not None)
        raise DataError(f"{where}: no column {column!r}; its columns are {there}")
    return row[column]


def _value(where: str, row: dict[str, Any], column: str, empty: bool = False, strip: bool = True) -> str:
    value = _column(where, row, column)
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise DataError(f"{where}: column {column!r} holds {type(value).__name__}, expected text or a number")
    text = "" if value is None else str(value)
    if not text.strip() and not empty:
        raise DataError(f"{where}: column {column!r} is empty")
    return text.strip() if strip else text


# --- text ----------------------------------------------------------------------------------------


def _read_text(path: Path) -> str:
    text = _read(path)
    if start := _GUTENBERG_START.search(text):
        text = text[start.end() :]
        if end := _GUTENBERG_END.search(text):
            text = text[: end.start()]
    return re.sub(r"\n[ \t]+(?=\n)", "\n", text).strip()


def _cut(text: str, size: int) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = start + size
        if end < len(text):
            # The first half of a document is no place to end it: a lone heading would be one.
            half = start + size // 2
            breaks = (text.rfind(mark, half, end + 1) for mark in ("\n\n", "\n", " "))
            end = next((place for place in breaks if place > start), end)
        if piece := text[start:end].strip("\n"):
            yield piece
        start = end


# --- files ---------------------------------------------------------------------------------------


def _read(path: Path) -> str:
    check_file(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}): convert it or set data.format") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if not text.strip():
        raise DataError(f"{path} is empty")
    return text


def _join(names: Iterable[str]) -> str:
    return ", ".join(names)
