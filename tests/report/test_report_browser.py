"""The report's page in a headless Chromium, from a file and without network: search, sorting, keys, contrast."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import CHROMIUM, USABLE, Browser
from report_page import name_groups
from synthetic_run import HOSTILE, make_run

from fbt_rl.artifacts import RunFolder
from fbt_rl.report import paint, write_report
from fbt_rl.report.paint import Chart
from fbt_rl.report.text import one_line, visible

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

SUBJECTS = [HOSTILE, "w" * 90, *(f"subject {number}" for number in range(55))]

# Ratios below WCAG's 4.5 (3 for large text) of all visible text against what lies behind it.
CONTRAST = """(() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => numbers(colour).slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return (numbers(colour)[3] ?? 1) === 1 ? colour : behind(element.parentElement);
  };
  const poor = [];
  let seen = 0;
  for (const element of document.querySelectorAll("body *:not(option, script, style)")) {
    const text = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
    if (!text.length || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(style.color), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    seen += 1;
    if (ratio < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) poor.push([text[0].data.slice(0, 40), ratio]);
  }
  return { seen, poor };
})()"""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = make_run(tmp_path_factory.mktemp("runs") / "tiny", problems=60)
    name_groups(path, "subject", SUBJECTS)
    with pytest.MonkeyPatch.context() as patch:  # painting is most of a report's time
        patch.setattr(paint, "draw", lambda name, caption, alt, *_: Chart(name, caption, alt, b"", "<svg/>"))
        write_report(path, reference="paper")
    return path


@pytest.fixture(scope="module")
def rows(run_dir):
    tables = {}
    for name in ("eval_before", "eval_after"):
        table = pq.read_table(RunFolder(run_dir).stage(name).generations_path)
        tables[name] = table.append_column("evaluation", pa.array([name] * len(table)))
    return pa.concat_tables(tables.values()).to_pylist()


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture
def page(browser, run_dir):
    browser.look()
    browser.open(run_dir / "report" / "index.html")
    browser.run(USABLE)
    return browser


def choose(page, **fields):
    """Fill in fields of the search and wait for its answer: [answers found, rows shown]."""
    script = """new Promise((done) => {
      const form = document.getElementById("answer-filters");
      for (const [name, value] of Object.entries(%s)) form.elements[name].value = value;
      new MutationObserver((_, watching) => {
        watching.disconnect();
        done([document.getElementById("answer-count").textContent, document.querySelectorAll(".open").length]);
      }).observe(document.getElementById("answer-count"), { childList: true });
      form.dispatchEvent(new Event("input"));
    })"""
    return page.run(script % json.dumps(fields))


def column(page, table, number):
    rows = f"[...document.querySelector('{table}').querySelectorAll('tbody tr:not(.group)')]"
    return page.run(f"{rows}.map((row) => row.cells[{number}].innerText.split('\\n')[0])")


def test_it_opens_from_a_file_without_network_or_complaint(page):
    assert page.run("location.protocol") == "file:"
    assert page.complaints == []


def test_search_and_filters(page, rows):
    wrong = [row for row in rows if not row["correct"] and row["finish_reason"] == "stop"]
    assert 0 < len(wrong) < 100
    assert choose(page, verdict="wrong") == [f"{len(wrong)} of 360 answers, 0 of them right", len(wrong)]
    soft = [row for row in wrong if (row["mode"], row["evaluation"]) == ("soft", "eval_after")]
    assert choose(page, mode="soft", evaluation="eval_after")[1] == len(soft) > 0
    assert choose(page, text="ALERT('model")[1] == len(soft)  # all of these are hostile
    assert choose(page, text="no such text") == ["0 of 360 answers, 0 of them right", 0]
    one = choose(page, text="", problem="arithmetic:17", verdict="", mode="", evaluation="")
    assert one[1] == 6
    cut = [row for row in rows if row["finish_reason"] == "length"]
    assert choose(page, problem="", finish="length")[0].startswith(f"{len(cut)} of")
    page.run("new Promise((done) => { document.querySelector('[type=reset]').click(); setTimeout(done, 50); })")
    assert page.run("document.getElementById('answer-count').textContent").startswith("360 of 360")


def test_rows_are_added_when_asked_for(page):
    count = "document.querySelectorAll('.open').length"
    assert page.run(count) == 100
    assert page.run("document.getElementById('answer-more').innerText") == "Show 100 more"
    for shown in (200, 300, 360):
        page.run("document.getElementById('answer-more').click()")
        assert page.run(count) == shown
    assert page.run("[...document.querySelectorAll('.open')].indexOf(document.activeElement)") == 300
    assert not page.run("document.getElementById('answer-more').checkVisibility()")


def test_a_problem_opens_side_by_side_with_the_keyboard(page, rows):
    bad = next(row for row in rows if row["completion"] == HOSTILE)
    choose(page, problem=bad["problem_id"], mode="soft", evaluation="eval_after")
    page.run("document.querySelector('.open').focus()")
    page.press("Enter", 13)
    assert page.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    given = [row for row in rows if row["problem_id"] == bad["problem_id"]]
    texts = "[...cell.querySelectorAll('b, span, pre')].map((part) => part.textContent)"
    cells = page.run(f"[...document.querySelectorAll('.details .answer')].map((cell) => {texts})")
    assert len(cells) == len(given) == 6
    for row in given:
        verdict = "right" if row["correct"] else "cut off" if row["finish_reason"] == "length" else "wrong"
        label = f"{row['mode']}, {row['evaluation']}"
        assert [label, f"{row['num_tokens']} tokens", verdict, visible(row["completion"])] in cells
    assert page.run("document.querySelector('.details .prompt').textContent") == bad["prompt"]
    page.press("Enter", 13)
    assert page.run("document.querySelectorAll('.details').length") == 0
    assert page.run("document.activeElement.getAttribute('aria-expanded')") == "false"


def test_columns_sort(page, rows):
    heads = "[...document.querySelectorAll('#answer-table thead th')]"
    for order, direction in ((False, "ascending"), (True, "descending")):
        page.run(f"{heads}[6].querySelector('button').click()")
        assert page.run(f"{heads}.map((head) => head.ariaSort)") == [None] * 6 + [direction, None]
        tokens = sorted((row["num_tokens"] for row in rows), reverse=order)
        assert [int(text) for text in column(page, "#answer-table", 6)] == tokens[:100]
    table = "[aria-labelledby=modes] table"
    before = column(page, table, 3)
    page.run(f"document.querySelector('{table}').querySelectorAll('thead button')[4].click()")
    means = [float(text) for text in column(page, table, 4)]
    assert means[:3] == sorted(means[:3])  # each evaluation for itself
    assert means[3:] == sorted(means[3:])
    page.run(f"document.querySelector('{table}').querySelectorAll('thead button')[0].click()")
    assert column(page, table, 0)[:3] == ["fused", "soft", "standard"]
    assert sorted(column(page, table, 3)) == sorted(before)


def test_a_table_of_many_subjects_opens_and_sorts(page):
    page.look(width=390, height=844)
    table = "[aria-labelledby=before-after] > details > .groups"
    assert not page.run(f"document.querySelector('{table}').checkVisibility()")
    page.run(f"document.querySelector('{table}').parentElement.querySelector('summary').focus()")
    page.press("Enter", 13)
    assert page.run(f"document.querySelector('{table}').checkVisibility()")
    assert column(page, table, 0) == sorted(map(one_line, SUBJECTS))
    assert page.run("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    assert page.run(f"document.querySelector('{table} tbody th').getBoundingClientRect().width") < 200
    heads = f"document.querySelector('{table}').querySelectorAll('thead button')"
    page.run(f"{heads}[4].click()")
    points = [float(text.replace("−", "-")) for text in column(page, table, 4)]
    assert points == sorted(points)
    assert points[0] < points[-1]
    page.run(f"{heads}[0].click()")
    assert column(page, table, 0)[-4:] == ["subject 52", "subject 53", "subject 54", "w" * 90]


def test_numbers_sort_as_numbers_and_the_missing_last(page):
    texts = ["−3.3", "–", "1,200", "12.5%", "80% → 9%", "40 of 60"]
    values = f"{json.dumps(texts)}.map((text) => cellValue(element('td', {{}}, text)))"
    up, down = page.run(f"[1, -1].map((sign) => {values}.sort((a, b) => compare(a, b, sign)))")
    assert up == [-3.3, 9, 12.5, 40, 1200, None]
    assert down == [1200, 40, 12.5, 9, -3.3, None]


def test_the_first_tab_stop_leads_to_the_content(page):
    page.press("Tab", 9)
    focused = "document.activeElement"
    assert page.run(f"{focused}.getAttribute('href')") == "#content"
    assert page.run(f"{focused}.getBoundingClientRect().left >= 0")
    assert page.run(f"getComputedStyle({focused}).outlineStyle") == "solid"
    page.press("Enter", 13)
    assert page.run("location.hash") == "#content"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(page, dark):
    page.look(dark=dark)
    page.run("document.querySelector('.open').click()")
    page.run("for (const details of document.querySelectorAll('details')) details.open = true")
    found = page.run(CONTRAST)
    assert found["seen"] > 500
    assert found["poor"] == []
    assert page.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(18, 22, 29)" if dark else "rgb(251, 251, 250)"
    )


def test_a_narrow_screen_scrolls_tables_in_their_own_boxes(page):
    page.look(width=390, height=844)
    page.run("document.querySelector('.open').click()")
    assert page.run("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    assert page.run("[...document.querySelectorAll('.scroll')].filter((b) => b.scrollWidth > b.clientWidth).length") > 3
    assert page.run("[...document.querySelectorAll('.scroll')].every((b) => b.tabIndex === 0 && b.ariaLabel)")
    assert page.run("document.querySelector('.details .problem').getBoundingClientRect().right") <= 390


def test_motion_is_reduced_on_demand(page):
    moving = "getComputedStyle(document.documentElement).scrollBehavior"
    assert page.run(moving) == "smooth"
    page.look(still=True)
    assert page.run(moving) == "auto"


def test_without_scripts_all_but_the_search_is_there(browser, run_dir):
    browser.look(scripts=False)
    browser.open(run_dir / "report" / "index.html")
    text = browser.run("document.body.innerText")
    assert "To search them here the page needs JavaScript" in text
    assert "Right before, wrong after" in text
    assert "Published, of other models and sizes" in text
    assert not browser.run("document.getElementById('answer-filters').checkVisibility()")
    assert not browser.run("document.getElementById('answer-more').checkVisibility()")
