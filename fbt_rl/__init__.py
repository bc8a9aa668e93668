"""Training and RL post-training for full-bandwidth transformers."""

__version__ = "0.1.0"
