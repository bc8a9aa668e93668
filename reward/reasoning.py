"""Where reasoning ends and the answer begins, counted in tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence


def reasoning_tokens(token_ids: Sequence[int], decode: Callable[[Sequence[int]], str], marker: str) -> int:
    """How many of a completion's tokens are reasoning: those up to the end of the last ``marker`` in its text.

    The rest are the answer; without a marker (such as ``</think>``, ``\\boxed`` or ``####``) all are reasoning.
    ``decode`` gives the text of tokens, special ones included; it is asked about log2(tokens) times. The marker may
    be part of a token, or several. ValueError: the marker is empty.
    """
    if not marker:
        raise ValueError("the marker that ends the reasoning is empty")
    total = decode(token_ids).count(marker)
    if not total:
        return len(token_ids)
    return bisect_left(range(len(token_ids) + 1), total, key=lambda size: decode(token_ids[:size]).count(marker))
