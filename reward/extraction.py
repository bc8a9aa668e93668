"""Finding the final answer in what a model wrote: strict, so that no answer is no answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

Form = Literal["boxed", "hashes", "phrase", "last"]
DEFAULT_FORMS: tuple[Form, ...] = ("boxed", "hashes")
ALL_FORMS: tuple[Form, ...] = ("boxed", "hashes", "phrase", "last")

_BOX = re.compile(r"\\(?:begin)?(?:boxed|fbox)\s*\{")
_BOX_WITHOUT_BRACES = re.compile(r"\\boxed\s+([^\s{}$\\]+)")
# Between two boxes that belong together ("\boxed{1} and \boxed{2}", "\boxed{3} cats and \boxed{4}",
# "\boxed{1}, y = \boxed{2}") nothing else is written.
_BETWEEN = r"(?:[ \t,;$&]|\\[()\[\],;! ]|\\q?quad\b)*"
_JOINT = re.compile(
    rf"{_BETWEEN}(?:(?:[a-z]+ )?\band\b|\bor\b|\\text\s*\{{[^{{}}]*\b(?:and|or)\s*\}})?"
    rf"{_BETWEEN}(?:[a-zA-Z]\w?(?:_\{{?\w+\}}?)?\s*=\s*)?{_BETWEEN}"
)
_HASHES = re.compile(r"^####[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_PHRASE = re.compile(r"\b(?:final\s+)?answer\b[*_\s]*(?:is|:|=)[:\s*_]*([^\s*_].*)", re.IGNORECASE)
_MATH = re.compile(r"\$\$([^$]+)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[((?:.|\n)+?)\\\]")  # inline: on one line
_SENTENCE_END = re.compile(r"[.,;:!?]?\*\*|[.;!?](?=\s|$)|,\s(?=[A-Za-z])|\s(?:because|since|so|which)\b|<\|")
_PROSE = re.compile(r"(?<![\\a-zA-Z{])(?:[A-Za-z]{2,}[,:]?\s+[a-z]+|[A-Za-z]{3,}\s*:\s)")
_CODE = re.compile(r"__\w+__|\w\(\s*['\"]|[a-zA-Z_]\.[a-zA-Z_]+\(|\blambda\b|\bimport\b")
_NUMBER = re.compile(r"(?<![\w.,/])[-−]?[$€£]?\d(?:[\d,]*\d)?(?:\.\d+)?(?:\s*/\s*\d+)?%?")
_GOES_ON = re.compile(r"\s*(?:[+*/^=×÷]|-\s)")


def extract_answer(text: str, forms: Sequence[Form] = DEFAULT_FORMS) -> str | None:
    """The final answer in ``text`` by the first of ``forms`` that is there, else None.

    - ``boxed``: the last complete ``\\boxed{...}`` or ``\\fbox{...}``, braces nested; boxes joined by
      nothing but commas, "and" or "or" are one answer, a list;
    - ``hashes``: the last line ``#### ...`` (GSM8K);
    - ``phrase``: what follows the last "(final) answer is" or "answer:", to the end of the sentence
      ("Final answer: the volume is 120" gives 120);
    - ``last``: the last line where it is nothing but an answer, else the last formula or number.

    Never the whole text: a completion that commits itself to no answer has none.
    """
    for form in forms:
        found = _FINDERS[form](text)
        if found:
            return found
    return None


def _last_boxes(text: str) -> str | None:
    if "boxed" not in text and "\\fbox" not in text:
        return None
    contents: list[str] = []
    first_start = len(text)
    for opening in reversed(list(_BOX.finditer(text))):
        end = _closing_brace(text, opening.end())
        if end is None or end >= first_start:  # cut off, or it holds the box taken already
            continue
        if contents and not _JOINT.fullmatch(text, end + 1, first_start):
            break
        content = text[opening.end() : end].strip()
        if content not in contents:
            contents.insert(0, content)
        first_start = opening.start()
    if not contents and (bare := _BOX_WITHOUT_BRACES.findall(text)):
        return bare[-1]
    return ", ".join(contents) or None


def _closing_brace(text: str, start: int) -> int | None:
    """Where the brace that is open at ``start`` closes; escaped braces are not counted."""
    depth, index = 1, start
    while index < len(text):
        character = text[index]
        if character == "\\":
            index += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return index
        index += 1
    return None


def _last_hashes(text: str) -> str | None:
    if "####" not in text:
        return None
    found = _HASHES.findall(text)
    return found[-1] if found else None


def _last_phrase(text: str) -> str | None:
    found = _PHRASE.findall(text)
    if not found:
        return None
    answer = found[-1].strip()
    if formula := _MATH.match(answer):
        return _inner(formula)
    if end := _SENTENCE_END.search(answer):
        answer = answer[: end.start()]
    if answer[:1].isalpha() and _PROSE.search(answer) and len(numbers := _NUMBER.findall(answer)) == 1:
        return numbers[0]
    return answer.rpartition(" is ")[2].strip(" $") or None


def _last_expression(text: str) -> str | None:
    text = text.partition("<|im_")[0].strip()
    line = text.rpartition("\n")[2].strip()
    formulas = list(_MATH.finditer(text))
    if formulas and "\n" in formulas[-1][0] and not text[formulas[-1].end() :].strip(" ."):
        return _inner(formulas[-1])
    if not _PROSE.search(line):
        return line or None
    if _CODE.search(text):
        return None
    numbers = [match for match in _NUMBER.finditer(text) if not _GOES_ON.match(text, match.end())]
    found = sorted([*numbers, *formulas], key=lambda match: match.end())
    return _inner(found[-1]) if found else None


def _inner(match: re.Match[str]) -> str:
    return next(filter(None, match.groups()), match[0]).strip()


_FINDERS = {"boxed": _last_boxes, "hashes": _last_hashes, "phrase": _last_phrase, "last": _last_expression}
