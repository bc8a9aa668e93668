"""Small random models and a slow, cache-free reference of latent feedback, shared by the tests of the model."""

import torch
from torch import Tensor

from fbt_rl.model import FBTConfig, FBTForCausalLM, FBTTextConfig

VOCAB = 40


def small_config(fusion: str = "gate", **text) -> FBTConfig:
    """Three layers, two of them with a window of 6, so that both kinds of mask matter on short rows."""
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": 6,
        "full_attention_interval": 3,
        "max_position_embeddings": 64,
        "rope_theta": 100.0,
        "rope_theta_full": 1000.0,
        "initializer_range": 0.3,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    return FBTConfig(text_config=FBTTextConfig(**(shape | text)), fusion=fusion)


def small_model(fusion: str = "gate", dtype: torch.dtype = torch.float32, seed: int = 0, **text) -> FBTForCausalLM:
    """Random weights, norms included, so that a forgotten part shows."""
    torch.manual_seed(seed)
    model = FBTForCausalLM(small_config(fusion, **text)).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


def random_ids(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(2, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def fuse_by_hand(model: FBTForCausalLM, states: Tensor, ids: Tensor) -> Tensor:
    """The fused stack input, written from METHOD 1.1 for ``gate``; states and result (B, T, D)."""
    norm, feedback = model.model.input_norm, model.model.feedback
    token = model.model.text_model.embed_tokens(ids)
    value = states @ feedback.value_proj.weight.T
    gate = torch.sigmoid(norm(token) @ feedback.gate_proj.weight.T)
    return norm(value * gate)


def plain_by_hand(model: FBTForCausalLM, ids: Tensor) -> Tensor:
    return model.model.input_norm(model.model.text_model.embed_tokens(ids))


def stack(model: FBTForCausalLM, inputs: Tensor) -> Tensor:
    """Top states of the decoder alone, without a cache."""
    return model.model.text_model(inputs_embeds=inputs, use_cache=False).last_hidden_state


def prompt_inputs_by_hand(model: FBTForCausalLM, prompt: Tensor, passes: int) -> Tensor:
    """Stack inputs (B, P, D) of the last of ``passes`` prompt passes (METHOD 1.2)."""
    inputs = plain_by_hand(model, prompt)
    for _ in range(passes - 1):
        states = stack(model, inputs)
        fused = fuse_by_hand(model, states[:, :-1], prompt[:, 1:])
        inputs = torch.cat((inputs[:, :1], fused), dim=1)
    return inputs


def sequential_states(model: FBTForCausalLM, prompt: Tensor, completion: Tensor, mode: str, passes: int = 1) -> Tensor:
    """Top states (B, P + N, D) of decoding ``completion``, token by token, the whole stack anew for each."""
    return _decode(model, prompt, mode, passes, completion.shape[1], completion)[0]


def greedy_by_hand(model: FBTForCausalLM, prompt: Tensor, mode: str, passes: int, tokens: int) -> Tensor:
    """The completion (B, N) that takes the likeliest token every time."""
    return _decode(model, prompt, mode, passes, tokens, None)[1]


def _decode(model, prompt, mode, passes, tokens, completion):
    inputs = prompt_inputs_by_hand(model, prompt, passes)
    states, chosen = stack(model, inputs), []
    for step in range(tokens):
        token = model.lm_head(states[:, -1:]).argmax(-1) if completion is None else completion[:, step : step + 1]
        new = plain_by_hand(model, token) if mode == "standard" else fuse_by_hand(model, states[:, -1:], token)
        inputs = torch.cat((inputs, new), dim=1)
        states = stack(model, inputs)
        chosen.append(token)
    return states, torch.cat(chosen, dim=1)
