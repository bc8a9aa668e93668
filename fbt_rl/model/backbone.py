"""``FBTModel``: a decoder with latent feedback around it, and the passes over positions (METHOD 1.1–1.3).

Legend: B batch, T positions of this call, D hidden width, K passes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AutoModel, DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import create_masks_for_generate
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults

from fbt_rl.config import PassActivations
from fbt_rl.integrity import has_list, verify
from fbt_rl.model.configuration import FBTConfig
from fbt_rl.model.feedback import LatentFeedback, PassPlan, shift_right

logger = logging.getLogger(__name__)


@dataclass
class FBTModelOutput(BaseModelOutputWithPast):
    """Adds ``pass_states``: the top states (B, T, D) of all K passes, where asked for."""

    pass_states: tuple[Tensor, ...] | None = None


def note_unchecked(folder: Path) -> None:
    """Say it of a model folder that has no checksums."""
    if not has_list(folder):
        logger.warning("no checksums in %s: its files are not checked (an older version wrote it, or no run)", folder)


class FBTPreTrainedModel(PreTrainedModel):
    config_class = FBTConfig
    config: FBTConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    @classmethod
    def from_pretrained(cls, name_or_path: Any, *args: Any, checked: bool = False, **kwargs: Any) -> Any:
        """transformers' own; the files of a local folder are first compared with its checksums (``checked``: they have
        been). Raises Damaged.
        """
        folder = Path(name_or_path, kwargs.get("subfolder") or "") if name_or_path is not None else None
        if folder is not None and folder.is_dir() and not checked:
            verify(folder)
            note_unchecked(folder)
        return super().from_pretrained(name_or_path, *args, **kwargs)


class FBTModel(FBTPreTrainedModel):
    """Text model + input norm + latent feedback.

    Every argument of :meth:`forward` beyond the usual ones is about which inputs are fused and with what:

    - a position is fused in pass k where ``fused_mask`` allows it, its position id is not 0 (the first of a
      document has no earlier state) and there is a state to carry;
    - in pass 1 that state is ``latents``; in every later pass it is the previous pass's, shifted right by one,
      except where ``refresh_mask`` is False or ``prefill_mask`` is True: there ``latents`` stay.
    """

    def __init__(self, config: FBTConfig) -> None:
        super().__init__(config)
        text_config = config.get_text_config()
        self.text_model = AutoModel.from_config(text_config)
        self.feedback = LatentFeedback(text_config.hidden_size, config.fusion) if config.fusion != "none" else None
        self.input_norm = nn.RMSNorm(text_config.hidden_size, getattr(text_config, "rms_norm_eps", 1e-6))
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.text_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.text_model.set_input_embeddings(value)

    def get_decoder(self) -> nn.Module:
        # The text model alone would run without feedback.
        return self

    @merge_with_config_defaults
    @can_return_tuple
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | dict[str, Any] | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        *,
        latents: Tensor | None = None,
        fused_mask: Tensor | None = None,
        refresh_mask: Tensor | None = None,
        prefill_mask: Tensor | None = None,
        num_passes: int = 1,
        jitter: float = 0.0,
        anchor_latents: bool = False,
        detach_passes: bool = False,
        output_passes: bool = False,
        pass_activations: PassActivations = "keep",
        **kwargs: Any,
    ) -> FBTModelOutput:
        """Run K passes over the same positions; nothing is detached between them unless asked for.

        Args:
            input_ids: (B, T); or ``inputs_embeds`` (B, T, D).
            attention_mask: (B, T_total), 0 where padded. None for packed rows, whose ``position_ids`` restart at
                every document: attention is then block-diagonal (only without a cache of the caller's).
            position_ids: (B, T). Default: counted over ``attention_mask``, else from the cache's length on.
            cache: keys and values of earlier positions. Only the last pass reads and fills it.
            latents: (B, T, D); ``latents[:, t]`` is the state carried *into* position t, that is the top state of
                position t - 1 which produced token t's distribution.
            fused_mask: bool (B, T), or (B, K, T) with one slice a pass. Default: everywhere.
            refresh_mask: bool (B, T): where passes after the first take the previous one's states. Default: everywhere.
            prefill_mask: bool (B, T): prompt positions of fused mode. One more plain pass is run first, its states
                shifted right become ``latents`` there, and they are kept in every pass.
            num_passes: K.
            jitter: the re-fused states of passes after the first get uniform noise from [-jitter, jitter].
            anchor_latents: where passes after the first refresh a given state, its value stays that of ``latents`` and
                only the gradient is the previous pass's. For latents known to be the fixed point, whose value every
                further pass would only blur by round-off.
            detach_passes: passes before the last are run without gradient (a pass over the prompt for ``prefill_mask``
                keeps its own).
            output_passes: also return the top states of every pass.
            pass_activations: what the backward pass needs of all passes but the last is kept, or computed again pass
                by pass ("recompute"), or kept in the host's memory ("offload"). Memory then grows little with K.

        Returns:
            ``last_hidden_state`` (B, T, D) is the last pass's.

        Raises:
            ValueError: shapes or arguments that do not fit together (the message says which).
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        embeds = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            position_ids = _default_positions(embeds, attention_mask, cache)
        self._check_feedback_arguments(embeds, cache, latents, fused_mask, prefill_mask, num_passes)

        plain = self.input_norm(embeds) if self.config.plain_input_norm else embeds
        later = position_ids != 0
        carried, known = latents, None
        if prefill_mask is not None:
            prefill_mask = prefill_mask & later
            prefill_mask[:, 0] = False  # nothing in this call comes before the first column
            prefilled = self._prefill_states(plain, attention_mask, position_ids, prefill_mask, kwargs)
            known = prefill_mask if latents is None else None
            carried = prefilled if latents is None else torch.where(prefill_mask[..., None], prefilled, latents)
            refresh_mask = ~prefill_mask if refresh_mask is None else refresh_mask & ~prefill_mask
        plan = PassPlan(later, fused_mask, carried, known, refresh_mask, jitter, anchor_latents)

        # One set of masks serves all passes, unless the caller's cache is static: its masks are wider than the call.
        masks = pass_masks = self._masks(embeds, attention_mask, cache, position_ids)
        if num_passes > 1 and cache is not None and cache.is_compileable:
            pass_masks = self._masks(embeds, attention_mask, None, position_ids)
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)

        pass_states: list[Tensor] = []
        for index in range(num_passes - 1):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not detach_passes):
                inputs = self._stack_input(plan, index, pass_states, embeds, plain)
                pass_states.append(self._early_pass(inputs, pass_masks, position_ids, pass_activations, kwargs))
        outputs = self.text_model(
            inputs_embeds=self._stack_input(plan, num_passes - 1, pass_states, embeds, plain),
            attention_mask=masks,
            position_ids=position_ids,
            cache=cache,
            use_cache=use_cache,
            **kwargs,
        )
        return FBTModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            pass_states=(*pass_states, outputs.last_hidden_state) if output_passes else None,
        )

    def _early_pass(
        self, inputs: Tensor, masks: Any, position_ids: Tensor, activations: PassActivations, kwargs: dict[str, Any]
    ) -> Tensor:
        """The top states (B, T, D) of a pass that is not the last."""

        def states(inputs: Tensor) -> Tensor:
            return self.text_model(
                inputs_embeds=inputs, attention_mask=masks, position_ids=position_ids, use_cache=False, **kwargs
            ).last_hidden_state

        if activations == "recompute":
            return checkpoint(states, inputs, use_reentrant=False)
        if activations == "offload":
            with save_on_cpu(pin_memory=inputs.is_cuda):
                return states(inputs)
        return states(inputs)

    def _stack_input(
        self, plan: PassPlan, index: int, pass_states: list[Tensor], embeds: Tensor, plain: Tensor
    ) -> Tensor:
        """What enters the stack (B, T, D) in pass ``index``: fused where the plan says so, else ``plain``."""
        state, fuse = plan.carried_into(index, pass_states[-1] if pass_states else None)
        if state is None:
            return plain
        assert self.feedback is not None  # checked with the arguments
        normed = plain if self.config.plain_input_norm else self.input_norm(embeds)
        fused = self.input_norm(self.feedback(state.to(embeds.dtype), embeds, normed))
        if self.config.fused_input_rms is not None:
            fused = fused * self.config.fused_input_rms
        return torch.where(fuse[..., None], fused.to(plain.dtype), plain)

    def _prefill_states(
        self, plain: Tensor, attention_mask: Any, position_ids: Tensor, prefill_mask: Tensor, kwargs: dict[str, Any]
    ) -> Tensor:
        """States (B, T, D) carried into the prompt by a plain pass over it; zeros after its last column."""
        columns = prefill_mask.any(dim=0).nonzero()
        width = int(columns.max()) + 1 if len(columns) else 1
        prompt, position_ids = plain[:, :width], position_ids[:, :width]
        if attention_mask is not None:
            attention_mask = attention_mask[:, :width]
        outputs = self.text_model(
            inputs_embeds=prompt,
            attention_mask=self._masks(prompt, attention_mask, None, position_ids),
            position_ids=position_ids,
            use_cache=False,
            **kwargs,
        )
        return F.pad(shift_right(outputs.last_hidden_state), (0, 0, 0, plain.shape[1] - width))

    def _masks(self, embeds: Tensor, attention_mask: Any, cache: Cache | None, position_ids: Tensor) -> Any:
        """Attention masks as the text model takes them (by layer type, where it has several), made once a call."""
        if isinstance(attention_mask, dict):
            return attention_mask
        return create_masks_for_generate(self.config, embeds, attention_mask, cache, position_ids)

    def _check_feedback_arguments(
        self,
        embeds: Tensor,
        cache: Cache | None,
        latents: Tensor | None,
        fused_mask: Tensor | None,
        prefill_mask: Tensor | None,
        num_passes: int,
    ) -> None:
        several = num_passes > 1 or prefill_mask is not None
        if num_passes < 1:
            raise ValueError(f"num_passes is {num_passes}; at least one pass is needed")
        if self.feedback is None and (several or latents is not None):
            raise ValueError("this model has no latent feedback (fusion 'none'): run it with one pass and no latents")
        if latents is not None and latents.shape != embeds.shape:
            raise ValueError(
                f"latents have shape {tuple(latents.shape)}; one state a position is needed: {tuple(embeds.shape)}"
            )
        if fused_mask is not None and fused_mask.dim() == 3 and fused_mask.shape[1] != num_passes:
            raise ValueError(f"fused_mask has {fused_mask.shape[1]} slices for {num_passes} passes")
        if several and cache is not None and cache.get_seq_length() > 0:
            raise ValueError(
                "several passes start at position 0 on an empty cache, this one holds "
                f"{int(cache.get_seq_length())} positions (chunked prefill works with one prefill pass only)"
            )


def _default_positions(embeds: Tensor, attention_mask: Any, cache: Cache | None) -> Tensor:
    """(B or 1, T): counted over a 2-D mask (so that padding on the left does not count), else from the cache on."""
    length = embeds.shape[1]
    if isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
        return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]
    start = cache.get_seq_length() if cache is not None else 0
    return (torch.arange(length, device=embeds.device) + start)[None]
