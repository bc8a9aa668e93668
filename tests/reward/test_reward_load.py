"""Rewards by name, module and file; their contract; and one clear message for each fault."""

import asyncio
import math
import sys

import numpy as np
import pytest
import torch

from reward import Reward, RewardError, Verdict, load_reward
from reward.base import completion_text
from reward.beside import files_of

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


# --- modules beside a reward file ----------------------------------------------------------------

BESIDE = {
    "mine.py": "import helper, json\nimport parts.deep.inner as inner\nfrom parts import limits\nfrom . import plain\n"
    "from reward import Verdict\n"
    "def share(prompts, completions, completion_ids, **columns):\n"
    "    import lazy\n"
    "    assert json.dumps([1]) == '[1]'\n"
    "    score = helper.SCORE * inner.DOUBLE * limits.ONE * lazy.ONE * plain.ONE\n"
    "    return [Verdict(True, score) for _ in completions]\n",
    "helper.py": "import second\nSCORE = second.SCORE",
    "second.py": "import helper\nSCORE = {score}",  # a circle
    "lazy.py": "ONE = 1",
    "plain.py": "ONE = 1",
    "parts/__init__.py": "",
    "parts/limits.py": "from .deep import ONE",
    "parts/deep/__init__.py": "from helper import SCORE\nONE = SCORE / SCORE",
    "parts/deep/inner.py": "from ..limits import ONE\nDOUBLE = 2 * ONE",
    "parts/unused.py": "1 / 0",
    "other.py": "1 / 0",
    "json.py": "1 / 0",  # names that are never looked for beside
    "reward/__init__.py": "1 / 0",
}


def write_beside(folder, score=0.25, **changed):
    for name, content in {**BESIDE, **changed}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content.replace("{score}", str(score)))
    return folder / "mine.py"


def score_of(file):
    return load_reward(f"{file}:share")(["p"], ["c"])


def test_a_file_imports_what_lies_beside_it_and_nobody_elses(tmp_path):
    names, path = set(sys.modules), list(sys.path)
    one, two = write_beside(tmp_path / "one"), write_beside(tmp_path / "two", 0.125)
    first, second = load_reward(f"{one}:share"), load_reward(f"{two}:share")
    assert [first(["p"], ["c"]), second(["p"], ["c"]), first(["p"], ["c"])] == [[0.5], [0.25], [0.5]]
    assert sys.path == path
    assert {name for name in set(sys.modules) - names if not name.startswith("reward_file_")} == set()
    (tmp_path / "one" / "second.py").write_text("SCORE = 0.75  # edited")
    assert score_of(one) == [1.5]  # loaded anew


def test_the_modules_that_a_file_imports(tmp_path):
    file = write_beside(tmp_path)
    found = [str(path.relative_to(tmp_path)) for path in files_of(file)]
    assert found[0] == "mine.py"
    assert sorted(found[1:]) == [
        "helper.py", "lazy.py", "parts/__init__.py", "parts/deep/__init__.py", "parts/deep/inner.py", "parts/limits.py",
        "plain.py", "second.py",
    ]  # fmt: skip
    for name in found:  # they are all that it takes
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_text((tmp_path / name).read_text())
    assert score_of(tmp_path / "copy" / "mine.py") == [0.5]
    (tmp_path / "lazy.py").write_text("1 +")  # told when it is loaded
    assert len(files_of(file)) == 9
    assert files_of(tmp_path / "none.py") == [tmp_path / "none.py"]


@pytest.mark.parametrize(
    ("changed", "importer", "module"),
    [
        ({"mine.py": "import nothing_such"}, "mine.py", "nothing_such"),
        ({"mine.py": "from nothing_such.inner import x"}, "mine.py", "nothing_such"),
        ({"helper.py": "import nothing_such"}, "helper.py", "nothing_such"),
        ({"helper.py": "from .nothing_such import x"}, "helper.py", "nothing_such"),
        ({"mine.py": "import parts.nothing_such"}, "mine.py", "parts.nothing_such"),
        ({"parts/limits.py": "from .deep.nothing_such import x"}, "parts/limits.py", "parts.deep.nothing_such"),
    ],
)
def test_a_missing_module_is_named_with_the_file_that_imports_it(tmp_path, changed, importer, module):
    file = write_beside(tmp_path, **changed)
    missing = f"{tmp_path / importer} imports '{module}', which neither lies in {tmp_path} nor is installed"
    with pytest.raises(RewardError, match=rf"reward file {file} cannot be imported: ModuleNotFoundError: {missing}$"):
        load_reward(f"{file}:share")


def test_what_an_installed_package_lacks_is_not_laid_to_the_file(tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "installed.py").write_text("import nothing_such")
    monkeypatch.syspath_prepend(tmp_path / "site")
    (tmp_path / "folder").mkdir()
    file = write_beside(tmp_path / "folder", **{"helper.py": "import installed"})
    with pytest.raises(RewardError, match=r"cannot be imported: ModuleNotFoundError: No module named 'nothing_such'$"):
        load_reward(f"{file}:share")


def test_a_broken_module_beside_a_file_is_told(tmp_path):
    with pytest.raises(RewardError, match=r"mine.py cannot be imported: SyntaxError: .*\(second.py, line 1\)"):
        load_reward(f"{write_beside(tmp_path, **{'second.py': '1 +'})}:share")


# --- results -------------------------------------------------------------------------------------


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
    with pytest.raises(RewardError, match=r"takes no argument limits; did you mean 'limit'"):
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


def test_a_dry_call_is_two_groups_and_names_what_is_wrong(file):
    seven, eight = ({"prompt": "p", "completion": f"\\boxed{{{n}}}", "answer": n} for n in ("7", "8"))
    assert [verdict.score for verdict in load_reward("math").dry_call([seven, eight])] == [1.0, 0.0, 1.0, 0.0]
    seen = {}

    def look(prompts, completions, completion_ids, group, **columns):
        seen.update(columns, completions=completions, group=group, ids=[len(ids) for ids in completion_ids])
        return [0.0] * len(completions)

    Reward("look", look).dry_call([seven | {"level": "1"}, eight])
    assert (seen["group"], seen["answer"], seen["level"]) == (
        [0, 0, 1, 1],
        ["7", "7", "8", "8"],
        ["1", "1", None, None],
    )
    assert [len(text) > 10_000 for text in seen["completions"]] == [False, False, False, True]
    assert seen["completions"][1] == ""
    assert min(seen["ids"]) == 1
    chat = {"prompt": [{"content": "p"}], "completion": [{"role": "assistant", "content": "7"}]}
    Reward("look", look).dry_call([chat])
    assert [completion_text(given) for given in seen["completions"][:2]] == ["7", ""]

    with pytest.raises(RewardError, match=r"raised KeyError: 'fail'; it was tried on 4 rows, with prompts, .*answer"):
        Reward("patient", patient).dry_call([seven | {"completion": "fail"}])
    with pytest.raises(RewardError, match="'patient' needs the column answer"):
        Reward("patient", patient).dry_call([{"prompt": "p", "completion": "c"}])
    for result, fault in {
        1.0: "returned float for 4 completions",
        (1.0,): "returned 1 results for 4 completions",
        (1.0, 1.0): "returned 2 results for 4 completions",
        (1.0,) * 5: "returned 5 results for 4 completions",
        (math.nan,) * 4: "gave no finite number; it was tried on 4 rows",
        (1.0, 0.0, 1.0, "x"): "gave 'x' for completion 3",
    }.items():
        with pytest.raises(RewardError, match=fault):
            load_reward(f"{file}:odd", {"result": result}).dry_call([seven, eight])


@pytest.mark.parametrize(("code", "ends"), [(0, RewardError), (1, RewardError), (None, RewardError), (143, SystemExit)])
def test_a_reward_that_exits_says_so_and_a_signal_still_ends_the_command(code, ends):
    def leaves(prompts, completions, completion_ids, **columns):
        raise SystemExit(code)

    reward = Reward("leaves", leaves)
    with pytest.raises(ends, match=str(code)):
        reward(["p"], ["c"])
