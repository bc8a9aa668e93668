"""Rewards by name, by entry point, by module or by file. Every way to name one is in this file."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from reward.base import Reward, RewardError

BUILT_IN = {"math": "reward.math.answer:math_verdicts", "code": "reward.code.program:code_verdicts"}
ENTRY_POINTS = "fbt_rl.rewards"  # the group in which installed packages name theirs


def load_reward(use: str, args: dict[str, Any] | None = None) -> Reward:
    """The reward meant by ``use``, with ``args`` bound to named parameters of its function.

    ``use`` is a built-in name (``math``, ``code``), the name of an installed package's entry point,
    ``package.module:function`` or ``path/to/file.py:function``. Nothing is called but, for a built-in, the
    grader's own self-test. A function with a true attribute ``concurrent`` may be called from any thread, as may the
    built-in ones. Raises :class:`RewardError`.
    """
    source, _, attribute = (BUILT_IN.get(use) or _entry_point(use) or use).rpartition(":")
    if not source:
        known = ", ".join(dict.fromkeys([*BUILT_IN, *installed()]))
        raise RewardError(f"no reward {use!r}: there are {known}; or give module:function or path/to/file.py:function")
    module = _load_file(Path(source)) if source.endswith(".py") else _load_module(source)
    if not hasattr(module, attribute):
        raise RewardError(f"reward {use!r}: {source} has no {attribute!r}; it has {_functions_of(module)}")
    function = getattr(module, attribute)
    _check_signature(use, function, args or {})
    if use in BUILT_IN:
        module.self_test()
    concurrent = use in BUILT_IN or bool(getattr(function, "concurrent", False))
    return Reward(use, function, dict(args or {}), concurrent)


def installed() -> dict[str, list[str]]:
    """The entry points of installed packages: by name, where they lead (more than one place is an error to use)."""
    found: dict[str, set[str]] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        found.setdefault(entry.name, set()).add(f"{entry.module}:{entry.attr}")
    return {name: sorted(places) for name, places in sorted(found.items())}


def _entry_point(name: str) -> str | None:
    places = [] if ":" in name else installed().get(name, [])
    if len(places) > 1:
        raise RewardError(f"two installed packages name a reward {name!r}: give {' or '.join(places)}")
    return places[0] if places else None


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise RewardError(
                f"no module {name!r} for a reward: install its package, or name the file: path/to/file.py:function"
            ) from error
        raise RewardError(f"reward module {name!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # whatever a user's module raises
        raise RewardError(f"reward module {name!r} cannot be imported: {type(error).__name__}: {error}") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise RewardError(f"no reward file {path} (looked from {Path.cwd()})")
    # A name of its own: two files called reward.py do not replace each other.
    name = f"reward_file_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's file raises
        del sys.modules[name]
        raise RewardError(f"reward file {path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _check_signature(use: str, function: Any, args: dict[str, Any]) -> None:
    if not callable(function):
        raise RewardError(f"reward {use!r} is a {type(function).__name__}, expected a function")
    parameters = inspect.signature(function).parameters.values()
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    takes_rest = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if positional or not takes_rest:
        raise RewardError(
            f"reward {use!r} has the signature {inspect.signature(function)}; expected "
            "(prompts, completions, completion_ids, **columns): all is given by keyword, and so is every data column"
        )
    if unknown := sorted(set(args) - named):
        raise RewardError(f"reward {use!r} takes no argument {', '.join(unknown)}; its parameters are {sorted(named)}")


def _functions_of(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if inspect.isfunction(value) and not name.startswith("_")]
    return ", ".join(names) or "no functions"
