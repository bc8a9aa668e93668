"""Problems and documents: the arithmetic chains, splits, styles, and examples as token ids."""

import re
from pathlib import Path

import pytest

from fbt_rl.config import ArithmeticData, FileData, TokenizerConfig
from fbt_rl.data.problems import DataError
from fbt_rl.data.tasks import (
    content_hash,
    encode_document,
    encode_example,
    encode_prompt,
    is_heldout,
    load_documents,
    load_problems,
    prompt_text,
)
from fbt_rl.data.tokenization import ASSISTANT, BASE_ALPHABET, END, USER, build_tokenizer

HERE = Path(__file__).parents[1] / "data"
TEXT = Path(__file__).parents[3] / "shared/data/text"
STEP = re.compile(r"(-?\d+)([+-]\d)=(-?\d+)")


def arithmetic(**settings):
    return ArithmeticData(**{"size": 2000, **settings})


def test_answers_are_right_and_chains_have_the_asked_length():
    for row in load_problems(arithmetic(min_terms=3, max_terms=4), seed=1):
        terms = [int(term) for term in re.findall(r"[+-]?\d", row["prompt"])]
        assert "".join(f"{t:+d}" for t in terms).lstrip("+") == row["prompt"]
        assert len(terms) in (3, 4)
        assert all(1 <= abs(term) <= 9 for term in terms)
        assert row["answer"] == str(sum(terms))
        assert row["completion"].endswith(f"\\boxed{{{sum(terms)}}}")


def test_worked_styles_are_arithmetically_right():
    rows = {
        style: load_problems(arithmetic(styles={style: 1.0}), seed=0)
        for style in ("steps", "results", "skipping", "answer")
    }
    assert len({tuple(table["prompt"]) for table in rows.values()}) == 1  # the same problems in every style
    for steps, results, skipping, answer in zip(*rows.values(), strict=True):
        shown = STEP.findall(steps["completion"])
        assert len(shown) == len(re.findall(r"[+-]", steps["prompt"][1:]))
        assert all(int(before) + int(term) == int(after) for before, term, after in shown)
        totals = [after for _, _, after in shown]
        box = f"\\boxed{{{answer['answer']}}}"
        assert results["completion"] == f"{','.join(totals)} {box}"
        assert answer["completion"] == box
        left = [part for part in skipping["completion"].removesuffix(box).strip().split(",") if part]
        rest = iter(totals)
        assert all(total in rest for total in left)  # a subsequence
    assert len(set(rows["skipping"]["completion"]) & set(rows["answer"]["completion"])) > 20


def test_lengths_are_those_of_the_method():
    mixed = load_problems(arithmetic(styles={"steps": 0.5, "results": 0.25, "skipping": 0.25}), seed=0)
    lengths = sorted(len(text) + 1 for text in mixed["completion"])  # characters and the end token
    assert 17 <= lengths[len(lengths) // 2] <= 20
    shortest = load_problems(arithmetic(styles={"answer": 1.0}), seed=0)
    assert {len(text) for text in shortest["completion"]} <= {9, 10, 11}


def test_splits_are_disjoint_for_any_seed_and_size():
    train = {p for seed in range(3) for p in load_problems(arithmetic(size=4000), seed)["prompt"]}
    heldout = set()
    for seed, terms in enumerate([(2, 5), (2, 2), (4, 6)]):
        size = 20 if terms[1] == 2 else 1500
        drawn = load_problems(arithmetic(split="heldout", size=size, min_terms=terms[0], max_terms=terms[1]), seed)
        assert len(set(drawn["problem_id"])) == size
        heldout |= set(drawn["prompt"])
    assert not train & heldout
    assert not any(map(is_heldout, train))
    assert all(map(is_heldout, heldout))
    documents = load_documents(arithmetic(size=3000), seed=9)["text"]
    assert not {text.split(ASSISTANT)[0].removeprefix(USER) for text in documents} & heldout


def test_five_thousand_different_heldout_problems():
    assert len(set(load_problems(arithmetic(split="heldout", size=5000), seed=0)["prompt"])) == 5000


def test_too_many_heldout_problems_of_a_small_space_are_refused():
    with pytest.raises(DataError, match=r"only \d\d different held-out chains of 2 to 2 terms"):
        load_problems(arithmetic(split="heldout", size=200, max_terms=2), seed=0)


def test_drawing_depends_on_the_seed_alone():
    first, again, other = (load_problems(arithmetic(size=50), seed) for seed in (5, 5, 6))
    assert first[:] == again[:]
    assert first["prompt"] != other["prompt"]
    assert load_problems(arithmetic(size=20), 5)["prompt"] == first["prompt"][:20]


def test_documents_read_like_chats_and_stay_in_the_alphabet():
    texts = load_documents(arithmetic(), seed=3)["text"]
    assert set("".join(texts).replace(USER, "").replace(ASSISTANT, "")) <= set(BASE_ALPHABET)
    tokenizer = build_tokenizer(TokenizerConfig(), [])
    problem = load_problems(arithmetic(), seed=3)[0]
    ids, _ = encode_example(tokenizer, problem["prompt"], problem["completion"])
    assert encode_document(tokenizer, texts[0]) == ids
    assert tokenizer.unk_token_id not in ids


@pytest.mark.parametrize("kind", ["characters", "bpe"])
def test_the_mask_covers_the_completion_and_its_end_only(kind):
    texts = load_documents(arithmetic(size=300), seed=0)["text"]
    tokenizer = build_tokenizer(TokenizerConfig(kind=kind, vocab_size=300), texts)
    prompt, completion = "3+5-2", "8,6 \\boxed{6}"
    ids, mask = encode_example(tokenizer, prompt, completion)
    turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
    rendered = tokenizer.apply_chat_template(turns, return_assistant_tokens_mask=True, return_dict=True)
    assert ids == rendered["input_ids"]
    assert mask == rendered["assistant_masks"]
    assert tokenizer.decode([i for i, on in zip(ids, mask, strict=True) if on]) == completion + END
    assert prompt_text(tokenizer, prompt) == f"{USER}{prompt}{ASSISTANT}"
    assert ids[: mask.index(1)] == encode_prompt(tokenizer, prompt)


def test_a_tokenizer_without_template_or_end_is_refused():
    tokenizer = build_tokenizer(TokenizerConfig(), [])
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        encode_prompt(tokenizer, "1+1")
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no end token"):
        encode_document(tokenizer, "x")


def test_problems_and_documents_of_a_table():
    table = FileData(paths=[str(HERE / "gsm8k_like.jsonl")], prompt="question", completion="answer", answer="answer")
    problems = load_problems(table, seed=0, needs=("prompt", "completion", "answer"))
    columns = ["answer", "completion", "level", "problem_id", "prompt", "question", "subject"]
    assert sorted(problems.column_names) == columns
    assert problems["answer"] == ["72", "1,050"]
    text = load_documents(table, seed=0)["text"][0]
    assert text == f"{USER}{problems[0]['prompt']}{ASSISTANT}{problems[0]['completion']}"
    plain = FileData(paths=[str(HERE / "gsm8k_like.jsonl")], completion="question")
    assert load_documents(plain, seed=0)["text"] == list(problems["prompt"])


def test_the_hub_is_read_like_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "test.jsonl").write_text((HERE / "gsm8k_like.jsonl").read_text())
    hub = {"path": str(folder), "split": "test"}
    problems = load_problems(FileData.model_validate({"preset": "gsm8k", "hub": hub}), seed=0)
    local = load_problems(FileData(preset="gsm8k", paths=[str(folder / "test.jsonl")]), seed=0)
    assert problems["prompt"] == local["prompt"]
    assert problems["problem_id"] == ["set-1", "set-2"]
    missing = FileData.model_validate({"preset": "gsm8k", "hub": {"path": str(tmp_path / "nothing")}})
    with pytest.raises(DataError, match=r"cannot load .*nothing \(test\) from the hub: .*name a local copy"):
        load_problems(missing, seed=0)


def test_the_content_hash_is_of_the_problems_alone(tmp_path):
    copy = tmp_path / "gsm8k_like.jsonl"
    copy.write_text((HERE / "gsm8k_like.jsonl").read_text())
    columns = {"prompt": "question", "answer": "answer"}
    here, moved = (load_problems(FileData(paths=[str(path)], **columns), 0) for path in (HERE / copy.name, copy))
    assert content_hash(here) == content_hash(moved)
    asked_otherwise = load_problems(FileData(paths=[str(copy)], **columns, template="{prompt}?"), 0)
    assert content_hash(asked_otherwise) != content_hash(here)


def test_a_plain_prompt_is_the_prompt():
    tokenizer = build_tokenizer(TokenizerConfig(), [])
    assert prompt_text(tokenizer, "1+1", chat=False) == "1+1"
    assert encode_prompt(tokenizer, "1+1", chat=False) == tokenizer.encode("1+1")
    assert encode_prompt(tokenizer, "1+1", chat=False) != encode_prompt(tokenizer, "1+1")


def test_text_files_hold_documents_but_no_problems(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("One.\n\nTwo.")
    assert load_documents(FileData(paths=[str(path)]), seed=0)["text"] == ["One.\n\nTwo."]
    with pytest.raises(DataError, match="problems need a table"):
        load_problems(FileData(paths=[str(path)]), seed=0)


@pytest.mark.skipif(not TEXT.is_dir(), reason="needs the text corpora beside the project")
def test_real_books_lose_their_licence():
    book = FileData(paths=[str(TEXT / "sherlock_holmes_pg1661.txt")], text_chars=1500)
    texts = load_documents(book, seed=0)["text"]
    assert 300 < len(texts) < 800
    assert "START OF THIS PROJECT" not in texts[0]
    assert "www.gutenberg" not in "".join(texts)
