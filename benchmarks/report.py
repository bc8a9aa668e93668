"""How long a browser takes to open a report: seconds from the start of navigation until it can be searched.

    python benchmarks/report.py [--generations 5000] [--characters 1500]

The report of a made-up run with that many answers, each of about so many characters, opened from its file by a headless
Chromium, which must be installed; also the seconds that one search over all of them takes. Five starts of the
browser; prints a table. Half a minute.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from browser import CHROMIUM, USABLE, Browser
from synthetic_run import make_run, replace_generations

from fbt_rl.artifacts import RunFolder
from fbt_rl.report import write_report

SEARCH = """new Promise((done) => {
  const [form, found] = ["answer-filters", "answer-count"].map((id) => document.getElementById(id));
  const start = performance.now();
  form.elements.text.value = "boxed{9";
  new MutationObserver(() => done((performance.now() - start - DELAY) / 1000)).observe(found, { childList: true });
  form.dispatchEvent(new Event("input"));
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=5000)
    parser.add_argument("--characters", type=int, default=1500)
    arguments = parser.parse_args()
    if CHROMIUM is None:
        parser.error("no Chromium is installed")
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), problems=-(-arguments.generations // 6))  # two evaluations in three modes
        rng = np.random.default_rng(0)
        words = ["".join(letters) for letters in rng.choice(list("abcdefghijklmnopqrstuvwxyz"), (5000, 5))]
        for name in ("eval_before", "eval_after"):
            evaluation = RunFolder(run).stage(name)
            rows = pq.read_table(evaluation.generations_path).to_pylist()
            for row in rows:
                text = " ".join(rng.choice(words, arguments.characters // 6))  # a word has five letters and a space
                row["completion"] = f"{text} {row['completion']}"
            replace_generations(evaluation, pa.Table.from_pylist(rows))
        page = write_report(run)
        opened, searched = [], []
        for _ in range(5):
            with Browser() as browser:
                browser.open(page)
                opened.append(browser.run(USABLE) / 1000)
                searched.append(browser.run(SEARCH))
                held = browser.run("document.getElementById('answer-count').textContent")
        print("| answers found | page, MB | open, s: best | median | search, s |\n|---|--:|--:|--:|--:|")
        size = page.stat().st_size / 1e6
        print(f"| {held} | {size:.1f} | {min(opened):.2f} | {statistics.median(opened):.2f} | {min(searched):.2f} |")


if __name__ == "__main__":
    main()
