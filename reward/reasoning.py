"""Where reasoning ends and the answer begins, in characters and in tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence


def answer_start(text: str, marker: str | None = "</think>") -> int:
    """Where the answer begins, in characters of ``text``; what stands before it is reasoning.

    After the first ``marker``, else where the final answer begins (the last ``\\boxed`` or line ``####``). Where there
    is neither, the whole text is reasoning.
    """
    if marker and (place := text.find(marker)) >= 0:
        return place + len(marker)
    place = max(text.rfind("\\boxed"), text.rfind("\n####"))
    return place if place >= 0 else len(text)


def reasoning_tokens(
    token_ids: Sequence[int], decode: Callable[[Sequence[int]], str], marker: str | None = "</think>"
) -> int:
    """How many of a completion's tokens are reasoning; the rest are the answer, by :func:`answer_start`.

    ``decode`` gives the text of tokens, special ones included, and is asked about log2(tokens) times. A token that
    holds the last of the reasoning and the first of the answer is reasoning.
    """
    text = decode(token_ids)
    place = answer_start(text, marker)
    if place == len(text):
        return len(token_ids)
    return bisect_left(
        range(len(token_ids) + 1), True, key=lambda size: decode(token_ids[:size]).startswith(text[:place])
    )
