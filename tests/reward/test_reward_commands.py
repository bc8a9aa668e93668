"""The commands on rewards: list, check and score; rows good and bad; what is written and what is not."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fbt_rl import cli
from reward import load_reward
from reward.commands import BATCH, batches, check_reward, read_lines, score_file

MINE = """
def by_answer(prompts, completions, completion_ids, *, answer, **columns):
    return [None if gold == "?" else float(text == f"\\\\boxed{{{gold}}}") for text, gold in zip(completions, answer)]

def kind(prompts, completions, completion_ids, **columns):
    return [0.3] * len(completions)

def share(prompts, completions, completion_ids, *, group, **columns):
    return [group.count(label) / 10 for label in group]

def broken(prompts, completions, completion_ids, **columns):
    return [1 / 0 for _ in completions]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.fixture
def reward_command(monkeypatch, capsys):
    """``fbt-rl reward ...`` in this process: exit code, what it printed, what it said on stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fbt-rl", "reward", *map(str, arguments)])
        monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return run


def write(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- list and check ------------------------------------------------------------------------------


def test_list_names_every_reward(reward_command):
    code, out, _ = reward_command("list")
    assert code == 0
    names = {line.split()[0] for line in out.splitlines() if line.startswith("  ")}
    assert names >= {"math", "code", "relative", "kimi", "linear"}


def test_check_wants_gold_1_and_the_rest_0(file, tmp_path, reward_command):
    answers = write(tmp_path / "rows.jsonl", [{"prompt": "?", "answer": "7"}, {"answer": "so it is\n#### 8", "x": 1}])
    code, out, err = reward_command("check", "math", "--data", answers)
    assert (code, err) == (0, "")
    gold, empty, garbage, last = out.splitlines()
    assert gold.startswith("gold     2 rows: 2 score 1, 0 another, 0 not judged")
    assert empty.startswith("empty    2 rows: 2 score 0, 0 another")
    assert "errors: no_answer 2" in empty
    assert garbage.startswith("garbage  2 rows: 2 score 0")
    assert last == "ok"

    code, out, err = reward_command("check", f"{file}:kind")
    assert code == 1
    assert out.splitlines()[-1] == "failed"
    assert "line 1: gold scored 0.3 (None)" in err
    assert reward_command("check", f"{file}:kind", "--shaping")[0] == 0

    write(answers, [{"answer": "7"}, {"answer": "?"}])
    code, out, err = reward_command("check", f"{file}:by_answer", "--data", answers)
    assert code == 1
    assert "gold     2 rows: 1 score 1, 0 another, 1 not judged" in out
    assert reward_command("check", f"{file}:by_answer", "--data", answers, "--limit", 1)[0] == 0


def test_a_row_may_bring_its_right_completion(tmp_path):
    row = {"answer": "7", "completion": "\\boxed{8}"}
    gold, *_ = check_reward(load_reward("math"), write(tmp_path / "rows.jsonl", [row]))
    assert (gold.rows, gold.as_wanted) == (1, 0)


@pytest.mark.parametrize(
    ("arguments", "rows", "message"),
    [
        (["math"], ['{"answer": "7"}', "{"], "rows.jsonl, line 2: not valid JSON"),
        (["math"], [{"gold": "7"}], "rows.jsonl, line 1: no column 'answer'"),
        (["math"], [], "rows.jsonl holds no rows"),
        (["FILE:broken"], [{"answer": "7"}], "raised ZeroDivisionError: division by zero; it was tried on one row"),
        (["maths"], [{"answer": "7"}], "no reward 'maths'"),
        (["math", "--arg", "numeric"], [{"answer": "7"}], "--arg 'numeric' is not of the form name=value"),
        (["math", "--arg", "nonsense=1"], [{"answer": "7"}], "takes no argument nonsense"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(file, tmp_path, reward_command, arguments, rows, message):
    data = write(tmp_path / "rows.jsonl", rows)
    arguments = [argument.replace("FILE", str(file)) for argument in arguments]
    code, _, err = reward_command("check", *arguments, "--data", data)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


# --- score ---------------------------------------------------------------------------------------


def test_score_keeps_every_field_and_adds_three(tmp_path, reward_command):
    rows = [
        {"prompt": "3+4", "completion": "\\boxed{7}", "answer": "7", "id": 1, "deep": {"a": [None, 2.5]}, "é": "ü"},
        {"completion": [{"role": "assistant", "content": "\\boxed{8}"}], "answer": "7", "score": 99},
        {"completion": "7", "answer": "7", "numeric": True, "forms": ["phrase"], "prompts": 3, "group": "g"},
        {"completion": "\\boxed{7}", "answer": ""},
    ]
    data, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "scored.jsonl"
    before = data.read_bytes()
    code, printed, _ = reward_command("score", "math", "--data", data, "--out", out)
    assert code == 0
    verdicts = [(1.0, True, None), (0.0, False, None), (0.0, False, "no_answer"), (None, None, "bad_answer")]
    added = [dict(zip(("score", "correct", "error"), verdict, strict=True)) for verdict in verdicts]
    assert read(out) == [row | more for row, more in zip(rows, added, strict=True)]
    assert "1 right, 2 wrong, 1 not judged, mean score 0.3333; errors: no_answer 1, bad_answer 1" in printed
    assert data.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "scored.jsonl"}

    code, _, _ = reward_command("score", "math", "--data", data, "--out", out, "--force", "--arg", 'forms=["phrase"]')
    assert code == 0
    assert [row["error"] for row in read(out)] == ["no_answer", "no_answer", "no_answer", "bad_answer"]


def test_bad_rows_are_named_counted_and_passed_through(tmp_path, reward_command):
    good = {"completion": "\\boxed{7}", "answer": "7"}
    bad = ["{", "[1]", {"answer": "7"}, {"completion": 7, "answer": "7"}, {"completion": "x", "note": "no answer"}]
    data, out = write(tmp_path / "rows.jsonl", [good, "", *bad, good]), tmp_path / "scored.jsonl"
    with data.open("ab") as file:
        file.write(b'{"completion": "\xff"}\n')
    code, printed, err = reward_command("score", "math", "--data", data, "--out", out)
    assert code == 0
    assert "2 right, 0 wrong, 6 not judged, mean score 1; errors: bad_row 6" in printed
    assert [line.partition(" (")[0] for line in err.splitlines()] == [
        "line 3: not valid JSON",
        "line 4: expected an object, found list",
        "line 5: no column 'completion'",
        "line 6: 'completion' is neither text nor chat messages",
        "line 7: no column 'answer'",
        "line 9: not valid JSON",
    ]
    rows = read(out)
    assert [row["error"] for row in rows] == [None, *["bad_row"] * 5, None, "bad_row"]
    assert [row.get("raw") for row in rows[1:4]] == ["{", "[1]", None]
    assert rows[5]["note"] == "no answer"

    write(data, bad)
    code, _, err = reward_command("score", "math", "--data", data, "--out", out, "--force")
    assert code == 2
    assert "rows.jsonl has no row that can be graded\nline 1: not valid JSON" in err


def test_what_is_there_is_not_overwritten(tmp_path, reward_command):
    data = write(tmp_path / "rows.jsonl", [{"completion": "\\boxed{7}", "answer": "7"}])
    out, link = tmp_path / "scored.jsonl", tmp_path / "link.jsonl"
    out.write_text("old")
    link.symlink_to(data)
    before = data.read_bytes()
    for target, more, message in (
        (out, [], "exists: name another file, or give --force"),
        (data, ["--force"], "is the input"),
        (link, ["--force"], "is the input"),
        (tmp_path, ["--force"], "exists: name another file"),
        (tmp_path / "none" / "x.jsonl", [], "no folder"),
    ):
        code, _, err = reward_command("score", "math", "--data", data, "--out", target, *more)
        assert code == 2
        assert message in err
    assert (out.read_text(), data.read_bytes()) == ("old", before)
    assert reward_command("score", "math", "--data", data, "--out", out, "--force")[0] == 0
    assert read(out)[0]["score"] == 1.0


def test_large_files_are_read_as_they_are_graded(file, tmp_path):
    data = write(tmp_path / "rows.jsonl", [{"completion": "", "prompt": str(n)} for n in range(3 * BATCH + 1)])
    reward = load_reward(f"{file}:kind")
    assert [len(batch) for batch in batches(read_lines(data, reward), reward)] == [BATCH, BATCH, BATCH, 1]
    lines = read_lines(data, reward)
    next(batches(lines, reward))
    assert next(lines).number == BATCH + 2  # one line was looked at beyond the batch
    done = []
    scored = score_file(reward, data, tmp_path / "out.jsonl", progress=done.append)
    assert (scored.rows, scored.wrong, done) == (3 * BATCH + 1, 3 * BATCH + 1, [BATCH, BATCH, BATCH, 1])


def test_groups_stay_whole(file, tmp_path):
    rows = [{"completion": "", "prompt": prompt} for prompt in "aabbbbbc"]
    data = write(tmp_path / "rows.jsonl", rows)
    reward = load_reward(f"{file}:share")
    sizes = [len(batch) for batch in batches(read_lines(data, reward), reward, size=3)]
    assert sizes == [7, 1]
    score_file(reward, data, tmp_path / "out.jsonl")
    assert [row["score"] for row in read(tmp_path / "out.jsonl")] == [0.2] * 2 + [0.5] * 5 + [0.1]


def test_alone_it_needs_nothing_heavy(tmp_path):
    data = write(tmp_path / "rows.jsonl", [{"completion": "\\boxed{7}", "answer": "7"}])
    arguments = ["score", "math", "--data", str(data), "--out", str(tmp_path / "out.jsonl")]
    command = [sys.executable, "-X", "importtime", "-m", "reward", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert done.stdout.startswith("1 rows in ")
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert not imported & {"torch", "ray", "fbt_rl", "transformers"}
    done = subprocess.run(
        [sys.executable, "-m", "reward", "check", "none"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: no reward 'none'")


def test_the_example_of_the_docs(tmp_path, monkeypatch, reward_command):
    page = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    assert example.count("\n") <= 15
    (tmp_path / "brevity.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    assert load_reward("./brevity.py:short_words")(["p"] * 2, ["a short word", "considerable considerations"]) == [
        1.0,
        0.0,
    ]
    write(tmp_path / "problems.jsonl", [{"answer": "7"}])
    write(tmp_path / "generations.jsonl", [{"completion": "\\boxed{3+4}", "answer": "7"}])
    commands = re.findall(r"^    fbt-rl reward (.*)$", page, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        assert reward_command(*shlex.split(command))[0] == 0
    assert [row["score"] for row in read(tmp_path / "scored.jsonl")] == [0.0]  # --arg numeric=true
