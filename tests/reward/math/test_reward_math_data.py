"""The math grader over whole data sets: gold answers, other projects' pairs, and what models might have run."""

import itertools
import json
import os
from pathlib import Path

import pytest

from reward import grade, math_reward
from reward.math.answer import equivalent
from reward.math.extraction import ALL_FORMS, extract_answer
from reward.math.quantities import numbers_equal, parse_number

DATA = Path(__file__).parents[4] / "shared/data"


def rows(name):
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"needs {name} of the data folder beside the project")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_gsm8k_answer_under_its_own_text_and_a_neighbours(split):
    solutions = [row["answer"] for row in rows(f"gsm8k/{split}.jsonl")]
    golds = [solution.rpartition("#### ")[2] for solution in solutions]
    assert set(math_reward([], solutions, answer=golds)) == {1.0}
    shifted = [(s, g) for s, g, own in zip(solutions, golds[1:], golds, strict=False) if g != own]
    shifted = [(s, g) for s, g in shifted if parse_number(g) != parse_number(extract_answer(s))]
    assert len(shifted) > 0.95 * len(solutions)
    assert set(math_reward([], [s for s, _ in shifted], answer=[g for _, g in shifted])) == {0.0}


def test_every_math_answer_under_itself_and_a_neighbours():
    math500 = rows("math500/test.jsonl")
    golds = [row["answer"] for row in [*rows("math_train/train_answers.jsonl"), *math500] if row["answer"]]
    boxed = [f"\\boxed{{{gold}}}" for gold in golds]
    assert set(math_reward(boxed, boxed, answer=golds)) == {1.0}
    solutions = [row["solution"] for row in math500]
    assert set(math_reward(solutions, solutions, answer=[row["answer"] for row in math500])) == {1.0}
    pairs = [pair for pair in itertools.pairwise(golds[:120]) if not numbers_equal(*pair)]
    pairs = [(mine, other) for mine, other in pairs if mine != other]
    assert len(pairs) > 100
    completions = [f"\\boxed{{{mine}}}" for mine, _ in pairs]
    assert set(math_reward(pairs, completions, answer=[other for _, other in pairs])) == {0.0}


DISAGREED = {
    "p0244": "f(x) is f(y) there; two answers that differ in a free letter differ",
    "p0570": "0.290243... against 0.29: a gold answer of two digits is not known to be rounded",
}


def test_grader_pairs_of_other_projects():
    pairs = [
        row
        for row in rows("grader_pairs/pairs.jsonl")
        if row["expected"] is not None and not row.get("convention") and not row.get("suspect")
    ]
    differing = []
    for row in pairs:
        prediction, gold = row["prediction"] or "", row["gold"] or ""
        if row["style"] != "bare":  # a whole output; some are nothing but the answer
            prediction = extract_answer(prediction, ALL_FORMS) or prediction
            gold = extract_answer(gold, ALL_FORMS) or gold
        if (equivalent(prediction, gold)[0] is True) != row["expected"]:
            differing.append(row["id"])
    assert differing == [*DISAGREED]
    assert len(differing) <= 0.01 * len(pairs)


def test_nothing_a_model_writes_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    payloads = [row["prediction"] for row in rows("grader_pairs/pairs.jsonl") if "__" in (row["prediction"] or "")]
    payloads += ["__import__('os').system('touch marker') or 0", "\\text{__import__('os').mkdir('marker')}"]
    assert len(payloads) >= 4
    for payload in payloads:
        assert equivalent(payload, "0")[0] is False
        assert grade(f"\\boxed{{{payload}}}", "0").score == 0.0
        assert grade(payload, "0", forms=ALL_FORMS).score == 0.0
    assert os.listdir(tmp_path) == []
