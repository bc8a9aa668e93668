"""Files that are whole or absent, and whose damage is noticed when they are read.

Everything is written under another name and renamed. A folder that is complete holds ``fbt-rl.sha256``, which
``sha256sum -c`` reads too: a digest and a name a line, and as its last line, a comment, the digest of the lines above,
so that damage to the list is not blamed on a file. JSON that changes while a run goes on carries its own digest.

A file is hashed whenever it is read, whatever is known of its size and time: a bad disk or a bad copy changes neither.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

LIST = "fbt-rl.sha256"
_OWN_DIGEST = b"# sha256 of the lines above: "
_MARK = {"checksums": LIST}  # in the JSON that is written last in a folder: there has to be a list
# The end of JSON with a digest of its own. Two keys, so that damage to one does not make it look like JSON without.
_SEAL = re.compile(rb'"sha256": "([0-9a-f]{64})"\n}\n\Z')
_SEALED = b'\n  "checksum": "sha256",\n'


class Damaged(ValueError):
    """A file is missing or not what was written; the message names it and says what to do."""


# --- whole or absent -----------------------------------------------------------------------------


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON; a reader sees the old file or the new one, never a part."""
    write_text(path, _json(value))


def write_text(path: Path, text: str) -> None:
    """Write ``text`` by rename, flushed to disk first so that a crash cannot leave an empty file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """The value in ``path``. Raises :class:`Damaged` where it is no JSON, OSError."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise Damaged(f"{path} is damaged ({error}): {_remedy(path.parent)}") from error


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


# --- JSON that changes: a digest of its own -------------------------------------------------------


def write_sealed_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object whose last value is the SHA-256 of the file with zeros in its place."""
    empty = "0" * 64
    text = _json({**value, "checksum": "sha256", "sha256": empty})
    head, _, tail = text.rpartition(empty)
    write_text(path, head + hashlib.sha256(text.encode()).hexdigest() + tail)


def read_sealed_json(path: Path, remedy: str) -> dict[str, Any]:
    """The object that :func:`write_sealed_json` wrote, or one that an older version or a person wrote without a digest.

    Raises :class:`Damaged`, with ``remedy`` as what to do, and OSError.
    """
    content = path.read_bytes()
    seal = _SEAL.search(content)
    if seal is not None:
        zeroed = content[: seal.start(1)] + b"0" * 64 + content[seal.end(1) :]
        sound = hashlib.sha256(zeroed).hexdigest().encode() == seal[1]
    else:
        sound = _SEALED not in content
    value = None
    if sound:
        with suppress(ValueError):  # damage to a file without a digest
            value = json.loads(content)
    if not isinstance(value, dict):
        raise Damaged(f"{path} is damaged (it is not what was written): {remedy}")
    return {key: item for key, item in value.items() if key not in ("checksum", "sha256")}


# --- folders that are complete: a list of checksums -----------------------------------------------


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path) -> None:
    """Write the list of all files below ``folder``, which is complete but has not got its final name yet."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LIST)
    _write_list(folder, _digests(folder, sorted(str(path.relative_to(folder)) for path in files)))


def write_last(path: Path, value: Mapping[str, Any], names: Iterable[str]) -> None:
    """Write the JSON file ``path``, whose presence means that its folder is complete, and before it the folder's list.

    The list is of ``names``, those that are there, and of ``path``.
    """
    folder, text = path.parent, _json({**value, **_MARK})
    digests = _digests(folder, [name for name in names if (folder / name).is_file()])
    digests[path.name] = hashlib.sha256(text.encode()).hexdigest()
    _write_list(folder, digests)
    write_text(path, text)


def read_last(path: Path) -> dict[str, Any]:
    """What :func:`write_last` was given. Raises :class:`Damaged`, OSError."""
    verify(path.parent, path.name.__eq__)
    return {key: value for key, value in read_json(path).items() if key not in _MARK}


def reopen(last: Path) -> None:
    """The folder that ``last`` completed will be written to: take ``last`` away, and then its list."""
    last.unlink(missing_ok=True)
    (last.parent / LIST).unlink(missing_ok=True)


def has_list(folder: Path) -> bool:
    """Whether there are checksums; an older version of this package wrote none."""
    return (folder / LIST).is_file()


def verify(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> None:
    """Compare the listed files of ``folder`` whose names are ``wanted`` with the list; without a list do nothing.

    Raises :class:`Damaged` for the first that is missing or differs, and for a list that is damaged or was removed.
    """
    if (fault := fault_in(folder, wanted)) is not None:
        raise Damaged(f"{fault}: {_remedy(folder)}")


def verify_file(path: Path) -> None:
    """As :func:`verify` for one file, which the list of its folder or of the one above names."""
    verify(path.parent, path.name.__eq__)
    verify(path.parent.parent, f"{path.parent.name}/{path.name}".__eq__)


def fault_in(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> str | None:
    """What :func:`verify` would say, without what to do; None: nothing is wrong."""
    if not has_list(folder):
        return f"{folder / LIST} is missing" if _list_expected(folder) else None
    listed = _read_list(folder)
    if listed is None:
        return f"{folder / LIST} is damaged (its last line is not the digest of the lines above)"
    names = [name for name in listed if wanted(name)]
    for name in names:
        if not (folder / name).is_file():
            return f"{folder / name} is missing"
    found = _digests(folder, names)
    for name in names:
        if found[name] != listed[name]:
            return f"{folder / name} is damaged (its content is not what {LIST} says was written)"
    return None


def _digests(folder: Path, names: list[str]) -> dict[str, str]:
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # hashing lets other threads run
        return dict(zip(names, pool.map(lambda name: sha256_of(folder / name), names), strict=True))


def _write_list(folder: Path, digests: Mapping[str, str]) -> None:
    lines = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    write_text(folder / LIST, lines + _OWN_DIGEST.decode() + hashlib.sha256(lines.encode()).hexdigest() + "\n")


def _read_list(folder: Path) -> dict[str, str] | None:
    """Name -> digest; None: damaged."""
    lines, mark, digest = (folder / LIST).read_bytes().rpartition(_OWN_DIGEST)
    if not mark or digest != hashlib.sha256(lines).hexdigest().encode() + b"\n":
        return None
    entries = (line.split("  ", 1) for line in lines.decode().splitlines())
    return {name: digest for digest, name in entries}


def _list_expected(folder: Path) -> bool:
    """Whether the folder's last file or the list of the folder above says that there was a list."""
    above = _read_list(folder.parent) if has_list(folder.parent) else None
    if above is not None and f"{folder.name}/{LIST}" in above:
        return True
    mark = json.dumps(_MARK)[1:-1].encode()
    return any(mark in path.read_bytes() for path in folder.glob("*.json"))


def _remedy(folder: Path) -> str:
    owner = folder.parent if has_list(folder.parent) else folder
    return f"put it back from a copy, or remove {owner} and give the command that made it again"
