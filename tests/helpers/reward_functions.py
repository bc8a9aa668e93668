"""Small rewards for tests; nothing heavy is imported here, for they are called in processes of their own."""

import math

from reward.base import Verdict


def odd(prompts, completions, completion_ids, **columns):
    return [float(len(ids) % 2) for ids in completion_ids]


def answered(prompts, completions, completion_ids, *, answer, **columns):
    return [None if gold == "?" else float(text == gold) for text, gold in zip(completions, answer, strict=True)]


def strange(prompts, completions, completion_ids, *, value, **columns):
    return value


def half(prompts, completions, completion_ids, **columns):
    return [0.5] * len(completions)


def inverse(prompts, completions, completion_ids, **columns):
    return [1 / int(text) for text in completions]


def unlike(prompts, completions, completion_ids, *, group, **columns):
    """1 where the group's answers differ."""
    answers = {
        label: {text for text, other in zip(completions, group, strict=True) if other == label} for label in group
    }
    return [float(len(answers[label]) > 1) for label in group]


def termed(prompts, completions, completion_ids, *, value, **columns):
    return [Verdict(True, 1.0, terms={"style": 0.25, "form": 0.75}, metadata={"words": number}) for number in value]


def odd_length(prompts, completions, completion_ids, **columns):
    return [float(len(ids) % 2) for ids in completion_ids]


def always_one(prompts, completions, completion_ids, **columns):
    return [1.0] * len(completions)


def undecided(prompts, completions, completion_ids, **columns):
    return [None] * len(completions)


def every_third_undecided(prompts, completions, completion_ids, **columns):
    return [None if row % 3 == 0 else float(len(ids) % 2) for row, ids in enumerate(completion_ids)]


def always(prompts, completions, completion_ids, *, value, **columns):
    return [{"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(value, value)] * len(completions)


def odd_but_one(prompts, completions, completion_ids, *, row, value, **columns):
    """As odd_length, but for ``row`` of the batch."""
    return [value if index == row else float(len(ids) % 2) for index, ids in enumerate(completion_ids)]


def mixed(prompts, completions, completion_ids, **columns):
    """As settled_by_prompt, with some that cannot be judged: all by the completion alone, whatever rank it is on."""
    scores = settled_by_prompt(prompts, completions, completion_ids)
    return [None if len(ids) == 3 else score for ids, score in zip(completion_ids, scores, strict=True)]


def settled_by_prompt(prompts, completions, completion_ids, **columns):
    """Prompts that begin with an odd digit are always answered rightly."""
    return [
        1.0 if int(prompt[0]) % 2 else float(len(ids) % 2) for prompt, ids in zip(prompts, completion_ids, strict=True)
    ]
