"""What can be named in a config: shapes of the model, rewards for short answers."""

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

# The length rewards and the settings each takes, with defaults; None: to be given. Meanings: reward.length.
LENGTHS: dict[str, dict[str, float | None]] = {
    "relative": {"weight": 0.5, "sigma_min": 1.0},
    "arora_zanette": {"alpha": 0.4},
    "kimi": {"weight": 0.5},
    "l1_exact": {"target": None, "alpha": 0.0003, "max_penalty": 1.0},
    "l1_max": {"target": None, "alpha": 0.0003},
    "dapo": {"max_length": None, "buffer": None},
    "alp": {"max_length": None, "beta": 0.5},
    "gr3": {"alpha": 0.33},
    "shorter_better": {"alpha": 2.0, "beta": 0.001, "max_penalty": 1.0},
    "laser": {"target": None, "alpha": 0.5},
    "cosine": {"max_length": None},
    "linear": {"max_length": None, "weight": 0.5},
}
