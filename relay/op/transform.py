"""Operators that rearrange elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc import te, topi
from relayc.relay.errors import GradientError, TypeInferenceError
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import OpDef, OpPattern, make_call, register_op
from relayc.relay.op.common import Array, at_least, check_axes, check_axis, require, with_dim
from relayc.relay.op.gradients import reshaped
from relayc.relay.op.slicing import slice_axis
from relayc.relay.sizes import product, quotient
from relayc.relay.type import MAX_RANK, TensorType, Type, dims_match, shape_text
from relayc.te.tir import Dim, as_dim

__all__ = [
    "ExpandDims",
    "Repeat",
    "Reshape",
    "Reverse",
    "ReverseSequence",
    "Roll",
    "SliceAt",
    "Squeeze",
    "StridedSlice",
    "Tile",
    "Transpose",
    "Trilu",
    "expand_dims",
    "repeat",
    "reshape",
    "reverse",
    "reverse_sequence",
    "roll",
    "squeeze",
    "strided_slice",
    "tile",
    "transpose",
    "trilu",
]  # fmt: skip

Perm = tuple[int, ...]


@register_op("reshape", pattern=OpPattern.INJECTIVE)
class Reshape(OpDef):
    """The elements in row-major order under another shape (ONNX: Reshape, Flatten).

    (C1) at most one dimension of `newshape` is -1, which stands for what is left; (C2) both shapes have the same size.
    """

    newshape: tuple[Dim, ...]
    is_view = True

    def infer(self, x: TensorType) -> TensorType:
        unknown = [a for a, d in enumerate(self.newshape) if isinstance(d, int) and d == -1]
        require(len(unknown) <= 1, f"(C1) at most one dimension may be -1; got {shape_text(self.newshape)}")
        known = [d for a, d in enumerate(self.newshape) if a not in unknown]
        sizes = f"(C2) {x} can't be reshaped to {shape_text(self.newshape)}: the numbers of elements differ"
        if not unknown:
            require(dims_match(product(x.shape), product(known)), sizes)
            return x.with_shape(self.newshape)
        rest = quotient(x.shape, known)
        require(rest is not None, sizes)
        assert rest is not None
        return x.with_shape(with_dim(self.newshape, unknown[0], rest))

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.reshape(x, self.infer(TensorType(x.shape, x.dtype)).shape)

    def reference(self, x: Array) -> Array:
        return x.reshape([int(d) for d in self.newshape])  # type: ignore[arg-type]

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        return (reshaped(grad, call.args[0].shape),)


@register_op("transpose", pattern=OpPattern.INJECTIVE)
class Transpose(OpDef):
    """Dimension d of the result is dimension ``axes[d]`` of x (ONNX: Transpose). (C1) `axes` is a permutation."""

    permutes_elements = True

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        valid = sorted(self.axes) == list(range(x.ndim))
        require(valid, f"(C1) axes {self.axes} must be a permutation of the {x.ndim} dimensions of {x}")
        return x.with_shape([x.shape[a] for a in self.axes])

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.transpose(x, self.axes)

    def reference(self, x: Array) -> Array:
        return x.transpose(self.axes)

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        inverse = tuple([self.axes.index(a) for a in range(len(self.axes))])
        return (Transpose(axes=inverse)(grad),)


@register_op("expand_dims", pattern=OpPattern.INJECTIVE)
class ExpandDims(OpDef):
    """`num_newaxis` dimensions of size 1 in front of dimension `axis` (ONNX: Unsqueeze).

    (C1) axis is in [-ndim - 1, ndim]; (C2) num_newaxis is at least 0 and at most MAX_RANK.
    """

    axis: int
    num_newaxis: int = 1
    is_view = True

    def infer(self, x: TensorType) -> TensorType:
        axis = check_axis(1, self.axis, x.ndim + 1)
        fits = 0 <= self.num_newaxis <= MAX_RANK
        require(fits, f"(C2) num_newaxis must be at least 0 and at most {MAX_RANK}; got {self.num_newaxis}")
        return x.with_shape((*x.shape[:axis], *[1] * self.num_newaxis, *x.shape[axis:]))

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.expand_dims(x, check_axis(1, self.axis, x.ndim + 1), self.num_newaxis)

    def reference(self, x: Array) -> Array:
        return x.reshape(self.infer(TensorType(x.shape)).static_shape)

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        return (reshaped(grad, call.args[0].shape),)


@register_op("squeeze", pattern=OpPattern.INJECTIVE)
class Squeeze(OpDef):
    """x without the dimensions `axis`, by default all those of size 1 (ONNX: Squeeze). (C1) their sizes are 1."""

    axis: tuple[int, ...] | None = None
    is_view = True

    def _axes(self, shape: Sequence[Dim]) -> tuple[int, ...]:
        if self.axis is None:
            return tuple([a for a, d in enumerate(shape) if isinstance(d, int) and d == 1])
        axes = check_axes(1, self.axis, len(shape))
        for a in axes:
            if not dims_match(shape[a], 1):
                raise TypeInferenceError(f"(C1) dimension {a} of {shape_text(shape)} is {shape[a]}, not 1")
        return axes

    def infer(self, x: TensorType) -> TensorType:
        axes = self._axes(x.shape)
        return x.with_shape([d for a, d in enumerate(x.shape) if a not in axes])

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.squeeze(x, self._axes(x.shape))

    def reference(self, x: Array) -> Array:
        return x.reshape(self.infer(TensorType(x.shape)).static_shape)

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        return (reshaped(grad, call.args[0].shape),)


@register_op("strided_slice", pattern=OpPattern.INJECTIVE)
class StridedSlice(OpDef):
    """x[begin : end : strides] along `axes`, as Python slices (ONNX: Slice): negative positions count from the end.

    (C1) axes are different and in range; (C2) begin, end and strides have one number for each axis; (C3) no stride is
    0; (C4) where the dimension, begin or end is symbolic, the stride is positive, and symbolic positions count from the
    front.
    """

    permutes_elements = True

    begin: tuple[Dim, ...]
    end: tuple[Dim, ...]
    strides: tuple[int, ...]
    axes: tuple[int, ...]

    def resolved(self, shape: Sequence[Dim]) -> tuple[list[Dim], list[int], list[Dim]]:
        """(first positions, strides, sizes) of all dimensions."""
        axes = check_axes(1, self.axes, len(shape))
        same = len(self.begin) == len(self.end) == len(self.strides) == len(axes)
        require(
            same, f"(C2) begin {self.begin}, end {self.end} and strides {self.strides} need {len(axes)} numbers each"
        )
        first, steps, sizes = list[Dim]([0] * len(shape)), [1] * len(shape), list(shape)
        for axis, begin, end, stride in zip(axes, self.begin, self.end, self.strides, strict=True):
            require(stride != 0, "(C3) a stride must not be 0")
            first[axis], steps[axis], sizes[axis] = slice_axis(4, shape[axis], begin, end, stride)
        return first, steps, sizes

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(self.resolved(x.shape)[2])

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.strided_slice(x, *self.resolved(x.shape))

    def reference(self, x: Array) -> Array:
        first, steps, sizes = self.resolved(x.shape)
        for axis, (begin, step, size) in enumerate(zip(first, steps, sizes, strict=True)):
            x = x.take(begin + step * np.arange(size), axis)  # type: ignore[arg-type]
        return x.copy()

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        return self.replace(axes=tuple([perm.index(a) for a in check_axes(1, self.axes, len(perm))]))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        (x,) = call.args
        first, steps, sizes = self.resolved(x.shape)
        for axis, (begin, step, size) in enumerate(zip(first, steps, sizes, strict=True)):
            if size == 0:
                return (None,)
            if step < 0:
                grad = Reverse(axis=(axis,))(grad)
                begin, step = as_dim(begin + step * (size - 1)), -step
            grad = _placed(grad, axis, begin, step, x.shape[axis])
        return (grad,)


def _placed(x: Expr, axis: int, begin: Dim, step: int, size: Dim) -> Expr:
    """Zeros of `size` along `axis`, but for x in places `begin`, `begin` + `step`, ..."""
    count = x.shape[axis]
    if step > 1:
        apart = reshaped(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
        widths = tuple([(0, step - 1 if a == axis + 1 else 0) for a in range(len(apart.shape))])
        spread = make_call("nn.pad", (apart,), pad_width=widths)
        x = reshaped(spread, with_dim(x.shape, axis, as_dim(count * step)))
    before, after = begin, as_dim(size - begin - x.shape[axis])
    if isinstance(before, int) and isinstance(after, int):
        widths = tuple([(before, after) if a == axis else (0, 0) for a in range(len(x.shape))])
        return make_call("nn.pad", (x,), pad_width=widths)
    if step > 1:
        raise GradientError(f"a slice of a dynamic size {size} with stride {step} has no gradient rule")
    zeros = [
        make_call("full", (), shape=with_dim(x.shape, axis, d), dtype=str(x.dtype), fill_value=0)
        for d in (before, after)
    ]
    return make_call("concatenate", (zeros[0], x, zeros[1]), axis=axis)


@register_op("slice_at", pattern=OpPattern.INJECTIVE)
class SliceAt(OpDef):
    """A part of x of certain `sizes`, in `strides`, whose first element along each of `axes` a scalar operand gives.

    It replaces slices that differ only in their positions, so that they share a kernel. The positions are not checked.
    (C1) axes are different and in range, with a size, a stride and an int32 scalar for each of them.
    """

    num_data_inputs = 1

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    axes: tuple[int, ...]

    def infer(self, x: TensorType, *begins: TensorType) -> TensorType:
        axes = check_axes(1, self.axes, x.ndim)
        fits = len(self.sizes) == len(self.strides) == len(axes) == len(begins)
        scalars = all(b.ndim == 0 and str(b.dtype) == "int32" for b in begins)
        require(fits and scalars, f"(C1) {len(axes)} axes need sizes, strides and int32 scalars; got {begins}")
        sizes = dict(zip(axes, self.sizes, strict=True))
        return x.with_shape([sizes.get(a, d) for a, d in enumerate(x.shape)])

    def compute(self, x: te.Tensor, *begins: te.Tensor) -> te.Tensor:
        first, steps, sizes = list[Dim]([0] * x.ndim), [1] * x.ndim, list(x.shape)
        for axis, size, stride, begin in zip(self.axes, self.sizes, self.strides, begins, strict=True):
            first[axis], steps[axis], sizes[axis] = begin(), stride, size
        return topi.strided_slice(x, first, steps, sizes)

    def is_specialized_on(self, operand: int, value: object) -> bool:
        return False

    def reference(self, x: Array, *begins: Array) -> Array:
        for axis, size, stride, begin in zip(self.axes, self.sizes, self.strides, begins, strict=True):
            x = x.take(begin + stride * np.arange(size), axis)
        return x


@register_op("reverse", pattern=OpPattern.INJECTIVE)
class Reverse(OpDef):
    """x in reverse order along `axis`. (C1) the axes are different and in range."""

    axis: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        check_axes(1, self.axis, x.ndim)
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.flip(x, check_axes(1, self.axis, x.ndim))

    def reference(self, x: Array) -> Array:
        return np.flip(x, self.axis).copy()

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=tuple([perm.index(a) for a in check_axes(1, self.axis, len(perm))]))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        return (self(grad),)


@register_op("roll", pattern=OpPattern.INJECTIVE)
class Roll(OpDef):
    """Each element `shifts` places further along `axes`; those past the end come first. (NumPy: roll.)

    (C1) the axes are different and in range, with one shift each; (C2) their extents are known.
    """

    shifts: tuple[int, ...]
    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        axes = check_axes(1, self.axes, x.ndim)
        require(len(axes) == len(self.shifts), f"(C1) expected a shift for each of {len(axes)} axes; got {self.shifts}")
        known = all(isinstance(x.shape[a], int) for a in axes)
        require(known, f"(C2) extents along {axes} must be known; got {x}")
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.roll(x, self.shifts, check_axes(1, self.axes, x.ndim))

    def reference(self, x: Array) -> Array:
        return np.roll(x, self.shifts, self.axes)

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        return self.replace(axes=tuple([perm.index(a) for a in check_axes(1, self.axes, len(perm))]))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        return (self.replace(shifts=tuple([-s for s in self.shifts]))(grad),)


@register_op("reverse_sequence", pattern=OpPattern.INJECTIVE)
class ReverseSequence(OpDef):
    """The first ``lengths[b]`` elements along `seq_axis` reversed, for each b along `batch_axis`.

    (ONNX: ReverseSequence.) (C1) both axes are in range and different; (C2) lengths is an integer vector with one
    number for each b.
    """

    seq_axis: int = 1
    batch_axis: int = 0
    num_data_inputs = 1

    def infer(self, x: TensorType, lengths: TensorType) -> TensorType:
        _, batch = check_axes(1, (self.seq_axis, self.batch_axis), x.ndim)
        fits = lengths.ndim == 1 and lengths.dtype.is_integral and dims_match(lengths.shape[0], x.shape[batch])
        require(fits, f"(C2) lengths must be {x.shape[batch]} integers; got {lengths}")
        return x

    def compute(self, x: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        return topi.reverse_sequence(x, lengths, *check_axes(1, (self.seq_axis, self.batch_axis), x.ndim))

    def reference(self, x: Array, lengths: Array) -> Array:
        seq, batch = check_axes(1, (self.seq_axis, self.batch_axis), x.ndim)
        result = x.copy()
        for b, length in enumerate(np.clip(lengths.astype(np.int64), 0, x.shape[seq])):
            part = np.moveaxis(np.moveaxis(x, batch, 0)[b], seq - (seq > batch), 0)
            into = np.moveaxis(np.moveaxis(result, batch, 0)[b], seq - (seq > batch), 0)
            into[:length] = part[:length][::-1]
        return result

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        seq, batch = check_axes(1, (self.seq_axis, self.batch_axis), len(perm))
        return self.replace(seq_axis=perm.index(seq), batch_axis=perm.index(batch))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        return self(grad, call.args[1]), None


@register_op("tile", pattern=OpPattern.INJECTIVE)
class Tile(OpDef):
    """The whole tensor repeated ``reps`` times along the last dimensions, or along new leading ones (ONNX: Tile).

    (C1) no count is negative.
    """

    reps: tuple[Dim, ...]

    def _full(self, ndim: int) -> tuple[Dim, ...]:
        require(all(at_least(r, 0) for r in self.reps), f"(C1) counts must be at least 0; got {self.reps}")
        return (*[1] * (ndim - len(self.reps)), *self.reps)

    def infer(self, x: TensorType) -> TensorType:
        reps = self._full(x.ndim)
        shape = (*[1] * (len(reps) - x.ndim), *x.shape)
        return x.with_shape([as_dim(d * r) for d, r in zip(shape, reps, strict=True)])

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.tile(x, self._full(x.ndim))

    def reference(self, x: Array) -> Array:
        return np.tile(x, [int(r) for r in self.reps])  # type: ignore[arg-type]

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        reps = self._full(len(perm))
        return self.replace(reps=tuple([reps[p] for p in perm])) if len(reps) == len(perm) else None

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        (x,) = call.args
        reps = self._full(len(x.shape))
        shape = (*[1] * (len(reps) - len(x.shape)), *x.shape)
        split = reshaped(grad, [d for pair in zip(reps, shape, strict=True) for d in pair])
        summed = make_call("sum", (split,), axis=tuple(range(0, 2 * len(reps), 2)))
        return (reshaped(summed, x.shape),)


@register_op("repeat", pattern=OpPattern.INJECTIVE)
class Repeat(OpDef):
    """Each element repeated `repeats` times along `axis`. (C1) axis is in range; (C2) repeats is at least 0."""

    repeats: int
    axis: int

    def infer(self, x: TensorType) -> TensorType:
        axis = check_axis(1, self.axis, x.ndim)
        require(self.repeats >= 0, f"(C2) repeats must be at least 0; got {self.repeats}")
        return x.with_shape(with_dim(x.shape, axis, as_dim(x.shape[axis] * self.repeats)))

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.repeat(x, self.repeats, check_axis(1, self.axis, x.ndim))

    def reference(self, x: Array) -> Array:
        return np.repeat(x, self.repeats, self.axis)

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=perm.index(check_axis(1, self.axis, len(perm))))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        (x,) = call.args
        axis = check_axis(1, self.axis, len(x.shape))
        split = reshaped(grad, (*x.shape[: axis + 1], self.repeats, *x.shape[axis + 1 :]))
        return (make_call("sum", (split,), axis=(axis + 1,)),)


@register_op("trilu", pattern=OpPattern.INJECTIVE)
class Trilu(OpDef):
    """The upper (or lower) triangle of the last two dimensions from diagonal `k`, else 0 (ONNX: Trilu).

    (C1) there are two dimensions or more.
    """

    k: int = 0
    upper: bool = True

    def infer(self, x: TensorType) -> TensorType:
        require(x.ndim >= 2, f"(C1) two dimensions or more are needed; got {x}")
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.trilu(x, self.k, self.upper)

    def reference(self, x: Array) -> Array:
        return np.triu(x, self.k) if self.upper else np.tril(x, self.k)

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        return (self(grad),)


def reshape(data: Expr, newshape: Sequence[Dim]) -> Call:
    """`data` under another shape; -1 stands for what is left, 0 for the dimension of `data` at that place."""
    shape = data.shape
    copied = tuple([
        shape[a] if isinstance(d, int) and d == 0 and a < len(shape) and data.tensor_type.size != 0 else d
        for a, d in enumerate(newshape)
    ])  # fmt: skip
    resolved = Reshape(newshape=copied).result_type([data.ty])
    assert isinstance(resolved, TensorType)
    return Reshape(newshape=resolved.shape)(data)


def transpose(data: Expr, axes: Sequence[int] | None = None) -> Call:
    """`data` with dimensions in the order `axes`; by default reversed."""
    rank = len(data.shape)
    order = range(rank - 1, -1, -1) if axes is None else [a + rank if a < 0 else a for a in axes]
    return Transpose(axes=tuple(order))(data)


def expand_dims(data: Expr, axis: int, num_newaxis: int = 1) -> Call:
    """`num_newaxis` dimensions of size 1 in front of dimension `axis`."""
    rank = len(data.shape) + 1
    return ExpandDims(axis=axis + rank if -rank <= axis < 0 else axis, num_newaxis=num_newaxis)(data)


def squeeze(data: Expr, axis: int | Sequence[int] | None = None) -> Call:
    """`data` without the dimensions `axis` of size 1; by default all of them."""
    return Squeeze(axis=(axis,) if isinstance(axis, int) else None if axis is None else tuple(axis))(data)


def strided_slice(
    data: Expr,
    begin: Sequence[Dim],
    end: Sequence[Dim],
    strides: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
) -> Call:
    """data[begin : end : strides] along `axes`, by default the first ones."""
    steps = (1,) * len(begin) if strides is None else tuple(strides)
    along = tuple(range(len(begin))) if axes is None else tuple(axes)
    return StridedSlice(begin=tuple(begin), end=tuple(end), strides=steps, axes=along)(data)


def reverse(data: Expr, axis: int | Sequence[int]) -> Call:
    """`data` in reverse order along `axis`."""
    return Reverse(axis=(axis,) if isinstance(axis, int) else tuple(axis))(data)


def roll(data: Expr, shift: int | Sequence[int], axis: int | Sequence[int]) -> Call:
    """Each element of `data` `shift` places further along `axis`; those past the end come first."""
    shifts, axes = [(v,) if isinstance(v, int) else tuple(v) for v in (shift, axis)]
    return Roll(shifts=shifts, axes=axes)(data)


def reverse_sequence(data: Expr, seq_lengths: Expr, seq_axis: int = 1, batch_axis: int = 0) -> Call:
    """The first ``seq_lengths[b]`` elements along `seq_axis` in reverse order, for each b along `batch_axis`."""
    return ReverseSequence(seq_axis=seq_axis, batch_axis=batch_axis)(data, seq_lengths)


def tile(data: Expr, reps: Sequence[Dim]) -> Call:
    """`data` as a whole repeated ``reps`` times along each dimension."""
    return Tile(reps=tuple(reps))(data)


def repeat(data: Expr, repeats: int, axis: int) -> Call:
    """Each element repeated `repeats` times along `axis`."""
    return Repeat(repeats=repeats, axis=axis)(data)


def trilu(data: Expr, k: int = 0, upper: bool = True) -> Call:
    """The triangle of the last two dimensions above (below) diagonal `k`."""
    return Trilu(k=k, upper=upper)(data)
