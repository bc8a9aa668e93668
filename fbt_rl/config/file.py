"""Reading a run configuration: YAML, overrides, and errors that name what the user typed."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import ValidationError

from fbt_rl.config import RunConfig, Strict

Section = TypeVar("Section", bound=Strict)


class ConfigError(ValueError):
    """The configuration cannot be used; the message says which key, what was given and what fits."""


def load_config(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> RunConfig:
    """Read a YAML file and apply ``dotted.key=value`` overrides (values are parsed as YAML).

    A name without a folder and without a file of that name is looked up among the shipped configs.
    Raises :class:`ConfigError`.
    """
    values = read_mapping(find_config(path))
    for override in overrides:
        _apply_override(values, override)
    return parse_config(values)


def read_mapping(path: Path) -> dict[str, Any]:
    """The settings a YAML file holds. Raises :class:`ConfigError`."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of settings, found {type(values).__name__}")
    return values


def find_config(path: str | Path) -> Path:
    """The file meant by ``path``: itself, or the shipped config of that name (``tiny``)."""
    given, shipped = Path(path), Path(__file__).parent / "configs"
    if given.is_file():
        return given
    if given.parent == Path("."):
        named = shipped / f"{given.stem}.yaml"
        if named.is_file():
            return named
    names = ", ".join(sorted(file.stem for file in shipped.glob("*.yaml")))
    raise ConfigError(f"no config file {path}; shipped configs: {names}")


def parse_config(values: dict[str, Any]) -> RunConfig:
    """Validate plain values. Raises :class:`ConfigError` with one line per fault."""
    return validate(RunConfig, values)


def validate(root: type[Section], values: dict[str, Any], where: str = "") -> Section:
    """Validate plain values as any section; ``where`` goes before the keys in messages. Raises :class:`ConfigError`."""
    try:
        return root.model_validate(values)
    except ValidationError as error:
        lead = f"{where} " if where else ""
        raise ConfigError("\n".join(lead + _describe(fault, root) for fault in error.errors())) from error


def dump_config(config: RunConfig) -> str:
    """The resolved config as YAML; loading it gives an equal config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    if not sign or not key:
        raise ConfigError(f"override {override!r} is not of the form dotted.key=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {key}: cannot read the value {text!r}") from error
    node: Any = values
    parts = key.split(".")
    for depth, part in enumerate(parts):
        index: Any = part
        if isinstance(node, list):
            if not part.isdigit() or int(part) >= len(node):
                raise ConfigError(f"override {key}: {'.'.join(parts[:depth])} is a list of {len(node)}, not {part!r}")
            index = int(part)
        elif not isinstance(node, dict):
            raise ConfigError(f"override {key}: {'.'.join(parts[:depth])} is a single value, it has no {part!r}")
        if depth == len(parts) - 1:
            node[index] = value
        else:
            node = node.setdefault(index, {}) if isinstance(node, dict) else node[index]


def _describe(fault: Any, root: type[Strict]) -> str:
    path, section = _locate(fault["loc"], root)
    if fault["type"] == "extra_forbidden":
        known = list(section.model_fields)
        near = difflib.get_close_matches(path.rsplit(".", 1)[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"{path}: unknown key; {hint}"
    message = fault["msg"].removeprefix("Value error, ")
    given = fault.get("input")
    shown = "" if isinstance(given, dict | list) or fault["type"] == "missing" else f" (given: {given!r})"
    return f"{path or 'config'}: {message}{shown}"


def _locate(location: tuple[Any, ...], root: type[Strict]) -> tuple[str, type[Strict]]:
    """The path as typed, and the section it lies in.

    A pydantic location also names the chosen member of a tagged union, which nobody typed.
    """
    typed: list[str] = []
    section = root
    options: list[type[Strict]] = []
    for part in location:
        tagged = [option for option in options if _tag(option) == part]
        if len(options) > 1 and tagged:
            section, options = tagged[0], []
            continue
        if len(options) == 1:
            section = options[0]
        typed.append(str(part))
        if isinstance(part, str) and part in section.model_fields:
            options = _sections_in(section.model_fields[part].annotation)
    return ".".join(typed), section


def _tag(section: type[Strict]) -> str | None:
    tag = section.model_fields.get("kind") or section.model_fields.get("use")
    return tag.default if tag else None


def _sections_in(annotation: Any) -> list[type[Strict]]:
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        return [annotation]
    if get_origin(annotation) is None:
        return []
    return [section for inner in get_args(annotation) for section in _sections_in(inner)]
