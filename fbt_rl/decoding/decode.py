"""Batched standard, soft and fused decoding.

Prompts may have any length: they are sorted, padded on the left and decoded a batch at a time. Equal
prompts of a batch share one prefill, a finished row leaves the batch at once, and the results come
back in the caller's order. A row's randomness is a stream of its own, so what it samples does not
depend on its neighbours.

Letters: B live rows, U distinct prompts, P padded prompt length, N tokens of a completion, D width,
V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from transformers import (
    DynamicCache,
    LogitsProcessorList,
    PreTrainedModel,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from fbt_rl.config import Mode
from fbt_rl.decoding.cache import PreallocatedCache
from fbt_rl.model import is_fbt
from fbt_rl.model.feedback import resolve_prefill_passes

FinishReason = Literal["stop", "length"]
OnEnd = Callable[[int, list[int], FinishReason], None]  # a row's place in the result, its tokens, why it ended

STOP_CHECK_EVERY = 8  # steps between two questions whether a row's text has come to an end


@dataclass(frozen=True)
class SamplingParams:
    """How to decode. ``temperature`` 0 is greedy (no top-k, no top-p); ``prefill_passes`` None: 2 if fused, else 1.

    ``standard`` feeds tokens only; ``soft`` and ``fused`` also carry the top state from token to token
    (Wang et al. 2026). A prefill of k > 1 passes fuses the prompt with the former pass's states.
    """

    max_new_tokens: int
    mode: Mode = "standard"
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    num_samples: int = 1
    prefill_passes: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        resolve_prefill_passes(self.mode, self.prefill_passes)
        for name, good, wanted in (
            ("max_new_tokens", self.max_new_tokens >= 1, "1 or more"),
            ("temperature", self.temperature >= 0, "0 (greedy) or more"),
            ("top_k", self.top_k is None or self.top_k >= 1, "None or 1 or more"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "None or in (0, 1]"),
            ("num_samples", self.num_samples >= 1, "1 or more"),
        ):
            if not good:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected {wanted}")


@dataclass(frozen=True)
class Completion:
    """One sampled completion of N tokens.

    ``finish_reason`` is "stop" where ``token_ids`` ends with an EOS, or :func:`decode`'s ``stopped`` said so.
    ``logprobs`` (N) belong to the
    distribution that was sampled from (after temperature, top-k and top-p; greedy: temperature 1).
    ``latents`` (N, D), in the model's dtype: row j is the state that produced token j's distribution,
    which is what is carried into token j's position when it is fed back (METHOD 2.2).
    """

    prompt_index: int
    sample: int
    token_ids: list[int]
    logprobs: torch.Tensor
    latents: torch.Tensor | None
    finish_reason: FinishReason

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


def decode(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    seed: int = 0,
    row_keys: Sequence[int] | None = None,
    return_latents: bool = False,
    batch_size: int | None = None,
    stopped: Callable[[list[int]], bool] | None = None,
    on_end: OnEnd | None = None,
) -> list[Completion]:
    """Complete every prompt ``params.num_samples`` times; prompt-major order.

    ``model`` is an FBT or, in standard mode, any causal language model of transformers.
    ``seed`` and ``row_keys`` (one a row, default: its index in the result) decide what is sampled.
    ``batch_size`` bounds the rows decoded together (default: all). ``stopped`` is asked every
    ``STOP_CHECK_EVERY`` tokens of a row whether those so far are enough; ``on_end`` is told of each row as it ends.

    Raises ValueError before any work for: an empty prompt, a prompt that with ``max_new_tokens`` does
    not fit the context, an unknown token id, and soft, fused, several prefill passes or latents asked
    of a model without feedback. Raises FloatingPointError when the model yields NaN.
    """
    prompts = [list(prompt) for prompt in prompts]
    _check(model, prompts, params, return_latents, batch_size)
    total = len(prompts) * params.num_samples
    keys = range(total) if row_keys is None else row_keys
    if len(keys) != total:
        raise ValueError(f"{len(keys)} row_keys for {total} rows (prompts × num_samples)")

    by_length = sorted(range(total), key=lambda row: -len(prompts[row // params.num_samples]))
    size = batch_size or max(total, 1)
    completions: dict[int, Completion] = {}
    with _evaluating(model):
        for start in range(0, total, size):
            rows = by_length[start : start + size]
            finished = _decode_batch(
                model,
                [prompts[row // params.num_samples] for row in rows],
                params,
                _uniforms(seed, [keys[row] for row in rows], params, model.device),
                return_latents,
                stopped,
                (lambda place, *ending, rows=rows: on_end(rows[place], *ending)) if on_end else None,
            )
            for row, ending in zip(rows, finished, strict=True):
                completions[row] = Completion(*divmod(row, params.num_samples), *ending)
    return [completions[row] for row in range(total)]


def _check(
    model: PreTrainedModel,
    prompts: list[list[int]],
    params: SamplingParams,
    return_latents: bool,
    batch_size: int | None,
) -> None:
    """Everything that can be refused before work starts."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; expected None or 1 or more")
    config = model.config.get_text_config(decoder=True)
    context = getattr(config, "max_position_embeddings", None)
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {index} is empty: give at least one token (for example the BOS)")
        if context is not None and len(prompt) + params.max_new_tokens > context:
            raise ValueError(
                f"prompt {index} has {len(prompt)} tokens and max_new_tokens is {params.max_new_tokens}: together more "
                f"than the model's context of {context} (max_position_embeddings). Shorten one of them"
            )
        if not 0 <= min(prompt) <= max(prompt) < config.vocab_size:
            raise ValueError(
                f"prompt {index} holds token ids from {min(prompt)} to {max(prompt)}; the model knows 0 to "
                f"{config.vocab_size - 1}. Was it made with this model's tokenizer?"
            )
    needs = [f"mode {params.mode!r}"] if params.mode != "standard" else []
    needs += ["latents"] if return_latents else []
    if needs and not is_fbt(model):
        raise ValueError(
            f"{' and '.join(needs)} asked of a {type(model).__name__} without latent feedback; it has only mode "
            "'standard' and no latents"
        )


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, which means no dropout, and afterwards every module as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _uniforms(seed: int, row_keys: Sequence[int], params: SamplingParams, device: torch.device) -> torch.Tensor | None:
    """(N, B) float64 in (0, 1): column b is the counter-based stream of (seed, row_keys[b]). Greedy: None."""
    if params.temperature == 0:
        return None
    draws = np.stack(
        [np.random.Philox(key=np.array([seed, key], np.uint64)).random_raw(params.max_new_tokens) for key in row_keys]
    )
    # 32 bits and a half: never 0 and never so near 1 that scaling by a rounded total could reach it.
    return torch.from_numpy(((draws.T >> 32) + 0.5) * 2.0**-32).to(device)


def pad_left(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (B, T), and a mask (B, T) that is False on the padding."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return ids, torch.arange(longest, device=device) >= longest - lengths[:, None]


Forward = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def _forward_of(model: PreTrainedModel) -> Forward:
    """``forward(ids (B, T), mask (B, S), positions (B, T), cache, **feedback) -> logits (B, V), state (B, D)``.

    Both of the last position; the state is None for a model without feedback. Models differ in what they take.
    """
    accepted = inspect.signature(model.forward).parameters
    cache_name = next((name for name in ("cache", "past_key_values") if name in accepted), None)
    if cache_name is None:
        raise ValueError(
            f"{type(model).__name__}.forward takes no key/value cache; give a causal language model of transformers "
            "(unwrapped from PEFT, DDP or DeepSpeed)"
        )
    takes_positions = "position_ids" in accepted
    fixed = {"use_cache": True} | ({"logits_to_keep": 1} if "logits_to_keep" in accepted else {})
    has_state = is_fbt(model)

    def forward(ids, mask, positions, cache, **feedback):
        if takes_positions:
            feedback["position_ids"] = positions
        output = model(input_ids=ids, attention_mask=mask, **{cache_name: cache}, **fixed, **feedback)
        return output.logits[:, -1], output.last_hidden_state[:, -1] if has_state else None

    return forward


def _layer_types(model: PreTrainedModel) -> list[str] | None:
    """Layer types where the model takes boolean masks by type (an FBT with sdpa), which saves 10 % at D = 96."""
    config = model.config.get_text_config(decoder=True)
    types = getattr(config, "layer_types", None)
    known = is_fbt(model) and types and set(types) <= {"full_attention", "sliding_attention"}
    return types if known and config._attn_implementation == "sdpa" else None


def _choose(
    logits: torch.Tensor, uniforms: torch.Tensor | None, params: SamplingParams, warpers: LogitsProcessorList
) -> tuple[torch.Tensor, torch.Tensor]:
    """Next tokens (B) of ``logits`` (B, V), and their log-probs (B) under the processed distribution.

    ``uniforms`` (B) select by the inverse CDF in float64; None takes the likeliest token.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if uniforms is None:
        logprobs = logits.log_softmax(-1)
        tokens = logits.argmax(-1)
    else:
        if params.temperature != 1:
            logits = logits / params.temperature
        logprobs = warpers(uniforms, logits).log_softmax(-1)  # pyright: ignore[reportArgumentType] (ids: not read)
        cdf = logprobs.double().exp().cumsum(-1)
        tokens = torch.searchsorted(cdf, uniforms[:, None] * cdf[:, -1:], right=True)[:, 0]
        tokens = tokens.clamp(max=logits.shape[-1] - 1)  # NaN only; reported when the batch is done
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def _prefill(
    model: PreTrainedModel, forward: Forward, prompts: list[list[int]], params: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, PreallocatedCache]:
    """Run every distinct prompt once and spread the outcome over the B rows.

    Returns logits (B, V), state (B, D) or None, mask (B, P + N) that is False on the left padding, cache.
    """
    distinct = {tuple(prompt): index for index, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    ids, prompt_mask = pad_left(list(distinct), model.device)  # (U, P)
    mask = torch.nn.functional.pad(prompt_mask, (0, params.max_new_tokens), value=True)
    cache = DynamicCache(config=model.config)
    positions = (prompt_mask.cumsum(-1) - 1).clamp(min=0)
    passes = {"num_passes": resolve_prefill_passes(params.mode, params.prefill_passes)} if is_fbt(model) else {}
    logits, state = forward(ids, prompt_mask, positions, cache, **passes)
    rows = torch.tensor([distinct[tuple(prompt)] for prompt in prompts], device=model.device)
    state = None if state is None else state[rows]
    # The last token of a completion is never fed back.
    return logits[rows], state, mask[rows], PreallocatedCache(cache, rows, params.max_new_tokens - 1)


Ending = tuple[list[int], torch.Tensor, torch.Tensor | None, FinishReason]


def _decode_batch(
    model: PreTrainedModel,
    prompts: list[list[int]],
    params: SamplingParams,
    uniforms: torch.Tensor | None,
    return_latents: bool,
    stopped: Callable[[list[int]], bool] | None,
    on_end: OnEnd | None,
) -> list[Ending]:
    """Of each row tokens, log-probs (N), latents (N, D) and finish reason; ``uniforms`` (N, B), None for greedy."""
    taken: list[tuple[torch.Tensor, ...]] = []  # a step's rows, log-probs and states, of live rows only
    endings: dict[int, tuple[list[int], FinishReason]] = {}
    with torch.inference_mode():
        forward = _forward_of(model)
        warpers = _warpers(params)
        eos = torch.tensor(params.eos_token_ids, dtype=torch.long, device=model.device)
        logits, state, mask, cache = _prefill(model, forward, prompts, params)
        rows = torch.arange(len(prompts), device=model.device)
        positions = torch.tensor([[len(prompt)] for prompt in prompts], device=model.device)  # of the next input
        written = torch.empty(len(prompts), params.max_new_tokens, dtype=torch.long, device=model.device)
        layer_types = _layer_types(model)

        def end(ended: torch.Tensor, length: int, reason: FinishReason) -> None:
            for row, tokens in zip(ended.tolist(), written[ended, :length].tolist(), strict=True):
                endings[row] = tokens, reason
                if on_end:
                    on_end(row, tokens, reason)

        for step in range(params.max_new_tokens):
            tokens, logprobs = _choose(logits, None if uniforms is None else uniforms[step, rows], params, warpers)
            taken.append((rows, logprobs) + ((state,) if return_latents and state is not None else ()))
            written[rows, step] = tokens
            finished = torch.isin(tokens, eos)
            if stopped and (step + 1) % STOP_CHECK_EVERY == 0:
                enough = [stopped(so_far) for so_far in written[rows, : step + 1].tolist()]
                finished |= torch.tensor(enough, device=finished.device)
            count = len(rows) - int(finished.sum())
            if count < len(rows):
                end(rows[finished], step + 1, "stop")
            if step + 1 == params.max_new_tokens or count == 0:
                end(rows[~finished], step + 1, "length")
                break
            if count < len(rows):
                holes = finished[:count].nonzero()[:, 0]
                movers = count + (~finished[count:]).nonzero()[:, 0]
                cache.drop_rows(holes, movers, count)
                order = torch.arange(count, device=model.device)
                order[holes] = movers
                rows, tokens, positions, mask = rows[order], tokens[order], positions[order], mask[order]
                state = None if state is None else state[order]
            feedback = {"latents": state[:, None]} if params.mode != "standard" and state is not None else {}
            logits, state = forward(tokens[:, None], cache.step_mask(mask, layer_types), positions, cache, **feedback)
            positions = positions + 1
    return _by_row(taken, endings)


def _by_row(taken: list[tuple[torch.Tensor, ...]], endings: dict[int, tuple[list[int], FinishReason]]) -> list[Ending]:
    """Regroup what the steps gave by row. Copies, made outside inference mode: a loss may be built on them."""
    rows, *columns = (torch.cat(column) for column in zip(*taken, strict=True))
    order = rows.argsort(stable=True)
    if not bool(columns[0].isfinite().all()):
        raise FloatingPointError("log-probs of the decoded tokens are not finite: are the model's weights?")
    lengths = [len(endings[row][0]) for row in range(len(endings))]
    logprobs, *latents = (column[order].split(lengths) for column in columns)
    copies = [part.clone() for part in latents[0]] if latents else [None] * len(lengths)
    return [(endings[row][0], logprobs[row].clone(), copies[row], endings[row][1]) for row in range(len(lengths))]


def _warpers(params: SamplingParams) -> LogitsProcessorList:
    """Top-k and top-p, for evaluation: training needs the untruncated distribution (METHOD 2.1)."""
    warpers = LogitsProcessorList()
    if params.top_k is not None:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p is not None:
        warpers.append(TopPLogitsWarper(params.top_p))
    return warpers
