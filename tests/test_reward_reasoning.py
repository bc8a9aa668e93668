"""Tokens of reasoning and of the answer, by texts cut into tokens in every way."""

import random

import pytest

from reward.reasoning import reasoning_tokens


def count(pieces, marker):
    """With tokens that stand for ``pieces`` of text."""
    return reasoning_tokens(range(len(pieces)), lambda ids: "".join(pieces[i] for i in ids), marker)


@pytest.mark.parametrize(
    ("pieces", "marker", "expected"),
    [
        (["a", "b", "</think>", "7"], "</think>", 3),
        (["a", " </th", "ink> 7", "."], "</think>", 3),
        (["a", "\\boxed{1}", "b", " \\", "boxed", "{7}"], "\\boxed", 5),  # the last one
        (["3+4=7", "\n#### ", "7"], "####", 2),
        (["a", "b"], "####", 2),  # never came to an answer
        (["#### 7"], "####", 1),
        ([], "####", 0),
    ],
)
def test_by_hand(pieces, marker, expected):
    assert count(pieces, marker) == expected


def test_the_count_is_the_shortest_beginning_with_every_marker():
    draws = random.Random(0)
    for _ in range(300):
        text = "".join(draws.choice(("a", "####", "#", "ü", "\n")) for _ in range(draws.randint(1, 20)))
        cuts = sorted(draws.sample(range(len(text) + 1), min(len(text), draws.randint(0, 8))))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        found = count(pieces, "####")
        if "####" not in text:
            assert found == len(pieces)
            continue
        begun, without = "".join(pieces[:found]), "".join(pieces[: found - 1])
        assert begun.count("####") == text.count("####") > without.count("####")


def test_the_tokens_of_a_byte_tokenizer():
    text = "né → \\boxed{7}"
    tokens = list(text.encode())
    assert reasoning_tokens(tokens, lambda ids: bytes(ids).decode("utf-8", "replace"), "\\boxed") == len(tokens) - 3


def test_few_texts_are_made_and_a_marker_is_needed():
    made = []
    pieces = ["x"] * 1000 + ["####"] + ["y"] * 1000
    assert reasoning_tokens(range(2001), lambda ids: made.append(1) or "".join(pieces[i] for i in ids), "####") == 1001
    assert len(made) <= 13
    with pytest.raises(ValueError, match="marker that ends the reasoning is empty"):
        count(["a"], "")
