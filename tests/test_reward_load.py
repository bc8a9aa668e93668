"""Rewards by name, module and file; their contract; and one clear message for each fault."""

import math
import sys

import pytest

from reward import RewardError, Verdict, load_reward
from reward.base import completion_text

GOOD = """
def short(prompts, completions, completion_ids, limit=3, **columns):
    return [float(len(text) <= limit) for text in completions]

def odd(prompts, completions, completion_ids, *, result, **columns):
    return result

def narrow(completions, answer):
    return [0.0] * len(completions)

value = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    return path


def test_built_in_math():
    reward = load_reward("math")
    arguments = {
        "prompts": ["", ""],
        "completions": ["\\boxed{3+4}", "7"],
        "completion_ids": [[1], [2]],
        "answer": ["7", "7"],
    }
    assert reward(**arguments) == [1.0, 0.0]
    assert [v.error for v in reward.verdicts(**arguments)] == [None, "no_answer"]
    numeric = load_reward("math", {"numeric": True})
    assert numeric(**arguments) == [0.0, 0.0]
    phrase = load_reward("math", {"forms": ["phrase"]})
    assert phrase([""], ["The answer is 7."], answer=["7"]) == [1.0]


def test_file_and_module(file, monkeypatch):
    reward = load_reward(f"{file}:short")
    assert reward(["p"] * 2, ["ab", "abcd"], None, other=["x", "y"]) == [1.0, 0.0]
    assert load_reward(f"{file}:short", {"limit": 5})(["p"], ["abcd"]) == [1.0]
    monkeypatch.syspath_prepend(file.parent)
    assert load_reward("mine:short")(["p"], ["ab"]) == [1.0]
    sys.modules.pop("mine")


def test_two_files_of_one_name_stay_apart(file, tmp_path):
    other = tmp_path / "else" / "mine.py"
    other.parent.mkdir()
    other.write_text("def short(**columns):\n    return [0.5]\n")
    first, second = load_reward(f"{file}:short"), load_reward(f"{other}:short")
    assert (first(["p"], ["a"]), second(["p"], ["a"])) == ([1.0], [0.5])


def test_scores_verdicts_and_none_are_told_apart(file):
    given = [1, 0.5, None, Verdict(True, 0.7, "x"), Verdict(None, None, error="bad_answer")]
    reward = load_reward(f"{file}:odd", {"result": given})
    assert reward(["p"] * 5, ["c"] * 5) == [1.0, 0.5, None, 0.7, None]
    assert [verdict.correct for verdict in reward.verdicts(["p"] * 5, ["c"] * 5)] == [True, False, None, True, None]


def test_what_is_not_finite_was_not_judged(file):
    given = [math.nan, -math.inf, Verdict(True, math.inf, "x"), 1e300]
    verdicts = load_reward(f"{file}:odd", {"result": given}).verdicts(["p"] * 4, ["c"] * 4)
    assert [(verdict.correct, verdict.score, verdict.error) for verdict in verdicts] == [
        *[(None, None, "not_finite")] * 3,
        (True, 1e300, None),  # finite: whether it is too large is for the caller to say
    ]
    assert verdicts[2].extracted == "x"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1.0], "returned 1 results for 2 completions"),
        (1.0, "returned float for 2 completions"),
        (["1", 1.0], "gave '1' for completion 0"),
    ],
)
def test_broken_contract(file, result, message):
    reward = load_reward(f"{file}:odd", {"result": result})
    with pytest.raises(RewardError, match=message):
        reward(["p"] * 2, ["c"] * 2)


def test_faults_are_named(file, tmp_path):
    faults = {
        "maths": "no reward 'maths': built in are math, code; or give module:function",
        f"{tmp_path}/none.py:f": "no reward file",
        "no_such_module.inner:f": "no module 'no_such_module.inner' for a reward: install",
        f"{file}:missing": r"has no 'missing'; it has short, odd, narrow",
        f"{file}:value": "is a int, expected a function",
        f"{file}:narrow": r"has the signature \(completions, answer\); expected \(prompts",
    }
    for use, message in faults.items():
        with pytest.raises(RewardError, match=message):
            load_reward(use)
    with pytest.raises(RewardError, match=r"takes no argument limits; its parameters are .*'limit'"):
        load_reward(f"{file}:short", {"limits": 3})
    for content, message in {
        "def f(:\n": "cannot be imported: SyntaxError",
        "import no_such_thing\n": "cannot be imported: ModuleNotFoundError",
        "1 / 0\n": "cannot be imported: ZeroDivisionError",
    }.items():
        broken = tmp_path / "broken.py"
        broken.write_text(content)
        with pytest.raises(RewardError, match=message):
            load_reward(f"{broken}:f")


def test_text_of_plain_and_chat_completions():
    assert completion_text("abc") == "abc"
    assert completion_text([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": None}]) == "a\n"
