"""The math grader: extraction, exact numbers, formulas, hostile input (whole data sets: test_reward_math_data.py)."""

import random
import subprocess
import sys
import threading
from fractions import Fraction

import pytest

from reward import RewardError, grade, math_reward, pool
from reward.extraction import ALL_FORMS, extract_answer
from reward.math_answer import equivalent, math_verdicts, self_test
from reward.quantities import Conventions, parse_number

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
}
NOT_NUMBERS = ["", ".", "-", "1,22", "3+5", "1/0", "\\frac{1}{0}", "12:30", "5 dozen", "x",
               "3\\pi", "2^3", "1e99999", "(7)", "7, 8", "7 and 8", "AZ2", "\\frac{1}{2", "1" * 1300]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_numbers_are_read_exactly(text, value):
    assert parse_number(text) == Fraction(value)


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_what_is_no_number_is_none(text):
    assert parse_number(text) is None


PAIRS = [
    ("0.0833333333333333", "\\frac{1}{12}", True),
    ("0.333333", "1/3", True),
    ("0.333334", "1/3", False),
    ("0.3333", "1/3", False),
    ("7.0000001", "7", False),
    ("1/2004!", "1/2006!", False),
    ("1/2^{99}", "1/2^{98}", False),
    ("10^4", "10000", True),
    ("2^{3^2}", "512", True),
    ("\\sqrt{8}", "2\\sqrt2", True),
    ("2**(1/4)", "\\sqrt{\\sqrt{2}}", True),
    ("-1 + sqrt(3)", "\\sqrt{3} - 1", True),
    ("x^2+2x+1", "(x+1)^2", True),
    ("x = 5", "5", True),
    ("5", "x = 5", True),
    ("2=x", "x=2", True),
    ("x = 2", "x = 3", False),
    ("(1,2)", "[1,2]", False),
    ("(1,2)", "(2,1)", False),
    ("\\{3,2,1\\}", "\\{1,2,3\\}", True),
    ("1,2", "1,2,3", False),
    ("7, 8", "7", False),
    ("\\text{Evelyn}", "evelyn", True),
    ("(B)", "\\text{B}", True),
    ("E: a score", "E", True),
    ("\\frac{1}{0}", "1", False),
    ("0=0", "x+y=3", False),
    # numbers by relative precision
    ("e^{-100}", "e^{-101}", False),
    ("\\frac{\\sqrt2}{2004!}", "\\frac{\\sqrt2}{2006!}", False),
    ("\\sqrt{10^{100}+1}", "10^{50}", False),
    ("1-\\frac{1}{e}", "1+\\frac{1}{e}", False),
    ("2\\cdot 2^{1000}", "2^{1001}", True),
    ("1 \\times 10^{400}", "10^{400}", True),
    ("7 \\times 10^{12345}", "8 \\times 10^{12345}", False),
    ("2.6667", "8/3", True),
    ("2.6666", "8/3", False),
    ("1.41421", "\\sqrt2", True),
    ("i", "\\sqrt{-1}", True),
    # lists, tuples, sets, plus-minus
    ("2,1", "1 \\text{ and } 2", True),
    ("x=1 \\text{ or } x=2", "1,2", True),
    ("(2,3),(4,5)", "(4,5),(2,3)", True),
    ("(2,3),(4,5)", "(4,5),(3,2)", False),
    ("\\{1,2\\}", "(1,2)", False),
    ("1, 2", "(1,2)", True),
    ("2, 1", "(1,2)", False),
    ("x = 3, y = 2", "(3,2)", True),
    ("[1,2,3]", "(1,2,3)", True),
    ("1,234, 5,678", "5678, 1234", True),
    ("x = \\pm 2", "-2, 2", True),
    ("2", "\\pm 2", False),
    ("1+\\sqrt5, 1-\\sqrt5", "1\\pm\\sqrt{5}", True),
    ("n=1,2,3", "n=2,3,4", False),
    # ranges
    ("x \\in (1,2) \\cup (3,4)", "(3,4)\\cup(1,2)", True),
    ("x < 1 or x > 2", "(-\\infty, 1) \\cup (2, +\\infty)", True),
    ("5 > x", "x < 5", True),
    ("x \\ge 2 \\text{ and } x < 5", "[2, 5)", True),
    ("\\{9\\} \\cup \\{1\\}", "\\{1, 9\\}", True),
    ("\\mathbb{R}", "(-\\infty, +\\infty)", True),
    ("\\sin 30^\\circ", "1/2", True),
    ("3 \\ge x > 1", "(1, 3]", True),
    ("3 \\ge x \\ge 1", "(1, 3]", False),
    ("-x > -1", "x < 1", True),
    ("x \\neq 3", "x != 3", True),
    ("[1,2) \\cup [2,3]", "[1,3]", True),
    ("\\{x \\mid 1<x<2\\}", "(1,2)", True),
    # matrices
    ("\\begin{bmatrix}0.5&2\\\\3&4\\end{bmatrix}", "\\begin{pmatrix}\\frac12 & 2\\\\ 3 & 4\\end{pmatrix}", True),
    ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}", False),
    # times, texts, notation
    ("3 pm", "3:00 \\text{ p.m.}", True),
    ("15:00", "3:00 PM", True),
    ("3:00 a.m.", "3:00 p.m.", False),
    ("2:4", "1:2", True),
    ("(B) 12", "B", True),
    ("5", "\\text{(E)},", False),
    ("$x$ is what we look for", "x", True),
    ("10\\sqrt{3}\\ \\mathrm{cm}", "10\\sqrt3", True),
    ("2√3", "2\\sqrt{3}", True),
    ("1000,99", "1000.99", True),
    ("1,2", "12", False),
]


@pytest.mark.parametrize(("prediction", "answer", "expected"), PAIRS)
def test_pairs(prediction, answer, expected):
    assert equivalent(prediction, answer)[0] is expected


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
    assert grade("no box", "8").error == "no_answer"
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
        "import sys; from reward import math_reward, pool;"
        "assert math_reward([''] * 2, ['\\\\boxed{8}', '\\\\boxed{1/2}'], answer=['8', '0.25']) == [1, 0];"
        "assert not {'sympy', 'torch', 'ray'} & set(sys.modules); assert not pool.worker_pids()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
