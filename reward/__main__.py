"""``python -m reward``."""

from reward.cli import main

main()
