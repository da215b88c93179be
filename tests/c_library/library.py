"""A C library of a model in Python's hands, by the functions of its header."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - registers its types with numpy
import numpy as np


class CError(Exception):
    """A status other than OK: `code`, by its name in the header, and the text of the error."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Library:
    """The library `name` in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        header = (folder / f"{name}.h").read_text()
        self.name, self._library = name, ctypes.CDLL(str(folder / f"lib{name}.so"))
        self.codes = {int(n): word for word, n in re.findall(rf"^  {name.upper()}_(\w+) = (\d+)", header, re.M)}
        self.rank = int(re.findall(r"MAX_RANK = (\d+)", header)[0])

        class Tensor(ctypes.Structure):
            _fields_ = (("data", ctypes.c_void_p), ("nbytes", ctypes.c_size_t), ("shape", ctypes.c_int64 * self.rank))

        class Info(ctypes.Structure):
            _fields_ = (("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p), ("item_bytes", ctypes.c_int32),
                        ("rank", ctypes.c_int32), ("shape", ctypes.c_int64 * self.rank))  # fmt: skip

        self.Tensor, self.Info = Tensor, Info
        self.inputs, self.outputs = self._infos("input"), self._infos("output")

    def function(self, name: str, result: Any = ctypes.c_int) -> Any:
        found = self._library[f"{self.name}_{name}"]
        found.restype = result
        return found

    def _infos(self, kind: str) -> list[Any]:
        info, found = self.function(f"{kind}_info", ctypes.POINTER(self.Info)), []
        while pointer := info(len(found)):
            found.append(pointer.contents)
        return found

    def check(self, status: int) -> None:
        if status:
            raise CError(self.codes[status], self.function("last_error", ctypes.c_char_p)().decode())

    def tensors(self, arrays: Sequence[np.ndarray]) -> Any:
        """An array of tensors that point to the memory of contiguous arrays."""
        made = (self.Tensor * max(len(arrays), 1))()
        for tensor, array in zip(made, arrays, strict=False):
            assert array.flags.c_contiguous
            tensor.data, tensor.nbytes = array.ctypes.data or None, array.nbytes
            tensor.shape[: array.ndim] = array.shape
        return made

    def output_shapes(self, inputs: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
        outputs = (self.Tensor * max(len(self.outputs), 1))()
        self.check(self.function("output_shapes")(self.tensors(inputs), outputs))
        return [tuple(t.shape[: info.rank]) for t, info in zip(outputs, self.outputs, strict=False)]

    def create(self, weights: Path | None = None) -> Context:
        handle = ctypes.c_void_p()
        path = None if weights is None else str(weights).encode()
        self.check(self.function("create")(path, ctypes.byref(handle)))
        return Context(self, handle)


class Context:
    """A context of a library, destroyed with this object."""

    def __init__(self, library: Library, handle: ctypes.c_void_p) -> None:
        self.library, self.handle = library, handle

    def __del__(self) -> None:
        self.library.function("destroy")(self.handle)

    def clone(self) -> Context:
        handle = ctypes.c_void_p()
        self.library.check(self.library.function("clone")(self.handle, ctypes.byref(handle)))
        return Context(self.library, handle)

    def set_num_threads(self, count: int) -> None:
        self.library.check(self.library.function("set_num_threads")(self.handle, count))

    def run(self, inputs: Sequence[np.ndarray], into: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """Run into memory of the context, whose contents are copied, or `into` arrays, which are returned."""
        library, count = self.library, len(self.library.outputs)
        outputs = (library.Tensor * max(count, 1))() if into is None else library.tensors(into)
        library.check(library.function("run")(self.handle, library.tensors(inputs), outputs))
        shapes = [tuple(t.shape[: info.rank]) for t, info in zip(outputs, library.outputs, strict=False)]
        if into is not None:
            assert shapes == [array.shape for array in into]
            return list(into)
        dtypes = [np.dtype(info.dtype.decode()) for info in library.outputs]
        return [
            np.frombuffer(ctypes.string_at(t.data, t.nbytes), dtype).reshape(shape)
            for t, dtype, shape in zip(outputs, dtypes, shapes, strict=False)
        ]


def unaligned(array: np.ndarray) -> np.ndarray:
    """An equal array in memory that is not aligned to more than its elements."""
    size = array.dtype.itemsize
    block = np.empty(array.nbytes + 128, np.uint8)
    start = -block.ctypes.data % 64 + size
    copy = block[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
