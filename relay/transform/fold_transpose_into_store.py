"""FoldTransposeIntoStore: folds a transpose into the producer's store, if only the transpose reads the product.

Likewise the packing into panels for another product. Heads of attention, windows and images with channels first would
otherwise take another pass over memory. There are two kinds. If runs of several columns stay contiguous, each run is
stored to another address. If memory runs along the rows of the product (channels first), blocks of results are
transposed in registers when they leave the first-level cache; for Winograd convolutions these blocks are rows of tiles
of an image, for depthwise convolutions rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeGuard

from relayc.backend.target import Target
from relayc.relay.expr import Call, Expr, Function, Var
from relayc.relay.expr_functor import Sharing, rewrite_calls_knowing_uses
from relayc.relay.op.base import OpDef, OpPattern
from relayc.relay.op.nn.conv import Conv2D
from relayc.relay.op.nn.dense import BatchMatmulPacked, DensePacked, PackPanels
from relayc.relay.op.nn.dense_bits import DenseBlocks
from relayc.relay.op.nn.dot4 import Conv2DNHWCDot4, DenseDot4, DenseDot4Groups, WindowDot4Groups
from relayc.relay.op.nn.packed_conv import Conv1DNWCPacked, Conv2DNHWCPacked, Conv3DNDHWCPacked
from relayc.relay.op.nn.winograd import Conv2DNHWCWinograd
from relayc.relay.op.transform import Reshape, Transpose
from relayc.relay.sizes import dims_equal, product as product_of
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.transform.winograd import likely_images
from relayc.relay.type import TensorType
from relayc.te.ir import PassContext, post_order
from relayc.te.tir import Dim, as_int
from relayc.topi.cpu.convolution.winograd_plan import WinogradShape, winograd_transposes
from relayc.topi.cpu.register_transpose import block_of, transposed_vectors
from relayc.topi.cpu.tiling import LINE_ELEMENTS, amx_panel, vector_lanes
from relayc.topi.groups import constant_size
from relayc.topi.utils import num_elements, same_dim

__all__ = ["FoldTransposeIntoStore"]

_PRODUCTS = (
    DensePacked, DenseBlocks, DenseDot4, DenseDot4Groups,
    Conv1DNWCPacked, Conv2DNHWCPacked, Conv3DNDHWCPacked, Conv2DNHWCDot4, WindowDot4Groups, BatchMatmulPacked,
)  # fmt: skip
"""Products with packed weights, or other packed matrices, whose register tiles support `StoreOrder`."""

_MIN_RUN = 4
"""Minimum elements of a row that one instruction stores."""


@dataclass(frozen=True)
class FoldTransposeIntoStore(FunctionPass):
    """Transposes of the results of products become part of their kernels; see the module's docstring."""

    target: Target
    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        if context.option("relay.FuseOps.max_size") <= 1:
            return function
        return rewrite_calls_knowing_uses(function, self._rewritten)

    def _rewritten(self, call: Call, is_shared: Sharing) -> Expr:
        reader = _only_call(call)
        moved = None if reader is None else _moved(reader)
        if moved is None:
            return call
        source = call.args[0]
        while not is_shared(source) and (view := _only_call(source)) is not None and isinstance(view.op, Reshape):
            assert isinstance(source, Call)
            source = source.args[0]
        if is_shared(source) or not _is_function_call(source):
            return call
        order = _Order.of(*moved, _anchor(source), self.target)
        return call if order is None else _stored(source, order, call)


@dataclass(frozen=True, slots=True)
class _Order:
    """Dimensions `sizes` of a product's result, with adjacent ones that stay adjacent collapsed, and their order in
    memory."""

    sizes: tuple[Dim, ...]
    axes: tuple[int, ...]
    rows: int
    """number of dimensions that are rows of the product; the others are its columns, whose sizes are static"""

    @staticmethod
    def of(source: TensorType, axes: Sequence[int], product: Call | None, target: Target) -> _Order | None:
        """The order of a transposed result of `product`, or of a view of it; None if a separate kernel is better."""
        first = None if product is None else _first_of_columns(source, product)
        if product is None or first is None or not _keeps_matrices(source, product, first):
            return None
        apart = {first, first - 1} if isinstance(product.op, BatchMatmulPacked) else {first}
        groups, placed = _adjacent(source.shape, axes, apart)
        sizes = [num_elements([source.shape[d] for d in group]) for group in groups]
        order = _Order(tuple(sizes), tuple(placed), sum(group[0] < first for group in groups))
        if order.axes == tuple(range(len(groups))):  # only dimensions of size 1 change place
            return None
        if isinstance(product.op, (Conv2DNHWCWinograd, Conv2D)):
            return order._by_rows(source, product, target)
        return order if order._keeps_runs(product, target) or order._transposes(source, product, target) else None

    def _keeps_runs(self, product: Call, target: Target) -> bool:
        """Is the last dimension unchanged, and does it consist of whole vectors of a row?

        Or of large parts of vectors, if all columns are whole vectors: these are computed whole, and stored in parts.
        """
        last, lanes = len(self.sizes) - 1, vector_lanes(target)
        if self.rows == 0 or last < self.rows or self.axes[-1] != last:
            return False
        run, columns = constant_size(self.sizes[-1:]), constant_size(self.sizes[self.rows :])
        by_parts = run % _MIN_RUN == 0 and columns % lanes == 0 and not isinstance(product.op, BatchMatmulPacked)
        return run % lanes == 0 or by_parts

    def _transposes(self, source: TensorType, product: Call, target: Target) -> bool:
        """Are rows and columns exchanged, possibly for each entry of a batch, and are there enough to transpose?

        Two panels of the product stay in the second-level cache: longer reductions are split (K-blocking). AMX tiles,
        which store rows, are worth more than a pass over memory.
        """
        static = all(isinstance(d, int) for d in self.sizes[-2:])
        if not static or isinstance(product.op, BatchMatmulPacked):
            return False
        *batch, length, columns = [constant_size([d]) for d in self.sizes]
        *_, panel = weights = product.args[1].tensor_type.static_shape
        swapped = (*range(len(batch)), len(batch) + 1, len(batch))
        lanes = [n for n in transposed_vectors(target, source.dtype) if n <= length]
        if self.rows != len(batch) + 1 or self.axes != swapped or not lanes:
            return False
        rows, words = math.prod(batch) * length, math.prod(weights[1:-1])
        if amx_panel(target, rows, columns, words, getattr(product.op, "form", "fma"))[0] == panel:
            return False
        block = block_of(lanes[0], source.dtype)
        elements = 1  # in one of the weights
        if isinstance(product.op, DenseBlocks):
            elements = (8 if product.args[0].dtype == "int32" else 32) // product.op.bits
        fits = 2 * 4 * elements * math.prod(weights[1:]) <= target.cache_bytes.l2
        return fits and columns >= block and panel % block == 0 and not 0 < columns % panel < block

    def _by_rows(self, source: TensorType, product: Call, target: Target) -> _Order | None:
        """The order (N, C, H, W) of a convolution computed by rows of its image, if that is the order of memory.

        For float32: narrower types are transposed in tiles of more channels than a vector of the accumulators has.
        """
        images, *plane, channels = product.shape
        if source.dtype != "float32" or not all(isinstance(side, int) for side in plane):
            return None
        sizes = (*(() if images == 1 else (images,)), num_elements(plane), channels)
        last = len(sizes) - 1
        if self.axes != (*range(last - 1), last, last - 1) or not all(map(same_dim, self.sizes, sizes)):
            return None
        return _Order(product.shape, (0, 3, 1, 2), 3) if _is_faster_by_rows(product, target) else None


def _moved(call: Call) -> tuple[TensorType, Sequence[int]] | None:
    """The operand that `call` transposes, or a view of it, and the permutation.

    Packing whole panels is a transposition.
    """
    match call.op:
        case Transpose(axes=axes):
            return call.args[0].tensor_type, axes
        case PackPanels(width=width, transpose=True):
            matrices = call.args[0].tensor_type
            *lead, depth, columns = matrices.shape
            if not isinstance(columns, int) or columns % width:
                return None
            first, panels = len(lead), columns // width
            return matrices.with_shape((*lead, depth, panels, width)), (*range(first), first + 1, first, first + 2)
        case _:
            return None


def _is_faster_by_rows(product: Call, target: Target) -> bool:
    """Is a convolution by rows, transposed when stored, at least as fast as a separate transpose kernel?"""
    batch, *plane, channels = product.shape
    height, width, channels = [constant_size([d]) for d in (*plane, channels)]
    op = product.op
    if not isinstance(op, Conv2DNHWCWinograd):  # a depthwise one
        return width >= LINE_ELEMENTS and channels % vector_lanes(target) == 0
    *_, inputs, panel = product.args[1].tensor_type.static_shape
    images, or_images = likely_images(batch)
    filters = op.kernel_size, op.groups, op.dilation
    shape = WinogradShape(images, height, width, inputs, channels, *filters, or_images=or_images)
    return all(winograd_transposes(target, each, op.tile, panel) for each in shape.of_each_batch())


def _first_of_columns(source: TensorType, product: Call) -> int | None:
    """The first dimension of a view of the result of `product` that belongs to its columns; None if one belongs to
    both."""
    columns, first = product.shape[-1], source.ndim
    if not isinstance(columns, int):
        return None
    while first and isinstance(source.shape[first - 1], int) and constant_size(source.shape[first:]) < columns:
        first -= 1
    return first if constant_size(source.shape[first:]) == columns else None


def _keeps_matrices(source: TensorType, product: Call, first: int) -> bool:
    """Are rows of the matrices of a batch, if there is one, still a dimension of the view, the one before its columns?

    The sizes before it have to be known to be those of the batch, so that no tile of rows goes on in another matrix.
    """
    if not isinstance(product.op, BatchMatmulPacked):
        return True
    *batch, rows, _ = product.shape
    keeps = first > 0 and same_dim(source.shape[first - 1], rows) and as_int(rows) != 1
    return keeps and dims_equal(product_of(source.shape[: first - 1]), product_of(batch))


def _adjacent(shape: Sequence[Dim], axes: Sequence[int], apart: Collection[int]) -> tuple[list[list[int]], list[int]]:
    """The dimensions that are not 1, in groups that stay adjacent, and the order they are stored in.

    No group contains dimensions on both sides of the beginning of one in `apart`.
    """
    lasting = [d for d in range(len(shape)) if as_int(shape[d]) != 1]
    stored = [d for d in axes if as_int(shape[d]) != 1]
    groups: list[list[int]] = []
    for d in lasting:
        before = groups[-1][-1] if groups else None
        if before is not None and d not in apart and stored.index(before) + 1 == stored.index(d):
            groups[-1].append(d)
        else:
            groups.append([d])
    return groups, sorted(range(len(groups)), key=lambda g: stored.index(groups[g][0]))


def _is_function_call(e: Expr) -> TypeGuard[Call]:
    return isinstance(e, Call) and isinstance(e.op, Function)


def _only_call(e: Expr) -> Call | None:
    """The only operator call of a fused function of one argument."""
    if not _is_function_call(e) or not isinstance(e.op, Function) or len(e.args) != 1:
        return None
    body = e.op.body
    alone = isinstance(body, Call) and len(body.args) == 1 and isinstance(body.args[0], Var)
    return body if alone and isinstance(body, Call) else None


def _anchor(call: Call) -> Call | None:
    """The product with packed weights, of 32 bits or less, whose tiles are the result of a fused function's call."""
    function = call.op
    assert isinstance(function, Function)
    heavy = [e for e in post_order(function.body) if isinstance(e, Call) and _is_heavy(e)]
    if len(heavy) != 1 or not isinstance(function.body, Call) or function.body.shape != heavy[0].shape:
        return None
    (product,) = heavy
    if isinstance(product.op, Conv2DNHWCWinograd) or _is_depthwise(product):
        return product
    if not isinstance(product.op, _PRODUCTS) or product.dtype.nbytes > 4:
        return None
    return product if getattr(product.op, "groups", 1) == 1 and not getattr(product.op, "experts", 0) else None


def _is_depthwise(call: Call) -> bool:
    """Is it a depthwise convolution of floats, channels last?"""
    op = call.op
    if not isinstance(op, Conv2D) or op.data_layout != "NHWC" or call.dtype != "float32":
        return False
    return op.groups > 1 and as_int(call.args[0].shape[-1]) == op.groups


def _is_heavy(call: Call) -> bool:
    return isinstance(call.op, OpDef) and call.op.pattern == OpPattern.OUT_FUSABLE


def _stored(source: Call, order: _Order, call: Call) -> Call:
    """The call of a product `source`, stored in order, with the result of `call`."""
    assert isinstance(source.op, Function)
    body = Reshape(newshape=order.sizes)(source.op.body, span=source.span)
    transposed = Transpose(axes=order.axes)(body, span=call.span)
    stored = Call(source.op.with_body(transposed), source.args, span=call.span)
    if stored.ty is call.ty:
        return stored
    whole = Var("p0", stored.ty)
    view = Reshape(newshape=tuple(call.tensor_type.shape))(whole, span=call.span)
    return Call(Function((whole,), view, {"primitive": True}), (stored,), span=call.span)
