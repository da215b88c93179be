"""The version of the compiler's own sources, by which cached code is found."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from operator import itemgetter
from typing import Any

from relayc.backend.cache import default_cache
from relayc.backend.file_hashes import Stat, known_hash

__all__ = ["has_source_version", "source_version"]

_PACKAGES = ("relayc.te", "relayc.backend", "relayc.topi", "relayc.relay", "relayc.frontends.onnx")


@lru_cache(maxsize=1)
def source_version() -> str:
    """A hash of the compiler's own sources, part of every cache key."""
    specs = [find_spec(package) for package in _PACKAGES]
    roots = [root for spec in specs if spec is not None for root in spec.submodule_search_locations or []]
    files = [(root, *file) for root in roots for file in _sources(root)]
    return known_hash(default_cache(), [(path, stat) for _, path, stat in files], lambda: _hash_of(files))


def _hash_of(files: Sequence[tuple[str, str, os.stat_result]]) -> str:
    digest = hashlib.sha256()
    for root, path, _ in files:
        digest.update(path.removeprefix(root).encode())
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def _sources(folder: str) -> list[Stat]:
    """The Python files in a folder and its subfolders, by name; faster than `Path.rglob`."""
    found, waiting = list[Stat](), [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    found.append((entry.path, entry.stat()))
                elif entry.name != "__pycache__" and entry.is_dir():
                    waiting.append(entry.path)
    return sorted(found, key=itemgetter(0))


def has_source_version(definition: Any) -> bool:
    """Is this class or function defined in the sources that `source_version` hashes? Other code may change
    independently."""
    return str(definition.__module__).startswith(tuple(f"{package}." for package in _PACKAGES))
