"""Rewards by name, by entry point, by module or by file. Every way to name one is in this file."""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from reward.apart import RewardApart
from reward.base import Reward, RewardError
from reward.beside import load_file

BUILT_IN = {"math": "reward.math.answer:math_verdicts", "code": "reward.code.program:code_verdicts"}
TIME_LIMIT_S = 60.0  # of one call of a function that is not built in, unless another is given
ENTRY_POINTS = "fbt_rl.rewards"  # the group in which installed packages name theirs
_GIVEN = ("prompts", "completions", "completion_ids", "group")  # parameters that are no settings


def load_reward(use: str, args: dict[str, Any] | None = None) -> Reward:
    """The reward meant by ``use``, with ``args`` bound to named parameters of its function, by whose types they are
    checked and converted.

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
    _check_signature(use, function)
    settings = _checked_args(use, function, args or {})
    if use in BUILT_IN:
        module.self_test()
    concurrent = use in BUILT_IN or bool(getattr(function, "concurrent", False))
    return Reward(use, function, settings, concurrent)


def load_limited(use: str, args: dict[str, Any] | None = None, time_limit_s: float | None = None) -> Reward:
    """As :func:`load_reward`; what is not built in is called in a process of its own (:class:`RewardApart`).

    ``time_limit_s`` is that of one call (default: 60). The built-in rewards limit the work on each row, and take none.
    """
    if use not in BUILT_IN:
        reward = load_reward(use, args)
        return RewardApart(use, reward.function, dict(args or {}), reward.concurrent, time_limit_s or TIME_LIMIT_S)
    if time_limit_s is not None:
        message = f"reward {use!r} limits the work on each row by its args, and takes no limit of a whole call"
        raise RewardError(message, "time_limit_s")
    return load_reward(use, args)


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
    try:
        return load_file(path)
    except (Exception, SystemExit) as error:  # whatever a user's file raises
        raise RewardError(f"reward file {path} cannot be imported: {type(error).__name__}: {error}") from error


def _check_signature(use: str, function: Any) -> None:
    if not callable(function):
        raise RewardError(f"reward {use!r} is a {type(function).__name__}, expected a function")
    parameters = inspect.signature(function).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    takes_rest = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if positional or not takes_rest:
        raise RewardError(
            f"reward {use!r} has the signature {inspect.signature(function)}; expected "
            "(prompts, completions, completion_ids, **columns): all is given by keyword, and so is every data column"
        )


def _checked_args(use: str, function: Any, args: dict[str, Any]) -> dict[str, Any]:
    """``args`` as the types of the function's parameters have them; without a type, as they are."""
    if not args:
        return {}
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

    parameters = inspect.signature(function).parameters
    named = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    try:
        types = get_type_hints(function, include_extras=True)
    except Exception:  # a name that is there for type checkers only
        types = {}
    checked = dict(args)
    for name, value in args.items():
        if name not in named or name in _GIVEN:
            settings = [name for name in named if name not in _GIVEN]
            near = difflib.get_close_matches(name, settings, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"its parameters are {', '.join(settings) or 'none'}"
            raise RewardError(f"reward {use!r} takes no argument {name}; {hint}", f"args.{name}")
        if name not in types or (value is None and parameters[name].default is None):
            continue
        try:
            adapter = TypeAdapter(types[name], config=ConfigDict(allow_inf_nan=False))
        except PydanticUserError:  # a type that has rules of its own, or none that can be checked
            continue
        try:
            # As from JSON: true is no number and "3" none either, but a list will do for a tuple or a set.
            checked[name] = adapter.validate_json(json.dumps(value), strict=True)
        except TypeError:  # an object of a caller in Python
            continue
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            place = "".join(f", entry {part}" for part in fault["loc"])
            raise RewardError(
                f"reward {use!r}, argument {name}{place}: {fault['msg']} (given: {value!r:.200})",
                f"args.{name}",
            ) from error
    return checked


def _functions_of(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if inspect.isfunction(value) and not name.startswith("_")]
    return ", ".join(names) or "no functions"
