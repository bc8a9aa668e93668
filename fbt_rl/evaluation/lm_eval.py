"""Any FBT under EleutherAI's lm-eval, as its model ``fbt`` (extra ``lm-eval``).

    python -m fbt_rl.evaluation.lm_eval run --model fbt --model_args path=MODEL,mode=soft,prefill_passes=3 --tasks ...

is lm-eval's own command line: the harness finds models of other packages only once they are imported.

Log-likelihoods are those of prefills: context and continuation are run ``prefill_passes`` times in parallel, each pass
fused with the states of the one before, and the last pass is read. A single pass is plain, so standard and soft then
score alike. Generation decodes token by token in the mode (:mod:`fbt_rl.decoding`).

Letters: B rows, T positions, C tokens of the longest continuation, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import torch
from tqdm.auto import tqdm

from fbt_rl.analysis.table import before_stop
from fbt_rl.config import Mode
from fbt_rl.data.tokenization import load_tokenizer
from fbt_rl.decoding import SamplingParams, decode, pad_left
from fbt_rl.evaluation.answering import stop_check
from fbt_rl.evaluation.evaluate import default_device, eos_token_ids
from fbt_rl.model import is_fbt, load_model
from fbt_rl.model.feedback import resolve_prefill_passes

try:
    from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]
    from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
    from lm_eval.models.utils import has_bos_prefix, normalize_gen_kwargs  # pyright: ignore[reportMissingImports]
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(f"lm-eval cannot be imported ({error}): pip install 'fbt-rl[lm-eval]'") from error

Scored = tuple[float, bool]  # log-likelihood in nats; whether greedy decoding of the last pass gives the same tokens
_log = logging.getLogger(__name__)


@register_model("fbt")
class FBTHarness(TemplateLM):
    """A model folder in one mode; the arguments are lm-eval's ``--model_args``, ``--batch_size`` and ``--device``.

    ``prefill_passes``: default 2 in fused mode, else 1. ``max_gen_toks`` holds where a task names none; ``seed`` is for
    tasks that sample. Raises ValueError for a mode or passes that the model cannot serve.
    """

    def __init__(
        self,
        path: str,
        mode: Mode = "standard",
        prefill_passes: int | None = None,
        batch_size: int | str = 1,
        device: str | None = None,
        dtype: str = "float32",
        attn_implementation: str | None = None,
        max_gen_toks: int = 256,
        seed: int = 0,
    ) -> None:
        super().__init__()
        passes = resolve_prefill_passes(mode, prefill_passes)
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise ValueError(
                f"batch_size is {batch_size!r}; expected a number of rows, 1 or more ('auto' is not served)"
            )
        if str(device).startswith("cuda") and not torch.cuda.is_available():
            device = None  # lm-eval's command line asks for cuda:0 where nothing is said
        self._device = torch.device(device) if device else default_device()
        self.model: Any = load_model(path, dtype, attn_implementation).to(self._device)  # pyright: ignore[reportArgumentType]
        if mode != "standard" and not is_fbt(self.model):
            raise ValueError(f"mode {mode!r} needs latent feedback; the model in {path} has none: use mode=standard")
        self.tokenizer: Any = load_tokenizer(path)
        self._path = str(path)
        self.mode: Mode = mode
        self.prefill_passes = passes
        self.batch_size = int(batch_size)
        self.max_length: int = self.model.config.get_text_config().max_position_embeddings
        self.max_gen_toks = max_gen_toks
        self.seed = seed
        self._ends = eos_token_ids(self.model, self.tokenizer)

    # --- text and tokens -------------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        return self._ends[0] if self.tokenizer.eos_token_id is None else self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has no context."""
        return self.eot_token_id if self.tokenizer.bos_token_id is None else self.tokenizer.bos_token_id

    @property
    def tokenizer_name(self) -> str:
        return self._path

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        if add_special_tokens is None:  # a chat template may have written the first token already
            add_special_tokens = not has_bos_prefix(string, self.tokenizer.bos_token)
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    # --- scoring ---------------------------------------------------------------------------------

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts, in windows of the model's context, each token scored once."""
        windows, owners = [], []
        for index, request in enumerate(requests):
            ids = self.tok_encode(request.args[0])
            for pair in get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1):
                windows.append((None, *make_disjoint_window(pair)))
                owners.append(index)
        totals = [0.0] * len(requests)
        scored = self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm)
        for index, (log_likelihood, _) in zip(owners, scored, strict=True):
            totals[index] += log_likelihood
        return totals

    def _loglikelihood_tokens(self, requests: Sequence[Any], disable_tqdm: bool = False, **_: Any) -> list[Scored]:
        """Of (texts or None, context ids, continuation ids). Contexts that do not fit lose their beginning."""
        answers: dict[tuple[int, ...], list[int]] = {}  # one input may serve several one-token continuations
        for index, (texts, context, continuation) in enumerate(requests):
            if not 1 <= len(continuation) <= self.max_length:
                raise ValueError(
                    f"the continuation of {texts} has {len(continuation)} tokens; expected 1 to {self.max_length}, the "
                    "model's context"
                )
            answers.setdefault(tuple((context + continuation)[-self.max_length - 1 : -1]), []).append(index)
        self._report_cut(sum(len(context) + len(ids) > self.max_length + 1 for _, context, ids in requests))
        inputs = sorted(answers, key=len, reverse=True)
        scored: dict[int, Scored] = {}
        with tqdm(total=len(requests), desc="log-likelihoods", disable=disable_tqdm or None) as bar:
            for start in range(0, len(inputs), self.batch_size):
                batch = inputs[start : start + self.batch_size]
                longest = max(len(requests[index][2]) for ids in batch for index in answers[ids])
                for ids, log_probs in zip(batch, self._log_probs(batch, longest), strict=True):
                    for index in answers[ids]:
                        texts, _, continuation = requests[index]
                        scored[index] = _score(log_probs, continuation)
                        if texts is not None:
                            self.cache_hook.add_partial("loglikelihood", texts, scored[index])
                        bar.update()
        return [scored[index] for index in range(len(requests))]

    @torch.inference_mode()
    def _log_probs(self, rows: Sequence[Sequence[int]], count: int) -> torch.Tensor:
        """(B, C, V): after each of the last ``count`` positions of ``rows``."""
        ids, mask = pad_left(rows, self._device)
        logits = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            use_cache=False,
            logits_to_keep=count,
            **({"num_passes": self.prefill_passes} if is_fbt(self.model) else {}),
        ).logits
        return logits.float().log_softmax(-1)

    # --- generation ------------------------------------------------------------------------------

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers up to the first stop text or end token."""
        groups: dict[tuple[SamplingParams, tuple[str, ...]], list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(self._generation(request.args[1]), []).append(index)
        texts = [""] * len(requests)
        with tqdm(total=len(requests), desc=f"generation, {self.mode}", disable=disable_tqdm or None) as bar:
            for (params, stops), indices in groups.items():
                room = self.max_length - params.max_new_tokens
                prompts = [self.tok_encode(requests[i].args[0]) or [self.prefix_token_id] for i in indices]
                self._report_cut(sum(len(prompt) > room for prompt in prompts))

                def ended(*_: Any) -> None:
                    bar.update()

                completions = decode(
                    self.model,
                    [prompt[-room:] for prompt in prompts],
                    params,
                    seed=self.seed,
                    row_keys=indices,
                    batch_size=self.batch_size,
                    stopped=stop_check(self.tokenizer, stops),
                    on_end=ended,
                )
                for index, completion in zip(indices, completions, strict=True):
                    written = self.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
                    texts[index] = before_stop(written, stops)
                    self.cache_hook.add_partial("generate_until", requests[index].args, texts[index])
        return texts

    def _generation(self, settings: dict[str, Any]) -> tuple[SamplingParams, tuple[str, ...]]:
        """A task's generation settings: how to decode, and the stop texts. Raises ValueError."""
        given = cast("dict[str, Any]", normalize_gen_kwargs(settings, self.max_gen_toks))
        stops = tuple(filter(None, given.pop("until")))
        new_tokens, sampled = given.pop("max_gen_toks"), given.pop("do_sample")
        temperature = float(given.pop("temperature", 1.0)) if sampled else 0.0
        given.pop("temperature", None)
        top_k, top_p = given.pop("top_k", None) or None, given.pop("top_p", None)
        if given:
            raise ValueError(
                f"generation settings {', '.join(map(repr, given))} are not served; known are until, max_gen_toks, "
                "do_sample, temperature, top_k and top_p"
            )
        if new_tokens >= self.max_length:
            raise ValueError(
                f"max_gen_toks is {new_tokens}, which leaves no room for a prompt in the model's context of "
                f"{self.max_length}: give the task or --model_args a smaller max_gen_toks"
            )
        special = self.tokenizer.get_added_vocab()  # such a text would vanish when the tokens are decoded
        params = SamplingParams(
            max_new_tokens=new_tokens,
            mode=self.mode,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            prefill_passes=self.prefill_passes,
            eos_token_ids=tuple(sorted({*self._ends, *(special[text] for text in stops if text in special)})),
        )
        return params, stops

    def _report_cut(self, count: int) -> None:
        if count:
            _log.warning(
                "%d texts are longer than the model's context of %d: they lose their beginning", count, self.max_length
            )


def _score(log_probs: torch.Tensor, continuation: Sequence[int]) -> Scored:
    """Of a continuation of at most C tokens; ``log_probs`` (C, V) end with those of its last token."""
    own = log_probs[-len(continuation) :]
    ids = torch.tensor(continuation, device=own.device)
    return own.gather(-1, ids[:, None]).sum().item(), bool((own.argmax(-1) == ids).all())


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

    cli_evaluate()
