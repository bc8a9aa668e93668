"""Reading local files: formats, cutting of text, and one clear message for each fault."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fbt_rl.config import ArithmeticData, FileData
from fbt_rl.data_files import DataError, check_data, read_rows, read_texts

HERE = Path(__file__).parent / "data"
ROWS = [{"q": "1+1", "a": "2"}, {"q": 'a, b\n"c"', "a": "7.5"}, {"q": "3 ", "a": "\\frac{1}{2}"}]
COLUMNS = {"prompt": "q", "answer": "a"}


def write(folder, ending, rows):
    path = folder / f"rows.{ending}"
    if ending == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    elif ending == "json":
        path.write_text(json.dumps(rows))
    elif ending == "csv":
        lines = [",".join('"' + value.replace('"', '""') + '"' for value in row.values()) for row in rows]
        path.write_text("q,a\n" + "\n".join(lines) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def data(path, **settings):
    return FileData(paths=[str(path)], **{**COLUMNS, **settings})


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "parquet"])
def test_formats_agree(tmp_path, ending):
    path = write(tmp_path, ending, ROWS)
    check_data(data(path), ("prompt", "answer"))
    rows = read_rows(data(path), ("prompt", "answer"))
    assert [row["prompt"] for row in rows] == ["1+1", 'a, b\n"c"', "3"]
    assert [row["answer"] for row in rows] == ["2", "7.5", "\\frac{1}{2}"]
    assert [row["problem_id"] for row in rows] == ["rows-1", "rows-2", "rows-3"]
    assert {row["completion"] for row in rows} == {""}


def test_numbers_become_text_and_selection_counts_over_files(tmp_path):
    first = write(tmp_path, "jsonl", [{"q": "a", "a": 1}, {"q": "b", "a": 2.5}])
    second = write(tmp_path, "json", [{"q": "c", "a": "3"}, {"q": "d", "a": "4"}])
    rows = read_rows(FileData(paths=[first, second], **COLUMNS, offset=1, limit=2))
    assert [(row["prompt"], row["answer"]) for row in rows] == [("b", "2.5"), ("c", "3")]
    with pytest.raises(DataError, match=r"nothing is left of .* after offset 4"):
        read_rows(FileData(paths=[first, second], **COLUMNS, offset=4))


def test_gsm8k_answers_and_marks():
    gsm8k = FileData(paths=[str(HERE / "gsm8k_like.jsonl")], prompt="question", completion="answer", answer="answer")
    rows = read_rows(gsm8k, ("prompt", "completion", "answer"))
    assert [row["answer"] for row in rows] == ["72", "1,050"]
    assert rows[0]["completion"] == "Sold 48/2 = 24 in May.\n48+24 = 72 in all.\n#### 72"
    # Without the convention's last line nothing is a mark: shifts in code stay.
    code = FileData(paths=[str(HERE / "code_like.jsonl")], prompt="question", completion="answer", answer="answer")
    assert read_rows(code)[0]["completion"] == "print(1<<2, 8>>1)"


def test_text_is_cut_at_paragraphs_and_nothing_is_lost(tmp_path):
    paragraphs = [f"Paragraph {n}. " + "word " * (n % 17 + 5) for n in range(200)]
    path = tmp_path / "book.txt"
    path.write_text("\n   \n".join(paragraph.strip() for paragraph in paragraphs))
    texts = read_texts(FileData(paths=[str(path)], text_chars=400))
    assert all(200 <= len(text) <= 400 for text in texts[:-1])
    assert "\n\n".join(texts).split("\n\n") == [paragraph.strip() for paragraph in paragraphs]


def test_text_without_breaks_is_cut_anyway(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("x" * 1000 + "\n" + "one two " * 50)
    texts = read_texts(FileData(paths=[str(path)], text_chars=300))
    assert max(map(len, texts)) <= 300
    assert "".join(texts).replace("\n", "") == ("x" * 1000 + "one two " * 50).strip()
    assert read_texts(FileData(paths=[str(path)], text_chars=300, offset=1, limit=2)) == texts[1:3]


def test_gutenberg_header_and_licence_are_left_out(tmp_path):
    path = tmp_path / "pg.txt"
    path.write_text(
        "\ufeffLicence\n*** START OF THIS PROJECT GUTENBERG EBOOK X ***\n\nThe tale.\n\n"
        "*** END OF THIS PROJECT GUTENBERG EBOOK X ***\nMore licence",
        encoding="utf-8",
    )
    assert read_texts(FileData(paths=[str(path)])) == ["The tale."]


FAULTS = {
    "missing.jsonl": (None, "no data file"),
    "empty.jsonl": ("", "is empty"),
    "blank.csv": ("\n \n", "is empty"),
    "header.csv": ("q,a\n", "holds no rows"),
    "list.json": ("[]", "holds no rows"),
    "object.json": ('{"q": 1}', "expected a list of rows, found dict"),
    "broken.jsonl": ('{"q": "1", "a": "2"}\n{"q":', r"row 2: not valid JSON"),
    "scalar.jsonl": ('{"q": "1", "a": "2"}\n3', r"row 2: expected named columns, found int"),
    "column.jsonl": ('{"q": "1", "a": "2"}\n{"q": "1", "b": "2"}', r"row 2: no column 'a'; its columns are q, b"),
    "value.jsonl": ('{"q": "1", "a": "2"}\n{"q": " ", "a": "2"}', r"row 2: column 'q' is empty"),
    "null.jsonl": ('{"q": "1", "a": null}', r"row 1: column 'a' is empty"),
    "short.csv": ("q,a\n1,2\n3\n", r"row 2: column 'a' is empty"),
    "nested.jsonl": ('{"q": "1", "a": ["2"]}', r"row 1: column 'a' holds list, expected text or a number"),
    "latin.csv": (b"q,a\n\xe9,1\n", "is not UTF-8 text"),
    "not.parquet": ("hello", r"cannot read .* as parquet"),
    "data.xlsx": ("x", r"unknown ending; known are \.txt"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named(tmp_path, name):
    content, message = FAULTS[name]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message) as raised:
        read_rows(data(path))
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)
    if "row 2" not in message:  # the cheap check reads the first row only
        with pytest.raises(DataError, match=message):
            check_data(data(path))


def test_folders_mixtures_and_unnamed_columns(tmp_path):
    with pytest.raises(DataError, match="is not a file"):
        check_data(data(tmp_path, format="jsonl"))
    text, table = tmp_path / "a.txt", write(tmp_path, "jsonl", ROWS)
    text.write_text("words")
    with pytest.raises(DataError, match="cannot be mixed"):
        check_data(FileData(paths=[str(text), table], prompt="q"))
    check_data(FileData(paths=[str(text)]))
    with pytest.raises(DataError, match="is plain text; prompt, answer need a table"):
        check_data(FileData(paths=[str(text)]), ("prompt", "answer"))
    with pytest.raises(DataError, match=r"name the column of completion \(data\.completion"):
        check_data(data(table), ("prompt", "completion"))
    with pytest.raises(DataError, match="name the column of prompt"):
        check_data(FileData(paths=[table]))
    check_data(ArithmeticData(size=3), ("prompt", "answer"))


def test_checking_needs_no_torch():
    import subprocess
    import sys

    code = (
        "import sys, fbt_rl.data_files; print(sorted({'torch', 'transformers', 'datasets', 'ray'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
