"""Small tokenizers trained on the run's own text, and their chat template.

Both kinds are ordinary ``PreTrainedTokenizerFast`` objects: ``save_pretrained`` writes what
``AutoTokenizer`` and :func:`load_tokenizer` read back. Padding and end of sequence are different
tokens, so that masking the padding never hides the end the model has to learn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from fbt_rl.config import TokenizerConfig

PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unknown|>"
USER, ASSISTANT = "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = (PAD, END, UNKNOWN, USER, ASSISTANT)  # their ids are 0..4

# All that the arithmetic task writes: always in the vocabulary, whatever the training sample held.
BASE_ALPHABET = "0123456789+-=, \\boxed{}"

# One marker opens a turn, so a problem costs two tokens besides its text. The `generation` block
# covers what the model writes: the content and the end token.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}{{- '<|user|>' + message['content'] -}}"
    "{%- elif message['role'] == 'assistant' -%}"
    "{{- '<|assistant|>' -}}{%- generation -%}{{- message['content'] + '<|end|>' -}}{%- endgeneration -%}"
    "{%- else -%}{{- raise_exception('this chat template knows the roles user and assistant only') -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

_MARKERS = re.compile("|".join(re.escape(token) for token in SPECIAL_TOKENS))


def build_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> PreTrainedTokenizerBase:
    """A tokenizer of the configured kind; the same texts in the same order give the same one.

    ``characters``: every character of ``texts`` is a token. ``bpe``: byte-level BPE of at most
    ``vocab_size`` tokens, numbers split into digits. ``path``: loaded, ``texts`` is not read.
    Special markers inside the texts are never learned as text. Raises ValueError.
    """
    if config.kind == "path":
        assert config.path is not None  # the config checks this
        return load_tokenizer(config.path)
    plain = (part for text in texts for part in _MARKERS.split(text) if part)
    core = _characters(plain) if config.kind == "characters" else _byte_level_bpe(plain, config.vocab_size)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=[USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer saved in ``folder``; nothing is downloaded. Raises ValueError."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"no tokenizer folder {folder}: give a folder that holds tokenizer.json")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises whatever its parsers raise
        names = ", ".join(sorted(file.name for file in folder.iterdir())[:8]) or "nothing"
        raise ValueError(f"cannot load a tokenizer from {folder} (it holds: {names}): {error}") from error


def _characters(texts: Iterable[str]) -> Tokenizer:
    alphabet = sorted(set(BASE_ALPHABET).union(*texts))
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    # Without merges BPE leaves every character alone, which is all that is wanted.
    core = Tokenizer(models.BPE(vocabulary, [], unk_token=UNKNOWN, fuse_unk=False))
    core.decoder = decoders.Fuse()
    return core


def _byte_level_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(alphabet) + len(SPECIAL_TOKENS)
    if vocab_size < smallest:
        raise ValueError(f"tokenizer.vocab_size is {vocab_size}; byte-level BPE needs at least {smallest}")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return core
