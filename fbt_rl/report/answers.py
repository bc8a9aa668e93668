"""Every answer of the evaluations, in the compact form that the page searches."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from fbt_rl.report.examples import mode_order, verdict
from fbt_rl.report.text import SHOWN_CHARACTERS, visible

MOST_CHARACTERS = 16_000_000  # of one page: what a browser still opens at once
_ROW_CHARACTERS = 40  # of a row without its text
_COLUMNS = ["problem_id", "mode", "sample", "prompt", "completion", "answer", "correct", "finish_reason", "num_tokens"]


def all_answers(tables: dict[str, pa.Table], most: int = MOST_CHARACTERS) -> dict[str, Any]:
    """``json``, for the page, and how many ``problems`` and ``answers`` it holds.

    Problems are taken in the order of the data until ``most`` characters are reached; ``all_problems`` counts them all.
    In the JSON a row is (evaluation, problem, mode, sample, verdict, finish reason, tokens, text); words are numbers of
    ``words``, problems of ``problems``, each (id, prompt, answer). Rows of one problem and sample stand together.
    """
    groups: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    places: dict[tuple[str, str], int] = {}
    for name, table in tables.items():
        here: dict[tuple[str, str], int] = {}
        for row in table.select(_COLUMNS).to_pylist():
            key = row["problem_id"], row["prompt"]  # other data may have the same ids
            here.setdefault(key, len(here))
            groups.setdefault(key, []).append((name, row))
        places = here | places

    words: dict[str, int] = {}
    problems: list[tuple[str, str, str]] = []
    rows: list[tuple[Any, ...]] = []
    evaluations = list(tables)
    left = most
    for key in sorted(groups, key=places.__getitem__):
        group = groups[key]
        left -= sum(_ROW_CHARACTERS + min(len(row["completion"] or ""), SHOWN_CHARACTERS) for _, row in group)
        if left < 0 and problems:
            break
        group.sort(key=lambda item: (item[1]["sample"], mode_order(item[1]["mode"]), evaluations.index(item[0])))
        for name, row in group:
            finish = row["finish_reason"] or "not known"
            numbers = [words.setdefault(word, len(words)) for word in (name, row["mode"], verdict(row), finish)]
            text = visible(row["completion"])
            rows.append((numbers[0], len(problems), numbers[1], row["sample"], *numbers[2:], row["num_tokens"], text))
        problems.append((visible(key[0]), visible(key[1]), visible(group[0][1]["answer"])))
    return {
        "problems": len(problems),
        "all_problems": len(groups),
        "answers": len(rows),
        "json": _for_script({"words": list(words), "problems": problems, "rows": rows}),
    }


def _for_script(value: Any) -> str:
    """JSON that no text in it can end the script element of."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
