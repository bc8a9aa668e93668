"""Which charts and tables of groups a report has, and of what."""

import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pyarrow as pa
import pytest
from report_page import Page, name_groups
from synthetic_run import HOSTILE, make_run

from fbt_rl.report import paint, write_report
from fbt_rl.report.charts import detail_charts, paired_lengths
from fbt_rl.report.groups import groups_of
from fbt_rl.report.paint import paint_groups, paint_pairs
from fbt_rl.report.text import one_line, shortened, width


@pytest.mark.usefixtures("no_painting")
def test_levels_have_a_chart(tmp_path):
    path = make_run(tmp_path / "run", problems=30)
    name_groups(path, "level", ["1", "2", "3"])
    page = Page(write_report(path).read_text())
    alts = [image["alt"] for image in page.all("img")]
    assert [alt.split(":")[0] for alt in alts if "by level" in alt] == [
        f"Accuracy by level, {mode}" for mode in ("soft", "standard", "fused")
    ]
    assert all("before 1" in alt and "after 3" in alt for alt in alts if "by level" in alt)


MATH = ["Algebra", "Counting & Probability", "Geometry", "Intermediate Algebra", "Number Theory", "Prealgebra", "数学"]


def tables_by(kind, page):
    """Title -> rows of the tables by ``kind``."""
    titles = {caption: caption.partition(".")[0] for caption in page.tables}
    return {titles[caption]: rows for caption, rows in page.tables.items() if titles[caption].endswith(f" by {kind}")}


@pytest.mark.usefixtures("no_painting")
def test_subjects_have_a_chart_and_tables(tmp_path):
    path = make_run(tmp_path / "run", problems=70)
    name_groups(path, "subject", MATH)
    page = Page(write_report(path).read_text())
    alts = [image["alt"] for image in page.all("img") if " by subject" in image["alt"]]
    assert [alt.split(":")[0] for alt in alts] == [
        f"Accuracy by subject, {mode}" for mode in ("soft", "standard", "fused")
    ]
    assert all(f"{side} {name} " in alt for alt in alts for side in ("before", "after") for name in MATH)
    tables = tables_by("subject", page)
    assert list(tables) == [
        *(f"eval_before against eval_after, {mode} mode, by subject" for mode in ("soft", "standard", "fused")),
        *(f"{evaluation}, every mode, by subject" for evaluation in ("eval_before", "eval_after")),
    ]
    evaluations = json.loads((path / "report" / "report.json").read_text())["evaluations"]
    before, after = (evaluations[name]["modes"]["soft"]["subject"] for name in ("eval_before", "eval_after"))
    rows = tables["eval_before against eval_after, soft mode, by subject"]
    assert [row[0] for row in rows] == sorted(MATH)
    for name, *cells in rows:
        gain = 100 * (after[name]["accuracy"] - before[name]["accuracy"])
        assert cells == [
            "10",
            f"{100 * before[name]['accuracy']:.1f}%",
            f"{100 * after[name]['accuracy']:.1f}%",
            f"{gain:+.1f}".replace("-", "−"),
            f"{before[name]['median_length_correct']:g}",
            f"{after[name]['median_length_correct']:g}",
        ]
    markdown = (path / "report" / "report.md").read_text()
    assert f"| Counting \\& Probability | 10 | {100 * before[MATH[1]]['accuracy']:.1f}% [" in markdown


@pytest.mark.usefixtures("no_painting")
def test_many_subjects_are_left_to_the_tables(tmp_path):
    path = make_run(tmp_path / "run", problems=57)
    name_groups(path, "subject", [f"subject {number}" for number in range(57)])
    page = Page(write_report(path).read_text())
    assert not [image["alt"] for image in page.all("img") if "by subject" in image["alt"]]
    assert [len(rows) for rows in tables_by("subject", page).values()] == [57] * 5


@pytest.mark.usefixtures("no_painting")
def test_names_of_subjects_are_escaped(tmp_path):
    names = [HOSTILE, "](x) | $y$ <i>z</i>", "w" * 5000]
    path = make_run(tmp_path / "run", problems=30)
    name_groups(path, "subject", names)
    page = Page(write_report(path).read_text())
    expected = [shortened(one_line(name), 120) for name in sorted(names)]
    assert "⟨U+001B⟩[31mred⟨U+0000⟩ </td></body> ``` # heading" in expected[0]
    for rows in tables_by("subject", page).values():
        assert [row[0] for row in rows] == expected
    assert not page.all("i")
    markdown = (path / "report" / "report.md").read_text()
    assert "| \\](x) \\| \\$y\\$ \\<i\\>z\\</i\\> | 10 |" in markdown
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"(?<!\\)(<[a-z/]|`|\]\(x)", outside)


def figures(n=10, accuracy=0.5):
    interval = [accuracy - 0.1, accuracy + 0.1]
    return {"n": n, "accuracy": accuracy, "accuracy_ci": interval, "median_length_correct": 7.0}


def test_groups_of_sides_that_differ():
    unjudged = {"n": 0, "accuracy": None, "accuracy_ci": [0.0, 1.0], "median_length_correct": None}
    before = {"level": {"10": figures(), "2": figures(12), "9": figures()}, "budgets": {}}
    after = {"level": {"10": figures(accuracy=0.25), "2": unjudged, "1": figures()}, "subject": {"a": figures()}}
    levels, subjects = groups_of({"before": before, "after": after})
    assert (levels.kind, levels.labels, levels.left_out) == ("level", ["before", "after"], 0)
    assert [row["name"] for row in levels.rows] == ["1", "2", "9", "10"]
    assert [row["problems"] for row in levels.rows] == [[0, 10], [12, 0], [10, 0], [10]]
    assert [row["points"] for row in levels.rows] == [{"after": None}] * 3 + [{"after": -0.25}]
    assert (subjects.kind, subjects.labels, subjects.rows[0]["points"]) == ("subject", ["after"], {})
    assert groups_of({"before": {"budgets": {}}}) == []
    [many] = groups_of({"soft": {"subject": {f"question {number}": figures() for number in range(250)}}})
    assert (len(many.rows), many.left_out) == (200, 50)


def test_a_chart_of_groups_shows_any_name_as_it_is():
    names = ["$x^$ \\frac{", HOSTILE, "數學" * 20, "_hidden"]
    [groups] = groups_of({label: {"subject": {name: figures() for name in names}} for label in ("before", "after")})
    chart = paint.draw("subjects", "", "", lambda axes: paint_groups(axes, groups, "By subject"))
    elements = ElementTree.fromstring(chart.svg).iter("{http://www.w3.org/2000/svg}text")
    texts = {"".join(element.itertext()).strip() for element in elements}
    shown = [shortened(one_line(name), 24) for name in names]
    assert set(shown) <= texts
    assert all(width(name) <= 24 for name in shown)
    assert shown[2] == "數學" * 5 + "數…"


@pytest.mark.usefixtures("no_painting")
def test_only_what_there_is_data_for_is_drawn():
    nothing = {"budgets": {"8": 0.0, "16": 0.0}}
    some = {"budgets": {"8": 0.2, "16": 0.45, "32": 0.5}}
    lengths = {"before": np.array([]), "after": np.array([])}
    assert detail_charts("soft", "soft", lengths, {"before": nothing, "after": {"budgets": {}}}) == []
    [chart] = detail_charts("soft", "soft", lengths, {"before": nothing, "after": some})
    assert chart.name == "budgets_soft"
    assert chart.alt.endswith("soft; after reaches nine tenths of 50.0% at 16 tokens.")


def test_lengths_are_paired_on_problems_that_both_sides_solve():
    def side(ids, correct, lengths):
        count = len(ids)
        columns = {"problem_id": ids, "mode": ["soft"] * count, "answer": ["1"] * count, "num_tokens": lengths}
        return pa.table({**columns, "correct": correct, "finish_reason": ["stop"] * count})

    before = side(["a", "b", "b", "c", "d"], [True, True, True, False, True], [10, 20, 40, 50, 60])
    after = side(["d", "c", "b", "e"], [True, True, True, True], [6, 5, 3, 2])
    assert [lengths.tolist() for lengths in paired_lengths(before, after)] == [[30, 60], [3, 6]]


def test_many_pairs_of_lengths_stay_a_small_file():
    rng = np.random.default_rng(0)
    before = np.exp(rng.normal(6, 0.7, 20_000))
    chart = paint.draw("pairs", "", "", lambda axes: paint_pairs(axes, before, 0.7 * before, "Pairs"))
    assert len(chart.svg) < 100_000
