"""Small rewards for tests; nothing heavy is imported here, for they are called in processes of their own."""


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
