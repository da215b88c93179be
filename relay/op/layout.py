"""Layout transformation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc import te, topi
from relayc.relay.errors import TypeInferenceError
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require
from relayc.relay.type import TensorType
from relayc.te.errors import CompileError
from relayc.topi.layout import Layout

__all__ = ["LayoutTransform", "layout_transform"]


@register_op("layout_transform", pattern=OpPattern.INJECTIVE)
class LayoutTransform(OpDef):
    """x in another layout, such as NCHW to NHWC or OIHW to OHWI16o; blocks are padded with 0 (see `topi.layout`).

    (C1) both layouts name the same axes; (C2) the input has the rank of `src_layout`, and its blocks.
    """

    src_layout: str
    dst_layout: str

    def _layouts(self, ndim: int) -> tuple[Layout, Layout]:
        try:
            src, dst = Layout(self.src_layout), Layout(self.dst_layout)
        except CompileError as error:
            raise TypeInferenceError(str(error)) from None
        require(set(src.axes) == set(dst.axes), f"(C1) layouts {src.name} and {dst.name} must name the same axes")
        require(src.ndim == ndim, f"(C2) layout {src.name} has {src.ndim} dimensions, the input {ndim}")
        return src, dst

    def infer(self, x: TensorType) -> TensorType:
        src, dst = self._layouts(x.ndim)
        for (letter, size), dim in zip(src.parts, x.shape, strict=True):
            if size and dim != size:
                raise TypeInferenceError(f"(C2) dimension {letter} of {x} must be the block size {size}")
        return x.with_shape(dst.shape_of(src.axis_sizes(x.shape)))

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.layout_transform(x, *self._layouts(x.ndim))

    def reference(self, x: Array) -> Array:
        src, dst = self._layouts(x.ndim)
        return _pack(_unpack(x, src, dst.axes), dst)


def _unpack(x: Array, layout: Layout, axes: Sequence[str]) -> Array:
    """x in the plain layout `axes`, padding included."""
    order, shape = list[int](), list[int]()
    for axis in axes:
        outer, inner = layout.index(axis), layout.index(axis.lower())
        order += [outer] if inner < 0 else [outer, inner]
        shape.append(x.shape[outer] * (1 if inner < 0 else x.shape[inner]))
    return x.transpose(order).reshape(shape)


def _pack(x: Array, layout: Layout) -> Array:
    """Plain x, dimensions in the order of ``layout.axes``, in `layout`."""
    split, labels, padding = list[int](), list[str](), list[tuple[int, int]]()
    for axis, size in zip(layout.axes, x.shape, strict=True):
        block = layout.blocks.get(axis, 1)
        padding.append((0, -size % block))
        split += [-(-size // block)] if axis not in layout.blocks else [-(-size // block), block]
        labels += [axis] if axis not in layout.blocks else [axis, axis.lower()]
    if any(after for _, after in padding):
        x = np.pad(x, padding)
    order = [labels.index(letter) for letter, _ in layout.parts]
    return np.ascontiguousarray(x.reshape(split).transpose(order))


def layout_transform(data: Expr, src_layout: str, dst_layout: str) -> Call:
    """`data` in layout `dst_layout`."""
    return LayoutTransform(src_layout=src_layout, dst_layout=dst_layout)(data)
