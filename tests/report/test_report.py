"""The report of a made-up run: complete, partial and hostile; well-formed, escaped, the same each time."""

import base64
import hashlib
import json
import re
import struct
import xml.etree.ElementTree as ElementTree

import pyarrow.parquet as pq
import pytest
from report_page import Page, tiny_values
from synthetic_run import HOSTILE, make_run

from fbt_rl.analysis.compare import compare
from fbt_rl.analysis.summary import summarise
from fbt_rl.analysis.table import of_mode
from fbt_rl.artifacts import RunFolder
from fbt_rl.config.file import load_config, parse_config
from fbt_rl.report import ReportError, pairs_of, write_report
from fbt_rl.report.answers import all_answers
from fbt_rl.report.text import fenced, visible


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = make_run(tmp_path_factory.mktemp("runs") / "tiny")
    write_report(path)
    return path


@pytest.fixture(scope="module")
def page(run_dir):
    return Page((run_dir / "report" / "index.html").read_text())


@pytest.fixture(scope="module")
def report(run_dir):
    return json.loads((run_dir / "report" / "report.json").read_text())


def test_page_is_well_formed_and_accessible(page):
    assert len(page.ids) == len(set(page.ids))
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == len(page.all("main")) == 1
    assert len(page.all("caption")) == len(page.all("table")) >= 6
    assert all(header.get("scope") for header in page.all("th"))
    assert all(image["alt"] for image in page.all("img"))
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")


def test_links_lead_to_sections_and_files_of_the_run(run_dir, page):
    links = [link["href"] for link in page.all("a")]
    sections = {link.removeprefix("#") for link in links if link.startswith("#")}
    assert len(sections) >= 7
    assert sections <= set(page.ids)
    files = {link for link in links if not link.startswith("#")}
    assert all((run_dir / "report" / file).is_file() for file in files)
    wanted = {"report.json", "report.md", "../config.yaml", "../run.json", "../stages/rl/rollouts.parquet"}
    wanted |= {f"../stages/{name}/generations.parquet" for name in ("eval_before", "eval_after")}
    wanted |= {"../stages/sft/metrics.jsonl", "figures/length_ratio.png", "figures/rl_scores_rl.png"}
    assert wanted <= files


def test_page_needs_nothing_from_outside_and_runs_only_its_own_script(run_dir, page):
    assert page.all("script") == [{"type": "application/json", "id": "answer-data"}, {}]
    [policy] = [meta["content"] for meta in page.all("meta") if "http-equiv" in meta]
    assert "default-src 'none'" in policy
    allowed = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert re.findall(r"script-src ([^;]*)", policy) == [f"'sha256-{allowed}'"]
    assert not page.all("link")
    assert all(image["src"].startswith("data:image/svg+xml;base64,") for image in page.all("img"))
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    text = (run_dir / "report" / "index.html").read_text()
    assert not re.search(r"url\(|@import|https?://", text)


def test_model_output_is_escaped_in_page_and_markdown(run_dir, page):
    assert "<script>alert('model output')</script> & ⟨U+001B⟩[31mred⟨U+0000⟩" in page.text
    markdown = (run_dir / "report" / "report.md").read_text()
    assert fenced(HOSTILE) in markdown
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    assert "script" not in outside
    assert outside.count("\n# ") == 0  # the one title opens the file


def test_every_answer_is_on_the_page(run_dir, page):
    data = json.loads(page.scripts[0])
    words, problems = data["words"], data["problems"]
    names = ["eval_before", "eval_after"]
    tables = {name: pq.read_table(RunFolder(run_dir).stage(name).generations_path) for name in names}
    expected = {
        (name, row["problem_id"], row["prompt"], row["mode"], row["sample"], row["num_tokens"], row["finish_reason"])
        for name, table in tables.items()
        for row in table.to_pylist()
    }
    found = [
        (words[row[0]], *problems[row[1]][:2], words[row[2]], row[3], row[6], words[row[5]]) for row in data["rows"]
    ]
    assert len(found) == len(expected) == 2400
    assert set(found) == expected
    assert visible(HOSTILE) in {row[7] for row in data["rows"]}
    assert "<" not in page.scripts[0]
    right = sum(table["correct"].to_pylist().count(True) for table in tables.values())
    assert [words[row[4]] for row in data["rows"]].count("right") == right
    first = [(words[row[2]], words[row[0]]) for row in data["rows"][:6]]  # one problem side by side
    assert first == [(mode, name) for mode in ("standard", "soft", "fused") for name in names]


def test_a_page_holds_so_many_answers(run_dir):
    table = pq.read_table(RunFolder(run_dir).stage("eval_before").generations_path)
    part = all_answers({"eval": table}, most=20_000)
    assert part["all_problems"] == 400
    assert part["answers"] == 3 * part["problems"] < 1200
    data = json.loads(part["json"])
    assert [problem[0] for problem in data["problems"]] == [f"arithmetic:{n}" for n in range(part["problems"])]
    assert 10_000 < len(part["json"]) < 25_000
    assert all_answers({"eval": table}, most=1)["problems"] == 1


def test_visible_text():
    assert visible("a\tb\nc \\boxed{½} 数") == "a\tb\nc \\boxed{½} 数"
    assert visible("x\u202ey\r\x07") == "x⟨U+202E⟩y⟨U+000D⟩⟨U+0007⟩"
    assert visible("y" * 5000).endswith("y … (1,000 more characters)")
    assert visible(None) == ""
    assert fenced("a ```` b").startswith("`````text\n")


def test_comparisons(run_dir, report):
    assert [entry["mode"] for entry in report["comparisons"]] == ["standard", "soft", "fused"]
    run = RunFolder(run_dir)
    tables = [pq.read_table(run.stage(name).generations_path) for name in ("eval_before", "eval_after")]
    for entry in report["comparisons"]:
        expected = compare(
            *(of_mode(table, entry["mode"]) for table in tables),
            before_name="eval_before",
            after_name="eval_after",
            mode=entry["mode"],
        )
        assert entry == {**expected, "arm": "rl", "trained_mode": "soft"}
    assert report["evaluations"]["eval_after"] == {"source": "rl", "modes": summarise(tables[1])}
    assert [(e["evaluation"], e["before"], e["after"]) for e in report["mode_comparisons"]] == [
        ("eval_before", "standard", "soft"),
        ("eval_before", "standard", "fused"),
        ("eval_after", "standard", "soft"),
        ("eval_after", "standard", "fused"),
    ]


def test_what_else_is_reported(report):
    assert report["missing"] == []
    assert (
        report["stages"]["rl"]["steps"]
        == report["stages"]["rl"]["planned_steps"]
        == load_config("tiny").stages["rl"].steps
    )
    assert report["rl"]["rl"]["mode"] == "soft"
    assert 5e-6 < report["rl"]["rl"]["logprob_mismatch_max"] < 2e-5
    assert report["rl"]["rl"]["length_correct_mean_last"] < report["rl"]["rl"]["length_correct_mean_first"]
    assert report["run"]["versions"]["torch"] == "2.13.0"
    assert "status" not in report["run"]  # of the moment of writing, not of the run


def test_page_says_what_the_numbers_say(page, report):
    entry = report["comparisons"][1]
    assert f"{100 * (1 - entry['paired_length_ratio']):.0f}% fewer tokens for the same problems" in page.text
    for sentence in entry["findings"]:
        assert sentence in page.text
    for name in ("Accuracy", "soft against standard", "Solved both times", "Right before, wrong after", "step 1:"):
        assert name in page.text


def test_figures_are_png_files_and_svg_that_follow_the_theme(run_dir, report):
    files = {figure["file"] for figure in report["figures"]}
    assert files == {f"figures/{path.name}" for path in (run_dir / "report" / "figures").iterdir()}
    expected = ["overview", "accuracy", "length", "length_ratio", "loss_pretrain", "loss_extend", "loss_sft"]
    kinds = ("length_distribution", "budgets", "length_pairs")
    expected += [f"{kind}_{mode}" for kind in kinds for mode in ("standard", "soft", "fused")]
    expected += [f"rl_{name}_rl" for name in ("scores", "lengths", "mismatch", "drift", "payload", "norms")]
    assert files == {f"figures/{name}.png" for name in expected}
    for file in files:
        content = (run_dir / "report" / file).read_bytes()
        assert content.startswith(b"\x89PNG")
        width, _ = struct.unpack(">II", content[16:24])
        assert width >= 600


def test_svg_colours_are_all_variables(page):
    for image in page.all("img"):
        svg = base64.b64decode(image["src"].split(",", 1)[1]).decode()
        ElementTree.fromstring(svg)
        body = svg.split("</style>", 1)[1]
        assert "var(--ink)" in body
        assert set(re.findall(r"#[0-9a-f]{6}\b", body)) <= {"#000000"}  # matplotlib's default in unused places
        assert "prefers-color-scheme: dark" in svg


def test_writing_again_gives_the_same_bytes(run_dir):
    def content():
        return {path.name: path.read_bytes() for path in (run_dir / "report").rglob("*") if path.is_file()}

    first = content()
    (run_dir / "report" / "figures" / "stale.png").write_bytes(b"old")
    write_report(run_dir)
    assert content() == first


@pytest.mark.usefixtures("no_painting")
@pytest.mark.parametrize(
    ("skip", "sentences", "comparisons"),
    [
        (("rl", "eval_after"), ["Not finished: rl, eval_after."], 0),
        (
            ("pretrain", "extend", "sft", "eval_before", "rl", "eval_after"),
            ["Not finished: pretrain, extend, sft, eval_before, rl, eval_after."],
            0,
        ),
        (("eval_before",), ["Not finished: eval_before."], 0),
    ],
)
def test_partial_runs(tmp_path, skip, sentences, comparisons):
    path = make_run(tmp_path / "run", problems=40, skip=skip)
    page = Page(write_report(path).read_text())
    report = json.loads((path / "report" / "report.json").read_text())
    assert set(sentences) <= set(report["missing"])
    assert len(report["comparisons"]) == comparisons
    assert "What this report cannot show" in page.text
    for sentence in sentences:
        assert sentence in page.text


@pytest.mark.usefixtures("no_painting")
def test_an_unfinished_evaluation_is_not_reported(tmp_path):
    path = make_run(tmp_path / "run", problems=40)
    RunFolder(path).stage("eval_after").result_path.unlink()
    write_report(path)
    report = json.loads((path / "report" / "report.json").read_text())
    assert report["missing"] == ["Not finished: eval_after."]
    assert list(report["evaluations"]) == ["eval_before"]


def arms():
    """Two RL arms from one sft, each evaluated on the same data; and an arm without an evaluation."""
    stages = tiny_values()["stages"]
    rl, after = stages.pop("rl"), stages.pop("eval_after")
    stages["rl_soft"] = {**rl, "init_from": "sft", "steps": 30}
    stages["rl_standard"] = {**rl, "init_from": "sft", "mode": "standard", "steps": 30}
    stages["rl_alone"] = {**rl, "init_from": "sft", "steps": 30}
    stages["after_soft"] = {**after, "init_from": "rl_soft"}
    stages["after_standard"] = {**after, "init_from": "rl_standard", "max_new_tokens": 40}
    return parse_config(tiny_values(stages=stages))


@pytest.mark.usefixtures("no_painting")
def test_several_arms(tmp_path):
    config = arms()
    assert pairs_of(config) == [
        {"arm": "rl_soft", "mode": "soft", "before": "eval_before", "after": "after_soft"},
        {"arm": "rl_standard", "mode": "standard", "before": "eval_before", "after": "after_standard"},
    ]
    path = make_run(tmp_path / "run", config, problems=60)
    page = Page(write_report(path).read_text())
    report = json.loads((path / "report" / "report.json").read_text())
    assert [(e["arm"], e["mode"]) for e in report["comparisons"]] == [
        (arm, mode) for arm in ("rl_soft", "rl_standard") for mode in ("standard", "soft", "fused")
    ]
    assert (path / "report" / "figures" / "accuracy_after_standard.png").is_file()
    assert "After rl_soft, soft mode:" in page.text
    assert "After rl_standard, standard mode:" in page.text
    [group] = report["arms"]
    assert (group["before"], group["baseline"]) == ("eval_before", "rl_standard")
    assert [(e["before"], e["after"], e["mode"]) for e in group["against_baseline"]] == [
        ("rl_standard", "rl_soft", mode) for mode in ("standard", "soft", "fused")
    ]
    assert [(d["arm"], d["mode"]) for d in group["differences"]] == [("rl_soft", "soft"), ("rl_soft", "fused")]
    assert "Arms: trained in, evaluated in" in page.text
    for difference in group["differences"]:
        assert difference["finding"] in page.text
    assert report["missing"] == [
        "Nothing compares before and after rl_alone: that takes an eval stage of rl_alone and one of its source (sft) "
        "with the same data.",
        "eval_before and after_standard differ in max_new_tokens: read them with care.",
    ]


def test_an_evaluation_alone(tmp_path):
    stages = {"eval": {**tiny_values()["stages"]["eval_before"], "modes": ["standard"]}}
    config = parse_config({"name": "other", "model": {"path": "somewhere"}, "stages": stages})
    path = make_run(tmp_path / "run", config, problems=30)
    page = Page(write_report(path).read_text())
    assert "eval: model of model.path" in page.text
    names = {path.stem for path in (path / "report" / "figures").iterdir()}
    assert names == {"accuracy", "length", "length_distribution_eval", "budgets_eval"}


def judge_all(path, name, verdict):
    file = RunFolder(path).stage(name).generations_path
    table = pq.read_table(file)
    rows = [{**row, "correct": verdict} for row in table.to_pylist()]
    pq.write_table(table.from_pylist(rows, table.schema), file)


def test_nothing_is_solved(tmp_path):
    path = make_run(tmp_path / "run", problems=5)
    judge_all(path, "eval_before", False)
    page = Page(write_report(path).read_text())
    assert "too few problems solved to compare lengths" in page.text


@pytest.mark.usefixtures("no_painting")
def test_nothing_is_judged(tmp_path):
    path = make_run(tmp_path / "run", problems=5)
    judge_all(path, "eval_after", None)
    page = Page(write_report(path).read_text())
    assert "eval_after cannot be compared with eval_before (soft): eval_before and eval_after have no" in page.text


def test_not_a_run_folder(tmp_path):
    with pytest.raises(ReportError, match="is not a run folder"):
        write_report(tmp_path)
