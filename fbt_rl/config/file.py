"""Reading a run configuration: YAML, overrides, and errors that name what the user typed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import ValidationError

from fbt_rl.config.sections import KeyFault, Strict
from fbt_rl.config.stages import RunConfig
from fbt_rl.configs import SHIPPED_CONFIGS

_MOST_VALUES = 100_000  # of a config, aliases counted as often as they stand
_SHOWN = 200  # characters of what was given, in a message

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
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    values = _read_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: it must hold a mapping of settings, found {type(values).__name__}")
    return values


def find_config(path: str | Path) -> Path:
    """The file meant by ``path``: itself, or the shipped config of that name (``tiny``)."""
    given = Path(path)
    if given.is_file():
        return given
    if given.parent == Path(".") and given.stem in SHIPPED_CONFIGS:
        return SHIPPED_CONFIGS[given.stem]
    raise ConfigError(f"no config file {path}; shipped configs: {', '.join(SHIPPED_CONFIGS)}")


def parse_config(values: dict[str, Any]) -> RunConfig:
    """Validate plain values. Raises :class:`ConfigError` with one line per fault."""
    return validate(RunConfig, values)


def validate(root: type[Section], values: dict[str, Any], where: str = "") -> Section:
    """Validate plain values as any section; ``where`` goes before the keys in messages. Raises :class:`ConfigError`."""
    try:
        return root.model_validate(values)
    except ValidationError as error:
        lead = f"{where} " if where else ""
        told: dict[str, list[str]] = {}  # a value that may be of two kinds has a fault of each
        for fault in error.errors(include_url=False):
            path, message = _describe(fault, root, values)
            told.setdefault(path, []).append(message)
        raise ConfigError("\n".join(f"{lead}{path}: {'; or '.join(told[path])}" for path in told)) from error


def dump_config(config: RunConfig) -> str:
    """The resolved config as YAML; loading it gives an equal config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


# --- YAML ----------------------------------------------------------------------------------------


def _read_yaml(text: str, name: str) -> Any:
    """The value that ``text`` stands for; ``name`` is what messages start with. Raises :class:`ConfigError`."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        for count, place in enumerate(_nodes(node, ())):
            if fault := _odd(*place):
                raise ConfigError(f"{name}: {fault}")
            if count > _MOST_VALUES:
                raise ConfigError(f"{name}: with its aliases it holds more than {_MOST_VALUES:,} values")
        return loader.construct_document(node)
    except ConfigError:
        raise
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f", in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{name}: not valid YAML ({problem or str(error).splitlines()[0]}{where})") from error
    except Exception as error:  # PyYAML's, of what has the form of a date or number, or lies 1,000 deep
        raise ConfigError(f"{name}: it holds a value that cannot be read ({_short(str(error))})") from error


_Place = tuple[yaml.Node, tuple[str, ...], tuple[yaml.Node, ...]]


def _nodes(node: yaml.Node, path: tuple[str, ...], above: tuple[yaml.Node, ...] = ()) -> Iterator[_Place]:
    """All nodes as often as aliases repeat them, each with its keys and the nodes that it lies in."""
    yield node, path, above
    if isinstance(node, yaml.MappingNode | yaml.SequenceNode):
        for place, entry in enumerate(node.value):
            key, value = entry if isinstance(node, yaml.MappingNode) else (str(place), entry)
            yield from _nodes(value, (*path, str(getattr(key, "value", key))), (*above, node))


def _odd(node: yaml.Node, path: tuple[str, ...], above: tuple[yaml.Node, ...]) -> str:
    """What YAML allows and a config does not: a key twice in a mapping, an alias of what it lies in; else ""."""
    if any(node is outer for outer in above):
        return f"{'.'.join(path)} is an alias of what it lies in"
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, list[int]] = {}
        for key, _ in node.value:
            lines.setdefault(str(key.value), []).append(key.start_mark.line + 1)
        for key, places in lines.items():
            if len(places) > 1:
                return f"{'.'.join((*path, key))} stands there more than once, in lines {', '.join(map(str, places))}"
    return ""


# --- overrides -----------------------------------------------------------------------------------


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    parts = key.split(".")
    if not sign or not all(parts):
        raise ConfigError(f"{_short(key) or repr(override)}: not of the form dotted.key=value")
    value = _read_yaml(text, key)
    node: Any = values
    for depth, part in enumerate(parts):
        above = ".".join(parts[:depth])
        index: Any = part
        if isinstance(node, list):
            if not part.isdecimal() or int(part) >= len(node):
                raise ConfigError(f"{key}: {above} is a list of {len(node)}, it has no {part!r}")
            index = int(part)
        elif not isinstance(node, dict):
            raise ConfigError(f"{key}: {above} is a single value, it has no {part!r}")
        if depth == len(parts) - 1:
            node[index] = value
        else:
            node = node.setdefault(index, {}) if isinstance(node, dict) else node[index]


# --- messages ------------------------------------------------------------------------------------


def _describe(fault: Any, root: type[Strict], values: dict[str, Any]) -> tuple[str, str]:
    """The path of the key at fault, and what is wrong with it."""
    path, section, options = _locate(fault, root, values)
    kind, message = fault["type"], fault["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        known = list(section.model_fields)
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        message = f"unknown key; did you mean {near[0]!r}?" if near else f"unknown key; known keys: {', '.join(known)}"
    elif kind.startswith("union_tag"):
        path.append(fault["ctx"]["discriminator"].strip("'"))
        if kind == "union_tag_not_found":
            message = f"missing; there are {', '.join(filter(None, map(_tag, options)))}"
    elif kind == "missing":
        message = "it is needed, and not given"
    elif isinstance(error := fault.get("ctx", {}).get("error"), KeyFault):
        path += error.key.split(".")
    elif not isinstance(fault["input"], dict | list):
        message = f"{message} (given: {_short(repr(fault['input']))})"
    return ".".join(_short(part) for part in path) or "config", message


def _locate(fault: Any, root: type[Strict], values: Any) -> tuple[list[str], type[Strict], list[type[Strict]]]:
    """The path as typed, the section it lies in, and the sections that its value may be.

    A pydantic location also names the chosen member of a union, which nobody typed: what is neither in ``values`` nor
    missing there is left out.
    """
    typed: list[str] = []
    section, options = root, []
    for part in fault["loc"]:
        tagged = [option for option in options if _tag(option) == part]
        if len(options) > 1 and tagged:
            section, options = tagged[0], []
            continue
        if len(options) == 1:
            section = options[0]
        if isinstance(values, dict | list) and part in (values if isinstance(values, dict) else range(len(values))):
            values = values[part]
        elif fault["type"] == "missing" and part == fault["loc"][-1]:
            values = None
        else:
            continue
        typed.append(str(part))
        if isinstance(part, str) and part in section.model_fields:
            options = _sections_in(section.model_fields[part].annotation)
    return typed, section, options


def _tag(section: type[Strict]) -> str | None:
    tag = section.model_fields.get("kind") or section.model_fields.get("use")
    return tag.default if tag else None


def _sections_in(annotation: Any) -> list[type[Strict]]:
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        return [annotation]
    if get_origin(annotation) is None:
        return []
    return [section for inner in get_args(annotation) for section in _sections_in(inner)]


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
