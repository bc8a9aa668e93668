"""Shapes of the model by name; see :class:`fbt_rl.config.ModelConfig`."""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # A third of a million parameters: trains in minutes on two cores.
    "tiny": {
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": 64,
        "full_attention_interval": 3,
        "max_position_embeddings": 128,
        "rope_theta": 10_000.0,
        "rope_theta_full": 10_000.0,
    },
    # Wang et al. 2026, the 1B model at 8K context.
    "paper-1b": {
        "vocab_size": 100_352,
        "hidden_size": 1536,
        "intermediate_size": 6656,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "sliding_window": 2048,
        "full_attention_interval": 6,
        "max_position_embeddings": 8192,
        "rope_theta": 250_000.0,
        "rope_theta_full": 250_000.0,
    },
}
