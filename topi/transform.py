"""Rearrangements: each output element is one input element (TVM: `topi.transform`).

Arguments are canonical: axes count from the front, shapes and slices are resolved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Buffer, Dim, PrimExpr, Stmt, as_dim, as_int, convert, ir_builder
from relayc.topi.groups import constant_size
from relayc.topi.layout import Layout
from relayc.topi.loops import loop_nest
from relayc.topi.tag import INJECTIVE
from relayc.topi.utils import matching_parts, normalize_axis, num_elements, ravel_index, unravel_index

__all__ = [
    "MOST_INTERLEAVED", "MOST_ROLLED", "arange", "concatenate", "expand_dims", "flip", "full", "layout_transform",
    "one_hot", "repeat", "reshape", "reverse_sequence", "roll", "size_tensor", "split", "squeeze", "stack",
    "strided_slice", "tile", "transpose", "trilu",
]  # fmt: skip


def _injective(shape: Sequence[Dim], f: Any, name: str, attrs: dict[str, Any] | None = None) -> Tensor:
    return te.compute(tuple(shape), f, name=name, tag=INJECTIVE, attrs=attrs)


def reshape(x: Tensor, newshape: Sequence[Dim]) -> Tensor:
    """The elements in row-major order under another shape of the same size."""
    parts = list(matching_parts(x.shape, newshape))

    def body(*i: Any) -> PrimExpr:
        source: list[Any] = []
        for old, new in parts:
            source += unravel_index(ravel_index(i[new], newshape[new]), x.shape[old])
        return x(*source)

    return _injective(newshape, body, "reshape", {"is_view": True})


def transpose(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Dimension d of the result is dimension ``axes[d]`` of x."""
    source, attrs = [axes.index(d) for d in range(x.ndim)], {"permutation": tuple(axes)}
    return _injective([x.shape[a] for a in axes], lambda *i: x(*[i[s] for s in source]), "transpose", attrs)


def expand_dims(x: Tensor, axis: int, num_newaxis: int = 1) -> Tensor:
    """`num_newaxis` dimensions of size 1 put in front of dimension `axis`."""
    shape = (*x.shape[:axis], *[1] * num_newaxis, *x.shape[axis:])
    return _injective(shape, lambda *i: x(*i[:axis], *i[axis + num_newaxis :]), "expand_dims")


def squeeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    """x without dimensions `axes`, which have size 1."""
    shape = [d for a, d in enumerate(x.shape) if a not in axes]

    def body(*i: Any) -> PrimExpr:
        rest = iter(i)
        return x(*[0 if a in axes else next(rest) for a in range(x.ndim)])

    return _injective(shape, body, "squeeze")


def concatenate(inputs: Sequence[Tensor], axis: int) -> Tensor:
    """The inputs one after another along `axis`."""
    axis = normalize_axis(axis, inputs[0].ndim)
    starts: list[Dim] = [0]
    for x in inputs:
        starts.append(as_dim(x.shape[axis] + starts[-1]))
    shape = (*inputs[0].shape[:axis], starts[-1], *inputs[0].shape[axis + 1 :])
    if len(inputs) > _MOST_OPEN_PARTS and as_int(starts[-1]) is None:
        return _joined(inputs, axis, shape)
    known = all(as_int(d) is not None for d in shape[axis:])
    if known and len(inputs) > _MOST_PARTS and constant_size(shape[axis:]) <= _NARROW * len(inputs):
        return _joined_by_rows(inputs, axis, shape)

    def body(*i: Any) -> PrimExpr:
        result = inputs[0](*i)
        for x, start in zip(inputs[1:], starts[1:-1], strict=True):
            result = te.if_then_else(i[axis] < start, result, x(*i[:axis], i[axis] - start, *i[axis + 1 :]))
        return result

    return _injective(shape, body, "concatenate", {"axis": axis})


_MOST_OPEN_PARTS = 4
"""The most inputs of dynamic sizes that a concatenation selects among per element: each takes a comparison with a
sum."""


_MOST_PARTS, _NARROW = 16, 16
"""The most inputs that a concatenation selects among per element, where they average at most so many elements in a
row."""
_WORTH_SHARING = 1 << 16
"""The least elements for which rows run in parallel."""


def _joined_by_rows(inputs: Sequence[Tensor], axis: int, shape: Sequence[Dim]) -> Tensor:
    """`concatenate` of many narrow inputs: row by row, copying a piece of each."""

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        out, parts = ib.buffer(outs[0]), [ib.buffer(x) for x in ins]
        kind = "parallel" if constant_size(shape) >= _WORTH_SHARING else "serial"
        with ib.for_range(0, num_elements(shape[:axis]), "row", kind, independent=True) as row:
            lead, start = unravel_index(row, shape[:axis]), 0
            for x, part in zip(ins, parts, strict=True):
                with loop_nest(ib, x.shape[axis:], independent=True) as i:
                    out[(*lead, start + i[0], *i[1:])] = part[(*lead, *i)]
                start += constant_size([x.shape[axis]])
        return ib.get()

    return te.extern(shape, inputs, fill, name="concatenate", dtype=inputs[0].dtype, tag="default")


def _joined(inputs: Sequence[Tensor], axis: int, shape: Sequence[Dim]) -> Tensor:
    """`concatenate` by loops that copy one input after the other: code size is linear in their number."""

    def fill(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        out = ib.buffer(outs[0])
        start: PrimExpr = te.const(0)
        for x in ins:
            part = ib.buffer(x)
            with loop_nest(ib, x.shape, independent=True) as i:
                out[(*i[:axis], start + i[axis], *i[axis + 1 :])] = part[i]
            start = ib.let("start", start + x.shape[axis])
        return ib.get()

    return te.extern(shape, inputs, fill, name="concatenate", dtype=inputs[0].dtype, tag="default")


MOST_INTERLEAVED = 4
"""The most tensors or rows that the vectors of a result interleave: all are loaded for each vector."""


def stack(inputs: Sequence[Tensor], axis: int) -> Tensor:
    """The inputs, all of one shape, along a new dimension `axis`."""
    shape = (*inputs[0].shape[:axis], len(inputs), *inputs[0].shape[axis:])
    interleaved = axis == inputs[0].ndim and len(inputs) <= MOST_INTERLEAVED
    choose = te.select if interleaved else te.if_then_else

    def body(*i: Any) -> PrimExpr:
        rest = (*i[:axis], *i[axis + 1 :])
        result = inputs[-1](*rest)
        for k in range(len(inputs) - 2, -1, -1):
            result = choose(i[axis] == k, inputs[k](*rest), result)
        return result

    return _injective(shape, body, "stack")


def split(x: Tensor, sizes: Sequence[Dim], axis: int) -> tuple[Tensor, ...]:
    """x cut along `axis` into pieces of `sizes`."""
    pieces: list[Tensor] = []
    start: Dim = 0
    for size in sizes:
        begin = [start if a == axis else 0 for a in range(x.ndim)]
        shape = [size if a == axis else d for a, d in enumerate(x.shape)]
        pieces.append(strided_slice(x, begin, [1] * x.ndim, shape, name="split"))
        start = as_dim(size + start)
    return tuple(pieces)


def strided_slice(
    x: Tensor, begin: Sequence[Dim], strides: Sequence[int], shape: Sequence[Dim], name: str = "strided_slice"
) -> Tensor:
    """The `shape` elements at ``begin + i * strides``; strides may be negative."""
    return _injective(shape, lambda *i: x(*[v * s + b for v, b, s in zip(i, begin, strides, strict=True)]), name)


def flip(x: Tensor, axes: Sequence[int]) -> Tensor:
    """x in reverse order along `axes`."""
    return _injective(x.shape, lambda *i: x(*[x.shape[a] - 1 - v if a in axes else v for a, v in enumerate(i)]), "flip")


MOST_ROLLED = 16384
"""The longest rows, in elements, that are rolled by selecting between two loads."""


def roll(x: Tensor, shifts: Sequence[int], axes: Sequence[int]) -> Tensor:
    """Each element moved by `shifts` along `axes`, whose extents are constant; elements past the end wrap around.

    Along the last axis it selects between two loaded elements, which vectorises; along others between two indices. Not
    along very long rows: masked loads far outside of a tensor are slow even with an empty mask.
    """
    first = {a: -shift % size if (size := x.shape[a]) else 0 for a, shift in zip(axes, shifts, strict=True)}
    last = x.ndim - 1
    by_element = first.get(last, 0) > 0 and x.ndim > 1 and constant_size([x.shape[last]]) <= MOST_ROLLED

    def place(a: int, v: Any) -> Any:
        begin, size = first.get(a, 0), x.shape[a]
        return te.select(v < size - begin, v + begin, v + (begin - size)) if begin else v

    def body(*i: Any) -> PrimExpr:
        if not by_element:
            return x(*[place(a, v) for a, v in enumerate(i)])
        outer, v, begin, size = [place(a, v) for a, v in enumerate(i[:-1])], i[-1], first[last], x.shape[last]
        return te.if_then_else(v < size - begin, x(*outer, v + begin), x(*outer, v + (begin - size)))

    return _injective(x.shape, body, "roll")


def tile(x: Tensor, reps: Sequence[Dim]) -> Tensor:
    """The whole tensor repeated ``reps[d]`` times along dimension d; one count for each dimension, after padding."""
    lead = len(reps) - x.ndim
    shape = [as_dim(d * r) for d, r in zip((*[1] * lead, *x.shape), reps, strict=True)]

    def body(*i: Any) -> PrimExpr:
        once = [as_int(reps[lead + a]) == 1 or (isinstance(d, int) and d == 0) for a, d in enumerate(x.shape)]
        return x(*[v if once[a] else v % x.shape[a] for a, v in enumerate(i[lead:])])

    return _injective(shape, body, "tile")


def repeat(x: Tensor, repeats: int, axis: int) -> Tensor:
    """Each element repeated `repeats` times along `axis`."""
    shape = [as_dim(d * repeats) if a == axis else d for a, d in enumerate(x.shape)]
    return _injective(shape, lambda *i: x(*[v // repeats if a == axis else v for a, v in enumerate(i)]), "repeat")


def full(shape: Sequence[Dim], dtype: str, value: float) -> Tensor:
    """A tensor of one value."""
    return _injective(shape, lambda *_: te.const(value, dtype), "full")


def size_tensor(values: Sequence[Dim], shape: Sequence[int], dtype: str) -> Tensor:
    """A tensor that holds the sizes `values`, in row-major order."""

    def body(*i: Any) -> PrimExpr:
        position = ravel_index(i, shape)
        result = te.cast(dtype, convert(values[-1] if values else 0))
        for k in range(len(values) - 2, -1, -1):
            result = te.select(position == k, te.cast(dtype, convert(values[k])), result)
        return result

    return _injective(shape, body, "sizes")


def arange(start: float | Dim, step: float, count: Dim, dtype: str) -> Tensor:
    """start, start + step, ..., `count` of them."""
    first = te.cast(dtype, start) if isinstance(start, PrimExpr) else te.const(start, dtype)
    return _injective((count,), lambda i: first + te.cast(dtype, i) * te.const(step, dtype), "arange")


def one_hot(indices: Tensor, on: Tensor, off: Tensor, depth: int, axis: int) -> Tensor:
    """`on` (scalar) where the new dimension `axis`, `depth` long, equals the index, else `off`.

    Negative indices count from the end; an index outside [-depth, depth) gives a row of `off`.
    """
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])

    def body(*i: Any) -> PrimExpr:
        index = indices(*i[:axis], *i[axis + 1 :])
        here = te.cast(index.dtype, i[axis])
        return te.select(te.any(index == here, index + depth == here), on(), off())

    return _injective(shape, body, "one_hot")


def trilu(x: Tensor, k: int, upper: bool) -> Tensor:
    """The upper (or lower) triangle of the last two dimensions from diagonal `k`; 0 elsewhere."""

    def body(*i: Any) -> PrimExpr:
        row, column = i[-2], i[-1]
        keep = column >= row + k if upper else column <= row + k
        return te.select(keep, x(*i), te.const(0, x.dtype))

    return _injective(x.shape, body, "trilu")


def reverse_sequence(x: Tensor, lengths: Tensor, seq_axis: int, batch_axis: int) -> Tensor:
    """The first ``lengths[b]`` elements along `seq_axis` in reverse order, for each b along `batch_axis`."""

    def body(*i: Any) -> PrimExpr:
        length = te.cast("int32", lengths(i[batch_axis]))
        bounded = te.minimum(te.maximum(length, 0), x.shape[seq_axis])
        position = te.select(i[seq_axis] < bounded, bounded - 1 - i[seq_axis], i[seq_axis])
        return x(*[position if a == seq_axis else v for a, v in enumerate(i)])

    return _injective(x.shape, body, "reverse_sequence")


def layout_transform(x: Tensor, src: Layout, dst: Layout) -> Tensor:
    """x in another layout, blocks filled up with 0 (see `topi.layout`)."""
    sizes = src.axis_sizes(x.shape)
    shape = dst.shape_of(sizes)

    def body(*i: Any) -> PrimExpr:
        position = dst.axis_positions(i)
        value = x(*src.index_of(position))
        outside = [position[a] < sizes[a] for a, block in dst.blocks.items() if not _divides(block, sizes[a])]
        return te.if_then_else(te.all(*outside), value, te.const(0, x.dtype)) if outside else value

    return _injective(shape, body, "layout_transform")


def _divides(block: int, size: Dim) -> bool:
    known = as_int(size)
    return known is not None and known % block == 0
