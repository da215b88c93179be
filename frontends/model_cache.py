"""The cache of compiled models: a model compiled before starts without the compiler.

An entry is found by the bytes of the model, all that a build was asked for, the machine and the compiler's sources. It
lists the files of external data with their hashes, and has an artifact of its own, which is mapped. Entries lie in the
folder of `backend.cache`, share its limit, and are trusted as compiled kernels are. Models whose artifact is larger
than a quarter of the limit are not kept: their kernels are, and reading the weights takes most of their time.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from relayc.backend.cache import UNDECODABLE, DiskCache, default_cache
from relayc.backend.file_hashes import known_hash
from relayc.backend.llvm.installed import installed_llvm
from relayc.backend.runtime.artifact import CompiledModel, load_model
from relayc.backend.runtime.device import cpu
from relayc.backend.runtime.threads import available_cpus
from relayc.backend.source_version import has_source_version, source_version
from relayc.frontends.model_parts import ModelParts

if TYPE_CHECKING:
    from relayc.frontends.onnx.model import ModelSource

__all__ = ["ModelEntry", "digest_in_memory", "model_entry"]

_FORMAT = "compiled models 1"  # to be changed with what an entry holds
_PACKAGES = ("numpy", "ml_dtypes", "onnx", "llvmlite")
"""Packages by which the code of a model may differ."""
_REGISTRIES = ("relayc.topi.registry", "relayc.relay.op.base", "relayc.frontends.onnx.registry")
"""Modules with a function `registered_definitions`, to which programs add schedules, operators and converters."""
_TUNING = "relay.tuning.records"
_storing: list[threading.Thread] = []
"""Threads that store models."""


class ModelEntry(NamedTuple):
    """The place of one compiled model in the cache. `path` is the model's file, if it is one."""

    cache: DiskCache
    key: str
    path: Path | None
    began: int
    """when the model was read, in nanoseconds: files changed since then may be other ones than were compiled"""

    def find(self, huge_pages: bool = False) -> CompiledModel | None:
        """The model compiled before, loaded with or without `huge_pages`.

        None if there is none, or if its external data have changed.
        """
        record = self.cache.decoded(self.key, _parsed)
        if record is None or record != self._external(record):
            return None
        artifact = self.cache.file(self._artifact_key(record))
        try:
            return None if artifact is None else load_model(artifact, huge_pages=huge_pages)
        except (*UNDECODABLE, OSError):
            return None

    def keep(self, model: CompiledModel, locations: Iterable[str]) -> None:
        """Store a compiled model, whose external data are in the files `locations`. Failures are ignored.

        A model that was read from files is stored by a thread, for which the process waits at its end and
        `model_entry` before it looks anything up. The memory of one that was passed may change after this call.
        """
        if self.path is None:
            self._store(model, locations)
            return
        thread = threading.Thread(target=self._store, args=(model, locations), name="relayc-cache")
        thread.start()
        _storing.append(thread)

    def _store(self, model: CompiledModel, locations: Iterable[str]) -> None:
        nbytes = sum(values.nbytes for values in model.params.values())
        if nbytes > self.cache.limit // 4 or _is_extended():
            return
        try:
            record = self._external(locations)
            files = [] if self.path is None else [self.path, *[self._file(location) for location in record]]
            if any(file is None or file.stat().st_ctime_ns > self.began for file in files):
                return
        except OSError:  # removed in the meantime
            return
        if self.cache.put_file(self._artifact_key(record), model.save, nbytes):
            self.cache.put(self.key, json.dumps(record).encode())

    def _artifact_key(self, record: Mapping[str, str]) -> str:
        return f"{self.key}\0artifact\0{json.dumps(record)}"

    def _external(self, locations: Iterable[str]) -> dict[str, str]:
        """The hashes of files of external data; "" for a missing one."""
        found = {location: self._file(location) for location in locations}
        return {place: "" if file is None else _hash_of(file, self.cache) for place, file in found.items()}

    def _file(self, location: str) -> Path | None:
        """A file beside the model, or beside what the model's path links to, as the importer looks for it."""
        folders = [] if self.path is None else [self.path.parent, Path(os.path.realpath(self.path)).parent]
        return next((folder / location for folder in folders if (folder / location).is_file()), None)


def model_entry(
    model: ModelSource,
    target: object,
    shape: Mapping[str, Any] | None,
    opt_level: int,
    config: Mapping[str, Any] | None,
    name: str,
    decoding: object = None,
) -> ModelEntry | None:
    """The entry of a model and all that a build is asked for; `decoding` says what of a decoder's states is kept.

    None where models are not cached: without a cache, for other targets than "llvm", where the program has registered
    operators, converters or schedules of its own, and for a model that can't be read, which the importer reports.
    """
    for thread in _storing:
        thread.join()
    _storing[:] = [thread for thread in _storing if thread.is_alive()]
    cache, options = default_cache(), dict(config or {})
    if cache is None or str(target).split()[:1] != ["llvm"] or _is_extended():
        return None
    began = time.time_ns()
    path = Path(model) if isinstance(model, str | os.PathLike) else None
    try:
        digest = digest_in_memory(model) if path is None else _hash_of(path, cache)
    except (OSError, TypeError):
        return None
    given = [sorted(values.items(), key=repr) for values in (shape or {}, options)]
    asked = (str(target), *given, opt_level, name, decoding)
    machine = (installed_llvm(), available_cpus(), _cache_sizes(), [_stamp(package) for package in _PACKAGES])
    key = "\0".join([_FORMAT, source_version(), repr(machine), repr(asked), _tuned(cache, options), digest])
    return ModelEntry(cache, key, path, began)


def digest_in_memory(model: Any) -> str:
    """A hash of a model that is no file, SHA-256 in hexadecimal digits. Raises TypeError for what is no model."""
    if isinstance(model, ModelParts):
        return model.digest()
    if isinstance(model, bytes | bytearray | memoryview):
        return hashlib.sha256(model).hexdigest()
    if not hasattr(model, "SerializeToString"):
        raise TypeError(f"{type(model).__name__} is no model")
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def _hash_of(path: Path, cache: DiskCache) -> str:
    """The hash of a file. Raises OSError for one that can't be read."""
    if not path.is_file():
        raise OSError(f"{path} is no regular file")
    return known_hash(cache, [(os.path.abspath(path), path.stat())], lambda: _digest_of(path))


def _digest_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parsed(data: bytes) -> dict[str, str]:
    record = json.loads(data)
    if not isinstance(record, dict) or not all(isinstance(text, str) for text in (*record, *record.values())):
        raise ValueError("the cached record of a model is no map of texts")
    return record


def _cache_sizes() -> tuple[int | None, ...]:
    here = cpu()
    return here.l1_cache_size_bytes, here.l2_cache_size_bytes, here.l3_cache_size_bytes


def _stamp(package: str) -> tuple[str, int, int] | None:
    """What changes when another version of a package is installed, without importing it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    found = os.stat(spec.origin)
    return spec.origin, found.st_size, found.st_mtime_ns


def _tuned(cache: DiskCache, options: Mapping[str, Any]) -> str:
    """The state of the file of tuning records that a build reads: the user's own, or the one that an option names."""
    named = options.get(_TUNING)
    path = cache.tuning_records if named is None else Path(named)
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{path} {found.st_size} {found.st_mtime_ns}"


def _is_extended() -> bool:
    """Has the program registered anything? A module that is not imported yet holds nothing."""
    loaded = [module for name in _REGISTRIES if (module := sys.modules.get(name)) is not None]
    return not all(has_source_version(known) for module in loaded for known in module.registered_definitions())
