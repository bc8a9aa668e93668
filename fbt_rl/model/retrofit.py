"""Give a pretrained decoder latent feedback (METHOD 1.1, retrofit).

Plain inputs keep entering the stack untouched, so standard decoding stays the source's bit for bit. Only fused
inputs go through the new input norm, scaled to the root mean square (RMS) of the source's embeddings.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from fbt_rl.integrity import seal
from fbt_rl.model.causal_lm import FBTForCausalLM
from fbt_rl.model.configuration import FBTConfig, Fusion
from fbt_rl.model.loading import load_model

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


def add_feedback(source: PreTrainedModel, fusion: Fusion = "gate") -> FBTForCausalLM:
    """Wrap ``source`` with new, randomly initialised feedback; its modules are taken over, not copied.

    Raises:
        ValueError: ``source`` already has feedback, or its head does more than one bias-free projection.
    """
    name = type(source).__name__
    if isinstance(source.config, FBTConfig):
        raise ValueError(f"{name} is a full-bandwidth transformer already")
    if fusion == "none":
        raise ValueError("fusion 'none' adds nothing; choose gate, concat or add")
    text_model, head = source.base_model, source.get_output_embeddings()
    if not isinstance(text_model, PreTrainedModel) or not hasattr(text_model, "embed_tokens") or not head:
        raise ValueError(f"{name} is not a decoder with embed_tokens and an LM head on top, as Qwen3ForCausalLM is")
    if not isinstance(head, nn.Linear) or head.bias is not None:
        raise ValueError(f"the LM head of {name} is not one projection without bias, which is all an FBT has")

    embedding = source.get_input_embeddings().get_parameter("weight")
    config = FBTConfig(
        text_config=source.config,
        fusion=fusion,
        plain_input_norm=False,
        fused_input_rms=embedding.detach().float().square().mean().sqrt().item(),
        tie_word_embeddings=head.weight is embedding,
    )
    with torch.device("meta"):  # only the feedback is new: spend neither memory nor time on the rest
        model = FBTForCausalLM(config)
    model.model.text_model, model.lm_head = text_model, head
    for module in (model.model.feedback, model.model.input_norm):
        assert module is not None
        module.to_empty(device=embedding.device).to(embedding.dtype)
        module.apply(model._init_weights)
    model.generation_config = source.generation_config
    return model.eval()


def convert(source_folder: str | Path, out_folder: str | Path, fusion: Fusion = "gate") -> None:
    """Write the model in ``source_folder`` with feedback added, and its tokenizer where it has one, to ``out_folder``.

    Raises:
        ValueError: ``source_folder`` holds no model that can be converted, ``out_folder`` is not empty, or standard
            logits would differ from the source's (a decoder that treats its embeddings or logits specially).
    """
    source_folder, out_folder = Path(source_folder), Path(out_folder)
    if out_folder.exists() and (not out_folder.is_dir() or any(out_folder.iterdir())):
        raise ValueError(f"{out_folder} exists and is not an empty folder; choose another or remove it")
    source = load_model(source_folder, dtype="auto")
    vocab_size = source.config.get_text_config().vocab_size
    probe = torch.randint(vocab_size, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        before = source(probe, use_cache=False).logits
        model = add_feedback(source, fusion)
        after = model(probe, use_cache=False).logits
    if not torch.equal(before, after):
        raise ValueError(
            f"{type(source).__name__} cannot be converted: with its decoder called on embeddings and a plain LM head, "
            f"standard logits differ by up to {(before - after).abs().max():.1e}"
        )
    model.save_pretrained(out_folder)
    for name in TOKENIZER_FILES:
        if (source_folder / name).is_file():
            shutil.copyfile(source_folder / name, out_folder / name)
    seal(out_folder)
