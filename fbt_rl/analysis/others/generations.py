"""Generations of any system: a file of them, read row by row and judged, becomes ``generations.parquet``.

A row, or a sample of one, that cannot be used is named and counted; the others stand.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm.auto import tqdm

from fbt_rl.analysis.others.field_map import SETTINGS, Found, GenerationsMap, Problems, find, kind_of, value_at
from fbt_rl.analysis.others.written_answers import boxed, last_match, plain, right_answer, to_judge
from fbt_rl.analysis.table import LENGTH_UNIT, SCHEMA, before_stop
from fbt_rl.data.tables import DataError, format_of, table_rows
from reward.base import Reward
from reward.reasoning import answer_start

logger = logging.getLogger(__name__)

SHOWN_FAULTS = 5
AGREEMENT = ("mode", "problem_id", "sample", "correct", "claimed", "extracted", "answer")  # what it needs
_BATCH = 512  # samples judged together
_WHOLE = ("tests", "setup")  # lists of these belong to one sample
# Of what others call the end of an answer; anything else is not known.
_FINISH = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "max_new_tokens", "max_length"), "length"),
}
_TRUE = {"true", "correct", "right", "passed", "pass", "yes", "c", "1"}
_FALSE = {"false", "incorrect", "wrong", "failed", "fail", "timed", "timeout", "no", "i", "0"}


@dataclass
class Faults:
    """Rows and samples that could not be used."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, message: str) -> None:
        self.count += 1
        if self.count <= SHOWN_FAULTS:
            self.first.append(message)
            logger.warning("left out: %s", message)


def judge_file(
    path: Path,
    columns: GenerationsMap,
    reward: Reward,
    target: Path,
    *,
    count_tokens: Callable[[list[str]], list[int]] | None = None,
    marker: str | None = None,
) -> Faults:
    """Judge the generations of ``path`` and write them to ``target``; the file is never held as a whole.

    ``num_tokens`` is what the map names, else ``count_tokens`` of the completions, else their characters (the
    table's metadata says so). ``marker``: as in :func:`reward.reasoning.answer_start`. Returns what was
    left out. Raises DataError where no row can be used, RewardError.
    """
    faults = Faults()
    unit = "tokens" if columns.num_tokens or count_tokens else "characters"
    samples = _samples(path, columns, faults)
    temporary = target.with_name(f".{target.name}.tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    judged = 0
    try:
        with (
            pq.ParquetWriter(temporary, SCHEMA.with_metadata({LENGTH_UNIT: unit})) as writer,
            tqdm(desc=path.name, unit="answer", disable=None) as bar,
        ):
            while batch := list(islice(samples, _BATCH)):
                rows = _judged(batch, columns, reward, count_tokens, marker)
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                judged += len(rows)
                bar.update(len(rows))
        if not judged:
            raise DataError(f"{path} holds no generation that can be used; {'; '.join(faults.first[:2])}")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return faults


def agreement(table: pa.Table) -> tuple[dict[str, dict[str, int]], list[str]]:
    """For files that bring verdicts of their own, by mode: how many are right by each, by how many they differ, and how
    many of those have no answer where it was looked for. And the first that differ, in words.
    """
    counts: dict[str, Counter[str]] = {}
    first: list[str] = []
    claiming = table.filter(table["claimed"].is_valid())
    for row in (row for batch in claiming.to_batches(_BATCH) for row in batch.to_pylist()):
        claimed, right = row["claimed"], bool(row["correct"])
        missing = claimed and not right and row["extracted"] is None
        counts.setdefault(row["mode"], Counter()).update(
            {"rows": 1, "claimed_right": claimed, "right": right, "differ": claimed != right, "no_answer": missing}
        )
        if claimed != right and len(first) < SHOWN_FAULTS:
            found = "no answer found" if row["extracted"] is None else f"found {row['extracted'][:60]!r}"
            first.append(
                f"{row['mode']}, {row['problem_id']}, sample {row['sample']}: {'right' if claimed else 'wrong'} by the "
                f"file; {found}, the right answer is {row['answer'][:60]!r}"
            )
    return {mode: dict(each) for mode, each in counts.items()}, first


# --- rows ----------------------------------------------------------------------------------------


def _samples(path: Path, columns: GenerationsMap, faults: Faults) -> Iterator[dict[str, Any]]:
    """The samples of all usable rows, in the columns of the map."""
    paths = {name: value for name, value in columns if name not in SETTINGS and value is not None}
    seen: Counter[tuple[str, str]] = Counter()
    problems = Problems(columns) if columns.problems else None
    for number, row in enumerate(table_rows(path, format_of(path), columns.rows), start=1):
        where = f"{path.name}, row {number}"
        try:
            if isinstance(row, DataError):
                raise row
            row = problems.joined(row) if problems else row
            found = _found(row, paths)
        except DataError as error:
            faults.add(str(error) if isinstance(row, DataError) else f"{where}: {error}")
            continue
        samples = found["completion" if "completion" in found else "extracted"]
        if not samples:
            faults.add(f"{where}: it has no sample")
        for sample in samples:
            try:
                values = {name: value_at(sample.keys, name, entries) for name, entries in found.items()}
                values = _checked(values, sample.keys, columns, path, number)
            except DataError as error:
                place = "".join(f", {key}" for key in sample.keys)
                faults.add(f"{where}{place}: {error}")
                continue
            key = values["problem_id"], values["mode"]
            yield {**values, "sample": seen[key]}
            seen[key] += 1


def _found(row: dict[str, Any], paths: Mapping[str, str]) -> dict[str, list[Found]]:
    found = {}
    for name, path in paths.items():
        try:
            found[name] = list(find(row, path, flat=name not in _WHOLE))
        except DataError as error:
            raise DataError(f"{name}={path}: {error}") from error
    return found


def _checked(
    values: Mapping[str, Any], keys: tuple[str | int, ...], columns: GenerationsMap, path: Path, number: int
) -> dict[str, Any]:
    """The values of one sample as text, numbers and verdicts of the table. Raises DataError."""
    # No answer found is wrong, but no completion is no sample.
    whole = _text(values, "completion") if columns.completion else _text(values, "extracted", or_none=True) or ""
    text = before_stop(whole, columns.stop)
    prompt = _text(values, "prompt") if columns.prompt else None
    if columns.problem_id:
        problem = _text(values, "problem_id")
    else:
        problem = f"{path.stem}-{number}" if prompt is None else f"prompt-{_hash(' '.join(prompt.split()))}"
    system = _text(values, "mode") if columns.mode else "/".join(key for key in keys if isinstance(key, str))
    tokens = _count(values["num_tokens"], text) if columns.num_tokens else None
    return {
        "problem_id": problem,
        "mode": "".join(filter(str.isprintable, system)) or path.stem,  # it is printed
        "prompt": prompt,
        "completion": text,
        "given": _text(values, "extracted", or_none=True) if columns.extracted else None,
        "answer": _answer(values, columns),
        "finish_reason": _FINISH.get(str(values.get("finish_reason")).lower()),
        "num_tokens": tokens,
        "claimed": _claim(values.get("claimed")),
        "level": _text(values, "level", or_none=True),
        "subject": _text(values, "subject", or_none=True),
        "tests": {"tests": values.get("tests"), "entry_point": values.get("entry_point"), "setup": _lines(values)},
    }


def _answer(values: Mapping[str, Any], columns: GenerationsMap) -> str | None:
    if columns.tests:
        return None
    answer = _text(values, "answer").strip()
    if not answer:
        raise DataError("answer is empty")
    return right_answer(answer) if columns.reward.use == "math" else answer


def _lines(values: Mapping[str, Any]) -> str | None:
    setup = values.get("setup")
    return "\n".join(map(str, setup)) if isinstance(setup, list) else setup


def _count(value: Any, text: str) -> int:
    try:
        count = int(float(value))
    except (TypeError, ValueError, OverflowError):
        count = -1
    if count < bool(text):
        raise DataError(f"num_tokens is {value!r}, expected a number of tokens")
    return count


def _text(values: Mapping[str, Any], name: str, or_none: bool = False) -> Any:
    value = values.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None and or_none:
        return None
    if not isinstance(value, str | int | float):
        raise DataError(f"{name} is {kind_of(value)}, expected text")
    return str(value).encode("utf-8", "replace").decode()  # half a surrogate pair is no text


def _claim(value: Any) -> bool | None:
    if isinstance(value, int | float):
        return value >= 1
    word = re.split(r"[\s:.]", str(value).strip().lower())[0]  # "failed: AssertionError"
    return True if word in _TRUE else False if word in _FALSE else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- verdicts ------------------------------------------------------------------------------------


def _judged(
    batch: list[dict[str, Any]],
    columns: GenerationsMap,
    reward: Reward,
    count_tokens: Callable[[list[str]], list[int]] | None,
    marker: str | None,
) -> list[dict[str, Any]]:
    texts = [sample["completion"] for sample in batch]
    of_code = {name: [sample["tests"][name] for sample in batch] for name in ("tests", "entry_point", "setup")}
    verdicts = reward.verdicts(
        prompts=[sample["prompt"] or "" for sample in batch],
        completions=[_to_judge(sample, columns, reward, marker) for sample in batch],
        problem_id=[sample["problem_id"] for sample in batch],
        **(of_code if columns.tests else {"answer": [sample["answer"] for sample in batch]}),
    )
    lengths = count_tokens(texts) if count_tokens else [len(text) for text in texts]
    places = [answer_start(text, marker) for text in texts]
    heads = [text[:place] for text, place in zip(texts, places, strict=True)]
    thoughts = count_tokens(heads) if count_tokens else places
    rows = []
    for sample, verdict, length, thought in zip(batch, verdicts, lengths, thoughts, strict=True):
        split = sample["num_tokens"] is None  # else tokens are counted by others, and the place is not known in them
        row = {name: sample.get(name) for name in SCHEMA.names} | {
            "prompt_hash": None if sample["prompt"] is None else _hash(sample["prompt"]),
            "answer": sample["answer"] or "",
            "extracted": verdict.extracted,
            "correct": False if sample["finish_reason"] == "length" else verdict.correct,
            "error": verdict.error,
            "num_tokens": length if split else sample["num_tokens"],
            "reasoning_tokens": min(thought, length) if split else None,
            "answer_tokens": length - min(thought, length) if split else None,
        }
        rows.append(row)
    return rows


def _to_judge(sample: dict[str, Any], columns: GenerationsMap, reward: Reward, marker: str | None) -> str:
    """What the reward is given. Answers to mathematics that stand elsewhere than it looks for them are boxed."""
    text = sample["given"] if columns.extracted else sample["completion"]
    if reward.name != "math" or text is None:
        return text or ""
    if columns.extracted:
        return boxed(plain(text).strip())
    if columns.answer_pattern:
        return boxed(last_match(re.compile(columns.answer_pattern), plain(text)))
    return plain(text) if "forms" in columns.reward.args else to_judge(text, marker)
