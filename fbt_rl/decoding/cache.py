"""Keys and values in tensors that are allocated once and then only written into.

transformers' ``DynamicCache`` copies everything it holds at every step. Decoding knows beforehand how
far it can go, so this cache is allocated at its final length, is filled in place and hands attention
views of the filled part. Rows leave it without the others being copied.

Letters: B rows, H key/value heads, S slots, d head width, W sliding window.
"""

from __future__ import annotations

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer


def _grown(source: torch.Tensor, rows: torch.Tensor, slots: int) -> torch.Tensor:
    """``source`` (U, H, s, d) with rows repeated or reordered by ``rows`` (B), in a tensor (B, H, slots, d)."""
    heads, filled, width = source.shape[1:]
    grown = source.new_empty(len(rows), heads, slots, width)
    grown[:, :, :filled] = source.index_select(0, rows)
    return grown


class PreallocatedLayer(CacheLayerMixin):
    """One attention layer. A sliding layer holds at most 2 W slots: when full, the last W - 1 move to the front."""

    keys: torch.Tensor  # (B, H, S, d)
    values: torch.Tensor

    def __init__(self, source: DynamicLayer, rows: torch.Tensor, new_tokens: int):
        super().__init__()
        if source.keys is None or source.values is None:
            raise ValueError("a cache layer is empty: run the prefill before the cache is preallocated")
        self.window = source.sliding_window if isinstance(source, DynamicSlidingWindowLayer) else None
        self.is_sliding = self.window is not None
        self.seen = source.get_seq_length()  # positions so far, also those that have slid out
        self.filled = source.keys.shape[-2]  # slots in use
        slots = self.filled + new_tokens
        if self.window is not None:
            slots = min(slots, 2 * self.window)
        self.keys = _grown(source.keys, rows, slots)
        self.values = _grown(source.values, rows, slots)
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the layer is built from a prefill."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (B, H, 1, d) and return views (B, H, s, d) of what the new position may attend to."""
        if self.window is not None and self.filled == self.keys.shape[-2]:
            kept = self.window - 1
            for buffer in (self.keys, self.values):  # S = 2 W here: the two ranges do not overlap
                buffer[:, :, :kept] = buffer[:, :, self.filled - kept : self.filled]
            self.filled = kept
        self.keys[:, :, self.filled : self.filled + 1] = key_states
        self.values[:, :, self.filled : self.filled + 1] = value_states
        self.filled += 1
        self.seen += 1
        start = 0 if self.window is None else max(0, self.filled - self.window)
        return self.keys[:, :, start : self.filled], self.values[:, :, start : self.filled]

    def drop_rows(self, holes: torch.Tensor, movers: torch.Tensor, count: int) -> None:
        """Put rows ``movers`` in the places ``holes``, then keep the first ``count`` rows (a view)."""
        for buffer in (self.keys, self.values):
            buffer[holes, :, : self.filled] = buffer[movers, :, : self.filled]
        self.keys, self.values = self.keys[:count], self.values[:count]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that the next ``query_length`` = 1 position sees."""
        total = self.seen + query_length
        length = total if self.window is None else min(total, self.window - 1 + query_length)
        return length, total - length

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1 if self.window is None else self.window


class PreallocatedCache(Cache):
    """Continues a prefill for up to ``new_tokens`` positions, one at a time.

    Row i of the new cache is row ``rows[i]`` of ``prefill``, so that G samples of a prompt share its
    prefill. Layers that are no plain attention (convolutions, recurrent states) stay what they are.
    """

    def __init__(self, prefill: DynamicCache, rows: torch.Tensor, new_tokens: int):
        layers = []
        for layer in prefill.layers:
            if isinstance(layer, DynamicLayer) and type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
                layers.append(PreallocatedLayer(layer, rows, new_tokens))
            else:
                layer.reorder_cache(rows)  # pyright: ignore[reportArgumentType]
                layers.append(layer)
        super().__init__(layers=layers)

    def step_mask(self, mask: torch.Tensor, layer_types: list[str] | None) -> torch.Tensor | dict | None:
        """Attention mask of the next position, out of ``mask`` (B, S) over all positions, as views.

        By layer type, each (B, 1, 1, s), where ``layer_types`` is given: what the model would otherwise make anew at
        every step. Else (B, s). None for a model without attention: its states hold no padding any more.
        """
        attention = [layer for layer in self.layers if isinstance(layer, PreallocatedLayer)]
        if not attention:
            return None
        if layer_types is None:
            return mask[:, : attention[0].seen + 1]
        masks = {}
        for layer, layer_type in zip(attention, layer_types, strict=True):
            if layer_type not in masks:
                length, offset = layer.get_mask_sizes(1)
                masks[layer_type] = mask[:, None, None, offset : offset + length]
        return masks

    def drop_rows(self, holes: torch.Tensor, movers: torch.Tensor, count: int) -> None:
        """Shrink the batch to ``count`` rows; ``holes`` < ``count`` are filled with ``movers`` >= ``count``."""
        order = torch.arange(count, device=holes.device)
        order[holes] = movers
        for layer in self.layers:
            if isinstance(layer, PreallocatedLayer):
                layer.drop_rows(holes, movers, count)
            else:
                layer.reorder_cache(order)  # pyright: ignore[reportArgumentType]
