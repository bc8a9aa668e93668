"""Tokenizers: coverage, round trips, template and mask, saving, determinism, errors."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from fbt_rl.config import TokenizerConfig
from fbt_rl.data.tokenization import (
    ASSISTANT,
    BASE_ALPHABET,
    END,
    SPECIAL_TOKENS,
    USER,
    build_tokenizer,
    load_tokenizer,
)

TEXTS = ["The café costs 1200 — not 12.\n\nSecond\tline", f"{USER}3+5{ASSISTANT}\\boxed{{8}}"] * 20
BPE = TokenizerConfig(kind="bpe", vocab_size=300)
CHAT = [
    {"role": "user", "content": "3+5"},
    {"role": "assistant", "content": "8 \\boxed{8}"},
    {"role": "user", "content": "1-1"},
    {"role": "assistant", "content": "\\boxed{0}"},
]


@pytest.fixture(params=["characters", "bpe"])
def tokenizer(request):
    return build_tokenizer(TokenizerConfig() if request.param == "characters" else BPE, TEXTS)


def ids(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def test_special_tokens_are_distinct_single_tokens(tokenizer):
    special = [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id]
    special += [*ids(tokenizer, USER), *ids(tokenizer, ASSISTANT)]
    assert sorted(special) == [0, 1, 2, 3, 4]
    assert set(tokenizer.all_special_tokens) == set(SPECIAL_TOKENS)


def test_text_survives_the_round_trip(tokenizer):
    for text in TEXTS:
        assert tokenizer.decode(ids(tokenizer, text)) == text


def test_every_character_is_its_own_token():
    tokenizer = build_tokenizer(TokenizerConfig(), ["é\n"])
    text = BASE_ALPHABET + "é\n"
    assert len(ids(tokenizer, text)) == len(text) == len(set(ids(tokenizer, text)))
    assert ids(tokenizer, "1☃☃2")[1:3] == [tokenizer.unk_token_id] * 2
    assert len(tokenizer) == len(SPECIAL_TOKENS) + len(text)  # nothing of the markers' spelling


def test_bpe_reads_any_text_and_splits_digits():
    tokenizer = build_tokenizer(BPE, TEXTS)
    assert 261 < len(tokenizer) <= 300
    assert tokenizer.decode(ids(tokenizer, "☃ 𝒳")) == "☃ 𝒳"
    assert len(ids(tokenizer, "1200")) == 4
    assert not any("|" in token for token in tokenizer.get_vocab() if token not in SPECIAL_TOKENS and len(token) > 1)


def test_template_text_and_generation_mask(tokenizer):
    text = tokenizer.apply_chat_template(CHAT[:3], tokenize=False, add_generation_prompt=True)
    assert text == f"{USER}3+5{ASSISTANT}8 \\boxed{{8}}{END}{USER}1-1{ASSISTANT}"
    encoded = tokenizer.apply_chat_template(CHAT, return_assistant_tokens_mask=True, return_dict=True)
    marked = [i for i, on in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if on]
    assert tokenizer.decode(marked) == f"8 \\boxed{{8}}{END}\\boxed{{0}}{END}"
    with pytest.raises(Exception, match="roles user and assistant"):
        tokenizer.apply_chat_template([{"role": "system", "content": "x"}], tokenize=False)


def test_saved_and_loaded_again(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.chat_template == tokenizer.chat_template
    assert (loaded.pad_token_id, loaded.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert ids(loaded, TEXTS[0]) == ids(tokenizer, TEXTS[0])
    assert loaded.decode(ids(loaded, TEXTS[1]), skip_special_tokens=True) == "3+5\\boxed{8}"
    by_path = build_tokenizer(TokenizerConfig(kind="path", path=str(tmp_path)), [])
    assert by_path.get_vocab() == tokenizer.get_vocab()


def test_another_process_trains_the_same_bpe():
    text = " ".join(hashlib.sha256(bytes([n % 251, n // 251])).hexdigest() for n in range(600))
    script = (
        "import sys; from fbt_rl.config import TokenizerConfig; from fbt_rl.data.tokenization import build_tokenizer;"
        "t = build_tokenizer(TokenizerConfig(kind='bpe', vocab_size=600), sys.stdin.read().split());"
        "print(t.backend_tokenizer.to_str())"
    )
    other = subprocess.run([sys.executable, "-c", script], input=text, capture_output=True, text=True, check=True)
    here = build_tokenizer(TokenizerConfig(kind="bpe", vocab_size=600), text.split())
    assert other.stdout.strip() == here.backend_tokenizer.to_str()


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="no tokenizer folder"):
        load_tokenizer(tmp_path / "none")
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(ValueError, match=r"cannot load a tokenizer from .*notes\.md"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match=r"vocab_size is 100; .* at least 261"):
        build_tokenizer(TokenizerConfig(kind="bpe", vocab_size=100), TEXTS)


def test_loading_needs_no_network(tmp_path, monkeypatch, tokenizer):
    monkeypatch.setattr("socket.socket.connect", lambda *args: pytest.fail("the network was used"))
    tokenizer.save_pretrained(tmp_path)
    assert isinstance(load_tokenizer(Path(tmp_path)).eos_token_id, int)
