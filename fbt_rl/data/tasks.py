"""What is trained on: seeded arithmetic chains, and problems or text from files.

A pretraining document made of a problem is one user turn and one assistant turn in the markers of
:mod:`fbt_rl.data.tokenization`, so that fine-tuning and RL meet the very format of pretraining and all
their updates go into the solutions. (To a tokenizer from elsewhere the markers are plain text.)
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset
from transformers import PreTrainedTokenizerBase

from fbt_rl.config import ArithmeticData, DataConfig, FileData
from fbt_rl.data.problems import (
    DataError,
    Role,
    is_text,
    problems_of,
    read_rows,
    read_texts,
    require_roles,
    select_rows,
)
from fbt_rl.data.tokenization import ASSISTANT, USER

HELDOUT_SHARE = 8  # one problem in so many is held out


def load_documents(data: DataConfig, seed: int) -> Iterator[str]:
    """Pretraining documents, one by one, without an end token (see :func:`encode_documents`).

    Table rows with only one of prompt and completion named are plain text. Raises DataError.
    """
    if isinstance(data, ArithmeticData):
        return (_turns(row["prompt"], row["completion"]) for row in _arithmetic(data, seed))
    if is_text(data):
        return iter(read_texts(data))
    return (_turns(row["prompt"], row["completion"]) for row in _rows(data))


def load_problems(data: DataConfig, seed: int, needs: Sequence[Role] = ("prompt",)) -> Dataset:
    """Problems: columns ``problem_id``, ``prompt``, ``question`` (the prompt as it stands in the data, without
    template and examples), ``answer``, ``completion`` (a worked solution), ``level`` and ``subject``.

    A file's column that the config does not name is "" in every row; name in ``needs`` those the
    caller cannot do without. The id of an arithmetic problem is made from its text, so it stays the
    same over seeds and sizes; held-out ids are unique, training problems may repeat. Raises DataError.
    """
    if isinstance(data, ArithmeticData):
        rows = list(_arithmetic(data, seed))
    elif is_text(data):
        raise DataError(f"{data.source} is plain text; problems need a table (jsonl, json, csv, parquet)")
    else:
        rows = _rows(data, needs)
    return Dataset.from_list(rows)


def _rows(data: FileData, needs: Sequence[Role] = ()) -> list[dict[str, str]]:
    """:func:`fbt_rl.data.problems.read_rows`, also of the hub."""
    if data.hub is None:
        return read_rows(data, needs)
    require_roles(data, needs)
    hub = data.hub
    try:
        loaded: Any = load_dataset(hub.path, hub.name, split=hub.split, revision=hub.revision)
    except Exception as error:  # whatever the hub's client and its readers raise
        raise DataError(
            f"cannot load {data.source} from the hub: {error}; or name a local copy of its file in data.paths"
        ) from error
    stem = Path(hub.path).name
    return select_rows(problems_of(loaded, data, data.source, stem), data)


def content_hash(problems: Dataset) -> str:
    """SHA-256 of all that the problems hold: equal for equal problems in equal order, wherever they came from."""
    columns = {name: problems[name][:] for name in sorted(problems.column_names)}
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()


# --- text and tokens -----------------------------------------------------------------------------


def prompt_text(tokenizer: PreTrainedTokenizerBase, prompt: str, *, chat: bool = True) -> str:
    """The exact text the model is given: the chat template up to the model's turn, or ``prompt`` alone."""
    if not chat:
        return prompt
    if not tokenizer.chat_template:
        raise ValueError("the tokenizer has no chat template: set tokenizer.chat_template and save it again")
    turns = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    return text


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str, *, chat: bool = True) -> list[int]:
    """Token ids of :func:`prompt_text`; nothing is added but, to a plain one, what the tokenizer begins texts with."""
    text = prompt_text(tokenizer, prompt, chat=chat)
    return _encode(tokenizer, text) if chat else list(tokenizer.encode(text))


def encode_example(tokenizer: PreTrainedTokenizerBase, prompt: str, completion: str) -> tuple[list[int], list[int]]:
    """``(input_ids, completion_mask)``; the mask is 1 on the completion and the end token after it.

    The ids begin with exactly :func:`encode_prompt`, as they will when the model is sampled.
    """
    prompt_ids = encode_prompt(tokenizer, prompt)
    completion_ids = encode_document(tokenizer, completion)
    return prompt_ids + completion_ids, [0] * len(prompt_ids) + [1] * len(completion_ids)


def encode_document(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of ``text`` and one end token."""
    return [*_encode(tokenizer, text), _end_token(tokenizer)]


def encode_documents(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """:func:`encode_document` of each, on as many cores as the tokenizer uses."""
    end, ids = _end_token(tokenizer), tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    return [[*row, end] for row in ids]  # type: ignore[misc]


def _end_token(tokenizer: PreTrainedTokenizerBase) -> int:
    end: Any = tokenizer.eos_token_id
    if end is None:
        raise ValueError("the tokenizer has no end token: set tokenizer.eos_token and save it again")
    return end


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: Any = tokenizer.encode(text, add_special_tokens=False)
    return ids


def _turns(prompt: str, completion: str) -> str:
    return f"{USER}{prompt}{ASSISTANT}{completion}" if prompt and completion else prompt or completion


# --- arithmetic ----------------------------------------------------------------------------------


def is_heldout(problem: str) -> bool:
    """Whether a problem belongs to the held-out split: decided by its text alone.

    So the splits are disjoint whatever sizes, seeds and ranges are drawn. About one problem in
    eight is held out: some 125,000 of the chains of 2 to 5 terms, but only some 20 of two terms.
    """
    digest = hashlib.blake2b(problem.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELDOUT_SHARE == 0


def _arithmetic(data: ArithmeticData, seed: int) -> Iterator[dict[str, str]]:
    """Chains of ``min_terms``..``max_terms`` digits 1-9, every length equally likely.

    Held-out problems are drawn without repetition, so short chains, of which there are few, run out
    and longer ones take their place. The styles have a stream of their own: the same seed gives the
    same problems with any mixture of styles.
    """
    draws = random.Random(f"problems {data.split} {seed}")
    style_draws = random.Random(f"styles {data.split} {seed}")
    styles, weights = list(data.styles), list(data.styles.values())
    for problem, terms in _chains(data, draws):
        style = style_draws.choices(styles, weights)[0]
        yield {
            "problem_id": f"arithmetic:{problem}",
            "prompt": problem,
            "question": problem,
            "answer": str(sum(terms)),
            "completion": _solution(terms, style, style_draws),
            "level": str(len(terms)),
            "subject": "",
        }


def _chains(data: ArithmeticData, draws: random.Random) -> Iterator[tuple[str, list[int]]]:
    seen: set[str] = set()
    heldout = data.split == "heldout"
    made, misses = 0, 0
    while made < data.size:
        count = draws.randint(data.min_terms, data.max_terms)
        first = draws.randint(1, 9)
        terms = [first, *(draws.choice((-1, 1)) * draws.randint(1, 9) for _ in range(count - 1))]
        problem = "".join(f"{term:+d}" for term in terms).removeprefix("+")
        if is_heldout(problem) != heldout or problem in seen:
            misses += 1
            if misses > 5_000:
                raise DataError(
                    f"only {made} different held-out chains of {data.min_terms} to {data.max_terms} terms were "
                    f"found, data.size asks for {data.size}: lower data.size or raise data.max_terms"
                )
            continue
        if heldout:
            seen.add(problem)
        misses = 0
        made += 1
        yield problem, terms


def _solution(terms: list[int], style: str, draws: random.Random) -> str:
    """A worked solution. ``3+5-2`` is, by style, ``3+5=8,8-2=6 \\boxed{6}``, ``8,6 \\boxed{6}``, the
    same with each result left out with probability one half, or ``\\boxed{6}``.
    """
    totals = list(accumulate(terms))
    if style == "steps":
        parts = [
            f"{before}{term:+d}={total}" for before, term, total in zip(totals, terms[1:], totals[1:], strict=False)
        ]
    elif style == "results":
        parts = [str(total) for total in totals[1:]]
    elif style == "skipping":
        parts = [str(total) for total in totals[1:] if draws.random() < 0.5]
    else:
        parts = []
    box = f"\\boxed{{{totals[-1]}}}"
    return f"{','.join(parts)} {box}" if parts else box
