"""Which charts a report has, and of what."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report_page import Page
from synthetic_run import make_run

from fbt_rl import report_figures
from fbt_rl.artifacts import RunFolder
from fbt_rl.report import write_report
from fbt_rl.report_charts import detail_charts, paired_lengths
from fbt_rl.report_figures import paint_pairs


@pytest.mark.usefixtures("no_painting")
def test_levels_have_a_chart(tmp_path):
    path = make_run(tmp_path / "run", problems=30)
    for name in ("eval_before", "eval_after"):
        file = RunFolder(path).stage(name).generations_path
        table = pq.read_table(file)
        levels = pa.array([str(1 + place % 3) for place in range(len(table))])
        pq.write_table(table.append_column("level", levels), file)
    page = Page(write_report(path).read_text())
    alts = [image["alt"] for image in page.all("img")]
    assert [alt.split(":")[0] for alt in alts if "by level" in alt] == [
        f"Accuracy by level, {mode}" for mode in ("soft", "standard", "fused")
    ]
    assert all("before 1" in alt and "after 3" in alt for alt in alts if "by level" in alt)


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
    chart = report_figures.draw("pairs", "", "", lambda axes: paint_pairs(axes, before, 0.7 * before, "Pairs"))
    assert len(chart.svg) < 100_000
