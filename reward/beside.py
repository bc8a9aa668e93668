"""A reward's own file and the modules beside it that it imports: which they are, and how they are loaded.

All of them are loaded as parts of a package of the file's own, so that two files with a ``helper.py`` beside each do
not get each other's; ``import helper`` finds it because these modules have an ``__import__`` that looks there first.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib
import sys
import traceback
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

_PREFIX = "reward_file_"
_NEVER_BESIDE = sys.stdlib_module_names | {"fbt_rl", "pretrain", "sft", "rl", "reward"}  # whatever lies there


def files_of(path: Path) -> list[Path]:
    """The file and those of its folder that its import statements name, theirs included, wherever they stand in it.

    Absolute paths, the file first. Where one cannot be parsed, or is not there, its imports are left out.
    """
    path = path.expanduser().absolute()
    found: dict[Path, tuple[str, ...]] = {path: (path.stem,)}
    for file in (todo := [path]):  # grows while it is read
        try:
            nodes = list(ast.walk(ast.parse(file.read_bytes())))
        except (OSError, SyntaxError, ValueError):
            continue
        package = found[file] if file.name == "__init__.py" else found[file][:-1]
        names = [name for node in nodes for name in _imported(node, package)]
        for name in names:
            for end in range(1, len(name) + 1):
                imported = _file(path.parent, name[:end])
                if imported is not None and imported not in found:
                    found[imported] = name[:end]
                    todo.append(imported)
    return todo


def load_file(path: Path) -> ModuleType:
    """The file as a module, loaded anew, with what it imports from its folder. Raises whatever the file raises."""
    path = path.expanduser().absolute()
    package = _PREFIX + hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    importlib.invalidate_caches()
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
    sys.modules[package] = ModuleType(package)
    sys.modules[package].__path__ = [str(path.parent)]
    name = f"{package}.{path.stem.replace('.', '_')}"
    spec = spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        del sys.modules[name]
        importer = _importer(error)
        if error.name is None or not importer.is_relative_to(path.parent):
            raise
        missing = error.name.removeprefix(f"{package}.")
        raise ModuleNotFoundError(
            f"{importer} imports {missing!r}, which neither lies in {path.parent} nor is installed",
            name=error.name,
        ) from error
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _imported(node: ast.AST, package: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The names of the modules that a statement of a module in ``package`` may import, from the folder on."""
    if isinstance(node, ast.Import):
        names = [tuple(alias.name.split(".")) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        above = len(package) + 1 - node.level
        start = (package[:above] if node.level and above >= 0 else ()) + tuple((node.module or "").split("."))
        start = tuple(filter(None, start))
        names = [start, *((*start, alias.name) for alias in node.names)]
        if node.level:
            return names
    else:
        return []
    return [name for name in names if name[0] not in _NEVER_BESIDE]


def _file(folder: Path, name: tuple[str, ...]) -> Path | None:
    """The file of a module that lies in the folder."""
    inside = folder.joinpath(*name)
    candidates = (inside / "__init__.py", inside.with_name(f"{inside.name}.py")) if name else ()
    return next((file for file in candidates if file.is_file()), None)


def _importer(error: ModuleNotFoundError) -> Path:
    """The file whose import failed: the innermost but for the machinery of importing."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return Path(next(file for file in reversed(files) if file != __file__ and not file.startswith("<frozen")))


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        package = module.__name__.partition(".")[0]
        folder = Path(sys.modules[package].__path__[0])

        def import_beside(
            name: str, given: Any = None, local: Any = None, fromlist: tuple[str, ...] = (), level: int = 0
        ) -> ModuleType:
            top = name.partition(".")[0]
            if level or top in _NEVER_BESIDE or _file(folder, (top,)) is None:
                return builtins.__import__(name, given, local, fromlist, level)
            found = builtins.__import__(f"{package}.{name}", given, local, fromlist, 0)
            return found if fromlist else sys.modules[f"{package}.{top}"]

        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": import_beside}
        super().exec_module(module)


class _Finder:
    """Has the modules of such packages loaded by ``_Loader``."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(_PREFIX):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
