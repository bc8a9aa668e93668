"""Conventions of the math grader (docs/rewards.md), each over pairs made by rules: equal ones and near misses."""

import itertools
import math
import random
from collections.abc import Iterator
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal, getcontext

import pytest

from reward import grade
from reward.math.answer import equivalent
from reward.math.extraction import ALL_FORMS

Pairs = Iterator[tuple[str, str, bool]]  # prediction, answer, whether they are equal

getcontext().prec = 60
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")


def decimals_of_irrationals() -> Pairs:
    values = [(f"\\sqrt{{{n}}}", Decimal(n).sqrt()) for n in (2, 3, 10, 99)]
    values += [(f"\\frac{{{n}\\pi}}{{3}}", n * PI / 3) for n in (1, 4)]
    values += [(f"\\ln {n}", Decimal(n).ln()) for n in (2,)]
    for formula, value in values:
        for digits in (5, 10, 13, 20):
            unit = Decimal(1).scaleb(value.adjusted() - digits + 1)
            rounded, cut = (value.quantize(unit, rounding) for rounding in (ROUND_HALF_UP, ROUND_DOWN))
            yield f"{rounded:f}", formula, True
            yield formula, f"{rounded:f}", True
            yield f"{cut:f}", formula, cut == rounded or digits >= 10
            yield f"{rounded + unit:f}", formula, False
            yield f"{cut - unit:f}", formula, False
            yield f"-{rounded:f}", formula, False
        yield f"{value.quantize(Decimal(1).scaleb(value.adjusted() - 2)):f}", formula, False  # three digits are too few
        yield repr(float(value)), formula, True
        yield repr(math.nextafter(float(value), 100)), formula, True


def decimals_of_fractions() -> Pairs:
    for top, bottom in ((1, 3), (2, 3), (5, 7), (22, 7), (1, 12), (-4, 9)):
        value, formula = Decimal(top) / bottom, f"\\frac{{{top}}}{{{bottom}}}"
        for digits in (6, 10, 16):
            unit = Decimal(1).scaleb(value.adjusted() - digits + 1)
            yield f"{value.quantize(unit, ROUND_HALF_UP):f}", formula, True
            yield f"{value.quantize(unit, ROUND_HALF_UP) + 10 * unit:f}", formula, False
        yield repr(top / bottom), formula, True
        yield f"{value.quantize(Decimal('0.01')):f}", formula, False
    for top, bottom in ((1, 10), (3, 10), (7, 4)):
        yield repr(top / bottom), f"{top}/{bottom}", True
        yield f"{top / bottom}0000001", f"{top}/{bottom}", False
    yield repr(0.1 + 0.2), "\\frac{3}{10}", True
    yield "0.(142857)", "1/7", True
    yield "0.(142857)", "1/8", False


AMOUNTS = {
    "5": "6",
    "\\frac{3}{4}": "\\frac{3}{5}",
    "0.250": "0.205",
    "2\\sqrt{3}": "2\\sqrt{5}",
    "1.5e3": "1.5e2",
    "4\\pi": "2\\pi",
}
UNITS = [
    "km",
    "cm^2",
    "kg",
    "mL",
    "Hz",
    "kJ",
    "s",
    "m",
    "N",
    "m/s^2",
    "mph",
    "\\text{ cm}^2",
    "\\mathrm{~kg}",
    "\\Omega",
]


def quantities() -> Pairs:
    for (amount, other), unit in itertools.product(AMOUNTS.items(), UNITS):
        glued = "" if amount[-1] in "0123456789}" else " "
        for given in (f"{amount}{glued}{unit}", f"{amount} {unit}"):
            if unit[0] in "kcmHNsLJ\\" or " " in given:
                yield given, amount, True
                yield amount, given, True
                yield given, other, False
                yield f"{other} {unit}", given, False
    for zeros in range(1, 4):
        yield f"0.25{'0' * zeros} N", "0.25N", True
        yield f"0.25{'0' * zeros}1 N", "0.25N", False
    for unit in ("seconds", "square units", "miles per hour", "apples", "N m", "kg m/s", "m s^{-2}", "\\mu m"):
        yield f"12 {unit}", "12", True
        yield f"12 {unit}", "13", False


def letters_are_variables() -> Pairs:
    for number, letter in itertools.product((2, "\\frac{1}{2}", "\\sqrt{3}"), "tnkxrh"):
        yield f"{number}{letter}", f"{number}", False
        yield f"{number}", f"{number}{letter}", False
        yield f"{number}{letter}", f"{letter}{number}", True
    for unit in ("m", "s", "g", "N"):  # beside a variable
        yield f"x + 2{unit}", "x + 2", False
        yield f"a {unit}", "a", False
        yield f"3n{unit}", "3n", False
    for product in ("2ab", "mv^2", "3xyz", "\\frac{1}{2}mv^2"):
        yield product, product[:1], False


def endings_and_words() -> Pairs:
    for n in (1, 2, 3, 4, 11, 21, 100):
        ending = "th" if n in (11,) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
        for form in (f"{n}{ending}", f"{n}^{{{ending}}}", f"{n}^{{\\text{{{ending}}}}}"):
            yield form, f"{n}", True
            yield form, f"{n + 1}", False
    for word, digits in (("five", 5), ("Twelve", 12), ("twenty-one", 21), ("ninety nine", 99), ("minus three", -3)):
        yield word, f"{digits}", True
        yield f"{word} apples", f"{digits}", True
        yield word, f"{digits + 1}", False
    for words, value in (("one half", "1/2"), ("two thirds", "2/3"), ("three quarters", "0.75")):
        yield words, value, True
        yield words, "1/3", False


def decimal_commas() -> Pairs:
    for whole, places in itertools.product(("0", "3", "-12", "1234"), ("5", "75", "1250", "04")):
        comma, point = f"{whole},{places}", f"{whole}.{places}"
        yield comma, point, True
        yield point, comma, True
        yield comma, f"{whole}.{places}1", False
        yield f"{whole}.{places}1", comma, False
        yield comma, f"{whole}{places}", False
        yield comma.replace(",", ", "), point, False  # a list
    for point, comma in (("1234.56", "1.234,56"), ("1234567", "1.234.567")):
        yield point, comma, True
        yield comma, point, True
    for grouped, other in (("1,234", "1.234"), ("12,345", "12.345"), ("1.234", "1234")):
        yield grouped, other, False
        yield other, grouped, False


def percents() -> Pairs:
    for value, sign in itertools.product(
        ("12.5", "40", "\\frac{25}{2}"), ("\\%", "%", " pct", "pct", " percent", " per cent")
    ):
        yield f"{value}{sign}", f"{value}\\%", True
        yield f"{value}{sign}", value, True
        yield f"{value}{sign}", "41\\%", False


def points_and_names() -> Pairs:
    draws = random.Random(0)
    for size, count in itertools.product((2, 3), (2, 3)):
        for separator in (";", ", ", " \\text{ or } ", "; "):
            points = draws.sample(list(itertools.product(range(1, 5), repeat=size)), count)
            names = "abc"[:size]
            named = separator.join(
                ",".join(f"{name}={value}" for name, value in zip(names, point, strict=True)) for point in points
            )
            tuples = [f"({','.join(map(str, point))})" for point in points]
            listed = ",".join(tuples)
            yield named, listed, True
            yield ", ".join(tuples[::-1]), named, True
            yield named, ",".join([*tuples[:-1], f"({'9,' * (size - 1)}9)"]), False
            yield named, ",".join(tuples[:-1]), False
            yield f"{listed},{tuples[0]}", f"\\{{{listed}\\}}", True
            yield f"{listed}, {tuples[0].replace(',', ', ')}", listed, True
            yield listed, f"{listed},{tuples[0]}", True
            yield f"{listed},({'8,' * (size - 1)}9)", f"\\{{{listed}\\}}", False
    for a, b in ((1, 2), (3, 5)):
        yield f"\\{{({a},{b})\\}}", f"({a},{b})", True
        yield f"\\{{({b},{a})\\}}", f"({a},{b})", False
        yield f"{a}, {b}, {b}", f"{a}, {b}", False  # numbers may be meant twice
        yield f"\\{{x={a}, x={b}\\}}", f"\\{{{a},{b}\\}}", True


def matrices() -> Pairs:
    rows = ["\\frac13 & \\frac27 \\\\ -\\frac56 & 2", "\\frac43 & \\sqrt2 \\\\ \\sqrt3 & 0"]
    rounded = [[["0.33", "0.29"], ["-0.83", "2"]], [["1.33", "1.41"], ["1.73", "0"]]]
    for exact, entries in zip(rows, rounded, strict=True):
        for kind, places in itertools.product("pbB", (0, 1)):
            gold = f"\\begin{{pmatrix}}{exact}\\end{{pmatrix}}"
            longer = [
                [entry + "0" * places if "." in entry and places == 0 else entry for entry in row] for row in entries
            ]
            text = " \\\\ ".join(" & ".join(row) for row in longer)
            given = f"\\begin{{{kind}matrix}}{text}\\end{{{kind}matrix}}"
            yield given, gold, True
            yield gold, given, True
            yield given.replace("3", "4", 1), gold, False
            yield given.replace("0.33", "0.3").replace("1.41", "1.4"), gold, False
    for size in (2, 3):
        lists = [[10 * i + j for j in range(size)] for i in range(size)]
        matrix = "\\begin{pmatrix}" + "\\\\".join(" & ".join(map(str, row)) for row in lists) + "\\end{pmatrix}"
        yield str(lists), matrix, True
        yield str([row[::-1] for row in lists]), matrix, False
        yield matrix, str(lists), True
    yield "\\begin{pmatrix}0.25\\\\0.12\\end{pmatrix}", "\\begin{pmatrix}0.254\\\\0.123\\end{pmatrix}", False


def lead_ins() -> Pairs:
    for lead in (
        "answer is ",
        "The answer is ",
        "Final answer: ",
        "So the final answer is ",
        "it is ",
        "\\text{The answer is } ",
    ):
        for value in ("12", "$\\frac{2}{3}$", "0.6666667"):
            equal = "12" if value == "12" else "2/3"
            yield equal, f"{lead}{value}", True
            yield f"{lead}{value}", equal, True
            yield "7", f"{lead}{value}", False
    yield "5, or the answer is 6", "6", False
    yield "__import__('os') or the answer is 6", "6", False


def choices_and_texts() -> Pairs:
    for letter, other in (("A", "B"), ("C", "E")):
        for form in (
            f"({letter})",
            f"Option {letter}",
            f"{letter}) 7",
            f"\\textbf{{({letter})}}",
            letter.lower(),
            f"{letter}. x",
        ):
            yield form, letter, True
            yield form, other, False
    for form in ("AC", "A, C", "A and C", "(A), (C)", "C, A"):
        yield form, "A, C", True
        yield form, "A, B, C", False
        yield form, "A", False
    for yes, no in (("Yes", "No"), ("No", "Yes"), ("True", "False")):
        yield f"{yes}, because it is even", yes, True
        yield f"{yes}, because it is even", no, False
        yield f"{yes}, or {no.lower()}", yes, False
    yield "an ellipse", "\\text{ellipse}", True
    yield "an ellipse", "a circle", False
    yield "no real solutions", "\\emptyset", True
    yield "no solution", "\\{0\\}", False
    yield "DNE", "does not exist", True


def notations() -> Pairs:
    for exponent in (4, 10, -3):
        raised = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        for form in (f"1.5×10{raised}", f"1.5·10{raised}", f"1.5 x 10^{{{exponent}}}", f"1.5e{exponent}"):
            yield form, f"1.5\\times 10^{{{exponent}}}", True
            yield form, f"1.5\\times 10^{{{exponent + 1}}}", False
    for form, same, other in (
        ("x⁴", "x^4", "x^3"), ("∛2", "\\sqrt[3]{2}", "\\sqrt{2}"), ("x₁", "x_1", "x_2"), ("2½", "2.5", "1"),
        ("(-oo, 2)", "(-\\infty, 2)", "(-2, 2)"), ("\\textcolor{red}{42}", "42", "24"), ("\\underline{42}", "42", "24"),
        ("\\large 42", "42", "24"), ("\"42\"", "42", "24"), ("*42*", "42", "24"), ("1'000", "1000", "100"),
        ("110 base 2", "110_2", "110_3"), ("3 to 4", "3:4", "4:3"), ("6:8", "3:4", "4:3"),
        ("f(n)=2n", "f(x)=2x", "f(x)=3x"), ("{}_{10}C_3", "\\binom{10}{3}", "\\binom{10}{4}"),
        ("day 5", "5", "6"), ("the 5th day", "5", "6"), ("100 mL of water", "100", "10"), ("5x cm", "5x", "5"),
        ("1.26765\\times 10^{30}", "2^{100}", "2^{99}"), ("infinitely many solutions", "\\infty", "0"),
        ("10 \\mu m", "10", "1"), ("1.6 \\times 10^{-19} C", "1.6e-19", "1.6e-18"), ("1 234,5", "1234.5", "123.45"),
        ("f'(x)", "f'(x)", "f(x)"), ("x \\ne 1", "(-\\infty,1)\\cup(1,\\infty)", "(-\\infty,2)\\cup(2,\\infty)"),
        ("\\{x=1, x=2\\}", "1, 2", "1, 3"), ("60 \\frac{\\text{km}}{\\text{h}}", "60", "6"),
        ("\\begin{pmatrix}1\\\\\\frac12\\end{pmatrix}", "(1, 0.5)", "(1, 2)"),
    ):  # fmt: skip
        yield form, same, True
        yield form, other, False
        yield same, form, True


RULES = [decimals_of_irrationals, decimals_of_fractions, quantities, letters_are_variables, endings_and_words,
         decimal_commas, percents, points_and_names, matrices, lead_ins, choices_and_texts, notations]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_convention(rule):
    pairs = list(dict.fromkeys(rule()))
    assert len({expected for _, _, expected in pairs}) == 2
    wrong = [pair for pair in pairs if (equivalent(*pair[:2])[0] is True) is not pair[2]]
    assert wrong == []


def test_boxes_in_a_row():
    """A few are a list; of more than a list would have the last counts, so that guessing many gains nothing."""
    for count, between in itertools.product((17, 30, 60), (" ", "", ", ", " and ")):
        text = between.join(f"\\boxed{{{n}}}" for n in range(count))
        assert grade(text, str(count - 1)).score == 1.0
        assert all(grade(text, str(n)).score == 0.0 for n in (0, 5, count - 2))
    for count in (2, 5, 12):
        text = ", ".join(f"\\boxed{{{n}}}" for n in range(count))
        assert grade(text, ",".join(map(str, range(count)))).score == 1.0
        assert all(grade(text, str(n)).score == 0.0 for n in range(count))


TWO_BOXES = [
    "\\boxed{35 \\text{ cm}} and \\boxed{4}", "\\boxed{35} cm and \\boxed{4}", "$\\boxed{35}$ cm, $\\boxed{4}$",
    "\\boxed{35}\\text{ cm}, \\boxed{4}", "\\boxed{35}\\mathrm{~cm} \\text{ and } \\boxed{4} \\text{ pieces}",
]  # fmt: skip


@pytest.mark.parametrize("gold", TWO_BOXES)
def test_units_in_lists_against_two_boxes(gold):
    for given in ("{35 cm, 4}", "35 cm, 4", "\\{35\\text{ cm}, 4\\}", "4 and 35 cm", "35, 4"):
        assert grade(f"\\boxed{{{given}}}", gold).score == 1.0
        assert grade(f"\\boxed{{{given.replace('4', '6')}}}", gold).score == 0.0


@pytest.mark.parametrize(
    "between", [" no, ", ", not ", " wrong: ", " and then ", "\\text{ is wrong} ", "\n\n", ". Wait, "]
)
def test_a_box_that_takes_another_back(between):
    assert grade(f"\\boxed{{5}}{between}\\boxed{{6}}", "6").score == 1.0
    assert grade(f"\\boxed{{5}}{between}\\boxed{{6}}", "5").score == 0.0


def test_prose_as_the_answer_of_a_row():
    for gold in ("answer is 0.6666667", "We add and see that the answer is $\\frac{2}{3}$.", "Final answer: 2/3"):
        assert grade("\\boxed{\\frac23}", gold).score == 1.0
        assert grade("\\boxed{\\frac13}", gold).score == 0.0
    assert grade("The correct option is (B).", "B", forms=ALL_FORMS).score == 1.0


DIFFERENT = [
    ("5 or 5s", "7"), ("2s", "2t"), ("\\frac{1}{2}m", "\\frac{1}{2}n"), ("x+2s", "x+2"), ("2ms", "2x"), ("g", "1"),
    ("s", "1"), ("3m+2s", "3m+2"), ("3m + 2 s", "3m+2"), ("m=2s", "2t"), ("\\frac{a}{b}m", "\\frac{a}{b}"),
    ("a/b m", "a/b"), ("it is 5", "6"), ("it is not 5", "5"), ("this is 5 or 6", "5"), ("5 is the answer, or 6", "5"),
    ("1,2", "2.1"), ("1,2", "12"), ("1,2", "1"), ("1.2", "\\{1,2\\}"), ("1.2", "(1,2)"), ("1.2", "1, 2"),
    ("three", "third"), ("third", "3"), ("one third", "3"), ("half", "2"), ("2nd", "2s + 1"), ("A, B, C, D", "A"),
    ("ABCD", "A"), ("ABCD", "A, B"), ("(A) 5 (B) 6", "6"), ("(A) 5", "B"), ("yes no", "yes"), ("Yes; No", "Yes"),
    ("No, yes", "No"), ("an apple", "pear"),
    ("\\begin{pmatrix}0.00\\\\0.00\\end{pmatrix}", "\\begin{pmatrix}\\frac{1}{300}\\\\\\frac{1}{400}\\end{pmatrix}"),
    ("\\begin{pmatrix}0.33\\end{pmatrix}", "\\begin{pmatrix}\\frac13\\end{pmatrix}"),
    ("\\begin{pmatrix}3\\\\3\\end{pmatrix}", "\\begin{pmatrix}\\pi\\\\\\pi\\end{pmatrix}"),
    ("(0.33,0.67)", "(\\frac13,\\frac23)"), ("a=1,b=2;a=3,b=4", "(1,2)"), ("a=1,b=2;b=3,a=4", "(1,2),(3,4)"),
    ("x=1,y=2,x=1,y=2", "(1,1)"), ("f(n)=n^2", "f(x)=x^3"), ("f(n)=nx", "f(x)=x^2"), ("f(x)=2", "g(x)=3"),
    ("x \\ne 1", "x \\ne 2"), ("x \\ne 1", "(-\\infty,1]\\cup[1,\\infty)"), ("3:4", "4"), ("3:4", "3.4"),
    ("3 to 5", "3"), ("3 to 5", "5"), ("0.99999999999999999999", "1"), ("0.9999999999999999", "2"),
    ("1.0000000001", "1"), ("3.14159265", "3.14159266"), ("1.7", "\\sqrt3"), ("1.7321", "\\sqrt{2}"),
    ("0.333333333334", "1/3"), ("12 pct", "0.12"), ("1.5e3", "1.5e4"), ("10^3", "10^2"), ("no solution", "1"),
    ("DNE", "0"), ("infinitely many", "5"), ("answer", "5"), ("the answer is", "5"), ("x⁴", "x4"), ("2₁", "21"),
    ("10²", "102"), ("1'000", "1"), ("f'(x)", "f(x)"), ("y''", "y'"), ("A'", "A"), ("\\underline{4}2", "4"),
    ("*5* 6", "5"), ("\"5\" or \"6\"", "5"), ("110 base 2", "110_8"), ("_{10}C_3", "_{10}C_4"), ("2C_1", "C_2"),
    ("day 5", "6"), ("5 day 6", "5"), ("100 of 200", "100"), ("5 of 6", "5"), ("5 out of 6", "5"),
    ("5 of the six", "6"),
]  # fmt: skip


def test_different_answers_differ_both_ways():
    pairs = [pair for one, other in DIFFERENT for pair in ((one, other), (other, one))]
    assert [pair for pair in pairs if equivalent(*pair)[0] is True] == []
