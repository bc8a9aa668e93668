"""One way to write what can be written in several: delimiters, Markdown, spacing, Unicode, synonyms in LaTeX."""

from __future__ import annotations

import re
from functools import lru_cache

_FORMULA = re.compile(r"\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]|\*\*(.*)\*\*|__(.*)__|`(.*)`", re.DOTALL)
_MONEY = re.compile(r"(?:\bUS\s*)?\\?\$")
_FORMULA_IN_PROSE = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_WORDS = re.compile(r"\b[A-Za-z]{2,}\s+[a-z]{2,}")
_WITHIN_NUMBER = re.compile(r"(?<!\\)\\!\s*|(?<=\d)(?:\\,|[~\u00a0\u202f])(?=\d{3})")
_SPACING = re.compile(
    r"(?<!\\)\\[,;: ]|\\(?:q?quad|displaystyle|textstyle|limits|[bB]ig[lr]?)(?![a-zA-Z])|[~\u00a0\u202f]"
)
_SYMBOLS = str.maketrans(
    {
        "−": "-", "–": "-", "﹣": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "∗": "*",
        "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ",
        "∞": r"\infty ", "π": r"\pi ", "θ": r"\theta ", "∅": r"\emptyset ", "±": r"\pm ", "∓": r"\mp ",
        "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
        **{chr(ord("０") + digit): str(digit) for digit in range(10)},
        "⁄": "/", "²": "^2", "³": "^3", "°": r"^\circ ", "，": ",", "（": "(", "）": ")", "：": ":",
    }
)  # fmt: skip
_SYNONYMS = (
    (re.compile(r"\\(?:text|textrm|mbox|mathrm)\s*\{\s*,?\s*(and|or)\s*,?\s*\}"), r" \1 "),
    (re.compile(r"\\(?:land|wedge)(?![a-zA-Z])"), " and "),
    (re.compile(r"\\(?:lor|vee)(?![a-zA-Z])"), " or "),
    # A backslash too many, as JSON written by hand has it; not where it breaks a matrix's row.
    (re.compile(r"\\\\(?=(?:[dt]?frac|[lgn]eq?|text|sqrt|pi|infty|cup|in|pm|left|right|boxed)(?![a-zA-Z]))"), r"\\"),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\frac\s+(?=[\d{])"), r"\\frac"),
    (re.compile(r"\\sqrt\s*(\[[^\[\]]*\])\s*(\d|[a-z](?![a-zA-Z]))"), r"\\sqrt\1{\2}"),
    (re.compile(r"(\d+|(?<![a-zA-Z])[a-z])!\s*\^"), r"(\1!)^"),
    (re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:bf|rm)|mbox)\s*\{\s*([-+]?[\d.,]*\d)\s*\}"), r"\1"),
    (re.compile(r"\\big(cup|cap)(?![a-zA-Z])"), r"\\\1 "),
    (re.compile(r"\\mathbf\s*\{\s*([RNZQC])\s*\}"), r"\\mathbb{\1}"),
    (re.compile(r"(\\mathbb\s*\{?\s*R\s*\}?)\s*(?:-|/|\\backslash)\s*(?=\\\{)"), r"\1\\setminus "),
    (re.compile(r"_\s*\{\s*\\(max|min)\s*\}"), r"_{\1}"),
    (re.compile(r"(\.\d*)\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?"), r"\1\\overline{\2\3\4}"),
    (re.compile(r"(\.\d*?)(\d)\2{2,}\s*(?:\\[lc]?dots|\.{3})$"), r"\1\\overline{\2}"),
    (re.compile(r"(?<=\d)\s*\^\s*(?:o\b|\{\s*(?:\\\w+\s*\{\s*)?o\s*\}?\s*\})"), r"^\\circ "),
    (re.compile(r"\\lg(?![a-zA-Z])"), r"\\log_{10}"),
    (re.compile(r"\bsq\.\s*"), "sq "),
    (re.compile(r"\\(?:bm|pmb)(?![a-zA-Z])"), r"\\mathbf"),
    (re.compile(r"(?<=[\w})])\.\s*(?=\\(?:text|mbox|mathrm)(?![a-zA-Z]))"), " "),
    (re.compile(r"\\(?:left|right)(?![a-zA-Z])\s*\.?"), ""),
    (
        re.compile(r"[(\[]\s*\\begin\{(array|matrix|smallmatrix)\}(?:\{[lcr]+\})?(.*?)\\end\{\1\}\s*[)\]]"),
        r"\\begin{pmatrix}\2\\end{pmatrix}",
    ),
    (re.compile(r"\\(?:leq|leqslant)(?![a-zA-Z])|<="), r"\\le "),
    (re.compile(r"\\(?:geq|geqslant)(?![a-zA-Z])|>="), r"\\ge "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\neq(?![a-zA-Z])|\\not\s*=|!="), r"\\ne "),
    (re.compile(r"\\(?:emptyset|varnothing)(?![a-zA-Z])|\\\{\s*\\\}"), r"\\emptyset"),
    (re.compile(r"\\[lc]?dots(?![a-zA-Z])|\.\.\."), r"\\ldots "),
    (re.compile(r"\\l?brace(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"√\s*(?:\(([^()]*)\)|(\d+|[a-z]))"), r"\\sqrt{\1\2}"),
    (re.compile(r"\\(?:mathrm|text|rm)\s*\{?\s*(e|i)\s*\}"), r"\1"),
    (re.compile(r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ|\\degrees?(?![a-zA-Z])|\\text\s*\{\s*degrees?\s*\}"), r"^\\circ "),
)  # fmt: skip
_BOLD = re.compile(r"\\(?:mathbf|boldsymbol|bm|pmb|textbf|mathrm)\s*\{(.*)\}", re.DOTALL)
_SYSTEM = re.compile(  # of equations; what has columns is a function by cases
    r"(?:\\left\s*)?(?:\\\{\s*)?\\begin\{(cases|array|aligned)\}(?:\{[lcr]*\})?([^&]*=[^&]*)\\end\{\1\}(?:\s*\\right\s*\.)?"
)
# What is said of the letters after a formula: "f(x) = cx for some c", "k\\pi, k \\in \\mathbb{Z}".
_CONDITION = re.compile(
    r"(?<=[\w})])(?:,?\s*(?:\\text\s*\{\s*)?\bfor\s+(?:all|any|every|each|some)\b.*"
    r"|\s*[,(]\s*[a-z]\s*\\in\s*\\mathbb\s*\{?\s*Z\s*\}?\s*\)?)$"
)
_TEXT = re.compile(r"\\(?:text|textrm|textnormal|textbf|textit|mbox|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")


@lru_cache(maxsize=8192)
def tidy(text: str) -> str:
    """``text`` in the one notation: no math delimiters, bold marks, spacing commands, currency, final dot.

    A sentence around a single formula is that formula ("the solution is $x$").
    """
    text = " ".join(text.split())
    if text.isalnum() and text.isascii():
        return text
    while (match := _FORMULA.fullmatch(text)) and (inner := next(g for g in match.groups() if g is not None)):
        if "$" in inner.replace("\\$", "") or "\\(" in inner:
            break
        text = inner.strip()
    if _WORDS.search(text):
        formulas = _FORMULA_IN_PROSE.findall(text)
        if len(formulas) == 1:
            text = next(group for group in formulas[0] if group)
    text = _MONEY.sub("", text.translate(_SYMBOLS).replace("{,}", ",").replace("{:}", ":"))
    text = _SYSTEM.sub(lambda rows: ", ".join(filter(None, map(str.strip, rows[2].split("\\\\")))), text)
    text = _CONDITION.sub("", text)
    while (bold := _BOLD.fullmatch(text)) and _is_balanced(bold[1]):
        text = bold[1].strip()
    if whole := _TEXT.fullmatch(text):
        text = whole[1].strip()
    for pattern, replacement in _SYNONYMS:
        text = pattern.sub(replacement, text)
    text = _SPACING.sub(" ", _WITHIN_NUMBER.sub("", text)).strip().rstrip("\\,;").strip()
    return text.removesuffix(".").strip()


def _is_balanced(text: str) -> bool:
    """Whether its braces close what they open, so that a pair around it is one pair."""
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


def plain_text(text: str) -> str:
    """``text`` with what stands in ``\\text{}`` and the like taken out of it."""
    return _TEXT.sub(r"\1", text)
