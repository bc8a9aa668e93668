"""Planted cases that the report has to call rightly, and published numbers beside one's own."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report_page import Page, tiny_values
from synthetic_run import make_run

from fbt_rl.artifacts import RunFolder
from fbt_rl.config.file import parse_config
from fbt_rl.report import write_report
from fbt_rl.report.reference import beside_published


def planted(path, before, after, lengths_before, lengths_after, cap=100):
    """The report of a run in one mode with these verdicts and lengths; what is as long as ``cap`` was cut off."""
    stages = tiny_values()["stages"]
    stages = {name: {**stages[name], "init_from": None} for name in ("eval_before", "rl", "eval_after")}
    stages["eval_before"]["modes"] = stages["eval_after"]["modes"] = ["soft"]
    stages["eval_after"]["init_from"] = "rl"
    config = parse_config({"name": "planted", "model": {"path": "somewhere"}, "stages": stages})
    make_run(path, config, problems=len(before), skip=("rl",))
    for name, verdicts, lengths in (("eval_before", before, lengths_before), ("eval_after", after, lengths_after)):
        file = RunFolder(path).stage(name).generations_path
        rows = pq.read_table(file).to_pylist()
        for row, correct, length in zip(rows, verdicts, lengths, strict=True):
            finish = "length" if length == cap else "stop"
            row.update(correct=bool(correct), num_tokens=int(length), finish_reason=finish)
        pq.write_table(pa.Table.from_pylist(rows), file)
    write_report(path)
    return Page((path / "report" / "index.html").read_text())


RIGHT = np.ones(400, bool)
FIRST_40, FIRST_20, FIRST_HALF = (np.arange(400) < count for count in (40, 20, 200))
LENGTHS = 10 + np.arange(400) % 7


@pytest.mark.usefixtures("no_painting")
@pytest.mark.parametrize(
    ("case", "said", "unsaid"),
    [
        (
            (~FIRST_40, ~FIRST_40, np.where(FIRST_40, 100, LENGTHS), LENGTHS),
            [
                "no change in length is shown; accuracy no worse",
                "The shorter mean is explained by fewer truncations",
                "Correct answers are equally long on each of the 360 problems",
            ],
            ["fewer tokens", "shorter on the"],
        ),
        (
            (RIGHT, FIRST_HALF, np.where(FIRST_HALF, 10, 30), np.where(FIRST_HALF, 10, 30)),
            [
                "no change in length is shown; accuracy 50.0 points lower",
                "compares different problems (200 solved only by eval_before, 0 only by eval_after)",
            ],
            ["fewer tokens", "shorter on the"],
        ),
        (
            (RIGHT, RIGHT, LENGTHS, LENGTHS // 2),
            ["fewer tokens for the same problems; accuracy no worse", "% shorter on the 400 problems"],
            ["explained by", "different problems ("],
        ),
        (
            (RIGHT, ~FIRST_20, LENGTHS, LENGTHS),
            ["accuracy 5.0 points lower", "Accuracy is lower (100.0% to 95.0%", "a loss of 3 points is not excluded"],
            ["no worse at a margin of", "fewer tokens"],
        ),
        (
            (RIGHT[:6], FIRST_20[15:21], LENGTHS[:6], LENGTHS[:6] // 2),
            [
                "too few problems solved to compare lengths; too few problems to tell about accuracy",
                "Too few problems to tell whether accuracy changed",
                "Too few problems to compare lengths",
            ],
            ["fewer tokens", "shorter on the", "Accuracy is"],
        ),
    ],
    ids=["fewer truncations", "hard problems dropped", "truly shorter", "less accurate", "too few"],
)
def test_planted_cases_are_called_rightly(tmp_path, case, said, unsaid):
    text = planted(tmp_path / "run", *case).text
    assert "After rl, soft mode: " in text
    assert [sentence for sentence in said if sentence not in text] == []
    assert [sentence for sentence in unsaid if sentence in text] == []


@pytest.mark.usefixtures("no_painting")
def test_published_numbers_beside_ones_own(tmp_path):
    data = {"kind": "files", "preset": "gsm8k", "paths": ["test.jsonl"]}
    stages = {"math": {"kind": "eval", "data": data, "modes": ["standard", "soft"], "max_new_tokens": 80}}
    config = parse_config({"name": "mine", "reference": "paper", "model": {"path": "somewhere"}, "stages": stages})
    path = make_run(tmp_path / "run", config, problems=30)
    page = Page(write_report(path).read_text())
    assert "Published, of other models and sizes: Wang et al. 2026" in page.text
    report = json.loads((path / "report" / "report.json").read_text())
    gsm8k, *others = report["reference"]["tasks"]
    assert gsm8k["task"] == "GSM8K"
    assert gsm8k["published"][1] == {
        "model": "full-bandwidth, 400B tokens",
        "k": 1,
        "modes": {"standard": 0.679, "soft": 0.71, "fused": 0.718},
    }
    assert gsm8k["published"][4]["modes"] == {"standard": 0.701}
    [own] = gsm8k["own"]
    modes = report["evaluations"]["math"]["modes"]
    assert own == {
        "evaluation": "math",
        "source": None,
        "k": 1,
        "modes": {mode: pytest.approx(modes[mode]["accuracy"]) for mode in ("standard", "soft")},
    }
    assert [task["own"] for task in others] == [[], [], []]
    assert "has evaluated none of these tasks" not in page.text
    assert (
        "| GSM8K | published | plain transformer, 1T tokens | Pass@1 | 70.1% | – | – |"
        in (path / "report" / "report.md").read_text()
    )


@pytest.mark.usefixtures("no_painting")
def test_published_numbers_are_shown_on_demand(tmp_path):
    path = make_run(tmp_path / "run", problems=5)
    assert "Beside published numbers" not in Page(write_report(path).read_text()).text
    assert "has evaluated none of these tasks" in Page(write_report(path, reference="paper").read_text()).text


def test_code_is_measured_as_published_where_there_are_samples_enough():
    data = {"kind": "files", "hub": {"path": "openai/openai_humaneval"}, "prompt": "prompt", "tests": "test"}
    stages = {"code": {"kind": "eval", "data": data, "modes": ["soft"], "samples": 4, "max_new_tokens": 80}}
    config = parse_config({"name": "mine", "model": {"path": "somewhere"}, "stages": stages})
    columns = {"problem_id": list("aaaabbbb"), "mode": ["soft"] * 8, "answer": ["x"] * 8, "num_tokens": [5] * 8}
    right = [True, False, False, False, *[False] * 4]
    table = pa.table({**columns, "correct": right, "finish_reason": ["stop"] * 8})

    def measured(table):
        [task] = [task for task in beside_published(config, {"code": table})["tasks"] if task["task"] == "HumanEval"]
        return task["own"][0]["k"], task["own"][0]["modes"]

    assert measured(table) == (3, {"soft": pytest.approx(0.75 / 2)})  # of 4 samples 3 miss the right one in 1 of 4
    assert measured(table.slice(0, 6)) == (1, {"soft": pytest.approx(0.25 / 2)})
