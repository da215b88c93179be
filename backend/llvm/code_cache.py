"""Object code on disk, looked up by the caller's key or by the LLVM assembly that it was compiled from.

A lookup does not need LLVM loaded.
"""

from __future__ import annotations

import json
import struct

from relayc.backend.cache import default_cache
from relayc.backend.llvm.installed import installed_llvm
from relayc.backend.llvm.linking import checked_object
from relayc.backend.llvm.runtime import ObjectCode
from relayc.backend.runtime.fields import Record
from relayc.backend.source_version import source_version
from relayc.backend.target import Target

__all__ = ["CodeCache"]

_FORMAT = "llvm objects 2"  # to be changed with the format that `CodeCache.put` writes
_SIZE = struct.Struct("<Q")


class CodeCache:
    """Object code for one target under keys from `key_of` or `key_of_assembly`, each with a note of the caller's."""

    def __init__(self, target: Target) -> None:
        self._cache = default_cache()
        self._triple = str(target.get("mtriple"))
        self._prefix = "\0".join([_FORMAT, installed_llvm().version, str(target), ""])

    def key_of(self, what: str) -> str:
        """The cache key of code determined by `what` and the compiler's own sources."""
        return f"{self._prefix}{source_version()}\0{what}"

    def key_of_assembly(self, text: str) -> str:
        """The cache key of code compiled from this assembly."""
        return self._prefix + text

    def find(self, key: str) -> tuple[ObjectCode, str] | None:
        """(code, note) stored under `key`, in this process or an earlier one; None on a miss."""
        return None if self._cache is None else self._cache.decoded(key, self._decode)

    def put(self, key: str, code: ObjectCode, note: str) -> None:
        """Store code; failures are ignored."""
        if self._cache is not None:
            header = json.dumps({"note": note, "part": code.describe()}).encode()
            self._cache.put(key, b"".join([_SIZE.pack(len(header)), header, code.code]))

    def _decode(self, data: bytes) -> tuple[ObjectCode, str]:
        (size,) = _SIZE.unpack_from(data)
        body = _SIZE.size + size
        header = Record(json.loads(data[_SIZE.size : body]), "cached object code")
        code = checked_object(data[body:], self._triple)
        return ObjectCode.from_description(header.record("part"), code), header.get("note", str)
