"""Hashes of files, kept in the cache by all that changes when a file does, so that files are read once."""

from __future__ import annotations

import hashlib
import os
import time
from array import array
from collections.abc import Callable, Sequence

from relayc.backend.cache import DiskCache

__all__ = ["Stat", "known_hash"]

Stat = tuple[str, os.stat_result]
"""A file's name and its facts."""

_WORD = (1 << 64) - 1
_SETTLED_NS = 2_000_000_000
"""Nanoseconds since a file's last change before its hash is kept: any later change then has another time, which file
systems store in steps of up to two seconds."""


def known_hash(cache: DiskCache | None, files: Sequence[Stat], compute: Callable[[], str]) -> str:
    """The hash that `compute` makes of `files`, computed once for files of these names, sizes and times.

    The time of a file's last change can't be set by a program, so one that was changed has another.
    """
    if cache is None:
        return compute()
    facts = [n & _WORD for _, s in files for n in (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)]
    digest = hashlib.sha256(repr([name for name, _ in files]).encode() + array("Q", facts).tobytes())
    key = f"hash of files\0{digest.hexdigest()}"
    found = cache.decoded(key, lambda value: value.decode("ascii"))
    if found is not None:
        return found
    began = time.time_ns()
    result = compute()
    if all(began - max(s.st_mtime_ns, s.st_ctime_ns) > _SETTLED_NS for _, s in files):
        cache.put(key, result.encode())
    return result
