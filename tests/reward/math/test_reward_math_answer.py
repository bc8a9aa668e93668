"""The math grader: extraction, exact numbers, formulas, hostile input (pairs: test_reward_math_pairs.py,
whole data sets: test_reward_math_data.py)."""

import random
import subprocess
import sys
import threading
from fractions import Fraction

import pytest

from reward import RewardError, grade, math_reward
from reward.math import pool
from reward.math.answer import equivalent, math_verdicts, self_test
from reward.math.extraction import ALL_FORMS, extract_answer
from reward.math.quantities import Conventions, parse_number

EXTRACTION = [
    ("so \\boxed{7}", "7"),
    ("\\boxed{1} no, \\boxed{2}", "2"),
    ("\\boxed{\\frac{1}{\\sqrt{2}}} done", "\\frac{1}{\\sqrt{2}}"),
    ("\\fbox{ 3 }", "3"),
    ("\\boxed {4}", "4"),
    ("\\boxed{5} and then \\boxed{6", "5"),  # the last one is cut off
    ("\\boxed{\\left\\{ x \\right.}", "\\left\\{ x \\right."),
    ("\\boxed{\\boxed{9}}", "9"),
    ("\\boxed{1} and \\boxed{2}", "1, 2"),
    ("$\\boxed{1}$, $\\boxed{2}$ or \\boxed{3}", "1, 2, 3"),
    ("\\boxed{7}, \\boxed{7}", "7"),
    ("\\boxed{1}\n\\boxed{2}", "2"),
    ("\\boxed{320} and those 4 hours", "320"),
    ("work\n#### 72", "72"),
    ("#### 1\n#### 1,050 ", "1,050"),
    ("\\boxed{3}\n#### heading", "3"),
    ("$y = \\boxed{2x}$ and $z_1 = \\boxed{3}$", "2x, 3"),
    ("\\boxed{1} papers and \\boxed{2} bins", "1, 2"),
    ("\\boxed{10} and then \\boxed{42}", "42"),
    ("\\boxed{(3, 3)} \\text{ for part (a) and } \\boxed{(1, 1)}", "(3, 3), (1, 1)"),
    ("\\boxed{1\\frac{1}{2}},$ or $\\boxed{\\frac{3}{2}}$", "\\frac{3}{2}"),
    ("\\boxed 5", "5"),
    ("\\boxed 4 or rather \\boxed 6", "6"),
    ("see #### 5", None),
    ("\\boxed{}", None),
    ("\\boxed{7", None),
    ("The answer is 7", None),
    ("7", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "answer"), EXTRACTION)
def test_extraction_is_strict(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 17/3.", "17/3"),
        ("Answer: 41 was wrong.\nAnswer: 42", "42"),
        ("**Final Answer:** $\\frac{1}{2}$ as shown", "\\frac{1}{2}"),
        ("The answer is 72, in total.", "72"),
        ("the answer is 1,234.5 dollars because", "1,234.5 dollars"),
        ("Final answer: the volume is 120. I hope", "120"),
        ("\\boxed{3}. The answer is 4", "3"),
        ("Final Answer: Jane began 3 hours ago. I hope it is correct.", "3"),
        ("Final Answer: The final answer is $(2,\\infty)$. I hope it is correct.", "(2,\\infty)"),
        ("The answer is that she has $\\frac{5}{9}$ of it left.", "\\frac{5}{9}"),
        ("The answer is 3 million dollars a year", "3 million dollars a year"),
        ("The answer is 3 eggs a day", "3"),
        ("The answer is $5 on one day and $6 on the next.", "5 on one day and $6 on the next"),
        ("so it costs 1,000.99€ in all", "1,000.99"),
        ("first $x=1$, therefore the number is $\\frac{2}{3}$.", "\\frac{2}{3}"),
        ("We find $x = 2$, that is 17/3 hours", "17/3"),
        ("work it out\n42", "42"),
        ("and so we get 80 +", None),
        ("nothing here at all", None),
        ("it was 5, and now it is = 7 +", None),
        ("so we have \\boxed{5", None),
        ("<think>two tries</think><answer>31</answer>", "31"),
        ("Answer $31$", "31"),
        ("Hence, $y = 31$.", "y = 31"),
        ("The final answer is therefore 31.", "31"),
        ("$f(t) = kt$ for some constant $k$", "f(t) = kt"),
        ("She earns **$18** a week.", "$18"),
        ("__import__('os').system('x') or 0", "__import__('os').system('x') or 0"),
        ("run os.system('x') or else take 0", None),
    ],
)
def test_answer_phrases_are_read_where_asked_for(text, answer):
    assert extract_answer(text, ALL_FORMS) == answer


NUMBERS = {
    "7": "7",
    "-8,192": "-8192",
    "+3.50": "7/2",
    ".5": "1/2",
    "7.": "7",
    "$1{,}000.5$": "2001/2",
    "\\$3": "3",
    "3/4": "3/4",
    "-1,234/2": "-617",
    "\\frac34": "3/4",
    "-\\dfrac{ 3 }{4}": "-3/4",
    "\\frac{-3}{4}": "-3/4",
    "25\\%": "25",
    "45^\\circ": "45",
    "15\\mbox{ cm}^2": "15",
    "18 eggs": "18",
    "12\\,345\\,678": "12345678",
    "11,\\! 111": "11111",
    "**73**": "73",
    "−4": "-4",
    "1 \\frac{1}{2}": "3/2",
    "-3 1/2": "-7/2",
    "1.2e5": "120000",
    "3 \\times 10^{-4}": "3/10000",
    "5 million": "5000000",
    "5 \\text{ million dollars}": "5000000",
    "0.1\\overline{6}": "1/6",
    "9.8\\ \\mathrm{m/s^2}": "49/5",
    "60 km/h": "60",
    "€5": "5",
    "½": "1/2",
    "12 000": "12000",
    "US\\$12": "12",
    "3⁄8": "3/8",
    "750 mL": "750",
    "9 \\text{m}\\cdot\\text{s}^{-1}": "9",
    "0.\\dot{1}\\dot{2}": "12/99",
    "0.2555\\ldots": "23/90",
    "35^{\\text{o}}": "35",
}
NOT_NUMBERS = ["", ".", "-", "1,22", "3+5", "1/0", "\\frac{1}{0}", "12:30", "5 dozen", "x",
               "3\\pi", "2^3", "\\frac{}{}", "4 2", "1e99999",
               "(7)", "7, 8", "7 and 8", "AZ2", "\\frac{1}{2", "1" * 1300]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_numbers_are_read_exactly(text, value):
    assert parse_number(text) == Fraction(value)


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_what_is_no_number_is_none(text):
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("prediction", "answer", "settings", "default", "changed"),
    [
        ("25\\%", "0.25", {"percent": "fraction"}, False, True),
        ("25\\%", "25", {"percent": "fraction"}, True, False),
        ("25 percent", "0.25", {"percent": "either"}, False, True),
        ("25\\%", "25", {"percent": "either"}, True, True),
        ("2,74", "2.74", {"decimal_comma": False}, True, False),
        ("0.333", "1/3", {"digits": 3}, False, True),
        ("0.333333333", "1/3", {"digits": 0}, True, False),
        ("2, 1", "1, 2", {"ordered": True}, True, False),
    ],
)
def test_conventions_can_be_chosen(prediction, answer, settings, default, changed):
    assert equivalent(prediction, answer)[0] is default
    assert equivalent(prediction, answer, Conventions(**settings))[0] is changed


def test_verdicts_say_what_happened():
    right = grade("3+5=8 \\boxed{8}", "8")
    assert (right.correct, right.score, right.extracted, right.error) == (True, 1.0, "8", None)
    none = grade("no box", "8")
    assert (none.correct, none.score, none.extracted, none.error) == (False, 0.0, None, "no_answer")
    assert grade("\\boxed{" + "(" * 9 + "x+1" + ")" * 9 + "}", "x+2").error == "too_complex"
    assert grade("\\boxed{9^{9^{9^9}}}", "8").error == "too_complex"
    assert grade("\\boxed{((}", "8").error == "unparseable"
    assert grade("\\boxed{8}", "#### 8").correct is True
    assert grade("\\boxed{8}", "long work \\boxed{8}").correct is True
    for missing in ("", "  "):
        verdict = grade("\\boxed{8}", missing)
        assert (verdict.correct, verdict.score, verdict.error) == (None, None, "bad_answer")
    assert grade("\\boxed{8}", "9^{9^{9^9}}").score is None
    assert grade("\\boxed{9^{9^{9^9}}}", "9^{9^{9^9}}").score == 1.0


def test_numeric_takes_no_sum_for_its_result():
    assert grade("\\boxed{3+5}", "8").correct is True
    lazy = grade("\\boxed{3+5}", "8", numeric=True)
    assert (lazy.correct, lazy.score, lazy.error) == (False, 0.0, "not_a_number")
    assert grade("\\boxed{8}", "8", numeric=True).correct is True
    assert grade("\\boxed{-8}", "8", numeric=True).correct is False
    assert grade("\\boxed{8}", "x", numeric=True).error == "bad_answer"


def test_reward_in_the_call_shape_of_trl():
    chat = [{"role": "assistant", "content": "\\boxed{2}"}]
    scores = math_reward(
        prompts=["a", "b", "c", "d"],
        completions=["\\boxed{1}", chat, "2", "\\boxed{1}"],
        completion_ids=[[1]] * 4,
        answer=["1", "2", "2", ""],
        trainer_state=None,
    )
    assert scores == [1.0, 1.0, 0.0, None]
    numbers = [1, 1.0, 2.5, float("nan"), None, [1]]
    assert math_reward(["a"] * 6, ["\\boxed{1}"] * 6, answer=numbers) == [1.0, 1.0, 0.0, None, None, None]
    with pytest.raises(ValueError, match="zip"):
        math_reward(["a"], ["\\boxed{1}"], answer=[])


def test_self_test_finds_a_broken_grader(monkeypatch):
    self_test.cache_clear()
    self_test()
    self_test.cache_clear()
    monkeypatch.setattr(pool, "compare_all", lambda rows, *_: [(None, "grader") for _ in rows])
    with pytest.raises(RewardError, match="self-test failed"):
        self_test()


HOSTILE = [
    "9^{9^{9^9}}", "10^{10^{10}}", "200000000!", "9999999999!!", "(9^9)^{9^{99}}", "\\binom{10^9}{10^8}",
    "\\binom{1000000}{500000}", "\\sum_{k=1}^{10^{9}} \\frac{1}{k^k}", "\\prod_{k=1}^{10^{9}} k", "2^{999999999}",
    "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}^{999999}", "\\gcd(9^{9^9},3)", "\\sqrt[3]{10^{10^{9}}}", "(x+1)^{99999}",
    "\\sin^{9999}(x)", "0.1^{9^{9^{9}}}", "1e999999999", "\\int x^{x^x} dx", "\\lim_{x\\to\\infty} x^{x^x}",
    "(" * 1000, "(" * 20 + "1" + ")" * 20, "1+" * 900 + "1", "x^" * 500 + "2", "9" * 1900 + "!", "{" * 200,
    "\\left" * 99, "|" * 60, "\\begin{pmatrix}" + "1&" * 100 + "1\\end{pmatrix}", "\x00", "1/0", "nan", "\\infty",
    "zoo", "lambda: 0", "\ud800", "𝟟", "٣",
]  # fmt: skip


@pytest.mark.parametrize("gold", ["7", "x+1"])
def test_hostile_formulas_are_wrong(gold):
    """Within the limits of a worker; most are refused by their size before."""
    completions = [f"\\boxed{{{formula}}}" for formula in HOSTILE]
    verdicts = math_verdicts(completions, completions, answer=[gold] * len(HOSTILE), time_limit_s=3.0)
    assert [verdict.score for verdict in verdicts] == [0.0] * len(HOSTILE)
    assert len(pool.worker_pids()) <= 2


LONG = 300_000


@pytest.mark.parametrize(
    "piece",
    ["a", " ", "\\boxed{", "{", "}", "\\boxed{1}", "\\boxed{1},", "####  a ", "answer is ", "1,", "1/", "$a", "\\(",
     "\\[", "word: ", "9", "\n", "and ", "a.b", "\\text{and ", "é", "\x00"],
)  # fmt: skip
def test_endless_answers_are_wrong(piece):
    """No pattern takes more than linear time; one that did would take long."""
    text = piece * (LONG // len(piece))
    for answer in (text, f"\\boxed{{1}}{text}\\boxed{{", f"\\boxed{{{text}}}"):
        assert grade(answer, "7", forms=ALL_FORMS).score == 0.0


def test_random_text_never_raises():
    symbols = "\\frac { } ( ) [ ] 1 23 x + - ^ _ = < , . \\sqrt \\text \\% ! | \\boxed{ } #### e i \\pi \\infty / * 0"
    pieces = [*symbols.split(), " ", "\n"]
    draws = random.Random(0)
    for _ in range(250):
        text = "".join(draws.choices(pieces, k=draws.randint(1, 9)))
        assert grade(f"\\boxed{{{text}}}", draws.choice(["7", "x+1", "(1,2)"])).score in (0.0, 1.0)


def test_grading_works_in_threads():
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(grade("\\boxed{\\frac{2}{\\sqrt 2}}", "\\sqrt{2}").correct))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_plain_numbers_need_neither_sympy_nor_a_worker():
    code = (
        "import sys; from reward import math_reward; from reward.math import pool;"
        "assert math_reward([''] * 2, ['\\\\boxed{8}', '\\\\boxed{1/2}'], answer=['8', '0.25']) == [1, 0];"
        "assert not {'sympy', 'torch', 'ray'} & set(sys.modules); assert not pool.worker_pids()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
