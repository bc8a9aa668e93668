"""Rewards by name, module and file; their contract; and one clear message for each fault."""

import asyncio
import math
import sys

import numpy as np
import pytest
import torch

from reward import Reward, RewardError, Verdict, load_reward
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


def test_numbers_of_numpy_and_torch_are_numbers(file):
    one, half = np.float32(1), torch.tensor(0.5)
    for given in ([one, half], np.array([1, 0.5]), torch.tensor([1, 0.5])):
        assert load_reward(f"{file}:odd", {"result": given})(["p"] * 2, ["c"] * 2) == [1.0, 0.5]
    given = [Verdict(np.bool_(True), one, terms={"part": half})]
    assert load_reward(f"{file}:odd", {"result": given}).verdicts(["p"], ["c"]) == [
        Verdict(True, 1.0, terms={"part": 0.5})
    ]


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
        (1.0, "returned float for 2 completions: expected a list"),
        (["1", 1.0], "gave '1' for completion 0"),
        ([Verdict("yes", 1.0), 1.0], "gave correct='yes' and score=1.0 for completion 0: expected a truth value"),
        ([Verdict(True, None), 1.0], "gave correct=True and score=None for completion 0"),
        ([Verdict(True, 1.0, extracted=5), 1.0], "gave extracted=5 for completion 0: expected text"),
    ],
)
def test_broken_contract(file, result, message):
    reward = load_reward(f"{file}:odd", {"result": result})
    with pytest.raises(RewardError, match=message):
        reward(["p"] * 2, ["c"] * 2)


def test_faults_are_named(file, tmp_path):
    faults = {
        "maths": "no reward 'maths': there are math, code.*; or give module:function",
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
        "raise SystemExit(0)\n": "cannot be imported: SystemExit",
    }.items():
        broken = tmp_path / "broken.py"
        broken.write_text(content)
        with pytest.raises(RewardError, match=message):
            load_reward(f"{broken}:f")


def test_text_of_plain_and_chat_completions():
    assert completion_text("abc") == "abc"
    assert completion_text([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": None}]) == "a\n"


# --- named by a package --------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs a package, as pip does, with the entry points given."""

    def install(name, entries):
        folder = tmp_path / "site"
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[fbt_rl.rewards]\n{entries}\n")
        (folder / f"{name}.py").write_text(GOOD)
        monkeypatch.syspath_prepend(folder)

    return install


def test_entry_points(package):
    package("brevity", "short_words = brevity:short\nodd = brevity:missing\nmath = brevity:odd")
    assert load_reward("short_words", {"limit": 5})(["p"], ["abcd"]) == [1.0]
    assert load_reward("math")([""], ["\\boxed{7}"], answer=["7"]) == [1.0]  # built in comes first
    with pytest.raises(RewardError, match=r"no reward 'long_words': there are math, code, odd, short_words; or"):
        load_reward("long_words")
    with pytest.raises(RewardError, match=r"reward 'odd': brevity has no 'missing'; it has short"):
        load_reward("odd")
    package("rival", "short_words = rival:short")
    with pytest.raises(RewardError, match=r"two installed packages name a reward 'short_words': give brevity:short or"):
        load_reward("short_words")


# --- functions that wait, raise, or see groups ---------------------------------------------------


async def patient(prompts, completions, completion_ids, *, answer, **columns):
    await asyncio.sleep(0)
    if "fail" in completions:
        raise KeyError("fail")
    return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]


def test_async_functions_are_awaited_also_from_a_running_loop():
    reward = Reward("patient", patient)
    assert reward(["p"] * 2, ["7", "8"], answer=["7", "7"]) == [1.0, 0.0]

    async def notebook():
        return reward(["p"] * 2, ["7", "8"], answer=["7", "7"])

    assert asyncio.run(notebook()) == [1.0, 0.0]
    assert reward(["p"] * 2, ["7", "fail"], answer=["7", "7"]) == [1.0, None]


def test_only_rows_that_raise_are_not_judged(caplog):
    asked = []

    def inverse(prompts, completions, completion_ids, *, answer, note=None, **columns):
        asked.append(len(completions))
        return [1 / int(text) / int(gold) for text, gold in zip(completions, answer, strict=True)]

    reward = Reward("inverse", inverse)
    verdicts = reward.verdicts(["p"] * 4, ["1", "0", "x", "2"], [[1]] * 4, answer=["1", "1", "1", "2"], state=object())
    assert [(verdict.score, verdict.error) for verdict in verdicts] == [
        (1.0, None), (None, "raised"), (None, "raised"), (0.25, None)
    ]  # fmt: skip
    assert asked == [4, 1, 1, 1, 1]
    (record,) = caplog.records
    assert record.getMessage() == "reward 'inverse' raised on 2 of 4 completions"
    assert "ZeroDivisionError" in caplog.text  # the first one's traceback
    asked.clear()
    assert reward(["p"], ["0"], answer=["1"]) == [None]
    assert asked == [1]  # one row is not asked twice
    with pytest.raises(
        RewardError, match=r"'inverse' needs the column answer; given: prompts, completions, completion"
    ):
        reward(["p"], ["1"])


def test_group_aware_functions_get_whole_groups_also_one_by_one():
    asked = []

    def rank(prompts, completions, completion_ids, *, group, **columns):
        asked.append(list(group))
        best = {label: max(int(t) for t, g in zip(completions, group, strict=True) if g == label) for label in group}
        return [int(text) / best[label] for text, label in zip(completions, group, strict=True)]

    reward = Reward("rank", rank)
    assert reward.group_aware
    assert reward(["p"] * 4, ["1", "2", "3", "6"], group=[7, 7, 8, 8]) == [0.5, 1.0, 0.5, 1.0]
    # One that raises has its whole group left out: the others' scores would be of another group.
    assert reward(["p"] * 4, ["1", "2", "x", "6"], group=[7, 7, 8, 8]) == [0.5, 1.0, None, None]
    assert asked[1:] == [[7, 7, 8, 8], [7, 7], [8, 8]]
    # Without labels the problem makes the group, else the prompt.
    assert reward(["p", "q", "p"], ["1", "3", "2"]) == [0.5, 1.0, 1.0]
    assert reward([[{"content": "p"}]] * 3, ["1", "3", "2"], problem_id=["a", "b", "a"]) == [0.5, 1.0, 1.0]


def test_a_column_is_never_taken_for_a_setting(file):
    short = load_reward(f"{file}:short")
    assert short(["p"], ["abcd"], limit=[9]) == [0.0]
    assert load_reward(f"{file}:short", {"limit": 9})(["p"], ["abcd"], limit=[1]) == [1.0]
    note = Reward("note", lambda prompts, completions, completion_ids, note=None, **columns: note)
    assert note(["p"], ["a"], note=[0.5]) == [0.5]  # None by default: a column that may be absent


def test_a_dry_call_is_one_row_and_names_what_was_raised(file):
    assert load_reward("math").dry_call("p", "\\boxed{7}", answer="7").score == 1.0
    with pytest.raises(RewardError, match=r"raised KeyError: 'fail'; it was tried on one row, with prompts, .*answer"):
        Reward("patient", patient).dry_call("p", "fail", answer="7")
    with pytest.raises(RewardError, match="'patient' needs the column answer"):
        Reward("patient", patient).dry_call("p", "fail", gold="7")
    with pytest.raises(RewardError, match="returned 2 results for 1 completions"):
        load_reward(f"{file}:odd", {"result": [1.0, 1.0]}).dry_call("p", "c")


@pytest.mark.parametrize(("code", "ends"), [(0, RewardError), (1, RewardError), (None, RewardError), (143, SystemExit)])
def test_a_reward_that_exits_says_so_and_a_signal_still_ends_the_command(code, ends):
    def leaves(prompts, completions, completion_ids, **columns):
        raise SystemExit(code)

    reward = Reward("leaves", leaves)
    with pytest.raises(ends, match=str(code)):
        reward(["p"], ["c"])
