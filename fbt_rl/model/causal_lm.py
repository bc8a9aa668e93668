"""``FBTForCausalLM``: :class:`FBTModel` and an LM head, and decoding by transformers' ``generate``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.generation.configuration_utils import GenerationMode
from transformers.masking_utils import create_masks_for_generate
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from fbt_rl.model.backbone import FBTModel, FBTPreTrainedModel
from fbt_rl.model.configuration import FBTConfig
from fbt_rl.model.feedback import resolve_prefill_passes


@dataclass
class FBTCausalLMOutput(CausalLMOutputWithPast):
    """Adds the top states of the last pass (B, T, D) and, where asked for, of all passes."""

    last_hidden_state: Tensor | None = None
    pass_states: tuple[Tensor, ...] | None = None


class FBTForCausalLM(FBTPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.text_model.embed_tokens.weight"}  # noqa: RUF012
    # Beams and drafts would need the states of several hypotheses; transformers refuses what is not listed.
    _supported_generation_modes = [GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE]  # noqa: RUF012

    def __init__(self, config: FBTConfig) -> None:
        super().__init__(config)
        text_config = config.get_text_config()
        self.model = FBTModel(config)
        self.lm_head = nn.Linear(text_config.hidden_size, text_config.vocab_size, bias=False)
        self.post_init()

    def get_decoder(self) -> nn.Module:
        return self.model

    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | dict[str, Any] | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        *,
        latents: Tensor | None = None,
        fused_mask: Tensor | None = None,
        refresh_mask: Tensor | None = None,
        prefill_mask: Tensor | None = None,
        num_passes: int = 1,
        jitter: float = 0.0,
        output_passes: bool = False,
        **kwargs: Any,
    ) -> FBTCausalLMOutput:
        """:meth:`FBTModel.forward` and the LM head on the last pass.

        ``labels`` (B, T), -100 where ignored, give the mean next-token loss of the last pass; ``logits_to_keep``
        restricts the logits (B, T, V) to the last so many positions (0: all).
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            latents=latents,
            fused_mask=fused_mask,
            refresh_mask=refresh_mask,
            prefill_mask=prefill_mask,
            num_passes=num_passes,
            jitter=jitter,
            output_passes=output_passes,
            **kwargs,
        )
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            vocab_size = self.config.get_text_config().vocab_size
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=vocab_size, **kwargs)
        return FBTCausalLMOutput(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            last_hidden_state=outputs.last_hidden_state,
            pass_states=outputs.pass_states,
        )

    # --- generation ------------------------------------------------------------------------------

    def generate(
        self, *args: Any, decode_mode: str = "standard", prefill_passes: int | None = None, **kwargs: Any
    ) -> Any:
        """transformers' ``generate`` (greedy and sampling) under latent feedback.

        ``decode_mode`` is ``standard``, ``soft`` or ``fused`` (METHOD 1.2); ``prefill_passes`` runs the prompt that
        often (default 1, in fused mode 2).

        Raises:
            ValueError: a mode this model or these settings cannot serve.
        """
        passes = resolve_prefill_passes(decode_mode, prefill_passes)
        if decode_mode != "standard" and self.model.feedback is None:
            raise ValueError(f"decode mode {decode_mode!r} needs latent feedback; this model's fusion is 'none'")
        generate: Callable = super().generate  # pyright: ignore[reportAttributeAccessIssue]
        return generate(*args, decode_mode=decode_mode, prefill_passes=passes, **kwargs)

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Refused, and with it ``generate_batch``: continuous batching would drop the carried states silently."""
        raise NotImplementedError("continuous batching does not carry latent states; use generate() instead")

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        is_first_iteration: bool | None = False,
        decode_mode: str = "standard",
        prefill_passes: int = 1,
        latents: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The prompt is run ``prefill_passes`` times; each later token is fused with the state before it."""
        if decode_mode != "standard" and not kwargs.get("use_cache", True):
            raise ValueError(f"decode mode {decode_mode!r} carries one state a row and needs use_cache=True")
        prepare: Callable = super().prepare_inputs_for_generation  # pyright: ignore[reportAttributeAccessIssue]
        inputs = prepare(input_ids, is_first_iteration=is_first_iteration, **kwargs)
        if is_first_iteration:
            inputs["num_passes"] = prefill_passes
        elif decode_mode != "standard":
            inputs["latents"] = latents
        return inputs

    @staticmethod
    def create_masks_for_generate(
        attention_mask: Tensor | None = None, is_first_iteration: bool = False, **kwargs: Any
    ) -> Any:
        """With a static cache transformers makes masks beforehand; a prompt's passes need theirs without the cache."""
        if is_first_iteration:
            return attention_mask
        return create_masks_for_generate(attention_mask=attention_mask, **kwargs)

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        model_kwargs = super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)
        if model_kwargs.get("decode_mode", "standard") != "standard":
            model_kwargs["latents"] = outputs.last_hidden_state[:, -1:]
        return model_kwargs
