"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc import te, topi
from relayc.relay.errors import TypeInferenceError
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, Multiplications, OpDef, OpPattern, register_op
from relayc.relay.op.common import (
    Array,
    fill_panels,
    numpy_dtype,
    require,
    require_pairs,
    require_same_dtype,
    require_weights_of,
)
from relayc.relay.op.gradients import reshaped, sum_to, swapped
from relayc.relay.op.indexing import TAKE_MODES, positions_inside
from relayc.relay.sizes import product
from relayc.relay.type import TensorType, Type, broadcast_shapes, dims_match
from relayc.te.dtype import FLOAT32
from relayc.te.tir import Dim
from relayc.topi.utils import ceil_div

__all__ = [
    "BatchMatmul", "BatchMatmulPacked", "Dense", "DensePacked", "PackPanels", "RoutedDense", "TakeFromPanels",
    "batch_matmul", "batch_matmul_packed", "dense", "dense_packed", "matmul", "pack_panels", "routed_dense",
    "take_from_panels",
]  # fmt: skip


def _product(a: Array, b: Array, out_dtype: str) -> Array:
    """a @ b summed in float64 (integers: in int64) and rounded once."""
    wide = np.int64 if a.dtype.kind in "iu" else np.float64
    return np.matmul(a.astype(wide), b.astype(wide)).astype(numpy_dtype(out_dtype))


def _sums(result: Type, depth: Dim) -> Multiplications:
    """A sum over `depth` for each element of the result."""
    assert isinstance(result, TensorType)
    return ((*result.shape, depth),)


@register_op("nn.dense", pattern=OpPattern.OUT_FUSABLE)
class Dense(OpDef):
    """data (..., K) times weight (N, K) transposed: (..., N) (ONNX: Gemm with transB).

    (C1) both inputs have one element type; (C2) data has one dimension or more and weight two; (C3) their K are equal.
    """

    mixed_precision = MixedPrecision.ALWAYS
    reads_by_index = True

    out_dtype: str | None = None

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        require_same_dtype(1, data, weight)
        require(
            data.ndim >= 1 and weight.ndim == 2,
            f"(C2) data (..., K) and weight (N, K) expected; got {data} and {weight}",
        )
        require(dims_match(data.shape[-1], weight.shape[1]), f"(C3) K differs: {data} and {weight}")
        return TensorType((*data.shape[:-1], weight.shape[0]), self.out_dtype or data.dtype)

    def compute(self, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return topi.nn.dense(data, weight, self.out_dtype)

    def reference(self, data: Array, weight: Array) -> Array:
        return _product(data, weight.T, self.out_dtype or str(data.dtype))

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        weight = types[1]
        assert isinstance(weight, TensorType)
        return _sums(result, weight.shape[1])

    def decomposed(self, *args: Expr) -> Expr:
        data, weight = args
        matrix = reshaped(data, (product(data.shape[:-1]), data.shape[-1]))
        result = BatchMatmul(transpose_b=True, out_dtype=self.out_dtype)(matrix, weight)
        return reshaped(result, (*data.shape[:-1], weight.shape[0]))


_FEW_WEIGHTS = 1 << 18
"""Most weights of dense layers that share a kernel: larger ones come from memory, and have their panels prefetched."""


@register_op("nn.dense_packed", pattern=OpPattern.OUT_FUSABLE)
class DensePacked(OpDef):
    """data (..., K) times weights packed (ceil(N / NR), K, NR), padded with 0: (..., N) with N = `units`.

    ``layout_transform(w, "NC", f"NC{NR}n")`` packs weights (N, K). (C1) weights have the data's element type, or one of
    fewer bits whose values it represents; (C2) data has one dimension or more and weight three; (C3) their K are equal;
    (C4) the blocks hold `units` columns. `pairs` says that weights, and data less `zero_point`, are integers within 16
    bits; data may be 8-bit quantised values then, and the result is int32.
    """

    mixed_precision = MixedPrecision.ALWAYS
    open_attributes = ("units",)

    units: Dim
    out_dtype: str | None = None
    pairs: bool = False
    zero_point: int = 0

    def open_form(self, types: Sequence[TensorType]) -> tuple[OpDef, Sequence[Sequence[int]]]:
        """Whole panels of float32 that caches hold, where rows aren't those of images, which plans depend on."""
        data, weight = types
        panels, depth, width = weight.shape
        if not (isinstance(panels, int) and isinstance(depth, int) and isinstance(width, int)):
            return self, ((), ())
        of_images = data.ndim > 2 and data.with_shape(data.shape[1:]).is_static
        whole = data.dtype == weight.dtype == FLOAT32 and dims_match(self.units, panels * width)
        is_open = whole and not of_images and panels * depth * width <= _FEW_WEIGHTS
        return self, ((), (0,) if is_open else ())

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        check = require_pairs if self.pairs else require_weights_of
        check(1, data, weight)
        ranks = data.ndim >= 1 and weight.ndim == 3
        require(ranks, f"(C2) data (..., K) and weight (N / NR, K, NR) expected; got {data} and {weight}")
        require(dims_match(data.shape[-1], weight.shape[1]), f"(C3) K differs: {data} and {weight}")
        blocks, _, nr = weight.shape
        require(fill_panels(self.units, blocks, nr), f"(C4) {blocks} blocks of {nr} do not hold {self.units} columns")
        return TensorType((*data.shape[:-1], self.units), self._result_dtype(str(data.dtype)))

    def ignores_factors(self, types: Sequence[Type]) -> bool:
        """Rows of a dynamic number of images are planned for the rows of one, all that is known of their number."""
        data = types[0]
        return isinstance(data, TensorType) and not data.with_shape(data.shape[1:]).is_static

    def _result_dtype(self, data: str) -> str:
        return "int32" if self.pairs else self.out_dtype or data

    def compute(self, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        pairs = topi.nn.Pairs(self.zero_point) if self.pairs else None
        return topi.nn.dense_packed(data, weight, self.units, self._result_dtype(data.dtype), pairs)

    def reference(self, data: Array, weight: Array) -> Array:
        panels, depth, width = weight.shape
        columns = weight.transpose(1, 0, 2).reshape(depth, panels * width)[:, : self.units]
        data = data.astype(np.int32) - np.int32(self.zero_point) if self.pairs else data
        return _product(data, columns, self._result_dtype(str(data.dtype)))

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        weight = types[1]
        assert isinstance(weight, TensorType)
        return _sums(result, weight.shape[1])


@register_op("nn.batch_matmul", pattern=OpPattern.OUT_FUSABLE)
class BatchMatmul(OpDef):
    """Products of the matrices in the last two dimensions, leading ones broadcast (ONNX: MatMul).

    a is (..., M, K), with `transpose_a` (..., K, M); b is (..., K, N), with `transpose_b` (..., N, K): (..., M, N).
    (C1) both inputs have one element type; (C2) two dimensions or more; (C3) their K are equal; (C4) the leading
    dimensions broadcast. With `panel` the kernel packs b in panels of so many columns, but for few rows and for a
    single column.
    """

    mixed_precision = MixedPrecision.ALWAYS
    reads_by_index = True
    num_unbroadcast_axes = 2

    transpose_a: bool = False
    transpose_b: bool = True
    out_dtype: str | None = None
    panel: int | None = None

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        require_same_dtype(1, a, b)
        require(a.ndim >= 2 and b.ndim >= 2, f"(C2) two dimensions or more are needed; got {a} and {b}")
        rows, depth = a.shape[-2:][::-1] if self.transpose_a else a.shape[-2:]
        other, columns = b.shape[-2:][::-1] if self.transpose_b else b.shape[-2:]
        require(dims_match(depth, other), f"(C3) K differs, {depth} and {other}: {a} and {b}")
        try:
            batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except TypeInferenceError as error:
            raise TypeInferenceError(f"(C4) {error.constraint}") from None
        return TensorType((*batch, rows, columns), self.out_dtype or a.dtype)

    def compute(self, a: te.Tensor, b: te.Tensor) -> te.Tensor:
        if self.panel is None:
            return topi.nn.batch_matmul(a, b, self.transpose_a, self.transpose_b, self.out_dtype)
        panels = topi.nn.pack_panels(b, self.panel, not self.transpose_b)
        columns = b.shape[-2 if self.transpose_b else -1]
        return topi.nn.batch_matmul_packed(a, panels, columns, self.out_dtype, self.transpose_a)

    def reference(self, a: Array, b: Array) -> Array:
        left = np.swapaxes(a, -1, -2) if self.transpose_a else a
        right = np.swapaxes(b, -1, -2) if self.transpose_b else b
        return _product(left, right, self.out_dtype or str(a.dtype))

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        a = types[0]
        assert isinstance(a, TensorType)
        return _sums(result, a.shape[-2] if self.transpose_a else a.shape[-1])

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        a, b = call.args
        left = BatchMatmul(transpose_b=not self.transpose_b)(grad, b)
        right = BatchMatmul(transpose_a=not self.transpose_a, transpose_b=False)(a, grad)
        by_a = swapped(left) if self.transpose_a else left
        by_b = swapped(right) if self.transpose_b else right
        return sum_to(by_a, a.shape), sum_to(by_b, b.shape)


@register_op("nn.pack_panels", pattern=OpPattern.INJECTIVE)
class PackPanels(OpDef):
    """Matrices (..., N, K) in panels (..., ceil(N / width), K, width), padded with 0: the order in which products read
    them.

    With `transpose` the matrices are (..., K, N). (C1) two dimensions or more; (C2) width is positive.
    """

    width: int
    transpose: bool = False

    def infer(self, x: TensorType) -> TensorType:
        require(x.ndim >= 2, f"(C1) two dimensions or more are needed; got {x}")
        require(self.width >= 1, f"(C2) panels of {self.width} columns")
        columns, depth = x.shape[-2:][::-1] if self.transpose else x.shape[-2:]
        return TensorType((*x.shape[:-2], ceil_div(columns, self.width), depth, self.width), x.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.pack_panels(x, self.width, self.transpose)

    def reference(self, x: Array) -> Array:
        matrices = np.swapaxes(x, -1, -2) if self.transpose else x
        missing = -matrices.shape[-2] % self.width
        padded = np.pad(matrices, [*[(0, 0)] * (x.ndim - 2), (0, missing), (0, 0)])
        split = padded.reshape(*padded.shape[:-2], padded.shape[-2] // self.width, self.width, padded.shape[-1])
        return np.ascontiguousarray(np.swapaxes(split, -1, -2))


@register_op("nn.take_from_panels", pattern=OpPattern.INJECTIVE)
class TakeFromPanels(OpDef):
    """Rows of a matrix (N, K) packed in panels (ceil(N / NR), K, NR), N = `rows`: indices.shape + (K,).

    Equal to `take` along axis 0 of the plain matrix, with the same `mode`. (C1) indices are integers; (C2) panels have
    three dimensions and hold `rows`; (C3) the mode is known.
    """

    looks_up = True

    rows: int
    mode: str = "clip"
    num_data_inputs = 1

    def infer(self, panels: TensorType, indices: TensorType) -> TensorType:
        require(indices.dtype.is_integral, f"(C1) indices must be integers; got {indices.dtype}")
        require(panels.ndim == 3, f"(C2) panels (N / NR, K, NR) expected; got {panels}")
        blocks, depth, nr = panels.shape
        if isinstance(blocks, int) and isinstance(nr, int):
            holds = (blocks - 1) * nr < self.rows <= blocks * nr
            require(holds, f"(C2) {blocks} panels of {nr} do not hold {self.rows} rows")
        require(self.mode in TAKE_MODES, f"(C3) mode {self.mode!r} is not one of {', '.join(TAKE_MODES)}")
        return panels.with_shape((*indices.shape, depth))

    def compute(self, panels: te.Tensor, indices: te.Tensor) -> te.Tensor:
        return topi.nn.take_from_panels(panels, indices, self.rows, self.mode)

    def reference(self, panels: Array, indices: Array) -> Array:
        matrix = panels.transpose(0, 2, 1).reshape(len(panels) * panels.shape[2], panels.shape[1])
        return matrix[positions_inside(indices, self.rows, self.mode)]

    def is_specialized_on(self, operand: int, value: Array) -> bool:
        return operand != 1


@register_op("nn.batch_matmul_packed", pattern=OpPattern.OUT_FUSABLE)
class BatchMatmulPacked(OpDef):
    """Matrices (..., M, K) times panels (..., ceil(N / NR), K, NR) made by nn.pack_panels: (..., M, N), N = `columns`.

    With `transpose_a` the matrices are (..., K, M). (C1) both inputs have one element type; (C2) matrices have two
    dimensions or more, panels three; (C3) their K are equal; (C4) the leading dimensions broadcast.
    """

    mixed_precision = MixedPrecision.ALWAYS

    columns: Dim
    transpose_a: bool = False
    out_dtype: str | None = None

    def infer(self, a: TensorType, panels: TensorType) -> TensorType:
        require_same_dtype(1, a, panels)
        require(a.ndim >= 2 and panels.ndim >= 3, f"(C2) the ranks don't fit: {a} and {panels}")
        rows, depth = a.shape[-2:][::-1] if self.transpose_a else a.shape[-2:]
        require(dims_match(depth, panels.shape[-2]), f"(C3) K differs: {a} and {panels}")
        try:
            batch = broadcast_shapes(a.shape[:-2], panels.shape[:-3])
        except TypeInferenceError as error:
            raise TypeInferenceError(f"(C4) {error.constraint}") from None
        return TensorType((*batch, rows, self.columns), self.out_dtype or a.dtype)

    def compute(self, a: te.Tensor, panels: te.Tensor) -> te.Tensor:
        return topi.nn.batch_matmul_packed(a, panels, self.columns, self.out_dtype, self.transpose_a)

    def reference(self, a: Array, panels: Array) -> Array:
        a = np.swapaxes(a, -1, -2) if self.transpose_a else a
        *batch, count, depth, width = panels.shape
        whole = np.swapaxes(panels, -1, -2).reshape(*batch, count * width, depth)
        b = np.swapaxes(whole[..., : self.columns, :], -1, -2)
        return _product(a, b, self.out_dtype or str(a.dtype))

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        a = types[0]
        assert isinstance(a, TensorType)
        return _sums(result, a.shape[-2] if self.transpose_a else a.shape[-1])


@register_op("nn.routed_dense", pattern=OpPattern.OUT_FUSABLE)
class RoutedDense(OpDef):
    """Groups of rows (T, rows, K) times the matrix `chosen` (T,) for each: (T, rows, N), N = `units` (ONNX: MoE).

    Matrices are panels (experts, ceil(N / NR), K, NR) made by nn.pack_panels. (C1) data and panels have one element
    type, experts are integers; (C2) data have three dimensions, panels four and experts one; (C3) their K and T are
    equal; (C4) the panels hold `units` columns.
    """

    mixed_precision = MixedPrecision.ALWAYS

    units: int

    def takes_sizes_apart(self) -> bool:
        """The number and the length of groups of rows: no loop needs to know that both follow from that of tokens."""
        return True

    def infer(self, data: TensorType, panels: TensorType, chosen: TensorType) -> TensorType:
        require_same_dtype(1, data, panels)
        require(chosen.dtype.is_integral, f"(C1) experts must be integers; got {chosen}")
        ranks = (data.ndim, panels.ndim, chosen.ndim)
        require(ranks == (3, 4, 1), f"(C2) the ranks don't fit: {data}, {panels} and {chosen}")
        fits = dims_match(data.shape[2], panels.shape[2]) and dims_match(data.shape[0], chosen.shape[0])
        require(fits, f"(C3) K or T differ: {data}, {panels} and {chosen}")
        _, blocks, _, nr = panels.shape
        require(fill_panels(self.units, blocks, nr), f"(C4) {blocks} blocks of {nr} do not hold {self.units} columns")
        return TensorType((*data.shape[:2], self.units), data.dtype)

    def compute(self, data: te.Tensor, panels: te.Tensor, chosen: te.Tensor) -> te.Tensor:
        return topi.nn.routed_dense(data, panels, chosen, self.units)

    def reference(self, data: Array, panels: Array, chosen: Array) -> Array:
        matrices = BatchMatmulPacked(columns=self.units)
        return matrices.reference(data, panels[chosen])

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        data = types[0]
        assert isinstance(data, TensorType)
        return _sums(result, data.shape[2])


def pack_panels(x: Expr, width: int, transpose: bool = False) -> Call:
    """Matrices in panels of `width` columns."""
    return PackPanels(width=width, transpose=transpose)(x)


def routed_dense(data: Expr, panels: Expr, chosen: Expr, units: int) -> Call:
    """Groups of rows (T, rows, K) times the packed matrix `chosen` (T,) for each, of `units` columns."""
    return RoutedDense(units=units)(data, panels, chosen)


def take_from_panels(panels: Expr, indices: Expr, rows: int, mode: str = "clip") -> Call:
    """Rows of a matrix of `rows` rows packed in panels."""
    return TakeFromPanels(rows=rows, mode=mode)(panels, indices)


def batch_matmul_packed(a: Expr, panels: Expr, columns: int, out_dtype: str | None = None) -> Call:
    """Products with packed matrices of `columns` columns."""
    return BatchMatmulPacked(columns=columns, out_dtype=out_dtype)(a, panels)


def dense(data: Expr, weight: Expr, units: int | None = None, out_dtype: str | None = None) -> Call:
    """`data` (..., K) times `weight` (N, K) transposed; `units`, if set, must be N."""
    if units is not None and not all(dims_match(rows, units) for rows in weight.shape[:1]):
        raise TypeInferenceError(f"units={units}, but the weights are {weight.ty}")
    return Dense(out_dtype=out_dtype)(data, weight)


def dense_packed(data: Expr, weight: Expr, units: int, out_dtype: str | None = None) -> Call:
    """`data` (..., K) times weights packed NC<NR>n, `units` columns."""
    return DensePacked(units=units, out_dtype=out_dtype)(data, weight)


def batch_matmul(
    tensor_a: Expr,
    tensor_b: Expr,
    out_dtype: str | None = None,
    transpose_a: bool = False,
    transpose_b: bool = True,
) -> Call:
    """Products of matrices; `tensor_b` is (..., N, K) unless `transpose_b` is False."""
    return BatchMatmul(transpose_a=transpose_a, transpose_b=transpose_b, out_dtype=out_dtype)(tensor_a, tensor_b)


def matmul(
    tensor_a: Expr,
    tensor_b: Expr,
    out_dtype: str | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Call:
    """Products of matrices (..., M, K) by (..., K, N)."""
    return batch_matmul(tensor_a, tensor_b, out_dtype, transpose_a, transpose_b)
