"""Tokens of reasoning and of the answer, by texts cut into tokens in every way."""

import random

import pytest

from reward.reasoning import answer_start, reasoning_tokens


def count(pieces, marker="</think>"):
    """With tokens that stand for ``pieces`` of text."""
    return reasoning_tokens(range(len(pieces)), lambda ids: "".join(pieces[i] for i in ids), marker)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["a", "b", "</think>", "\\boxed", "{7}"], 3),
        (["a", " </th", "ink> 7", "."], 3),
        (["a", "\\boxed{1}", "b", " ", "\\", "boxed", "{7}"], 4),  # the last one
        (["a", " \\", "boxed", "{7}"], 2),
        (["3+4=7", "\n", "#### ", "7"], 1),
        (["a", "b"], 2),  # never came to an answer
        (["\\boxed{7}"], 0),
        ([], 0),
    ],
)
def test_by_hand(pieces, expected):
    assert count(pieces) == expected


def test_places():
    assert answer_start("x \\boxed{1} and \\boxed{2}", None) == 16
    assert answer_start("x</think>y\\boxed{2}") == 9
    assert answer_start("x::y\\boxed{2}", "::") == 3
    assert answer_start("x::y::z", "::") == 3  # the first one ends it


def test_the_count_is_the_shortest_beginning_with_all_reasoning():
    draws = random.Random(0)
    for _ in range(300):
        text = "".join(draws.choice(("a", "\\boxed", "</think>", "ü", "\n")) for _ in range(draws.randint(1, 20)))
        cuts = sorted(draws.sample(range(len(text) + 1), min(len(text), draws.randint(0, 8))))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        found, place = count(pieces), answer_start(text)
        if place == len(text):
            assert found == len(pieces)
        else:
            assert len("".join(pieces[:found])) >= place
            assert found == 0 or len("".join(pieces[: found - 1])) < place


def test_the_tokens_of_a_byte_tokenizer():
    text = "né → \\boxed{7}"
    tokens = list(text.encode())
    assert reasoning_tokens(tokens, lambda ids: bytes(ids).decode("utf-8", "replace")) == len("né → ".encode())


def test_few_texts_are_made():
    made = []
    pieces = ["x"] * 1000 + ["\\boxed"] + ["y"] * 1000
    assert reasoning_tokens(range(2001), lambda ids: made.append(1) or "".join(pieces[i] for i in ids)) == 1000
    assert len(made) <= 13
