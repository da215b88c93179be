"""Buffers: typed, shaped memory that statements load from and store to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relayc.te.dtype import HANDLE, DType, dtype
from relayc.te.ir.structural import StructuralEqual
from relayc.te.tir.expr import Dim, Var

__all__ = ["Buffer", "buffer_strides", "decl_buffer"]


class Buffer:
    """Memory of `shape` elements of `dtype` behind the pointer variable `data`.

    `strides` (elements; None = compact row-major), `elem_offset` (elements from `data` to element 0), `scope`
    ("global", "local", "shared", "shared.dyn", "warp", ...), `align` (bytes `data` is aligned to). A buffer's identity
    is the object; element (i, j) lies at ``data + elem_offset + i * strides[0] + j * strides[1]``, unless it is
    `swizzled` (`Stage.swizzle`).
    """

    __slots__ = ("align", "data", "dtype", "elem_offset", "name", "scope", "shape", "strides", "swizzled")

    def __init__(
        self,
        name: str,
        shape: Sequence[Dim],
        dtype_: str = "float32",
        *,
        data: Var | None = None,
        strides: Sequence[Dim] | None = None,
        elem_offset: Dim = 0,
        scope: str = "global",
        align: int = 64,
        swizzled: bool = False,
    ) -> None:
        self.name = name
        self.shape: tuple[Dim, ...] = tuple(shape)
        self.dtype: DType = dtype(dtype_)
        self.data = Var(name, HANDLE) if data is None else data
        self.strides: tuple[Dim, ...] | None = None if strides is None else tuple(strides)
        self.elem_offset = elem_offset
        self.scope = scope
        self.align = align
        self.swizzled = swizzled

    def with_(self, **changes: Any) -> Buffer:
        """A copy with some attributes changed (`name`, `shape`, `dtype`, `data`, `strides`, ...)."""
        current = {slot: getattr(self, slot) for slot in self.__slots__}
        current.update(changes)
        return Buffer(current.pop("name"), current.pop("shape"), current.pop("dtype"), **current)

    def structural_equal_to(self, other: Any, equal: StructuralEqual) -> bool:
        """Whether `other` is this buffer, or one bound at the same place with equal type, shape, strides and scope."""
        if self is other:
            return True
        same = self.dtype == other.dtype and self.scope == other.scope and self.swizzled == other.swizzled
        same = same and equal.same_definition(self, other) and equal(self.shape, other.shape)
        return same and equal(self.strides or (), other.strides or ())

    def __repr__(self) -> str:
        return self.name


def decl_buffer(
    shape: Sequence[Dim],
    dtype: str = "float32",
    name: str = "buffer",
    *,
    data: Var | None = None,
    strides: Sequence[Dim] | None = None,
    elem_offset: Dim = 0,
    scope: str = "global",
    data_alignment: int = 64,
) -> Buffer:
    """Declare a buffer (TVM: `tvm.tir.decl_buffer`)."""
    return Buffer(
        name, shape, dtype, data=data, strides=strides, elem_offset=elem_offset, scope=scope, align=data_alignment
    )


def buffer_strides(buffer: Buffer) -> list[Dim]:
    """The strides of a buffer in elements, computed for a compact one."""
    if buffer.strides is not None:
        return list(buffer.strides)
    strides: list[Dim] = [1] * len(buffer.shape)
    for i in range(len(strides) - 2, -1, -1):
        size, inner = buffer.shape[i + 1], strides[i + 1]
        strides[i] = size * inner
    return strides
