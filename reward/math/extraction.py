"""Finding the final answer in what a model wrote: strict, so that no answer is no answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from reward.math.quantities import parse_number

Form = Literal["boxed", "hashes", "phrase", "last"]
DEFAULT_FORMS: tuple[Form, ...] = ("boxed", "hashes")
ALL_FORMS: tuple[Form, ...] = ("boxed", "hashes", "phrase", "last")

_BRACE = re.compile(r"(?P<box>\\(?:begin)?(?:boxed|fbox)\s*\{)|(?P<escaped>\\\\(?=[{}])|\\[{}])|[{}]")
_BOX_WITHOUT_BRACES = re.compile(r"\\boxed\s+([^\s{}$\\]+)")
MAX_BOXES = 50  # in one answer
MAX_BETWEEN = 80  # characters
# Between two boxes that belong together ("\boxed{1} and \boxed{2}", "\boxed{3} cats and \boxed{4}",
# "\boxed{1}, y = \boxed{2}") nothing else is written.
_BETWEEN = r"(?:[ \t,;$&]|\\[()\[\],;! ]|\\q?quad\b)*"
_JOINT = re.compile(
    rf"{_BETWEEN}(?:(?:[a-z]+ )?\band\b|\bor\b|\\text\s*\{{[^{{}}]*\b(?:and|or)\s*\}})?"
    rf"{_BETWEEN}(?:[a-zA-Z]\w?(?:_\{{?\w+\}}?)?\s*=\s*)?{_BETWEEN}"
)
_HASHES = re.compile(r"^####(.*)$", re.MULTILINE)
_PHRASE = re.compile(  # "answer (arabic numerals) is about 7", or a heading and the answer below it
    r"(?:(?:\bfinal\s+|^#+[ \t]*)answer\b[*_ \t]*\n|\banswer\b[*_\s]*(?:\([^()\n]{1,40}\)\s*)?(?:is|:|=))[:\s*_]*"
    r"(?:(?:about|approximately|around|roughly|exactly|simply|therefore|thus|hence|then)\b[\s,]*)?([^\s*_].*)",
    re.IGNORECASE | re.MULTILINE,
)
_MATH = re.compile(  # inline: on one line; none holds another one's opening, so that time is linear
    # Dollars of money are told from those of formulas as pandoc does: "$5 and $6" is none.
    r"\$\$([^$]+)\$\$|\$((?! )(?:[^$\n\\]|\\[^\n])+)(?<! )\$(?!\d)|\$ ([^$\n]+) \$(?! ?\d)"
    r"|\\\(((?:[^\\\n]|\\[^()\n])+)\\\)|\\\[((?:[^\\]|\\[^\[\]])+)\\\]"
)
_SENTENCE_END = re.compile(
    r"[.,;:!?]?\*\*|[.;!?](?=\s|$)|,\s(?=[A-Za-z])|\s(?:because|since|so|which|where)\b|<[|/]|\s\((?!mod\b|base\b)(?=[A-Za-z]{2})"
)
_PROSE = re.compile(r"(?<![\\a-zA-Z{])(?:[A-Za-z]{2,}[,:]?\s+[a-z]+|[A-Za-z]{3,}\s*:\s)")
_ANSWER_TAG = re.compile(r"</?answer>")
_CUT_OFF = re.compile(r"(?:[=+/^×÷]|(?<!\*)\*|\\boxed\s*\{[^{}]*)$")
_LEAD = re.compile(
    r"(?:(?:thus|so|hence|therefore|then)\b[,:]?\s*)?(?:(?:the )?(?:final )?answer:?\s*)?", re.IGNORECASE
)
_CONDITION = re.compile(r",? for (?:all|any|every|each|some)\b.*$")
_CODE = re.compile(r"__\w+__|\w\(\s*['\"]|[a-zA-Z_]\.[a-zA-Z_]+\(|\blambda\b|\bimport\b")
_NUMBER = re.compile(r"(?<![\w.,/])[-−]?[$€£]?\d(?:[\d,]*\d)?(?:\.\d+)?(?:\s*/\s*\d+)?%?")
# "3 eggs a day", "3 and the check holds"; but not "3 million dollars a year", "3 and a half"
_COUNTED = re.compile(
    rf"({_NUMBER.pattern})(?: (?!(?:hundred|thousand|[mb]illion|trillion|dozen|half|quarters?|thirds?|pi|mod)\b)"
    r"[A-Za-z'-]+){2,}"
)
_GOES_ON = re.compile(r"\s*(?:[+/^=×÷]|\*(?!\*)|\*\*(?=[\d(])|-\s)")


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
    for start, inner, end in reversed(_complete_boxes(text)):
        if end >= first_start:  # it holds the box taken already
            continue
        is_joint = first_start - end <= MAX_BETWEEN and _JOINT.fullmatch(text, end + 1, first_start)
        if contents and (not is_joint or len(contents) == MAX_BOXES):
            break
        content = text[inner:end].strip()
        number = parse_number(content)
        if content not in contents and (number is None or number not in map(parse_number, contents)):
            contents.insert(0, content)  # not one that says the same in other words
        first_start = start
    if not contents and (bare := _BOX_WITHOUT_BRACES.findall(text)):
        return bare[-1]
    return ", ".join(contents) or None


def _complete_boxes(text: str) -> list[tuple[int, int, int]]:
    """Start, start of the content and closing brace of each box that is closed, by start; escaped braces aside."""
    opened: list[tuple[int, int]] = []
    boxes = []
    for token in _BRACE.finditer(text):
        if token[0] == "}":
            if opened and (box := opened.pop())[1]:
                boxes.append((*box, token.start()))
        elif token[0][-1] == "{" and token.lastgroup != "escaped":
            opened.append((token.start(), token.end() if token.lastgroup == "box" else 0))
    return sorted(boxes)


def _last_hashes(text: str) -> str | None:
    if "####" not in text:
        return None
    found = [line for line in map(str.strip, _HASHES.findall(text)) if line]
    return found[-1] if found else None


def _last_phrase(text: str) -> str | None:
    found = _PHRASE.findall(text)
    if not found:
        return None
    answer = found[-1].strip()
    while again := _PHRASE.search(answer):  # "Final Answer: The final answer is $x$. I hope it is correct."
        answer = again[1].strip()
    if formula := _MATH.match(answer):
        return _inner(formula)
    if end := _SENTENCE_END.search(answer):
        answer = answer[: end.start()]
    if answer[:1].isalpha() and _PROSE.search(answer):
        formulas = list(_MATH.finditer(answer))
        numbers = _NUMBER.findall(_MATH.sub(" ", answer))
        if len(numbers) == 1:
            return numbers[0]
        if not numbers and len(formulas) == 1:
            return _inner(formulas[0])
    if counted := _COUNTED.fullmatch(answer):
        return counted[1]
    return answer.rpartition(" is ")[2].strip(" $") or None


def _last_expression(text: str) -> str | None:
    text = _ANSWER_TAG.sub("\n", text.partition("<|im_")[0]).strip()
    line = text.rpartition("\n")[2].strip()
    formulas = list(_MATH.finditer(text))
    if formulas and "\n" in formulas[-1][0] and not text[formulas[-1].end() :].strip(" ."):
        return _inner(formulas[-1])
    if _CUT_OFF.search(text):
        return None
    if (lead := _LEAD.match(line)) and (formula := _MATH.fullmatch(_CONDITION.sub("", line).rstrip(". "), lead.end())):
        return _inner(formula)
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
