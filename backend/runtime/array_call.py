"""Calls of a model's entry with numpy arrays as inputs, which one call of compiled code checks and reads in place.

Compiled code (`backend.llvm.pool_code`) finds the address, shape and type of an array in numpy's structure of it, which
is part of numpy's binary interface. Where these structures lie in the objects of this Python is found out, not assumed.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from relayc.backend.runtime.dtype import to_numpy
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.threads import array_call_address

__all__ = ["array_call"]

_DENSE, _ALIGNED = 0x1, 0x100
"""numpy's flags of arrays that are C-contiguous, and whose address is a multiple of the element's alignment."""
_Enter = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


def array_call(
    graph: Graph, entry: int, arguments: Sequence[int], table: int, shapes: Sequence[int] = ()
) -> Callable[[list[Any]], bool]:
    """A call of compiled code, ``entry(*arguments)`` of two or three pointers, after noting the inputs of a graph.

    The address of each tensor that is an input goes to the word of `table` with the tensor's number, and the shape of
    input i to those from `shapes[i]` on. Call it with a list of arrays, one for each input; false, and nothing has been
    run, if one of them is no dense array of the type and shape of the input.
    """
    find, layout = array_call_address(), _layout()
    if not find or layout is None:
        return lambda arrays: False
    dtypes = [to_numpy(graph.tensors[index].dtype) for index in graph.inputs]
    records: list[list[int]] = []
    for index, tensor in enumerate(graph.tensors):
        if tensor.storage == "input":
            position = int(tensor.place)
            extents = [d if isinstance(d, int) else -1 for d in graph.tensors[graph.inputs[position]].shape]
            shape = shapes[position] if shapes else -1
            records.append([position, index, shape, id(dtypes[position]), len(extents), *extents])
    head = [entry, *[*arguments, 0][:3], table, *layout, id(np.ndarray), _DENSE | _ALIGNED, len(records)]
    words = np.array([*head, *chain.from_iterable(records)], np.int64)
    enter, address = _Enter(find), int(words.ctypes.data)

    def call(arrays: list[Any], _kept: object = (words, dtypes)) -> bool:  # compiled code has their addresses
        return enter(id(arrays), address) == 0

    return call


class _Layout(NamedTuple):
    """Offsets in bytes of a list's pointer to its items, of an array's type, address, rank, shape, dtype, flags, and of
    a dtype's byte order. The type is at the same place in every object."""

    items: int
    kind: int
    data: int
    rank: int
    shape: int
    dtype: int
    flags: int
    order: int


@lru_cache(maxsize=1)
def _layout() -> _Layout | None:
    """The layout in this Python; None if it is another than CPython and numpy document."""
    head, word = object.__basicsize__, ctypes.sizeof(ctypes.c_void_p)
    after = [head + k * word for k in range(7)]
    found = _Layout(after[1], head - word, head, *(after[k] for k in (1, 2, 5, 6)), order=after[1] + 2)
    known = sys.implementation.name == "cpython" and word == ctypes.sizeof(ctypes.c_int64)
    if not known or np.ndarray.__basicsize__ < head + 7 * word or list.__basicsize__ < head + 2 * word:
        return None
    probe = np.zeros((3, 5), np.float32)
    both = [probe, probe.T]
    dense = _seen(probe, found) == (id(np.ndarray), probe.ctypes.data, 2, [3, 5], id(probe.dtype), _DENSE | _ALIGNED)
    transposed = _seen(probe.T, found) == (id(np.ndarray), probe.ctypes.data, 2, [5, 3], id(probe.dtype), _ALIGNED)
    items = ctypes.c_void_p.from_address(_word(both, found.items)).value
    dtypes = [np.dtype(kind) for kind in ("=f4", ">f4", "?")]
    orders = b"".join(ctypes.c_char.from_address(id(kind) + found.order).value for kind in dtypes)
    return found if dense and transposed and items == id(probe) and orders == b"=>|" else None


def _seen(array: np.ndarray[Any, Any], at: _Layout) -> tuple[int, int, int, list[int], int, int]:
    """What compiled code reads of an array of two dimensions."""
    rank, flags = (ctypes.c_int32.from_address(id(array) + offset).value for offset in (at.rank, at.flags))
    shape = list((ctypes.c_int64 * 2).from_address(_word(array, at.shape))) if rank == 2 else []
    return (
        _word(array, at.kind), _word(array, at.data), rank, shape, _word(array, at.dtype),
        flags & (_DENSE | _ALIGNED),
    )  # fmt: skip


def _word(value: object, offset: int) -> int:
    return int(ctypes.c_int64.from_address(id(value) + offset).value)
