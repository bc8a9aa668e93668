"""Rows of local tables, one after another and never the file as a whole, with errors that name file and row."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import IO, Any

FORMATS = {".txt": "text", ".jsonl": "jsonl", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
_BLANKS = b" \t\r\n\xef\xbb\xbf"  # and a byte order mark
_CHUNK = 2**20  # characters
_BATCH = 256  # rows of parquet, which can be long
_FIELD = 2**27  # characters of a CSV field; the default is too few for a long completion
_GAP = re.compile(r"[\s,:\ufeff]*")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_UNREADABLE = (OSError, EOFError, zlib.error)


class DataError(ValueError):
    """A data file cannot be used; the message names the file and, where there is one, the row."""


def format_of(path: Path, format: str = "auto") -> str:
    """The format of a file, by its ending where ``format`` is "auto". Raises :class:`DataError`."""
    if format != "auto":
        return format
    ending = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if ending not in FORMATS:
        raise DataError(f"{path}: unknown ending; known are {', '.join(FORMATS)}, or set data.format")
    return FORMATS[ending]


def table_rows(path: Path, format: str, at: str | None = None) -> Iterator[dict[str, Any] | DataError]:
    """The rows of a table in order; in the place of a row that cannot be read, the error that says so.

    JSON may be a list of rows, a mapping (its entries, or those of the lists in it, with their key as ``key``), or
    JSON lines; ``at`` (keys with dots between) says where in it they are. A file may be compressed (``.gz``).
    Raises :class:`DataError` where none can be read.
    """
    number = 0
    try:
        for number, row in enumerate(_table(path, format, at), start=1):
            if not isinstance(row, dict | DataError):
                row = DataError(f"{path}, row {number}: expected named columns, found {type(row).__name__}")
            yield row
    except DataError as error:  # of the file, which breaks off
        if number == 0:
            raise
        yield DataError(f"{error}; the rest, after row {number}, is not read")
    if number == 0:
        raise DataError(f"{path} holds no rows")


def check_file(path: Path) -> None:
    """Raises :class:`DataError` where there is none."""
    if not path.exists():
        raise DataError(f"no data file {path} (looked from {Path.cwd()})")
    if not path.is_file():
        raise DataError(f"{path} is not a file: name the data files one by one in data.paths")


def _table(path: Path, format: str, at: str | None) -> Iterator[Any]:
    check_file(path)
    if at is not None and format != "json":
        raise DataError(f"{path}: rows={at} is for JSON files (.json)")
    readers = {"csv": _csv, "jsonl": _json_lines, "json": _json}
    try:
        if format == "parquet":
            yield from _parquet(path)
        elif at is not None:
            yield from _json_at(path, at)
        else:
            yield from readers[format](path)
    except _UNREADABLE as error:
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"cannot read {path} as parquet: {error}") from error


def _csv(path: Path) -> Iterator[Any]:
    csv.field_size_limit(_FIELD)
    with _open(path) as file:
        reader = csv.DictReader(io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline=""))
        try:
            named = any(map(str.strip, reader.fieldnames or ()))
        except csv.Error as error:
            raise DataError(f"{path}: not valid CSV ({error})") from error
        if not named:
            raise DataError(f"{path} is empty")
        for number in count(1):
            try:
                row = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                yield DataError(f"{path}, row {number}: not valid CSV ({error})")
                continue
            bad = any(_NOT_UTF8.search(str(part)) for part in row.values())
            yield DataError(f"{path}, row {number} is not UTF-8 text") if bad else row


def _json_lines(path: Path) -> Iterator[Any]:
    number = 0
    with _open(path) as file:
        for line in file:
            if not line.strip(_BLANKS):
                continue
            number += 1
            try:
                yield _parsed(line.decode("utf-8-sig"), f"{path}, row {number}")
            except UnicodeDecodeError as error:
                yield DataError(f"{path}, row {number} is not UTF-8 text (byte {error.start} of the line)")
            except DataError as error:
                yield error
    if number == 0:
        raise DataError(f"{path} is empty")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from error


# --- JSON in one piece ---------------------------------------------------------------------------


def _json(path: Path) -> Iterator[Any]:
    if _holds_lines(path):
        yield from _json_lines(path)
        return
    with _open(path) as file:
        entries = _Entries(io.TextIOWrapper(file, "utf-8-sig"), path)
        if entries.kind == "[":
            yield from (value for _, value in entries)
        else:
            yield from _of_mapping(entries, path)


def _json_at(path: Path, at: str) -> Iterator[Any]:
    with _open(path) as file:
        try:
            value = _parsed(file.read().decode("utf-8-sig"), str(path))
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text (byte {error.start})") from error
    for key in at.split("."):
        if not isinstance(value, dict) or key not in value:
            there = f"; its keys are {', '.join(value)}" if isinstance(value, dict) else ""
            raise DataError(f"{path}: rows={at}: no {key!r} in a {type(value).__name__}{there}")
        value = value[key]
    if isinstance(value, list):
        yield from value
    else:
        yield from _of_mapping(value.items() if isinstance(value, dict) else (), path)


def _of_mapping(entries: Any, path: Path) -> Iterator[Any]:
    found = False
    for key, value in entries:
        for row in value if isinstance(value, list) else [value]:
            if isinstance(row, dict | DataError):  # else what is said of the whole: a name, a date
                found = True
                yield {"key": key, **row} if isinstance(row, dict) else row
    if not found:
        raise DataError(f"{path}: expected a list of rows, found dict")


def _holds_lines(path: Path) -> bool:
    """Whether a file in JSON has a whole mapping in its first line, and more below."""
    with _open(path) as file:
        lines = (line for line in file if line.strip(_BLANKS))
        first = next(lines, b"")
        if not first.strip():
            raise DataError(f"{path} is empty")
        if not first.lstrip(_BLANKS).startswith(b"{") or not first.rstrip().endswith(b"}"):
            return False
        return next(lines, None) is not None


class _Entries:
    """The entries of the one list or mapping in ``file``, as ``(key, value)``; the last is an error where it breaks."""

    def __init__(self, file: IO[str], path: Path) -> None:
        self._file, self._path = file, path
        self._text, self._place, self._ended = "", 0, False
        self._decoder = json.JSONDecoder()
        try:
            self.kind = self._next_character()
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text: {error.reason}") from error
        if self.kind not in ("[", "{"):
            kind = type(_parsed(self._text[self._place :] or " ", str(path))).__name__
            raise DataError(f"{path}: expected a list of rows, found {kind}")
        self._place += 1

    def __iter__(self) -> Iterator[tuple[str | None, Any]]:
        number = 0
        try:
            while self._next_character() not in ("]", "}"):
                number += 1
                key = str(self._value()) if self.kind == "{" else None
                yield key, self._value()
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError among them
            said = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"not valid JSON ({error})"
            yield None, DataError(f"{self._path}, row {max(number, 1)}: {said}; the rest is not read")

    def _next_character(self) -> str:
        while True:
            gap = _GAP.match(self._text, self._place)
            self._place = gap.end() if gap else self._place
            if self._place < len(self._text):
                return self._text[self._place]
            if self._ended:
                raise ValueError("the file ends within its list")
            self._fill()

    def _value(self) -> Any:
        while True:
            self._next_character()
            try:
                value, end = self._decoder.raw_decode(self._text, self._place)
            except ValueError:
                if self._ended:
                    raise
            else:
                if end < len(self._text) or self._ended:  # else a number may go on
                    self._place = end
                    return value
            self._fill()

    def _fill(self) -> None:
        more = self._file.read(max(_CHUNK, len(self._text)))  # twice as much each time, so that time is linear
        self._ended = not more
        self._text, self._place = self._text[self._place :] + more, 0
