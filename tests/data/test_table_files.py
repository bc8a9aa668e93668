"""Tables in whatever kind of file: read row by row, a broken row named and the others used."""

import csv
import gzip
import io
import json

import pyarrow.parquet as pq
import pytest

from fbt_rl.data import tables
from fbt_rl.data.tables import DataError
from fbt_rl.driver.evaluate import evaluate_file

MAP = ["problem_id=id,answer=gold,completion=out"]
TABLE = [{"id": "a", "gold": "1", "out": "\\boxed{1}"}, {"id": "b", "gold": "2", "out": "é" * 200_000}]


def lines_of(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def csv_of(rows):
    with io.StringIO(newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        return file.getvalue()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines.jsonl", lines_of(TABLE)),
        ("lines.json", lines_of(TABLE)),
        ("list.json", "\ufeff" + json.dumps(TABLE, indent=1)),
        ("by_key.json", json.dumps({"date": "today", "x": TABLE[0], "y": TABLE[1]})),
        ("wrapped.json", json.dumps({"model": "m", "accuracy": 0.5, "results": TABLE}, ensure_ascii=False)),
        ("table.csv", csv_of(TABLE)),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_tables_in_whatever_wrapping(tmp_path, monkeypatch, name, text, packed):
    monkeypatch.setattr(tables, "_CHUNK", 10)
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    result = evaluate_file(path, MAP, tmp_path / "out")
    assert result["left_out"] == 0
    table = pq.read_table(tmp_path / "out" / "generations.parquet")
    assert table["problem_id"].to_pylist() == ["a", "b"]
    assert table["correct"].to_pylist() == [True, False]
    assert table["num_tokens"].to_pylist() == [9, 200_000]


def test_rows_may_lie_deep_in_json_and_have_their_key(tmp_path):
    path = tmp_path / "eval.json"
    path.write_text(json.dumps({"date": "x", "eval": {"n/1": [{"s": "\\boxed{1}", "g": 1}, {"s": "", "g": 1}]}}))
    evaluate_file(path, ["rows=eval,problem_id=key,completion=s,answer=g"], tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / "generations.parquet").to_pylist()
    assert [(row["problem_id"], row["sample"], row["correct"]) for row in rows] == [("n/1", 0, True), ("n/1", 1, False)]
    with pytest.raises(DataError, match=r"rows=samples: no 'samples' in a dict; its keys are date, eval"):
        evaluate_file(path, ["rows=samples,completion=s,answer=g"], None)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("list.json", json.dumps(TABLE[:1])[:-1] + ', {"id": "cut', "row 2: not valid JSON"),
        ("latin.csv", csv_of(TABLE[:1]).encode() + b"b,1,\xe9\r\n", "row 2 is not UTF-8 text"),
        ("broken_off.jsonl.gz", gzip.compress(lines_of(TABLE[:1]).encode(), mtime=0)[:-8], "the rest, after row 1,"),
        ("packed.jsonl.gz", gzip.compress(lines_of(TABLE[:1]).encode() + b"{\n", mtime=0), "row 2: not valid JSON"),
    ],
    ids=["list", "latin", "broken off", "packed"],
)
def test_a_broken_row_of_any_kind_of_file_is_named(tmp_path, name, text, fault):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    result = evaluate_file(tmp_path / name, MAP, None)
    assert result["left_out"] == 1
    assert fault in result["left_out_first"][0]
    assert result["modes"][(tmp_path / name).stem]["rows"] == 1
