"""Reads and writes at positions held in tensors; sorting; running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from relayc import te, topi
from relayc.relay.errors import GradientError
from relayc.relay.expr import Call, Expr, Tuple, TupleGetItem
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, attributes_of_operator, make_call, register_op
from relayc.relay.op.common import (
    Array,
    as_expr,
    at_least,
    check_axis,
    numpy_dtype,
    require,
    require_same_dtype,
    with_dim,
)
from relayc.relay.op.gradients import choose, reshaped, zeros_of
from relayc.relay.sizes import product
from relayc.relay.type import TensorType, TupleType, Type, dims_match, shapes_match
from relayc.te.tir import Dim

__all__ = [
    "TAKE_MODES", "ArgSort", "CumProd", "CumSum", "Gather", "GatherND", "OneHot", "ScatterElements", "ScatterND",
    "SearchSorted", "Sort", "Take", "TopK", "argsort", "cumprod", "cumsum", "gather", "gather_nd", "one_hot",
    "positions_inside", "scatter_elements", "scatter_nd", "searchsorted", "sort", "take", "topk",
]  # fmt: skip


def _require_integers(number: int, indices: TensorType) -> None:
    require(indices.dtype.is_integral, f"(C{number}) indices must be integers; got {indices.dtype}")


TAKE_MODES = ("clip", "wrap", "numpy", "fast")
"""Treatment of out-of-range positions; see `Take`."""


def positions_inside(positions: Array, size: int, mode: str) -> Array:
    """Positions brought into [0, size) as `topi.indexing` does."""
    at = positions.astype(np.int64)
    if mode == "wrap":
        return at % size
    if mode == "numpy":
        at = np.where(at < 0, at + size, at)
    return at if mode == "fast" else np.clip(at, 0, size - 1)


@register_op("take", pattern=OpPattern.INJECTIVE)
class Take(OpDef):
    """Slices of x along `axis` (ONNX: Gather); shape x.shape[:axis] + indices.shape[batch_dims:] + x.shape[axis + 1:].

    `mode` says what a position outside does: "clip" limits it to [0, size), "wrap" takes the remainder, "numpy" counts
    negative ones from the end and then limits, "fast" requires positions in range. The values taken from an axis of
    size 0 are unspecified; `where` may discard them. (C1) indices are integers; (C2) axis is in range; (C3) the first
    `batch_dims` dimensions of both are equal, and come before `axis`; (C4) the mode is known.
    """

    looks_up = True

    axis: int
    batch_dims: int = 0
    mode: str = "clip"
    num_data_inputs = 1

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        _require_integers(1, indices)
        axis, batch = check_axis(2, self.axis, x.ndim), self.batch_dims
        fits = 0 <= batch <= min(axis, indices.ndim) and shapes_match(x.shape[:batch], indices.shape[:batch])
        require(fits, f"(C3) {x} and {indices} must agree in {batch} batch dimensions in front of axis {axis}")
        require(self.mode in TAKE_MODES, f"(C4) mode {self.mode!r} is not one of {', '.join(TAKE_MODES)}")
        return x.with_shape((*x.shape[:axis], *indices.shape[batch:], *x.shape[axis + 1 :]))

    def compute(self, x: te.Tensor, indices: te.Tensor) -> te.Tensor:
        return topi.take(x, indices, check_axis(2, self.axis, x.ndim), self.batch_dims, self.mode)

    def reference(self, x: Array, indices: Array) -> Array:
        axis, batch = check_axis(2, self.axis, x.ndim), self.batch_dims
        if x.shape[axis] == 0:
            return np.zeros((*x.shape[:axis], *indices.shape[batch:], *x.shape[axis + 1 :]), x.dtype)
        at = positions_inside(indices, x.shape[axis], self.mode)
        if batch == 0:
            return np.take(x, at, axis)
        flat = x.reshape((-1, *x.shape[batch:]))
        rows = [np.take(f, a, axis - batch) for f, a in zip(flat, at.reshape((-1, *at.shape[batch:])), strict=True)]
        return np.stack(rows).reshape((*x.shape[:axis], *indices.shape[batch:], *x.shape[axis + 1 :]))

    def is_specialized_on(self, operand: int, value: Array) -> bool:
        return operand != 1

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        indices = types[1]
        assert isinstance(indices, TensorType)
        moves = indices.ndim == 1 and self.batch_dims == 0
        return self.replace(axis=perm.index(check_axis(2, self.axis, len(perm)))) if moves else None

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        x, indices = call.args
        if self.batch_dims:
            raise GradientError(f"operator {self.name} with batch dimensions has no gradient rule")
        axis, size = check_axis(2, self.axis, len(x.shape)), x.shape[self.axis]
        kept, tuples = len(x.shape) - 1, len(indices.shape)
        grad_first = (*range(axis, axis + tuples), *range(axis), *range(axis + tuples, kept + tuples))
        rows = make_call("transpose", (grad,), axes=grad_first)
        empty = zeros_of(x, (size, *x.shape[:axis], *x.shape[axis + 1 :]))
        at = reshaped(self._inside(indices, size), (1, *indices.shape))
        total = ScatterND(reduction="add")(empty, at, rows)
        back = (*range(1, axis + 1), 0, *range(axis + 1, kept + 1))
        return make_call("transpose", (total,), axes=back), None

    def _inside(self, indices: Expr, size: Dim) -> Expr:
        """`indices` as ScatterND takes them: negative ones count from the end, others are limited to `size`."""
        if self.mode in ("numpy", "fast"):
            return indices
        if self.mode == "clip":
            return make_call("maximum", (indices, as_expr(0, indices)))
        length = make_call("sizes", (), values=(size,), shape=(), dtype=str(indices.dtype))
        return make_call("floor_mod", (indices, length))


@register_op("gather", pattern=OpPattern.INJECTIVE)
class Gather(OpDef):
    """Element (i, j, ...) is x with coordinate `axis` replaced by ``indices[i, j, ...]`` (ONNX: GatherElements).

    Negative positions count from the end; those outside are limited. With `broadcasts`, the other dimensions of indices
    are those of x, or 1. (C1) indices are integers; (C2) axis is in range; (C3) both have the same rank; (C4) indices
    that broadcast do so.
    """

    looks_up = True

    axis: int
    broadcasts: bool = False

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        _require_integers(1, indices)
        axis = check_axis(2, self.axis, x.ndim)
        require(x.ndim == indices.ndim, f"(C3) {x} and {indices} must have the same rank")
        if not self.broadcasts:
            return x.with_shape(indices.shape)
        result = with_dim(x.shape, axis, indices.shape[axis])
        fits = all(d == 1 or dims_match(d, n) for d, n in zip(indices.shape, result, strict=True))
        require(fits, f"(C4) {indices} does not broadcast along {x}")
        return x.with_shape(result)

    def compute(self, x: te.Tensor, indices: te.Tensor) -> te.Tensor:
        axis = check_axis(2, self.axis, x.ndim)
        shape = with_dim(x.shape, axis, indices.shape[axis]) if self.broadcasts else indices.shape
        return topi.gather(x, axis, indices, shape)

    def reference(self, x: Array, indices: Array) -> Array:
        axis = check_axis(2, self.axis, x.ndim)
        sizes = x.shape if self.broadcasts else indices.shape
        corner = tuple([slice(None) if a == axis else slice(n) for a, n in enumerate(sizes)])
        return np.take_along_axis(x[corner], positions_inside(indices, x.shape[axis], "numpy"), axis)

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=perm.index(check_axis(2, self.axis, len(perm))))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        x, indices = call.args
        at = make_call("broadcast_to", (indices,), shape=tuple(grad.shape)) if self.broadcasts else indices
        return ScatterElements(axis=self.axis, reduction="add")(zeros_of(x, x.shape), at, grad), None


@register_op("gather_nd", pattern=OpPattern.INJECTIVE)
class GatherND(OpDef):
    """Slices of x at coordinate tuples, along dimension 0 of indices (ONNX: GatherND, transposed).

    x (B..., X_0, ..., X_{M-1}, rest...), indices (M, B..., Y...): (B..., Y..., rest...). Negative positions count from
    the end; those outside are limited. (C1) indices are integers; (C2) M is known and x has that many dimensions after
    the batch; (C3) the `batch_dims` dimensions B of both are equal.
    """

    looks_up = True

    batch_dims: int = 0

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        _require_integers(1, indices)
        depth, batch = indices.shape[0] if indices.ndim else -1, self.batch_dims
        fits = isinstance(depth, int) and 0 <= depth <= x.ndim - batch
        require(fits, f"(C2) tuples of length {depth} do not index {x} after {batch} batch dimensions")
        assert isinstance(depth, int)
        same = 0 <= batch < indices.ndim and shapes_match(x.shape[:batch], indices.shape[1 : 1 + batch])
        require(same, f"(C3) {x} and {indices} must agree in {batch} batch dimensions")
        return x.with_shape((*indices.shape[1:], *x.shape[batch + depth :]))

    def compute(self, x: te.Tensor, indices: te.Tensor) -> te.Tensor:
        return topi.gather_nd(x, indices, self.batch_dims)

    def reference(self, x: Array, indices: Array) -> Array:
        batch = self.batch_dims
        at: list[Any] = [positions_inside(p, x.shape[batch + k], "numpy") for k, p in enumerate(indices)]
        grid = np.indices(indices.shape[1:])[:batch]
        return np.asarray(x[(*grid, *at)]) if at or batch else np.broadcast_to(x, (*indices.shape[1:], *x.shape)).copy()

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        x, indices = call.args
        if self.batch_dims:
            raise GradientError(f"operator {self.name} with batch dimensions has no gradient rule")
        return ScatterND(reduction="add")(zeros_of(x, x.shape), indices, grad), None


_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda old, new: new, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def _require_reduction(number: int, reduction: str) -> None:
    known = ", ".join(_REDUCTIONS)
    require(reduction in _REDUCTIONS, f"(C{number}) reduction {reduction!r} is unknown; known are {known}")


def _numbered(shape: Sequence[Dim]) -> Expr:
    """A tensor of `shape` that holds 0, 1, 2, ...: of several updates of one place the last one counts."""
    count = make_call("arange", (), start=0, stop=product(shape), step=1, dtype="int64")
    return reshaped(count, shape)


def _require_differentiable(op: OpDef, reduction: str) -> None:
    if reduction not in ("update", "add"):
        raise GradientError(f"operator {op.name} with reduction {reduction!r} has no gradient rule")


@register_op("scatter_elements", pattern=OpPattern.OPAQUE)
class ScatterElements(OpDef):
    """A copy of x where element (i, j, ...) of updates is combined in at coordinate ``indices[i, j, ...]`` of `axis`.

    (ONNX: ScatterElements.) Made in row-major order; negative positions count from the end. (C1) indices are integers;
    (C2) axis is in range; (C3) indices and updates have one shape, of x's rank; (C4) x and updates have one element
    type; (C5) `reduction` is update, add, mul, min or max.
    """

    axis: int = 0
    reduction: str = "update"

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        _require_integers(1, indices)
        check_axis(2, self.axis, x.ndim)
        fits = x.ndim == indices.ndim and shapes_match(indices.shape, updates.shape)
        require(fits, f"(C3) {indices} and {updates} must have one shape, of the rank of {x}")
        require_same_dtype(4, x, updates)
        _require_reduction(5, self.reduction)
        return x

    def compute(self, x: te.Tensor, indices: te.Tensor, updates: te.Tensor) -> te.Tensor:
        return topi.scatter_elements(x, indices, updates, check_axis(2, self.axis, x.ndim), self.reduction)

    def reference(self, x: Array, indices: Array, updates: Array) -> Array:
        axis, result = check_axis(2, self.axis, x.ndim), x.copy()
        at = positions_inside(indices, x.shape[axis], "numpy")
        for index in np.ndindex(*updates.shape):
            target = (*index[:axis], at[index], *index[axis + 1 :])
            result[target] = _REDUCTIONS[self.reduction](result[target], updates[index])
        return result

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=perm.index(check_axis(2, self.axis, len(perm))))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        x, indices, updates = call.args
        _require_differentiable(self, self.reduction)
        by_updates = Gather(axis=self.axis)(grad, indices)
        if self.reduction == "add":
            return grad, None, by_updates
        order = _numbered(indices.shape)
        last = Gather(axis=self.axis)(self(zeros_of(order, x.shape), indices, order), indices)
        kept = self(grad, indices, zeros_of(updates, updates.shape))
        return kept, None, choose(make_call("equal", (last, order)), by_updates, 0, grad)


@register_op("scatter_nd", pattern=OpPattern.OPAQUE)
class ScatterND(OpDef):
    """A copy of x where slices of updates are combined in at coordinate tuples along dimension 0 of indices.

    (ONNX: ScatterND, transposed.) x (X_0, ..., X_{M-1}, rest...), indices (M, Y...), updates (Y..., rest...); made in
    row-major order. (C1) indices are integers; (C2) M is known and not above x's rank; (C3) updates has that shape;
    (C4) x and updates have one element type; (C5) `reduction` is update, add, mul, min or max.
    """

    reduction: str = "update"

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        _require_integers(1, indices)
        depth = indices.shape[0] if indices.ndim else -1
        require(isinstance(depth, int) and 0 <= depth <= x.ndim, f"(C2) tuples of length {depth} do not index {x}")
        assert isinstance(depth, int)
        shape = (*indices.shape[1:], *x.shape[depth:])
        require(shapes_match(updates.shape, shape), f"(C3) updates must be {x.with_shape(shape)}; got {updates}")
        require_same_dtype(4, x, updates)
        _require_reduction(5, self.reduction)
        return x

    def compute(self, x: te.Tensor, indices: te.Tensor, updates: te.Tensor) -> te.Tensor:
        return topi.scatter_nd(x, indices, updates, self.reduction)

    def reference(self, x: Array, indices: Array, updates: Array) -> Array:
        result = x.copy()
        places = [positions_inside(p, x.shape[k], "numpy") for k, p in enumerate(indices)]
        for index in np.ndindex(*indices.shape[1:]):
            at = tuple([int(p[index]) for p in places])
            result[at] = _REDUCTIONS[self.reduction](result[at], updates[index])
        return result

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        x, indices, updates = call.args
        _require_differentiable(self, self.reduction)
        by_updates = GatherND()(grad, indices)
        if self.reduction == "add":
            return grad, None, by_updates
        places, tuples = x.shape[: len(x.shape) - len(updates.shape) + len(indices.shape) - 1], indices.shape[1:]
        order = _numbered(tuples)
        last = GatherND()(self(zeros_of(order, places), indices, order), indices)
        is_last = reshaped(make_call("equal", (last, order)), (*tuples, *[1] * (len(updates.shape) - len(tuples))))
        kept = self(grad, indices, zeros_of(updates, updates.shape))
        return kept, None, choose(is_last, by_updates, 0, grad)


@register_op("one_hot", pattern=OpPattern.INJECTIVE)
class OneHot(OpDef):
    """`on` where the new dimension `axis`, `depth` long, equals the index, else `off` (ONNX: OneHot).

    Negative indices count from the end; one outside [-depth, depth) gives a row of `off`. (C1) indices are integers;
    (C2) on and off are scalars of one element type; (C3) axis is in [-ndim - 1, ndim].
    """

    depth: int
    axis: int = -1

    def infer(self, indices: TensorType, on: TensorType, off: TensorType) -> TensorType:
        _require_integers(1, indices)
        require(
            on is off and on.ndim == 0, f"(C2) the two values must be scalars of one element type; got {on} and {off}"
        )
        axis = check_axis(3, self.axis, indices.ndim + 1)
        return TensorType((*indices.shape[:axis], self.depth, *indices.shape[axis:]), on.dtype)

    def compute(self, indices: te.Tensor, on: te.Tensor, off: te.Tensor) -> te.Tensor:
        return topi.one_hot(indices, on, off, self.depth, check_axis(3, self.axis, indices.ndim + 1))

    def reference(self, indices: Array, on: Array, off: Array) -> Array:
        axis = check_axis(3, self.axis, indices.ndim + 1)
        at = np.expand_dims(indices.astype(np.int64), axis)
        line = np.arange(self.depth).reshape([-1 if a == axis else 1 for a in range(at.ndim)])
        return np.where((at == line) | (at + self.depth == line), on, off)


def _descending_or_not(x: Array, axis: int, ascending: bool) -> Array:
    """A stable argsort; NaN is the greatest value, equal values keep their order."""
    if ascending:
        return np.argsort(x, axis=axis, kind="stable")
    from_end = np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    return x.shape[axis] - 1 - from_end


@register_op("argsort", pattern=OpPattern.OPAQUE)
class ArgSort(OpDef):
    """Positions along `axis` in sorted order; equal values keep their order, NaN is the greatest value.

    (C1) the element type is a number; (C2) axis is in range.
    """

    axis: int = -1
    is_ascend: bool = True
    dtype: str = "int32"

    def infer(self, x: TensorType) -> TensorType:
        require(not x.dtype.is_bool, f"(C1) the element type must be a number; got {x.dtype}")
        check_axis(2, self.axis, x.ndim)
        return x.with_dtype(self.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.argsort(x, check_axis(2, self.axis, x.ndim), self.is_ascend, self.dtype)

    def reference(self, x: Array) -> Array:
        return _descending_or_not(x, self.axis, self.is_ascend).astype(numpy_dtype(self.dtype))

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=perm.index(check_axis(2, self.axis, len(perm))))


@register_op("sort", pattern=OpPattern.OPAQUE)
class Sort(OpDef):
    """x sorted along `axis`; NaN is the greatest value. (C1) the element type is a number; (C2) axis is in range."""

    axis: int = -1
    is_ascend: bool = True

    def infer(self, x: TensorType) -> TensorType:
        require(not x.dtype.is_bool, f"(C1) the element type must be a number; got {x.dtype}")
        check_axis(2, self.axis, x.ndim)
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.sort(x, check_axis(2, self.axis, x.ndim), self.is_ascend)

    def reference(self, x: Array) -> Array:
        return np.take_along_axis(x, _descending_or_not(x, self.axis, self.is_ascend), self.axis)

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=perm.index(check_axis(2, self.axis, len(perm))))

    def decomposed(self, *args: Expr) -> Expr:
        (x,) = args
        return Gather(axis=self.axis)(x, ArgSort(axis=self.axis, is_ascend=self.is_ascend)(x))


@register_op("searchsorted", pattern=OpPattern.OPAQUE)
class SearchSorted(OpDef):
    """Where each value would be inserted into an ascending vector, before equal ones, or with `right` behind them.

    (C1) input 0 is a vector; (C2) both inputs have one element type, a number.
    """

    right: bool = False
    dtype: str = "int32"

    def infer(self, sequence: TensorType, values: TensorType) -> TensorType:
        require(sequence.ndim == 1, f"(C1) the sequence must be a vector; got {sequence}")
        require_same_dtype(2, sequence, values)
        require(not values.dtype.is_bool, f"(C2) the element type must be a number; got {values.dtype}")
        return values.with_dtype(self.dtype)

    def compute(self, sequence: te.Tensor, values: te.Tensor) -> te.Tensor:
        return topi.searchsorted(sequence, values, self.right, self.dtype)

    def reference(self, sequence: Array, values: Array) -> Array:
        return np.asarray(np.searchsorted(sequence, values, "right" if self.right else "left"), self.dtype)


@register_op("topk", pattern=OpPattern.OPAQUE)
class TopK(OpDef):
    """The k largest (smallest, with `is_ascend`) values along `axis` in order, and their positions (ONNX: TopK).

    Gives a tuple (values, positions); among equal values the first position comes first. (C1) the element type is a
    number; (C2) axis is in range; (C3) k is in [0, size].
    """

    k: Dim
    axis: int = -1
    is_ascend: bool = False
    dtype: str = "int32"

    def infer(self, x: TensorType) -> TupleType:
        require(not x.dtype.is_bool, f"(C1) the element type must be a number; got {x.dtype}")
        axis = check_axis(2, self.axis, x.ndim)
        size = x.shape[axis]
        within = not isinstance(size, int) or not isinstance(self.k, int) or self.k <= size
        require(at_least(self.k, 0) and within, f"(C3) k = {self.k} must be in [0, {size}]")
        values = x.with_shape(with_dim(x.shape, axis, self.k))
        return TupleType([values, values.with_dtype(self.dtype)])

    def compute(self, x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
        return topi.topk(x, self.k, check_axis(2, self.axis, x.ndim), not self.is_ascend, self.dtype)

    def reference(self, x: Array) -> tuple[Array, Array]:
        order = np.take(_descending_or_not(x, self.axis, self.is_ascend), np.arange(int(self.k)), self.axis)  # type: ignore[arg-type]
        return np.take_along_axis(x, order, self.axis), order.astype(numpy_dtype(self.dtype))

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=perm.index(check_axis(2, self.axis, len(perm))))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        assert isinstance(grad, Tuple)
        (x,) = call.args
        places = TupleGetItem(call, 1)
        return (ScatterElements(axis=self.axis, reduction="add")(zeros_of(x, x.shape), places, grad.fields[0]),)


@attributes_of_operator
class Running(OpDef):
    """Base of running sums and products. (C1) axis is in range; (C2) the element type is a number."""

    mixed_precision = MixedPrecision.NEVER

    axis: int
    dtype: str
    exclusive: bool = False
    reverse: bool = False

    define: ClassVar[Callable[..., te.Tensor]]
    evaluate: ClassVar[Callable[..., Array]]
    start: ClassVar[int]

    def infer(self, x: TensorType) -> TensorType:
        check_axis(1, self.axis, x.ndim)
        require(not x.dtype.is_bool, f"(C2) the element type must be a number; got {x.dtype}")
        return x.with_dtype(self.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return type(self).define(x, check_axis(1, self.axis, x.ndim), self.dtype, self.exclusive, self.reverse)

    def reference(self, x: Array) -> Array:
        kind = numpy_dtype(self.dtype)
        values = np.flip(x, self.axis).astype(kind) if self.reverse else x.astype(kind)
        if self.exclusive:
            first = np.full_like(values.take([0], self.axis), self.start) if x.shape[self.axis] else values
            values = np.concatenate([first, values.take(range(x.shape[self.axis] - 1), self.axis)], self.axis)
        result = type(self).evaluate(values, axis=self.axis, dtype=kind)
        return np.flip(result, self.axis) if self.reverse else result

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=perm.index(check_axis(1, self.axis, len(perm))))


@register_op("cumsum", pattern=OpPattern.OPAQUE)
class CumSum(Running):
    """The sum of the elements up to each one along `axis`, in type `dtype` (ONNX: CumSum); `exclusive` of it.

    With `reverse` it is the sum of the elements from each one on.
    """

    define = staticmethod(topi.cumsum)
    evaluate = staticmethod(np.cumsum)
    start = 0

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        total = self.replace(reverse=not self.reverse, dtype=str(grad.dtype))(grad)
        return (make_call("cast", (total,), dtype=str(call.args[0].dtype)),)


@register_op("cumprod", pattern=OpPattern.OPAQUE)
class CumProd(Running):
    """The product of the elements up to each one along `axis`, in type `dtype`; `exclusive` of it.

    With `reverse` it is the product of the elements from each one on.
    """

    define = staticmethod(topi.cumprod)
    evaluate = staticmethod(np.cumprod)
    start = 1


def take(data: Expr, indices: Expr, axis: int, batch_dims: int = 0, mode: str = "clip") -> Call:
    """Slices of `data` along `axis`."""
    return Take(axis=axis, batch_dims=batch_dims, mode=mode)(data, indices)


def gather(data: Expr, axis: int, indices: Expr, broadcasts: bool = False) -> Call:
    """`data` with coordinate `axis` replaced by `indices`, element by element."""
    return Gather(axis=axis, broadcasts=broadcasts)(data, indices)


def gather_nd(data: Expr, indices: Expr, batch_dims: int = 0) -> Call:
    """Slices of `data` at the coordinate tuples along dimension 0 of `indices`."""
    return GatherND(batch_dims=batch_dims)(data, indices)


def scatter_elements(data: Expr, indices: Expr, updates: Expr, axis: int = 0, reduction: str = "update") -> Call:
    """A copy of `data` with elements of `updates` combined in."""
    return ScatterElements(axis=axis, reduction=reduction)(data, indices, updates)


def scatter_nd(data: Expr, indices: Expr, updates: Expr, mode: str = "update") -> Call:
    """A copy of `data` with slices of `updates` combined in at the tuples along dimension 0 of `indices`."""
    return ScatterND(reduction=mode)(data, indices, updates)


def one_hot(indices: Expr, on_value: Expr, off_value: Expr, depth: int, axis: int = -1) -> Call:
    """`on_value` where the new dimension equals the index, else `off_value`; both scalar tensors."""
    return OneHot(depth=depth, axis=axis)(indices, on_value, as_expr(off_value, on_value))


def argsort(data: Expr, axis: int = -1, is_ascend: bool = True, dtype: str = "int32") -> Call:
    """Positions along `axis` in sorted order."""
    return ArgSort(axis=axis, is_ascend=is_ascend, dtype=dtype)(data)


def sort(data: Expr, axis: int = -1, is_ascend: bool = True) -> Call:
    """`data` sorted along `axis`."""
    return Sort(axis=axis, is_ascend=is_ascend)(data)


def searchsorted(sorted_sequence: Expr, values: Expr, right: bool = False, dtype: str = "int32") -> Call:
    """Where `values` would be inserted into an ascending vector."""
    return SearchSorted(right=right, dtype=dtype)(sorted_sequence, values)


def topk(
    data: Expr, k: Dim = 1, axis: int = -1, is_ascend: bool = False, dtype: str = "int32"
) -> tuple[TupleGetItem, TupleGetItem]:
    """The k largest (smallest) values along `axis`, in order, and their positions."""
    call = TopK(k=k, axis=axis, is_ascend=is_ascend, dtype=dtype)(data)
    return TupleGetItem(call, 0), TupleGetItem(call, 1)


def cumsum(
    data: Expr, axis: int, dtype: str | None = None, exclusive: bool = False, reverse: bool = False
) -> Call:
    """Running sums along `axis`, from its end with `reverse`."""
    return CumSum(axis=axis, dtype=str(dtype or data.dtype), exclusive=exclusive, reverse=reverse)(data)


def cumprod(
    data: Expr, axis: int, dtype: str | None = None, exclusive: bool = False, reverse: bool = False
) -> Call:
    """Running products along `axis`, from its end with `reverse`."""
    return CumProd(axis=axis, dtype=str(dtype or data.dtype), exclusive=exclusive, reverse=reverse)(data)
