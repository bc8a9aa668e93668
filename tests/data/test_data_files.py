"""Reading local files: formats, cutting of text, and one clear message for each fault."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fbt_rl.config import ArithmeticData, EvalStage, FileData
from fbt_rl.config.task_presets import TASKS
from fbt_rl.data.problems import DataError, check_data, read_rows, read_texts, require_roles
from reward import math_reward
from reward.load import load_reward

HERE = Path(__file__).parents[1] / "data"
SHARED = Path(__file__).parents[3] / "shared/data"
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


# --- prompts, examples, tests, known sets ---------------------------------------------------------


def test_a_prompt_of_several_columns_in_a_template(tmp_path):
    path = write(
        tmp_path, "jsonl", [{"body": " Two apples.", "ask": "And 1?", "a": 3, "hints": ["add", "box"], "k": 7}]
    )
    given = FileData(
        paths=[path],
        prompt="{body} {ask}",
        answer="a",
        problem_id="k",
        level="k",
        template="Q: {prompt} \\boxed{}\n{hints}",
    )
    [row] = read_rows(given)
    assert row["question"] == " Two apples. And 1?"
    assert row["prompt"] == "Q:  Two apples. And 1? \\boxed{}\nadd\nbox"
    assert (row["problem_id"], row["level"], row["subject"], row["answer"]) == ("7", "7", "", "3")
    with pytest.raises(DataError, match=r"row 1: no column 'nope'; its columns are body, ask"):
        read_rows(FileData(paths=[path], prompt="{body} {nope}"))


def test_examples_come_first_and_are_not_asked(tmp_path):
    rows = [{"q": f"{n}+1", "a": str(n + 1), "how": f"so {n + 1}"} for n in range(5)]
    path = write(tmp_path, "jsonl", rows)
    few = {"prompt": "q", "answer": "a", "completion": "how", "shots": 2}
    asked = read_rows(FileData(paths=[path], **few))
    assert [row["problem_id"] for row in asked] == ["rows-3", "rows-4", "rows-5"]
    assert asked[0]["prompt"] == "0+1\nso 1\n\n1+1\nso 2\n\n2+1"
    assert asked[0]["question"] == "2+1"
    for offset, number in ((0, 3), (1, 3), (3, 4)):  # the limit is of what is asked
        [row] = read_rows(FileData(paths=[path], **few, offset=offset, limit=1))
        assert row["problem_id"] == f"rows-{number}"
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"q": "9+9", "a": "18", "how": "18"}) + "\n")
    asked = read_rows(FileData(paths=[path], **{**few, "shots": 1}, shots_paths=[str(other)], limit=1))
    assert asked[0]["prompt"] == "9+9\n18\n\n0+1"
    with pytest.raises(DataError, match="shots is 2, but there are 1 rows"):
        read_rows(FileData(paths=[path], **few, shots_paths=[str(other)]))
    with pytest.raises(ValueError, match="name the column of the solutions"):
        FileData(paths=[path], prompt="q", shots=1)


def test_tests_are_an_answer(tmp_path):
    row = {"p": "def f(x):\n", "t": ["assert f(1)"], "more": ["assert f(2)"], "name": "f", "imports": ["import math"]}
    path = write(tmp_path, "jsonl", [row])
    columns = {"prompt": "p", "tests": "t", "entry_point": "name", "setup": "imports"}
    check_data(FileData(paths=[path], **columns), ("prompt", "answer"))
    [plain], [plus] = (read_rows(FileData(paths=[path], **columns, **more)) for more in ({}, {"extra_tests": "more"}))
    assert json.loads(plain["answer"]) == {"tests": ["assert f(1)"], "entry_point": "f", "setup": "import math"}
    assert json.loads(plus["answer"])["tests"] == ["assert f(1)", "assert f(2)"]
    assert plain["question"] == "def f(x):\n"  # code is left as it is
    with pytest.raises(DataError, match="both columns have to hold lists"):
        read_rows(FileData(paths=[path], **columns, extra_tests="name"))
    path = write(tmp_path, "jsonl", [{**row, "t": []}])
    with pytest.raises(DataError, match="column 't' is empty"):
        read_rows(FileData(paths=[path], **columns))


# Preset, file, problems, and the first problem's id, answer, level and subject.
KNOWN = [
    ("gsm8k", "gsm8k/test.jsonl", 1319, ("test-1", "18", "", "")),
    ("math500", "math500/test.jsonl", 500, ("test/precalculus/807.json", None, "2", "Precalculus")),
    ("svamp", "svamp/test.jsonl", 1000, ("chal-777", "145.0", "", "Common-Division")),
    ("humaneval", "humaneval/HumanEval.jsonl", 164, ("HumanEval/0", None, "", "")),
    ("mbpp", "mbpp/mbpp.jsonl", 500, ("11", None, "", "")),
    ("mbpp-plus", "mbpp/mbpp.jsonl", 500, ("11", None, "", "")),
    ("mbpp-sanitized", "mbpp/sanitized-mbpp.jsonl", 257, ("11", None, "", "")),
]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the data sets beside the project")
@pytest.mark.parametrize(("preset", "file", "count", "first"), KNOWN)
def test_known_sets(preset, file, count, first):
    rows = read_rows(FileData(preset=preset, paths=[str(SHARED / file)]), ("prompt", "answer"))
    assert len(rows) == len({row["problem_id"] for row in rows}) == count
    given = tuple(rows[0][name] for name in ("problem_id", "answer", "level", "subject"))
    assert all(wanted in (None, value) for wanted, value in zip(first, given, strict=True))
    assert rows[0]["question"] in rows[0]["prompt"]
    code = "tests" in TASKS[preset]
    assert ("boxed" in rows[0]["prompt"]) is not code
    assert (list(json.loads(rows[0]["answer"])) if code else ["tests"])[0] == "tests"
    stage = {"data": {"kind": "files", "preset": preset, "paths": [file]}, "max_new_tokens": 1}
    assert EvalStage.model_validate(stage).reward.use == ("code" if code else "math")


def test_the_answers_of_math_are_the_last_boxes_of_its_solutions(tmp_path):
    rows = [
        {
            "problem": f"What is {n}/4?",
            "level": "Level 2",
            "type": "Algebra",
            "solution": f"$\\boxed{{8}}$, no: ${box}$.",
        }
        for n, box in ((2, "\\boxed{\\frac12}"), (3, "\\boxed{\\frac34}"))
    ]
    read = read_rows(FileData(preset="math", paths=[write(tmp_path, "jsonl", rows)]), ("prompt", "answer"))
    assert [(row["level"], row["subject"]) for row in read] == [("Level 2", "Algebra")] * 2
    golds = [row["answer"] for row in read]
    assert math_reward(["p"] * 2, ["\\boxed{0.5}", "\\boxed{8}"], answer=golds) == [1.0, 0.0]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the data sets beside the project")
@pytest.mark.parametrize(("preset", "file"), [("humaneval", KNOWN[3][1]), ("mbpp-plus", KNOWN[5][1])])
def test_reference_solutions_pass_the_tests_of_their_rows(preset, file):
    given = FileData(preset=preset, paths=[str(SHARED / file)], offset=11, limit=2)
    rows = read_rows(given)
    verdicts = load_reward("code", {"require": "rlimits"}).verdicts(
        prompts=[row["question"] for row in rows],
        completions=[row["completion"] for row in rows],
        answer=[row["answer"] for row in rows],
    )
    assert [verdict.correct for verdict in verdicts] == [True, True]


def test_every_preset_has_a_source_and_what_evaluation_needs():
    for preset in TASKS:
        given = FileData.model_validate({"preset": preset})
        assert given.hub is not None
        require_roles(given, ("prompt", "answer"))
        assert given == FileData.model_validate(given.model_dump())
        local = FileData(preset=preset, paths=["x.jsonl"], template="{prompt}!")
        assert (local.hub, local.template) == (None, "{prompt}!")
    with pytest.raises(ValueError, match="no preset 'gsm9k'; there are gsm8k"):
        FileData(preset="gsm9k", paths=["x"])
    with pytest.raises(ValueError, match="in paths, or a data set in hub, and not both"):
        FileData(prompt="q")


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

    code = "import sys, fbt_rl.data.problems; print(sorted({'torch', 'transformers', 'datasets', 'ray'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
