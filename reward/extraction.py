"""Finding the final answer in what a model wrote: strict, so that no answer is no answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

Form = Literal["boxed", "hashes", "phrase"]
DEFAULT_FORMS: tuple[Form, ...] = ("boxed", "hashes")

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
# Between two boxes that belong together ("\boxed{1} and \boxed{2}") nothing else is written.
_JOINT = re.compile(r"(?:[ \t,;$&]|\\[()\[\],;! ]|\\q?quad\b|\\text\s*\{\s*(?:and|or)\s*\}|\band\b|\bor\b)*")
_HASHES = re.compile(r"^####[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_PHRASE = re.compile(r"\b(?:final\s+)?answer\b[*_\s]*(?:is|:|=)[:\s*_]*([^\s*_].*)", re.IGNORECASE)
_MATH = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]")
_SENTENCE_END = re.compile(r"[.,;:!?]?\*\*|[.;!?](?=\s|$)|,\s(?=[A-Za-z])|\s(?:because|since|so|which)\b|<\|")


def extract_answer(text: str, forms: Sequence[Form] = DEFAULT_FORMS) -> str | None:
    """The final answer in ``text`` by the first of ``forms`` that is there, else None.

    - ``boxed``: the last complete ``\\boxed{...}`` or ``\\fbox{...}``, braces nested; boxes joined by
      nothing but commas, "and" or "or" are one answer, a list;
    - ``hashes``: the last line ``#### ...`` (GSM8K);
    - ``phrase``: what follows the last "(final) answer is" or "answer:", to the end of the sentence
      ("Final answer: the volume is 120" gives 120).

    Never the whole text: a completion that commits itself to no answer has none.
    """
    for form in forms:
        found = _FINDERS[form](text)
        if found:
            return found
    return None


def _last_boxes(text: str) -> str | None:
    if "\\boxed" not in text and "\\fbox" not in text:
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
        return next(group for group in formula.groups() if group).strip()
    if end := _SENTENCE_END.search(answer):
        answer = answer[: end.start()]
    return answer.rpartition(" is ")[2].strip(" $") or None


_FINDERS = {"boxed": _last_boxes, "hashes": _last_hashes, "phrase": _last_phrase}
