"""Where other systems write their final answer: found in whatever form, and handed to the reward in its own.

What is looked for, in this order: ``<answer>`` tags, the forms of :mod:`reward.math.extraction` (``\\boxed``, ``####``, "the
answer is"), a last line ``A: ...``, and what a finished last sentence ends in. A text that breaks off has no answer.
"""

from __future__ import annotations

import re

from reward.math.extraction import Form, extract_answer

FORMS: tuple[Form, ...] = ("boxed", "hashes", "phrase")
_TOKEN = re.compile(r"</s>|<eos>|<end_of_turn>|<[|｜][^<>|｜\n]{1,30}[|｜]>")  # of tokenizers: an answer ends there
_TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_INLINE = re.compile(r"(?<=[^#\n])####(?!#)")
_HEADING = re.compile(  # "#### Step 2", or "#### Final answer: 7": no answer by itself
    r"^[ \t]*####(?=[ \t]*[*_]*[A-Za-z]{3,})(?=.*(?:\n\s*\S|\banswer\b))", re.MULTILINE | re.IGNORECASE
)
_LINE = re.compile(r"^\**A(?:nswer)?\**\s*:\**\s*(\S.*?)\s*$", re.MULTILINE)
_FINISHED = re.compile(r"(?:[.!)\]$]|\*\*)\s*\Z")
_BOLD = re.compile(r"\*\*([^*\n]*\d[^*\n]*)\*\*[^\n]*\Z")


def boxed(answer: str | None) -> str:
    return "" if answer is None else f"\\boxed{{{answer}}}"


def to_judge(text: str, marker: str | None = None) -> str:
    """``text``, or what stands for it, such that the reward finds its answer in one of ``FORMS``.

    Reasoning ends at ``marker``; what it says of the answer on the way counts only where nothing follows.
    """
    answer = text.rpartition(marker)[2] if marker else text
    text = plain(answer if answer.strip() else text)
    if tagged := _TAGGED.findall(text):
        inside = tagged[-1].strip()
        return inside if extract_answer(inside, FORMS) else boxed(inside or None)
    text = _HEADING.sub("", text)
    return text if extract_answer(text, FORMS) else boxed(last_match(_LINE, text) or _concluded(text))


def plain(text: str) -> str:
    """``text`` without the ends that tokenizers write, and with each ``####`` on a line of its own."""
    return _INLINE.sub("\n####", _TOKEN.sub("\n", text))


def right_answer(text: str) -> str:
    """The answer of a worked solution, or ``text`` where it is a bare answer."""
    return extract_answer(plain(text)) or last_match(_LINE, text) or text


def last_match(pattern: re.Pattern[str], text: str) -> str | None:
    """The first group of the last match, or all of it."""
    found = list(pattern.finditer(text))
    return None if not found else found[-1][1] if pattern.groups else found[-1][0]


def _concluded(text: str) -> str | None:
    text = text.strip()
    if not _FINISHED.search(text):
        return None
    if found := _BOLD.search(text):
        return extract_answer(found[1], ("last",))
    return extract_answer(text, ("last",))
