"""Formulas compared by Math-Verify, after their size has been bounded.

Math-Verify parses LaTeX by a grammar into an unevaluated tree; nothing of it is Python. Evaluating
that tree is what can take for ever (``9^{9^{9^9}}``, ``(10^9)!``), so the tree is measured first.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from math_verify import parse, verify
from math_verify.parser import LatexExtractionConfig

from reward.math.quantities import DEFAULT, Conventions, parse_number, rounds, without_unit

MAX_DIGITS = 20_000  # of any number that evaluation would build
MAX_SYMBOLIC_POWER = 20  # (x + 1)^n may be expanded
MAX_TERMS = 1_000  # of a finite sum or product written with its sign

# Both modules warn, once a process, that their signal-based time limit is off.
logging.getLogger("math_verify.parser").setLevel(logging.ERROR)
logging.getLogger("math_verify.grader").setLevel(logging.ERROR)

# Units have been left aside already (without_unit); to the parser the t of "\\sin t" is one.
_NORMALIZED = dataclasses.replace(LatexExtractionConfig().normalization_config, units=False)
_CONFIG = [LatexExtractionConfig(boxed_match_priority=0, normalization_config=_NORMALIZED)]
# The parser works these out at once, before anything can be measured.
_EVALUATED_WHILE_PARSING = re.compile(r"\\(?:gcd|lcm|binom)|\\operatorname\s*\{(?:gcd|lcm)")
_POWER_OR_LARGE = re.compile(r"[\^!]|\d{5}")
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_PLAIN_NAME = re.compile(r"(?<![\\a-zA-Z])(pi|theta|alpha|beta|infinity|infty)(?![a-zA-Z])")
_SEPARATE_NUMBERS = re.compile(r"(?<![\d_^a-zA-Z])\d+\s+\d+(?![\d/\s]*[/\d])")
_LETTER = re.compile(r"\\(?:text\w*|math\w+|operatorname|begin|end)\s*\{[^{}]*\}|\\[a-zA-Z]+|([a-zA-Z])")
_GROUPED = re.compile(r"(?<![\d.,(\[{])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)")
_PLAIN_FUNCTION = re.compile(r"(?<![\\a-zA-Z])(exp|sin|cos|tan|log|ln)\s*\(")


class TooComplex(ValueError):
    """Working this out could take time or memory without end."""


def compare(prediction: str, answer: str, conventions: Conventions = DEFAULT) -> tuple[bool | None, str | None]:
    """Whether two formulas are equal, and an error kind: ``too_complex``, ``unparseable``, ``bad_answer``.

    Both are bare (no math delimiters). None: it is the right answer that cannot be evaluated.
    """
    prediction, answer = _with_distinct_letters(prediction, answer)
    gold, gold_error = _read(answer)
    if gold_error:
        return None, "bad_answer"
    given, error = _read(prediction)
    if error:
        return False, error
    given_number, gold_number = _number(given[0]), _number(gold[0])
    if given_number is not None and gold_number is not None:
        return _equal_numbers(prediction, given_number, answer, gold_number, conventions), None
    if isinstance(gold[0], sympy.Eq) and isinstance(given[0], sympy.Expr) and _is_curve(gold[0]):
        return False, None
    # A text the parser cannot read stays a string; such answers are equal as strings only.
    error = "unparseable" if all(isinstance(item, str) for item in given) else None
    return bool(verify(gold, given, timeout_seconds=None)) or _same_by_simplifying(given[0], gold[0]), error


def _is_curve(equation: sympy.Eq) -> bool:
    """Whether a sum on the left is no name of the value on the right: in ``a + b = 7`` it is, not in ``x + y = 7``."""
    left: Any = equation.lhs
    right: Any = equation.rhs
    letters = {str(letter) for letter in left.free_symbols}
    return left.is_Add and (not right.is_number or right == 0 or letters <= {"x", "y", "z"})


def _same_by_simplifying(given: Any, gold: Any) -> bool:
    """What Math-Verify compares by its form only: a lone letter, and inequalities that differ by a factor."""
    if isinstance(given, sympy.Expr) and isinstance(gold, sympy.Expr) and (given.is_Symbol or gold.is_Symbol):
        return sympy.simplify(given.doit() - gold.doit()) == 0
    for kinds in ((sympy.StrictLessThan, sympy.StrictGreaterThan), (sympy.LessThan, sympy.GreaterThan)):
        if isinstance(given, kinds) and isinstance(gold, kinds):
            sides: list[Any] = [given.gts, given.lts, gold.gts, gold.lts]
            factor = sympy.simplify((sides[0] - sides[1]) / (sides[2] - sides[3]))
            return bool(factor.is_number and factor.is_positive)
    return False


def _with_distinct_letters(prediction: str, answer: str) -> tuple[str, str]:
    """Both with another letter for the capital where one of them has it in both sizes: the parser has one size."""
    texts = [{match[1] for match in _LETTER.finditer(text) if match[1]} for text in (prediction, answer)]
    doubled = {letter for letters in texts for letter in letters if letter.isupper() and letter.lower() in letters}
    if not doubled:
        return prediction, answer
    used = {letter.lower() for letters in texts for letter in letters}
    unused = [letter for letter in "uvwpqrsthklmnabcxyzj" if letter not in used]
    others = dict(zip(sorted(doubled), unused, strict=False))
    given, gold = (_LETTER.sub(lambda match: others.get(match[1], match[0]), text) for text in (prediction, answer))
    return given, gold


def _number(tree: Any) -> sympy.Expr | None:
    return tree if isinstance(tree, sympy.Expr) and tree.is_number else None


def _with_same_letters(tree: Any) -> Any:
    """All letters as real ones, which the parser does not where it finds an i, and a lone i as the imaginary unit."""
    if not isinstance(tree, sympy.Expr):
        return tree
    return tree.xreplace(
        {
            letter: sympy.I if letter.name == "i" else sympy.Symbol(letter.name, real=True)
            for letter in tree.free_symbols
            if isinstance(letter, sympy.Symbol)
        }
    )


def _equal_numbers(prediction: str, given: sympy.Expr, answer: str, gold: sympy.Expr, conventions: Conventions) -> bool:
    """Exactly, to relative precision; where a decimal stands for what it rounds, by its digits.

    Math-Verify rounds to six places, which makes all tiny numbers equal.
    """
    if given.is_finite is False or gold.is_finite is False or sympy.nan in (given, gold):
        return bool(given == gold)
    for text, decimal, exact in ((prediction, given, gold), (answer, gold, given)):
        written = parse_number(text)
        if written is not None and decimal.has(sympy.Float) and not exact.has(sympy.Float):
            value = exact.doit()
            value = value if value.is_Rational else value.evalf(60)
            if not value.is_Rational and not value.is_Float:
                return False  # infinite, or not real
            value = Fraction(str(value))
            return written == value or rounds(text, written, value, conventions)
    if given.has(sympy.Float) or gold.has(sympy.Float):
        return bool(abs((given - gold).evalf(20)) <= 1e-9 * abs(gold.evalf(20)))
    digits = int(max(_magnitude(given), _magnitude(gold)))
    difference = (given.doit() - gold.doit()).evalf(2, maxn=60 + 2 * min(digits, 2000))
    # sympy marks what it could not tell from zero at that precision by a precision of one bit
    return all(part == 0 or getattr(part, "_prec", 0) == 1 for part in difference.as_real_imag())


@lru_cache(maxsize=512)
def _read(formula: str) -> tuple[list[Any], str | None]:
    """Math-Verify's reading (a tree where there is one, and the normalised string) and error kind."""
    try:
        parsed = _parse(formula)
        return parsed, None if parsed else "unparseable"
    except MemoryError:
        raise
    except (TooComplex, RecursionError):
        return [], "too_complex"
    except Exception:  # whatever sympy raises over a formula that makes no sense; self_test finds a broken grader
        return [], "unparseable"


def _parse(formula: str) -> list[Any]:
    """Parsed and measured. Raises :class:`TooComplex`."""
    if formula.count("{") - formula.count("\\{") != formula.count("}") - formula.count("\\}"):
        return []  # cut off
    if _SEPARATE_NUMBERS.search(formula):
        return [formula]  # to the parser 1 2 is a sum
    if _EVALUATED_WHILE_PARSING.search(formula) and _POWER_OR_LARGE.search(formula):
        raise TooComplex(formula)
    parsed = parse(f"\\boxed{{{_as_latex(formula)}}}", _CONFIG, parsing_timeout=None)  # type: ignore[arg-type]
    for item in parsed:
        if not isinstance(item, str):
            _magnitude(item)
    return [_with_same_letters(item) for item in parsed]


def _as_latex(formula: str) -> str:
    """Calculator notation (``2**(1/4)``, ``sqrt(3)``) as LaTeX."""
    formula = _PLAIN_FUNCTION.sub(r"\\\1(", formula.replace("**", "^"))
    formula = _PLAIN_NAME.sub(lambda name: "\\infty " if name[0][0] == "i" else f"\\{name[0]} ", formula)
    if _TRIGONOMETRIC.search(formula):
        formula = re.sub(r"(\d+(?:\.\d+)?)\s*\^\\circ", r"(\1\\cdot\\frac{\\pi}{180})", formula)
    formula = _GROUPED.sub(lambda number: number[0].replace(",", ""), without_unit(formula))
    formula = re.sub(r"(\d)[eE]([+-]?\d+)", r"\1\\times 10^{\2}", formula)
    if reversed_equation := re.fullmatch(r"\s*(-?[\d./]+)\s*=\s*([a-zA-Z])\s*", formula):
        formula = f"{reversed_equation[2]}={reversed_equation[1]}"
    return re.sub(r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", formula)


def _magnitude(tree: Any) -> float:
    """Bound of ``|log10 |value||`` of every number in the tree. Raises :class:`TooComplex`."""
    if isinstance(tree, sympy.Rational):
        return max(int(tree.p).bit_length(), int(tree.q).bit_length()) * math.log10(2)
    if isinstance(tree, sympy.Float):
        return abs(math.log10(abs(float(tree)))) if float(tree) and math.isfinite(float(tree)) else MAX_DIGITS
    parts = [_magnitude(part) for part in getattr(tree, "args", ())]
    size = sum(parts)
    if isinstance(tree, sympy.Pow):
        base, exponent = tree.args
        if not exponent.free_symbols:
            power = _size(exponent)
            if power > MAX_SYMBOLIC_POWER and not base.is_Atom:
                raise TooComplex(tree)
            size = max(parts[0], 1.0) * max(power, 1.0)
    elif isinstance(tree, sympy.factorial | sympy.binomial):
        largest = _size(tree.args[0])
        size = largest * math.log10(largest + 1)
    elif isinstance(tree, sympy.Sum | sympy.Product):
        bounds = [bound for limits in tree.limits for bound in limits[1:] if not bound.has(sympy.oo)]
        if any(_size(bound) > MAX_TERMS for bound in bounds):
            raise TooComplex(tree)
    elif isinstance(tree, sympy.Integral | sympy.Limit):
        raise TooComplex(tree)  # a task, not an answer; working it out can take any time
    if size > MAX_DIGITS:
        raise TooComplex(tree)
    return size


def _size(number: Any) -> float:
    """``|number|`` of a part already bounded; 1 of what has no value (a letter, an unknown function)."""
    try:
        return min(abs(complex(number.evalf(5))), 1e9)
    except OverflowError:
        return 1e9
    except TypeError:
        return 1.0
