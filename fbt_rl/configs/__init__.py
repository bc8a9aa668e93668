"""The configs that come with the package, by name."""

from pathlib import Path

SHIPPED_CONFIGS = {file.stem: file for file in sorted(Path(__file__).parent.glob("*.yaml"))}
