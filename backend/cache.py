"""The on-disk cache of compiled code, shared between processes.

A cache lives in the user's cache folder, readable by its owner only. A folder or an entry that another user may have
written is not used (`backend.private_files`). Entries are found by a hash of their key and hold the whole key, which is
compared, and a hash of their value; a corrupt or foreign entry counts as a miss, and so does one whose value the caller
can't decode. Entries are written to a temporary file and renamed atomically, so readers see complete entries only and
processes may share a cache. Beyond its size limit the cache evicts the least recently used entries. A failure of the
cache, such as a full disk or a read-only folder, never fails a compilation.

`RELAYC_CACHE_DIR` names another folder ("~" is the home folder); "off", "0" or "none" disables caching.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from relayc.backend.private_files import NotPrivateError, is_private, is_private_file, read_private
from relayc.backend.runtime.errors import RelaycError
from relayc.backend.runtime.files import replacing
from relayc.backend.runtime.log import warn_once

__all__ = ["UNDECODABLE", "DiskCache", "default_cache"]

Decoded = TypeVar("Decoded")

UNDECODABLE = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, struct.error, RelaycError,
)  # fmt: skip
"""The errors by which a decoder of a cache entry rejects it."""

_VARIABLE = "RELAYC_CACHE_DIR"
_LIMIT_BYTES = 4 << 30
_CHECKS = 16
"""Number of size checks per limit's worth of bytes written."""
_HEADER = struct.Struct("<8s32sQQ")  # magic, sha256 of key and value, their sizes
_MAGIC = b"RLYCACH1"


class DiskCache:
    """A map from text keys to bytes in `folder`, of about `limit` bytes. `hits` and `misses` count lookups."""

    def __init__(self, folder: Path, limit: int = _LIMIT_BYTES) -> None:
        self.folder = folder
        self.limit = limit
        self.hits = 0
        self.misses = 0
        self._private: set[Path] = set()
        """folders found to be the user's alone"""

    @property
    def tuning_records(self) -> Path:
        """The file of the user's own tuning records, which is no entry and stays when the cache is trimmed."""
        return self.folder / "tuning.json"

    def get(self, key: str) -> bytes | None:
        """The value stored under `key`, or None."""
        return self.decoded(key, bytes)

    def decoded(self, key: str, decode: Callable[[bytes], Decoded]) -> Decoded | None:
        """The value stored under `key`, decoded; None if there is none, or if `decode` raises one of `UNDECODABLE`."""
        path = self._path(key)
        value = _decode(self._read(path), key.encode())
        try:
            found = None if value is None else decode(value)
        except UNDECODABLE:
            found = None
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        with suppress(OSError):
            os.utime(path)  # update the time of last use, which `_trim` evicts by
        return found

    def put(self, key: str, value: bytes) -> None:
        """Store `value` under `key`. Does nothing when the folder is not writable."""
        path = self._path(key)
        with suppress(OSError):
            if not self._make_folders(path):
                return
            with replacing(path, private=True) as file:
                file.write(_encode(key.encode(), value))
            if self._is_time_to_trim(key, len(value)):
                self._trim()

    def file(self, key: str) -> Path | None:
        """The file that `put_file` stored under `key`, to be mapped and checked; None if there is none to trust."""
        path = self._path(key)
        if not self._may_use(self.folder) or not self._may_use(path.parent) or not is_private_file(path):
            return None
        with suppress(OSError):
            os.utime(path)
        return path

    def put_file(self, key: str, save: Callable[[Path], None], size: int) -> bool:
        """Let `save` write a file, of about `size` bytes, under `key`; False when the folder is not writable."""
        path = self._path(key)
        with suppress(OSError):
            if not self._make_folders(path):
                return False
            save(path)
            path.chmod(0o600)
            if self._is_time_to_trim(key, size):
                self._trim()
            return True
        return False

    def _make_folders(self, path: Path) -> bool:
        """Make the folders of an entry; False if another user may write to one."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self._may_use(self.folder):
            return False
        path.parent.mkdir(exist_ok=True, mode=0o700)
        return self._may_use(path.parent)

    def _read(self, path: Path) -> bytes:
        """The file of an entry; empty if there is none that the user, and nobody else, can have written."""
        try:
            if self._may_use(self.folder) and self._may_use(path.parent):
                return read_private(path)
        except NotPrivateError:
            warn_once(
                f"cache entries in {self.folder} that another user may have written are not used; remove them with "
                "relayc cache --clear"
            )
        except OSError:
            pass
        return b""

    def _may_use(self, folder: Path) -> bool:
        """Can nobody but the user have written to `folder`? Looked up once for a folder that there is; the files in it
        are checked whenever one is read."""
        if folder in self._private:
            return True
        exists = folder.is_dir()
        private = is_private(folder)
        if exists and private:
            self._private.add(folder)
        return private

    def usage(self) -> tuple[int, int]:
        """(Number of entries, their bytes.)"""
        sizes = [size for _, size, _ in self._entries()]
        return len(sizes), sum(sizes)

    def clear(self) -> None:
        """Remove all entries. Raises OSError if one can't be removed."""
        for _, _, path in self._entries():
            path.unlink(missing_ok=True)

    def _entries(self) -> list[tuple[float, int, Path]]:
        """(Time of last use, bytes, path) of every entry; entries removed by other processes meanwhile are skipped.

        None in a folder that another user may have written: its links may lead anywhere.
        """
        if not self._may_use(self.folder):
            return []
        found: list[tuple[float, int, Path]] = []
        for path in self.folder.glob("??/*"):
            with suppress(FileNotFoundError):
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_size, path))
        return found

    def _is_time_to_trim(self, key: str, size: int) -> bool:
        """Should the size be checked after writing this entry? Decided by the hash of its key, in proportion to its
        size.

        The check needs no state shared between processes, and processes that write little still trigger it.
        """
        return zlib.crc32(key.encode()) * self.limit < (size * _CHECKS << 32)

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self.folder / name[:2] / name[2:]

    def _trim(self) -> None:
        """Evict least recently used entries down to three quarters of the limit. One process at a time."""
        from filelock import FileLock, Timeout  # takes 7 ms to import, needed only when the cache is full

        try:
            with FileLock(self.folder / "lock", timeout=0):
                entries = self._entries()
                total = sum([size for _, size, _ in entries])
                if total <= self.limit:
                    return
                for _, size, path in sorted(entries):
                    path.unlink(missing_ok=True)
                    total -= size
                    if total <= self.limit * 3 // 4:
                        return
        except Timeout:
            return


def _encode(key: bytes, value: bytes) -> bytes:
    digest = hashlib.sha256(key + value).digest()
    return b"".join([_HEADER.pack(_MAGIC, digest, len(key), len(value)), key, value])


def _decode(data: bytes, key: bytes) -> bytes | None:
    if len(data) < _HEADER.size:
        return None
    magic, digest, key_size, value_size = _HEADER.unpack_from(data)
    if magic != _MAGIC or len(data) != _HEADER.size + key_size + value_size:
        return None
    body = data[_HEADER.size :]
    if body[:key_size] != key or hashlib.sha256(body).digest() != digest:
        return None
    return body[key_size:]


def default_cache() -> DiskCache | None:
    """The current user's cache; None when caching is disabled, or the user has no home folder."""
    place = os.environ.get(_VARIABLE, "")
    if place.lower() in ("off", "0", "none"):
        return None
    try:
        return _cache_in(Path(place).expanduser() if place else _users_folder() / "objects")
    except RuntimeError as error:  # neither HOME nor the table of users has a home folder, as in some containers
        warn_once(f"no cache is used: {error} Name a folder: {_VARIABLE}=folder")
        return None


def _users_folder() -> Path:
    """The folder for caches of relayc; on Linux by the XDG base directory specification itself, as platformdirs takes
    3 ms to import."""
    if sys.platform != "linux":
        return import_module("platformdirs").user_cache_path("relayc")
    named = os.environ.get("XDG_CACHE_HOME", "")
    return Path(named if named.strip() else "~/.cache").expanduser() / "relayc"


@lru_cache(maxsize=8)
def _cache_in(folder: Path) -> DiskCache:
    return DiskCache(folder)
