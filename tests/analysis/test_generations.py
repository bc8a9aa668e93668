"""Other people's generations: maps and paths, verdicts, bad rows, streaming; and the comparison of evaluations."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fbt_rl.analysis.others import generations
from fbt_rl.analysis.others.field_map import Found, find, read_map, value_at
from fbt_rl.analysis.sides import compare_evaluations, comparison_text
from fbt_rl.analysis.table import SCHEMA, length_unit
from fbt_rl.config.file import ConfigError
from fbt_rl.data.problems import DataError
from fbt_rl.driver.evaluate import evaluate_file, result_lines

OPENAI = Path(__file__).parents[3] / "shared/data/model_outputs/gsm8k_openai_2021/example_model_solutions.jsonl"
MAP = ["problem_id=id,answer=gold,completion=out"]


def write(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def judged(tmp_path, rows, *field_map, **options):
    """The result and the rows of ``generations.parquet``."""
    path = write(tmp_path / "theirs.jsonl", rows)
    result = evaluate_file(path, field_map or MAP, tmp_path / "out", **options)
    return result, pq.read_table(tmp_path / "out" / "generations.parquet")


@pytest.mark.skipif(not OPENAI.is_file(), reason="needs the model outputs beside the project")
def test_the_four_systems_of_2021_get_the_verdicts_of_their_file(tmp_path):
    columns = "prompt=question,answer=gold,completion=outputs.*.solution,claimed=outputs.*.is_correct"
    result = evaluate_file(OPENAI, [columns], tmp_path)
    right = {mode: round(values["accuracy"] * values["n"]) for mode, values in result["modes"].items()}
    assert right == {"6b_finetuning": 286, "6b_verification": 515, "175b_finetuning": 458, "175b_verification": 742}
    assert {mode: counts["claimed_right"] for mode, counts in result["verdicts"].items()} == right
    assert {counts["differ"] for counts in result["verdicts"].values()} == {0}
    assert result["left_out"] == 0
    entries = compare_evaluations([str(tmp_path)], 0.03, None)
    assert [(entry["before"], entry["after"]) for entry in entries] == [
        ("6b_finetuning", other) for other in ("6b_verification", "175b_finetuning", "175b_verification")
    ]
    assert [entry["accuracy_verdict"] for entry in entries] == ["higher"] * 3


# --- maps and paths ------------------------------------------------------------------------------

ROW = {"a": {"b": [1, 2]}, "x.y": "dots", "s": {"one": {"t": ["u", "v"]}, "two": {"t": ["w"]}}, "n": [[["p"]], ["q"]]}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a.b", [((0,), 1), ((1,), 2)]),
        ("a.b.1", [((), 2)]),
        ("a.b.-1", [((), 2)]),
        ("x.y", [((), "dots")]),
        ("s.*.t", [(("one", 0), "u"), (("one", 1), "v"), (("two", 0), "w")]),
        ("s.*.t.0", [(("one",), "u"), (("two",), "w")]),
        ("n", [((0, 0, 0), "p"), ((1, 0), "q")]),
    ],
)
def test_paths(path, found):
    assert list(find(ROW, path)) == [Found(*each) for each in found]


def test_paths_that_lead_nowhere():
    with pytest.raises(DataError, match=r"no 'c' in a dict, its keys are b"):
        list(find(ROW, "a.c"))
    with pytest.raises(DataError, match=r"no 'z' in a str"):
        list(find({"q": "text"}, "q.z"))
    one, other = find({"s": {"one": {"t": 1}, "two": {}}}, "s.*.t")
    assert one == (("one",), 1)
    with pytest.raises(DataError, match="no 't' in a dict"):
        value_at(("two",), "completion", [one, other])


def test_a_sample_gets_the_value_of_its_entry_else_that_of_all():
    gold, flags = [Found((), "7")], [Found(("a",), True), Found(("b",), False)]
    assert value_at(("a", 0), "answer", gold) == "7"
    assert value_at(("b", 1), "claimed", flags) is False
    assert value_at(("b",), "answer", [Found((0,), "7")]) == "7"
    with pytest.raises(DataError, match="claimed has 2 values, and none for this sample"):
        value_at(("c",), "claimed", flags)


def test_maps_as_pairs_and_as_files(tmp_path):
    columns = read_map(["completion=a.b,answer=c", "answer_pattern=A: (\\d+,?x=1)", "stop=\\n\\nQ:"])
    assert (columns.completion, columns.answer, columns.stop) == ("a.b", "c", ("\n\nQ:",))
    assert columns.answer_pattern == "A: (\\d+,?x=1)"
    path = tmp_path / "map.yaml"
    path.write_text("completion: a\nanswer: b\nreward: {use: math, args: {numeric: true}}\n")
    columns = read_map([str(path), "answer=c"])
    assert (columns.answer, columns.reward.args) == ("c", {"numeric": True})
    assert read_map(["completion=a,tests=b"]).reward.use == "code"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "--map: name the completion"),
        (["completion=a"], "--map: name the right answer"),
        (["complet=a,answer=b"], "--map complet: unknown key; did you mean 'completion'"),
        (["completion=a,answer=b,answer_pattern=("], "answer_pattern: not a regular expression"),
        (["nowhere.yaml"], "--map nowhere.yaml: neither column=path nor a YAML file"),
    ],
)
def test_bad_maps(given, message):
    with pytest.raises(ConfigError) as raised:
        read_map(given)
    assert message in str(raised.value)


# --- verdicts ------------------------------------------------------------------------------------


def test_nested_samples_with_parallel_verdicts(tmp_path):
    rows = [
        {"q": " 1+1\n", "gt": 2.0, "code": [["so \\boxed{2}"], ["\\boxed{3}"]], "score": [True, False]},
        {"q": "1+2", "gt": 3, "code": [["\\boxed{3}"], ["the answer is 3."]], "score": [1, 0]},
    ]
    result, table = judged(tmp_path, rows, "prompt=q,answer=gt,completion=code,claimed=score")
    assert table.schema.equals(SCHEMA)
    assert table["sample"].to_pylist() == [0, 1, 0, 1]
    assert table["mode"].to_pylist() == ["theirs"] * 4
    assert table["correct"].to_pylist() == [True, False, True, True]
    assert table["claimed"].to_pylist() == [True, False, True, False]
    assert len(set(table["problem_id"].to_pylist())) == 2
    assert result["verdicts"] == {"theirs": {"rows": 4, "claimed_right": 2, "right": 3, "differ": 1, "no_answer": 0}}
    assert result["modes"]["theirs"]["pass_at_k"] == {"1": 0.75, "2": 1.0}
    lines = list(result_lines(result))
    assert lines[1] == "theirs  right 3 of 4, by the file's own verdicts 2; 1 judged otherwise"
    [problem] = set(table["problem_id"].to_pylist()[2:])
    assert lines[2:] == [f"theirs, {problem}, sample 1: wrong by the file; found '3', the right answer is '3'"]
    rows = [{"q": n, "gt": "7", "code": text, "score": "True"} for n, text in enumerate(["7, as is", "x"])]
    lines = list(result_lines(judged(tmp_path, rows, "problem_id=q,answer=gt,completion=code,claimed=score")[0]))
    assert "; 2 judged otherwise, 2 of them for want of an answer (see answer_pattern)" in lines[1]
    assert lines[2] == "theirs, 0, sample 0: right by the file; no answer found, the right answer is '7'"


def test_rows_of_one_problem_are_its_samples(tmp_path):
    rows = [{"id": "a", "gold": "1", "out": f"\\boxed{{{n}}}", "model": "m\x1b" if n < 2 else "k"} for n in range(4)]
    _, table = judged(tmp_path, rows, *MAP, "mode=model")
    assert [tuple(row[name] for name in ("mode", "sample", "correct")) for row in table.to_pylist()] == [
        ("m", 0, False),
        ("m", 1, True),
        ("k", 0, False),
        ("k", 1, False),
    ]


def test_where_an_answer_may_stand(tmp_path):
    texts = ["\\boxed{7}", "#### 7", "The final answer is $7$. I hope it is correct.", "6 + 1\nA: 7", "it is 7", ""]
    rows = [{"id": n, "gold": "so 3 + 4\n#### 7", "out": text} for n, text in enumerate(texts)]
    _, table = judged(tmp_path, rows)
    assert table["correct"].to_pylist() == [True] * 4 + [False] * 2
    assert table["error"].to_pylist()[4:] == ["no_answer"] * 2
    assert set(table["answer"].to_pylist()) == {"7"}
    _, table = judged(tmp_path, rows, *MAP, "answer_pattern=-?\\d+")
    assert table["correct"].to_pylist() == [True] * 5 + [False]
    rows = [{"id": 1, "gold": "7", "out": "\\boxed{7}\n\nQ: more \\boxed{8}", "theirs": "8"}]
    assert judged(tmp_path, rows)[1]["correct"].to_pylist() == [False]
    assert judged(tmp_path, rows, *MAP, "stop=\\n\\nQ:")[1]["correct"].to_pylist() == [True]
    assert judged(tmp_path, rows, *MAP, "extracted=theirs")[1]["extracted"].to_pylist() == ["8"]
    rows = [{"id": 1, "gold": "7", "out": "so #### 7</s>"}]
    assert judged(tmp_path, rows, *MAP, "answer_pattern=#### (.*)")[1]["correct"].to_pylist() == [True]
    (tmp_path / "forms.yaml").write_text("reward: {use: math, args: {forms: [hashes]}}")
    assert judged(tmp_path, rows, *MAP, str(tmp_path / "forms.yaml"))[1]["correct"].to_pylist() == [True]
    assert judged(tmp_path, [{"id": 1, "gold": "7", "out": None}], "answer=gold,extracted=out")[0]["left_out"] == 0
    rows = [{"id": 1, "gold": "4 + 3\nA: 7", "out": "7", "theirs": None}]
    assert judged(tmp_path, rows, "answer=gold,extracted=out")[1]["correct"].to_pylist() == [True]
    assert judged(tmp_path, rows, "answer=gold,completion=out,extracted=theirs")[1]["error"].to_pylist() == [
        "no_answer"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Thus she makes $7 in 3 days. #### 7 ",
        "a loss. #### $7.00</s>",
        "#### 7<|endoftext|>Human: 8",
        "#### Step 1: add\n3 + 4\n#### Step 2\nThe answer is: 7",
        "#### Final Answer: 7",
        "**Final Answer**\n\n7",
        "# Answer\n\n7",
        "Therefore, the answer (arabic numerals) is 7.",
        "The answer is $\\$7$.",
        "The answer is $7 a day, so $49 a week",
        "The answer is about 7 (as 3 + 4).",
        "The answer is: 7 and the check holds.",
        "<think>The answer is 8.</think>\n<answer> 7 </answer>",
        "<think>so \\boxed{8}, no, the answer is 9</think>\n\nShe makes **$7** every day.",
        "<think>so \\boxed{7}</think>\n",
        "<answer>so \\boxed{7}</answer>",
        "Final Answer: The final answer is $7$. I hope it is correct.",
        "So Juanita spends **$7.00** more in 52 weeks.",
        "She makes 7 * $1 = $7 every day.",
        "A: 7 apples\n",
    ],
)
def test_answers_as_other_systems_write_them(tmp_path, text):
    _, table = judged(tmp_path, [{"id": 1, "gold": "3 + 4 = 7. #### 7", "out": text}], marker="</think>")
    assert table["correct"].to_pylist() == [True]
    strict = tmp_path / "strict.yaml"
    strict.write_text("reward: {use: math, args: {forms: [boxed]}}")
    _, table = judged(tmp_path, [{"id": 1, "gold": "7", "out": text}], *MAP, str(strict))
    assert table["error"].to_pylist() == (["no_answer"] if "boxed" not in text else [None])


@pytest.mark.parametrize("text", ["it is 7", "so far 3 + 4 = 7, and then", "", "</s>", "<answer></answer>"])
def test_what_breaks_off_has_no_answer(tmp_path, text):
    _, table = judged(tmp_path, [{"id": 1, "gold": "7", "out": text}])
    assert table["error"].to_pylist() == ["no_answer"]


def test_lengths_and_endings(tmp_path):
    rows = [
        {"id": "a", "gold": "1", "out": "<think>é\U0001f600</think>\\boxed{1}", "n": 9, "end": "max_tokens"},
        {"id": "b", "gold": "1", "out": "ab\\boxed{1}", "n": "4", "end": "eos"},
        {"id": "c", "gold": "1", "out": "\ud83d", "n": 1, "end": "odd"},  # half a surrogate pair
    ]
    _, table = judged(tmp_path, rows, *MAP, "num_tokens=n,finish_reason=end", marker="</think>")
    assert length_unit(table) == "tokens"
    assert table["num_tokens"].to_pylist() == [9, 4, 1]
    assert table["finish_reason"].to_pylist() == ["length", "stop", None]
    assert table["correct"].to_pylist() == [False, True, False]  # cut off is wrong
    result, table = judged(tmp_path, rows, marker="</think>")
    assert length_unit(table) == "characters"
    assert table["num_tokens"].to_pylist() == [26, 11, 1]
    assert table["answer_tokens"].to_pylist() == [9, 9, 0]
    assert result["modes"]["theirs"]["truncated"] is None
    assert "truncated not known" in next(result_lines(result))


def test_code_is_judged_by_its_tests(tmp_path):
    tests = ["assert f(1) == 2", "assert f(2) == 3"]
    rows = [{"p": "Write f.", "t": tests, "out": {"good": "def f(x): return x + 1", "bad": "def f(x): return 2"}}]
    reward = "{use: code, args: {require: rlimits}}"
    (tmp_path / "map.yaml").write_text(f"prompt: p\ntests: t\ncompletion: out.*\nreward: {reward}\n")
    result, table = judged(tmp_path, rows, str(tmp_path / "map.yaml"))
    assert {mode: values["accuracy"] for mode, values in result["modes"].items()} == {"good": 1.0, "bad": 0.0}
    assert table["error"].to_pylist() == [None, "failed_test"]


# --- bad rows and long files ---------------------------------------------------------------------


def test_bad_rows_are_named_and_counted_and_the_others_stand(tmp_path):
    good = {"id": "a", "gold": "1", "out": "\\boxed{1}"}
    rows = [
        good,
        '{"id": "cut',
        "[1]",
        {"id": "c", "out": "x"},
        {"id": "d", "gold": "1", "out": None},
        {"id": "e", "gold": " ", "out": "x"},
        {"id": "f", "gold": "1", "out": []},
        {**good, "id": "b"},
    ]
    result, table = judged(tmp_path, rows)
    assert table["problem_id"].to_pylist() == ["a", "b"]
    assert result["left_out"] == 6
    messages = ["row 2: not valid JSON", "row 3: expected named columns, found list"]
    messages += ["row 4: answer=gold: no 'gold' in a dict", "row 5: completion is null, expected text"]
    messages += ["row 6: answer is empty"]
    assert all(message in said for message, said in zip(messages, result["left_out_first"], strict=False))
    assert list(result_lines(result))[-1] == "left out: 6 rows or samples that could not be used"


def test_one_bad_sample_does_not_cost_the_others(tmp_path):
    rows = [{"id": 1, "gold": "1", "outs": {"x": {"text": "\\boxed{1}"}, "y": {"txt": ""}, "z": {"text": "2"}}}]
    result, table = judged(tmp_path, rows, "problem_id=id,answer=gold,completion=outs.*.text")
    assert table["mode"].to_pylist() == ["x", "z"]
    assert result["left_out_first"] == ["theirs.jsonl, row 1, y: no 'text' in a dict, its keys are txt"]


def test_a_file_without_any_usable_row_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(DataError, match=r"holds no generation that can be used; .*row 1: completion=out: no 'out'"):
        judged(tmp_path, [{"id": 1, "gold": "2"}])
    assert not list((tmp_path / "out").iterdir())
    with pytest.raises(DataError, match="no data file"):
        evaluate_file(tmp_path / "nowhere.jsonl", MAP, None)


def test_a_long_file_is_judged_while_it_is_read(tmp_path, monkeypatch):
    read, ahead = [0], []
    rows = generations.table_rows

    def counting(*given):
        for row in rows(*given):
            read[0] += 1
            yield row

    def judge(prompts, completions, completion_ids, **columns):
        ahead.append(read[0])
        return [1.0] * len(completions)

    monkeypatch.setattr(generations, "table_rows", counting)
    monkeypatch.setattr(generations, "_BATCH", 10)
    path = write(tmp_path / "long.jsonl", [{"id": n, "gold": "1", "out": "x"} for n in range(35)])
    columns = read_map(MAP)
    generations.judge_file(path, columns, generations.Reward("judge", judge), tmp_path / "t.parquet")
    assert ahead == [10, 20, 30, 35]
    assert pq.read_table(tmp_path / "t.parquet")["problem_id"].to_pylist() == [str(n) for n in range(35)]


def test_what_the_file_lacks_is_taken_from_the_problems(tmp_path):
    problems = write(tmp_path / "problems.jsonl", [{"task": "t/1", "gold": "1", "q": "one?"}])
    rows = [{"id": "t/1", "out": "\\boxed{1}", "result": "failed: x"}, {"id": "t/2", "out": "1", "result": "passed"}]
    columns = [f"problems={problems},problems_key=task,problem_id=id", "answer=problem.gold,prompt=problem.q"]
    result, table = judged(tmp_path, rows, *columns, "completion=out,claimed=result")
    assert table.select(["prompt", "correct", "claimed"]).to_pylist() == [
        {"prompt": "one?", "correct": True, "claimed": False}
    ]
    assert result["left_out_first"] == [f"theirs.jsonl, row 2: no problem 't/2' in {problems}"]
    with pytest.raises(DataError, match=r"problems.jsonl, row 1: problems_key: no 'id' in a dict"):
        judged(tmp_path, rows, f"problems={problems},problem_id=id,answer=problem.gold,completion=out")
    with pytest.raises(ConfigError, match="--map problems: name the problem_id"):
        read_map([f"problems={problems},answer=problem.gold,completion=out"])


# --- comparing evaluations -----------------------------------------------------------------------


@pytest.fixture
def evaluations(tmp_path):
    """``one`` system; another evaluation with ``two`` systems, in tokens of its own ids but the same prompts."""
    rows = [{"q": f"what is {n}?", "gold": n, "out": f"\\boxed{{{n + (n % 4 == 0)}}} " + "x" * 20} for n in range(60)]
    write(tmp_path / "one.jsonl", rows)
    evaluate_file(tmp_path / "one.jsonl", ["prompt=q,answer=gold,completion=out"], tmp_path / "one")
    rows = [{"q": f"what  is {n}?", "key": f"k{n}", "gold": f"{n}.0", "o": {"a": f"\\boxed{{{n}}}"}} for n in range(60)]
    rows = [{**row, "o": {**row["o"], "b": "none"}} for row in rows]
    write(tmp_path / "two.jsonl", rows)
    write(tmp_path / "bare.jsonl", [{"gold": n, "out": ""} for n in range(3)])
    evaluate_file(tmp_path / "bare.jsonl", ["answer=gold,completion=out"], tmp_path / "bare")
    evaluate_file(tmp_path / "two.jsonl", ["problem_id=key,prompt=q,answer=gold,completion=o.*"], tmp_path / "two")
    return tmp_path


def test_evaluations_are_paired_by_prompt_and_mode(evaluations):
    one, two = str(evaluations / "one"), str(evaluations / "two")
    entries = compare_evaluations([one, two], 0.05, evaluations / "out.json")
    assert [(entry["before"], entry["after"], entry["mode"]) for entry in entries] == [
        ("one", "two", "one → a"),
        ("one", "two", "one → b"),
    ]
    assert entries[0]["n"] == 60
    assert entries[0]["margin"] == 0.05
    assert (entries[0]["accuracy_verdict"], entries[1]["accuracy_verdict"]) == ("higher", "lower")
    assert entries[0]["length_verdict"] == "shorter"
    assert json.loads((evaluations / "out.json").read_text())["comparisons"] == json.loads(json.dumps(entries))
    text = comparison_text(entries)
    assert "| one → two | one → a | 60 | 75.0% → 100.0% | +25.0 [" in text
    assert "- Accuracy is higher (75.0% to 100.0%" in text
    [chosen] = compare_evaluations([f"{two}:a", f"{two}:b"], 0.03, None)
    assert (chosen["mode"], chosen["accuracy_after"]) == ("a → b", 0.0)
    [alone] = compare_evaluations([two], 0.03, None)
    assert (alone["before"], alone["after"], alone["mode"]) == ("a", "b", "two")


def test_lengths_in_different_units_are_not_compared(evaluations):
    rows = [{"q": f"what is {n}?", "gold": n, "out": f"\\boxed{{{n}}}", "n": 3} for n in range(60)]
    write(evaluations / "three.jsonl", rows)
    evaluate_file(
        evaluations / "three.jsonl", ["prompt=q,answer=gold,completion=out,num_tokens=n"], evaluations / "three"
    )
    [entry] = compare_evaluations([str(evaluations / "one"), str(evaluations / "three")], 0.03, None)
    assert (entry["length_verdict"], entry["paired_length_ratio"]) == ("unknown", None)
    assert "Lengths are not compared: they are counted one in characters and three in tokens." in entry["findings"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["one"], "one has one mode only: name a second evaluation"),
        (["one", "nowhere"], "no evaluation nowhere: give a folder that holds generations.parquet"),
        (["bare", "one"], "bare and one have no judged problem in common"),
        (["two:c", "one"], "has no mode 'c'; it has a, b"),
        (["one.jsonl", "one"], "one.jsonl is not judged yet: fbt-rl eval --generations one.jsonl"),
    ],
)
def test_what_cannot_be_compared(evaluations, monkeypatch, names, message):
    monkeypatch.chdir(evaluations)
    with pytest.raises(ValueError, match=re.escape(message)):
        compare_evaluations(names, 0.03, None)
