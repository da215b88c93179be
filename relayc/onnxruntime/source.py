"""What a session makes its model from: a file, bytes, a message or a compiled model."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

from relayc.backend.runtime.container import is_container
from relayc.onnxruntime.errors import Fail, InvalidProtobuf, NoSuchFile
from relayc.runtime import CompiledModel, load_model

__all__ = ["Source"]


class Source:
    """The path or the bytes of an ONNX file or of a compiled model, a ModelProto or a CompiledModel."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
        self._read_at = 0
        self._file_read: tuple[int, ...] | None = None
        self._digest: str | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether it is a compiled model."""
        is_read = self.path is not None or isinstance(self.value, bytes | bytearray | memoryview)
        return isinstance(self.value, CompiledModel) or (is_read and is_container(self.value))

    @property
    def is_passable(self) -> bool:
        """Whether another process can be given it, pickled: see `picklable`."""
        return self.path is not None or isinstance(self.value, bytes) or hasattr(self.value, "SerializeToString")

    def picklable(self) -> Any:
        """The source for another process: a message as bytes."""
        is_message = hasattr(self.value, "SerializeToString")
        return self.value.SerializeToString(deterministic=True) if is_message else self.value

    def begin(self) -> None:
        """Note that the model is about to be read."""
        self._read_at = time.time_ns()
        self._file_read = _identity(self.path)

    def check_exists(self) -> None:
        """Raise `NoSuchFile` if there is no such file, and `InvalidProtobuf` if it is none."""
        if self.path is not None and not Path(self.path).is_file():
            if not self.path or not Path(self.path).exists():
                raise NoSuchFile(f"Load model from {self.path} failed: file doesn't exist")
            raise InvalidProtobuf(f"Load model from {self.path} failed: it is a folder or a device, no file")

    def compiled(self) -> CompiledModel:
        """The model, of a source that `is_compiled`."""
        return self.value if isinstance(self.value, CompiledModel) else load_model(self.value)

    def keep_digest(self) -> None:
        """Keep a digest of a model in memory that its owner may change, for `check_unchanged`."""
        if self.path is None and not isinstance(self.value, bytes | CompiledModel):
            self._digest = self._digest_now()

    def check_unchanged(self) -> None:
        """Raise `Fail` if the model that would be compiled again may be another than was read."""
        found = _identity(self.path)
        if found is not None and found != self._file_read:
            raise _changed(str(self.path))
        for path in () if self.path is None else _external_data(Path(self.path)):
            if path.exists() and path.stat().st_ctime_ns > self._read_at:
                raise _changed(str(path))
        if self._digest is not None and self._digest_now() != self._digest:
            raise _changed(f"the {type(self.value).__name__}")

    def _digest_now(self) -> str:
        # imported here: sessions of compiled models do without
        parts = import_module("relayc.frontends.model_parts").model_parts(self.value)
        return import_module("relayc.frontends.model_cache").digest_in_memory(parts or self.value)


def _changed(what: str) -> Fail:
    return Fail(f"{what} was changed after the session had read it, and the model has to be compiled again "
                "for other inputs; make another session")  # fmt: skip


def _identity(path: str | None) -> tuple[int, ...] | None:
    """What differs of a file that holds something else, but not with other rights or another link; None without one."""
    if path is None or not Path(path).exists():
        return None
    found = Path(path).stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _external_data(model: Path) -> Generator[Path]:
    """Where the external data of the model in a file may be, if it has such data."""
    if model.exists():
        locations = import_module("relayc.frontends.onnx.compiling").external_locations(model)
        yield from [path.parent / place for path in (model, Path(os.path.realpath(model))) for place in locations]
