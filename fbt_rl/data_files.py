"""Rows and documents of local files, read without torch, with errors that name file and row.

Used by :mod:`fbt_rl.tasks` and, before any worker starts, by the pipeline (:func:`check_data`).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from fbt_rl.config import DataConfig, FileData

Role = Literal["prompt", "completion", "answer"]
ROLES: tuple[Role, ...] = ("prompt", "completion", "answer")
FORMATS = {".txt": "text", ".jsonl": "jsonl", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
T = TypeVar("T")

_GUTENBERG_START = re.compile(r"^\*\*\* ?START OF TH(?:E|IS) PROJECT GUTENBERG.*$", re.MULTILINE)
_GUTENBERG_END = re.compile(r"^\*\*\* ?END OF TH(?:E|IS) PROJECT GUTENBERG.*$", re.MULTILINE)
# GSM8K ends a worked solution with "#### <answer>" and marks sums as <<3+4=7>>.
_GSM8K_ANSWER = re.compile(r"^####[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_GSM8K_MARK = re.compile(r"<<[^<>\n]*>>")
_BLANKS = b" \t\r\n\xef\xbb\xbf"  # and a byte order mark


class DataError(ValueError):
    """A data file cannot be used; the message names the file and, where there is one, the row."""


def check_data(data: DataConfig, needs: Sequence[Role] = ()) -> None:
    """Cheap check before a run: every file can be read and its first row (or the text) is usable.

    ``needs``: the roles a stage works with (SFT: prompt and completion; RL and evaluation: prompt
    and answer; pretraining: none). Raises :class:`DataError`.
    """
    if not isinstance(data, FileData):
        return
    if is_text(data):
        if needs:
            raise DataError(f"{data.paths[0]} is plain text; {_join(needs)} need a table (jsonl, json, csv, parquet)")
        for name in data.paths:
            _read_text(Path(name))
        return
    _require_roles(data, needs)
    for name in data.paths:
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
    """Table rows as ``problem_id``, ``prompt``, ``completion``, ``answer``; "" where no column is named.

    An answer that holds a line ``#### x`` (GSM8K) means ``x``, and a completion with such a line
    loses its calculator marks ``<<3+4=7>>``; else only outer blanks go. ``problem_id`` is the file's
    name and the row's number in it. Raises :class:`DataError`.
    """
    _require_roles(data, needs)
    return _selected((row for name in data.paths for row in _problems(Path(name), data)), data)


def _selected(items: Iterable[T], data: FileData) -> list[T]:
    end = None if data.limit is None else data.offset + data.limit
    selected = list(islice(items, data.offset, end))
    if not selected:
        raise DataError(f"nothing is left of {_join(data.paths)} after offset {data.offset}: lower data.offset")
    return selected


def _require_roles(data: FileData, needs: Sequence[Role]) -> None:
    missing = [role for role in needs if getattr(data, role) is None]
    if not missing and data.prompt is None and data.completion is None:
        missing = ["prompt"]
    if missing:
        raise DataError(
            f"{data.paths[0]}: name the column of {_join(missing)} (data.{missing[0]}: <column>) in the config"
        )


# --- tables --------------------------------------------------------------------------------------


def table_rows(path: Path, format: str) -> Iterator[dict[str, Any] | DataError]:
    """The rows of a table in order; in the place of a row that cannot be read, the error that says so.

    JSON lines are read one at a time, parquet batch by batch. Raises :class:`DataError` where the file
    as a whole cannot be read or holds no rows.
    """
    number = 0
    for number, row in enumerate(_table(path, format), start=1):
        if not isinstance(row, dict | DataError):
            row = DataError(f"{path}, row {number}: expected named columns, found {type(row).__name__}")
        yield row
    if number == 0:
        raise DataError(f"{path} holds no rows")


def _problems(path: Path, data: FileData) -> Iterator[dict[str, str]]:
    columns = {role: column for role in ROLES if (column := getattr(data, role)) is not None}
    for number, row in enumerate(table_rows(path, format_of(path, data.format)), start=1):
        if isinstance(row, DataError):
            raise row
        values = {role: _value(path, number, row, column) for role, column in columns.items()}
        problem = {role: values.get(role, "") for role in ROLES}
        if answers := _GSM8K_ANSWER.findall(problem["answer"]):
            problem["answer"] = answers[-1]
        if _GSM8K_ANSWER.search(problem["completion"]):
            problem["completion"] = _GSM8K_MARK.sub("", problem["completion"])
        yield {
            "problem_id": f"{path.stem}-{number}",
            **problem,
            "question": problem["prompt"],
            "level": "",
            "subject": "",
        }


def _value(path: Path, number: int, row: dict[str, Any], column: str) -> str:
    if column not in row:
        there = _join(str(key) for key in row if key is not None)
        raise DataError(f"{path}, row {number}: no column {column!r}; its columns are {there}")
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise DataError(
            f"{path}, row {number}: column {column!r} holds {type(value).__name__}, expected text or a number"
        )
    text = "" if value is None else str(value).strip()
    if not text:
        raise DataError(f"{path}, row {number}: column {column!r} is empty")
    return text


def _table(path: Path, format: str) -> Iterator[Any]:
    if format == "parquet":
        yield from _parquet(path)
    elif format == "csv":
        try:
            yield from csv.DictReader(io.StringIO(_read(path), newline=""))
        except csv.Error as error:
            raise DataError(f"{path}: not valid CSV ({error})") from error
    elif format == "jsonl":
        yield from _json_lines(path)
    else:
        rows = _json(_read(path), str(path))
        if not isinstance(rows, list):
            raise DataError(f"{path}: expected a list of rows, found {type(rows).__name__}")
        yield from rows


def _json_lines(path: Path) -> Iterator[Any]:
    _check_file(path)
    number = 0
    try:
        with path.open("rb") as file:
            for line in file:
                if not line.strip(_BLANKS):
                    continue
                number += 1
                try:
                    yield _json(line.decode("utf-8-sig"), f"{path}, row {number}")
                except UnicodeDecodeError as error:
                    yield DataError(f"{path}, row {number} is not UTF-8 text (byte {error.start} of the line)")
                except DataError as error:
                    yield error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if number == 0:
        raise DataError(f"{path} is empty")


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from error


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet

    _check_file(path)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"cannot read {path} as parquet: {error}") from error


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


def format_of(path: Path, format: str = "auto") -> str:
    """The format of a file, by its ending where ``format`` is "auto". Raises :class:`DataError`."""
    if format != "auto":
        return format
    if path.suffix not in FORMATS:
        raise DataError(f"{path}: unknown ending; known are {_join(FORMATS)}, or set data.format")
    return FORMATS[path.suffix]


def _read(path: Path) -> str:
    _check_file(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}): convert it or set data.format") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if not text.strip():
        raise DataError(f"{path} is empty")
    return text


def _check_file(path: Path) -> None:
    if not path.exists():
        raise DataError(f"no data file {path} (looked from {Path.cwd()})")
    if not path.is_file():
        raise DataError(f"{path} is not a file: name the data files one by one in data.paths")


def _join(names: Iterable[str]) -> str:
    return ", ".join(names)
