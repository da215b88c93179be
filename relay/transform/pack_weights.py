"""PackWeights: constant weights of convolutions and matrix products, packed in the panels that register tiles read.

A panel holds NR output channels contiguously for every step of the reduction: (N / NR, K, NR) for a product, (O / NR,
KH, KW, I, NR) for a convolution in two dimensions. NR is chosen for the target by the cost model of the schedules; in a
grouped convolution a panel holds a group, or a part of a wide one, or, if groups are narrow, a vector of outputs of any
groups. The packing is done here, once; panels are padded with zeros.

3 x 3 and 5 x 5 convolutions with stride 1, and convolutions of volumes with such planes, become Winograd convolutions
if the cost model expects a gain: their weights are transformed here too. The option "relay.winograd" limits the sizes
of their tiles or disables them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from relayc.backend.target import Target
from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.expr_functor import rewrite_calls
from relayc.relay.op.base import OpDef, OpPattern, make_call
from relayc.relay.op.indexing import Take, take
from relayc.relay.op.nn.conv import Conv1D, Conv2D, Conv3D
from relayc.relay.op.nn.dense import BatchMatmul, BatchMatmulPacked, Dense, DensePacked, PackPanels, RoutedDense
from relayc.relay.op.nn.dot4 import (
    Conv2DNHWCDot2Bfloat16,
    Conv2DNHWCDot4,
    DenseDot2Bfloat16,
    Words,
)
from relayc.relay.op.nn.packed_conv import Conv1DNWCPacked, Conv2DNHWCPacked, Conv3DNDHWCPacked
from relayc.relay.op.nn.pad import pad_last
from relayc.relay.op.nn.winograd import Conv2DNHWCWinograd, Conv3DNDHWCWinograd
from relayc.relay.sizes import dims_match, product
from relayc.relay.stored import fetched, place_of
from relayc.relay.transform.builders import as_matrix, before_transposition, reshaped, swapped_axes, with_last
from relayc.relay.transform.dot4_groups import pack_dot4_groups
from relayc.relay.transform.dot4_products import Dot4Product, without_zero
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.transform.panels import PanelPacker
from relayc.relay.transform.quantized_data import (
    fit_16_bits,
    narrowest,
    quantized_and_constant,
    quantized_and_zero,
    unsigned,
)
from relayc.relay.transform.tied_embeddings import PackedMatrix, look_up_in_panels
from relayc.relay.transform.winograd import winograd_plan, winograd_shape, winograd_tiles
from relayc.relay.type import TensorType
from relayc.te.dtype import DType, dtype as as_dtype
from relayc.te.ir import PassContext
from relayc.te.tir import Dim
from relayc.topi.cpu.convolution.group_plan import GroupedWindows, vectorizes_across_groups
from relayc.topi.cpu.convolution.winograd_plan import WinogradPlan, WinogradShape, image_to_plan_for
from relayc.topi.cpu.tiling import (
    Rows,
    amx_panel,
    at_precision_of,
    group_panel,
    has_bfloat16_products,
    has_byte_products,
    packed_columns,
    reads_in_place,
    reads_transposed,
    spare_registers,
    vector_lanes,
)
from relayc.topi.groups import constant_size, likely_rows
from relayc.topi.nn.conv import copies_windows

__all__ = ["PackWeights"]

Array = np.ndarray[Any, Any]
_PACKED: dict[int, type[Conv1DNWCPacked | Conv2DNHWCPacked | Conv3DNDHWCPacked]] = {
    1: Conv1DNWCPacked, 2: Conv2DNHWCPacked, 3: Conv3DNDHWCPacked,
}  # fmt: skip
_COMPUTED_IN = {
    "float32": "float32", "float16": "float32", "bfloat16": "float32", "float64": "float64", "int32": "int32",
    "int64": "int64",
}  # fmt: skip
"""The type in which products with packed weights compute, by the weights' type; quantised ones compute in int32."""
_WIDE_RESULTS = {"bfloat16": "float32"}
"""Types of the results that products may have besides their operands' type."""
_UNKNOWN_ROWS = 256
"""Rows assumed for a symbolic size."""
_ROWS_OF_A_GROUP = 8
"""Rows assumed for a symbolic number of them with a matrix each."""
_SINGLE = as_dtype("float32")
_WORD_BYTES = 4
"""Minimum bytes read of a row in a step of a product: one element, or several smaller ones."""


@dataclass(frozen=True)
class PackWeights(FunctionPass):
    """Convolutions (channels last) and products take packed weights; computed right operands are packed too.

    Products of half precision are computed in float32, in which they accumulated before, and quantised ones in int32.
    Their weights keep their 8- or 16-bit type: kernels convert a panel at a time, and use it for all rows. Those of
    Winograd convolutions are float32 once they are transformed.
    """

    target: Target
    opt_level: ClassVar[int] = 1

    def transform(self, function: Function, context: PassContext) -> Function:
        packer = _Packer(self.target, winograd_tiles(context))
        packed = look_up_in_panels(rewrite_calls(function, packer.rewrite), packer.matrices)
        packer.panels.run()
        return packed


class _Packer:
    """Packs each weight once for each form in which layers need it."""

    def __init__(self, target: Target, winograd_tiles: frozenset[int]) -> None:
        self.target = target
        self.winograd_tiles = winograd_tiles
        self.packed: dict[tuple[int, str, int], Constant] = {}
        self.matrices: dict[Hashable, PackedMatrix] = {}
        """packed matrices (N, K), by their places"""
        self.plans: dict[tuple[WinogradShape, bool], WinogradPlan | None] = {}
        """plans of Winograd convolutions, by sizes, and whether they are of float64"""
        self.dot4: dict[tuple[int, str, int], tuple[Constant, Array | None, Array] | None] = {}
        self.panels = PanelPacker()
        """copies the values, at the end"""

    def rewrite(self, call: Call) -> Expr:
        if len(call.args) != 2 or not isinstance(call.ty, TensorType):
            return call
        data = call.args[0].ty
        if not isinstance(data, TensorType) or call.ty.dtype not in (data.dtype, _WIDE_RESULTS.get(str(data.dtype))):
            return call
        wide, weight = _COMPUTED_IN.get(str(data.dtype)), call.args[1]
        many = not isinstance(weight, Constant) or len(weight.shape) > 2
        if many and wide == data.dtype and isinstance(call.op, BatchMatmul):
            return self._batch_matmul(call, call.op)
        if wide is None or not isinstance(weight, Constant):
            return self._computed_weights(call, weight) if data.dtype == "float32" else call
        match call.op:
            case Dense():
                return self._dense(call, weight, "NK")
            case BatchMatmul(transpose_a=False) if len(weight.shape) == 2:
                return self._dense(call, weight, "NK" if call.op.transpose_b else "KN")
            case Conv1D(data_layout="NWC") | Conv2D(data_layout="NHWC") | Conv3D(data_layout="NDHWC"):
                return self._convolution(call, call.op, weight)
            case _:
                return call

    def _values(self, weight: Constant) -> Array:
        """The values of a weight; those of floats, but for bfloat16 in pairs, are there only once they are packed.

        Others are copied at once, to smaller types or pairs, and not kept as they are.
        """
        copied = not weight.dtype.is_float or self._by_bfloat16(weight)
        return fetched(weight) if copied else self.panels.values(weight)

    def _packed(self, weight: Constant, outputs_first: Array, order: str, width: int) -> Constant:
        """`outputs_first`, a view of `weight` in another order, in panels."""
        key = (id(weight), order, width)
        if key not in self.packed:
            self.packed[key] = Constant(self.panels.panels(narrowest(outputs_first), width, weight), span=weight.span)
        return self.packed[key]

    def _groups(self, weight: Constant, outputs_first: Array, order: str, groups: int, rows: int) -> Constant:
        """Like `_packed`, with one or more panels for each group."""
        group = len(outputs_first) // groups
        target = at_precision_of(self.target, weight.dtype)
        width = group_panel(target, rows, group, math.prod(outputs_first.shape[1:]))
        if width < group:
            return self._packed(weight, outputs_first, order, width)
        key = (id(weight), f"{order} in {groups} groups", width)
        if key not in self.packed:
            panels = self.panels.groups(narrowest(outputs_first), groups, width, weight)
            self.packed[key] = Constant(panels, span=weight.span)
        return self.packed[key]

    def _width(
        self, rows: Rows, columns: int, steps: int, row_stride: int, row_size: int = 0, form: str = "fma",
        dtype: DType = _SINGLE,
    ) -> int:  # fmt: skip
        """Columns of a panel of `dtype`; consecutive rows are read `row_stride` elements apart.

        Low-precision floats are converted to float32.
        """
        per_step = {"fma": 1, "dot2": 2, "dot2_bfloat16": 2, "dot4": 4}[form]
        target, spare = at_precision_of(self.target, dtype), spare_registers(self.target, form)
        word = max(_WORD_BYTES, dtype.nbytes)
        return packed_columns(
            target, rows, columns, steps // per_step, row_size, spare, word * row_stride // per_step,
            widened=dtype.is_float and dtype.nbytes < _WORD_BYTES,
        )  # fmt: skip

    def _dense(self, call: Call, weight: Constant, order: str) -> Expr:
        values = self._values(weight)
        outputs_first = values if order == "NK" else values.T
        units, depth = outputs_first.shape
        rows = _count_rows(call)
        if weight.dtype == "int32":
            width = amx_panel(self.target, rows, units, -(-depth // 4))[0]
            width = width or self._width(_rows(call), units, depth, depth, form="dot4")
            dot4 = self._dot4_operands(call, weight, outputs_first, order, width)
            if dot4 is not None:
                return dot4.product_of_rows(units, call)
        if self._by_bfloat16(weight):
            return self._dense_bfloat16(call, weight, outputs_first, order, rows)
        pairs = rows > 1 and depth > 1 and fit_16_bits(call.args[0], values)
        form = "dot2" if pairs else "fma"
        width = self._width(_rows(call), units, depth, depth, form=form, dtype=weight.dtype)
        packed = self._packed(weight, outputs_first, order, width)
        if order == "NK":
            self.matrices[place_of(weight)] = PackedMatrix(packed, units)
        found = quantized_and_zero(call.args[0]) if pairs else None
        if found is not None and not isinstance(found[1], int):
            product = Call(DensePacked(units=units, pairs=True), (found[0], packed), span=call.span)
            return without_zero(product, found[1], outputs_first.sum(1, dtype=np.int32))
        untransposed = self._before_transposition(call.args[0])
        if untransposed is not None and weight.dtype == call.dtype == "float32":
            return Call(BatchMatmulPacked(columns=units, transpose_a=True), (untransposed, packed), span=call.span)
        return _with_panels(call, DensePacked(units=units, pairs=pairs), packed)

    def _by_bfloat16(self, weight: Constant) -> bool:
        """Are products with this weight made of pairs of bfloat16?"""
        return weight.dtype == "bfloat16" and has_bfloat16_products(self.target)

    def _dense_bfloat16(self, call: Call, weight: Constant, outputs_first: Array, order: str, rows: int) -> Expr:
        """A product of rows by pairs of bfloat16; where their number is odd, 0 is added."""
        units, depth = outputs_first.shape
        width = amx_panel(self.target, rows, units, -(-depth // 2), "dot2_bfloat16")[0]
        width = width or self._width(_rows(call), units, depth, depth, form="dot2_bfloat16")
        panels = self._bfloat16_panels(weight, outputs_first, f"{order} in pairs", width)
        matrix, lead = as_matrix(pad_last(with_last(call.args[0], depth), depth % 2))
        made = DenseDot2Bfloat16(units=units, rows=lead)
        return _as_type(Call(made, (Call(Words(), (matrix,)), panels), span=call.span), call)

    def _convolution_bfloat16(self, call: Call, op: Conv2D, weight: Constant, outputs_first: Array, rows: int) -> Expr:
        """A convolution by pairs of bfloat16 channels."""
        channels, *kernel, inputs = outputs_first.shape
        if _is_product(op, kernel):
            matrix = outputs_first.reshape(channels, inputs)
            return self._dense_bfloat16(call, weight, matrix, f"{op.kernel_layout} as a matrix", rows)
        row_size = call.shape[-2] if math.prod(kernel) > 1 and isinstance(call.shape[-2], int) else 0
        steps, row_stride = math.prod(kernel) * inputs, inputs * op.strides[-1]
        width = self._amx_window_panel(call, rows, channels, math.prod(kernel) * -(-inputs // 2), "dot2_bfloat16")
        on_amx = width > 0
        width = width or self._width(_rows(call), channels, steps, row_stride, row_size, "dot2_bfloat16")
        as_windows = on_amx or copies_windows(call.shape[-2], kernel, inputs)
        order = f"{op.kernel_layout} in pairs{' as windows' if as_windows else ''}"
        panels = self._bfloat16_panels(weight, outputs_first, order, width, flat=as_windows)
        made = Conv2DNHWCDot2Bfloat16(
            channels=channels, strides=op.strides, padding=op.padding, dilation=op.dilation,
            kernel_size=tuple(kernel) if as_windows else None,
        )  # fmt: skip
        data = Call(Words(), (pad_last(with_last(call.args[0], inputs), inputs % 2),))
        return _as_type(Call(made, (data, panels), span=call.span), call)

    def _amx_window_panel(self, call: Call, rows: int, channels: int, words: int, form: str) -> int:
        """Columns of a panel for a convolution on AMX tiles, windows being rows; 0 if vectors are better."""
        known = all(isinstance(d, int) for d in call.shape)
        return amx_panel(self.target, rows, channels, words, form)[0] if known else 0

    def _bfloat16_panels(
        self, weight: Constant, outputs_first: Array, order: str, width: int, *, flat: bool = False
    ) -> Constant:
        """Weights (N, ..., K) in panels of pairs (ceil(N / width), ..., ceil(K / 2), width).

        Panels are `flat` if the steps of a window are contiguous in one dimension.
        """
        key = (id(weight), order, width)
        if key not in self.packed:
            words = _padded_last(outputs_first, outputs_first.shape[-1] % 2).view("<i4")
            if flat:
                words = words.reshape(len(words), -1)
            self.packed[key] = Constant(self.panels.panels(words, width), span=weight.span)
        return self.packed[key]

    def _before_transposition(self, a: Expr) -> Expr | None:
        """The left operand before its transposition, if a cache holds it; else None."""
        before = before_transposition(a)
        if before is None:
            return None
        steps, rows = [d if isinstance(d, int) else _UNKNOWN_ROWS for d in before.shape[-2:]]
        return before if reads_transposed(self.target, rows, steps) else None

    def _batch_matmul(self, call: Call, op: BatchMatmul) -> Expr:
        """Many products: the right operands are packed at run time, fused with transposes of them.

        Constants are packed at compile time. If all products share the right operand, they become one product of all
        rows. A transposed left operand is read in place if it fits into a cache, and is transposed first otherwise.
        """
        a, b = call.args
        *lead, rows, columns = call.shape
        depth = a.shape[-2 if op.transpose_a else -1]
        shared = all(d == 1 for d in b.shape[:-2]) and not op.transpose_a
        if shared and len(lead) > 0:
            rows = product((*lead, rows))
            a = reshaped(a, (rows, a.shape[-1]))
            b = reshaped(b, b.shape[-2:])
        target = at_precision_of(self.target, call.dtype)
        in_place = reads_in_place(target, rows, columns, depth, op.transpose_a, op.transpose_b)
        if rows == 1:
            return call
        routed = self._routed(call, op)
        if routed is not None:
            return routed
        if in_place and not isinstance(b, Constant):
            return call
        m, n, k = [d if isinstance(d, int) else _UNKNOWN_ROWS for d in (rows, columns, depth)]
        width = self._width(m, n, k, 0 if op.transpose_a else k, dtype=call.dtype)
        before, transpose_a = before_transposition(a), op.transpose_a
        in_cache = reads_transposed(self.target, m, k)
        if before is not None and (in_cache or transpose_a):
            a, transpose_a = before, not transpose_a
        elif transpose_a and not in_cache:
            a, transpose_a = make_call("transpose", (a,), call.span, axes=swapped_axes(a)), False
        if _may_be_a_column(b, columns) and not transpose_a and not op.transpose_b:
            made = make_call(op.replace(transpose_a=False, panel=width), (a, b), call.span)
        else:
            packed = _in_panels(b, width, columns, transposed=op.transpose_b)
            made = Call(BatchMatmulPacked(columns=columns, transpose_a=transpose_a), (a, packed), span=call.span)
        return reshaped(made, call.shape, call.span)

    def _routed(self, call: Call, op: BatchMatmul) -> Expr | None:
        """Groups of rows times a matrix each that is taken of a constant (experts, N, K) or (experts, K, N), or None.

        Panels of all matrices are packed at compile time, and those that are taken are read in place.
        """
        a, b = call.args
        if not isinstance(b, Call) or not isinstance(b.op, Take) or op.transpose_a or b.op.batch_dims:
            return None
        table, chosen = b.args
        lead = chosen.shape
        same = len(a.shape) == len(lead) + 2 and all(map(dims_match, a.shape[:-2], lead))
        taken = isinstance(table, Constant) and len(table.shape) == 3 and b.op.axis in (0, -3)
        if not taken or not same or not lead:
            return None
        assert isinstance(table, Constant)
        experts, *matrix = table.tensor_type.static_shape
        rows, (units, depth) = call.shape[-2], matrix if op.transpose_b else matrix[::-1]
        width = self._width(rows if isinstance(rows, int) else _ROWS_OF_A_GROUP, units, depth, depth, dtype=call.dtype)
        panels = self._panels_of_experts(table, width, transposed=op.transpose_b)
        if b.op.mode != "fast":
            chosen = take(Constant(np.arange(experts)), chosen, axis=0, mode=b.op.mode)
        groups = product(lead)
        data = reshaped(a, (groups, rows, a.shape[-1]))
        made = Call(RoutedDense(units=units), (data, panels, reshaped(chosen, (groups,))), span=call.span)
        return reshaped(made, call.shape, call.span)

    def _panels_of_experts(self, weight: Constant, width: int, *, transposed: bool) -> Expr:
        """Matrices (experts, N, K) if `transposed`, else (experts, K, N), in panels of each."""
        experts, units, depth = weight.tensor_type.static_shape
        if not transposed or units % width:
            return _in_panels(weight, width, units, transposed=transposed)
        key = (id(weight), "experts", width)
        if key not in self.packed:
            panels = self.panels.panels(self._values(weight).reshape(experts * units, depth), width, weight)
            self.packed[key] = Constant(panels.reshape(experts, -1, depth, width), span=weight.span)
        return self.packed[key]

    def _convolution(self, call: Call, op: Conv1D | Conv2D | Conv3D, weight: Constant) -> Expr:
        order = [op.kernel_layout.index(axis) for axis in ("O", *op.data_layout[1:-1], "I")]
        outputs_first = self._values(weight).transpose(order)
        channels, *kernel, group_size = outputs_first.shape
        if op.groups > 1 and group_size == 1:
            return _channels_last(call, op, Constant(weight.data.transpose(order), span=weight.span))
        if isinstance(op, Conv2D | Conv3D) and weight.dtype == call.dtype and not self._by_bfloat16(weight):
            winograd = self._winograd_plan(call, op)
            if winograd is not None:
                return self._winograd(call, op, weight, outputs_first, winograd)
        rows = _count_rows(call)
        if isinstance(op, Conv2D) and op.groups == 1 and group_size > 1 and self._by_bfloat16(weight):
            return self._convolution_bfloat16(call, op, weight, outputs_first, rows)
        steps = math.prod(kernel) * group_size
        if isinstance(op, Conv2D) and op.groups == 1 and weight.dtype == "int32":
            dot4 = self._convolution_dot4(call, op, weight, outputs_first, rows)
            if dot4 is not None:
                return dot4
        pairs = op.groups == 1 and group_size > 1 and fit_16_bits(call.args[0], outputs_first)
        across = self._across_groups(call, op, channels, kernel, group_size)
        if across:
            lanes = vector_lanes(at_precision_of(self.target, weight.dtype))
            packed = self._packed(weight, outputs_first, op.kernel_layout, lanes)
        elif op.groups > 1:
            packed = self._groups(weight, outputs_first, op.kernel_layout, op.groups, rows)
        else:
            row_size = call.shape[-2] if math.prod(kernel) > 1 else 0
            form = "dot2" if pairs else "fma"
            row_stride = group_size * op.strides[-1]
            line = row_size if isinstance(row_size, int) else 0
            width = self._width(_rows(call), channels, steps, row_stride, line, form, weight.dtype)
            packed = self._packed(weight, outputs_first, op.kernel_layout, width)
        made = _PACKED[op.rank](
            strides=op.strides, padding=op.padding, dilation=op.dilation, groups=op.groups, channels=channels,
            pairs=pairs, across_groups=across,
        )  # fmt: skip
        return _with_panels(call, made, packed)

    def _across_groups(
        self, call: Call, op: Conv1D | Conv2D | Conv3D, channels: int, kernel: Sequence[int], inputs: int
    ) -> bool:
        """Should panels consist of adjacent outputs, across groups?"""
        if op.groups == 1:
            return False
        *lines, columns = call.shape[1:-1]
        windows = GroupedWindows(
            constant_size(lines), constant_size([columns]), math.prod(kernel[:-1]), kernel[-1], op.strides[-1],
            op.dilation[-1], op.groups, inputs, channels // op.groups, any(op.padding),
            any_width=not isinstance(columns, int),
        )  # fmt: skip
        return vectorizes_across_groups(at_precision_of(self.target, call.dtype), windows)

    def _computed_weights(self, call: Call, weight: Expr) -> Expr:
        """A convolution with computed weights, which are packed at run time."""
        op, known = call.op, weight.tensor_type
        if not isinstance(op, Conv1D | Conv2D | Conv3D) or op.data_layout[-1] != "C" or not known.is_static:
            return call
        order = [op.kernel_layout.index(axis) for axis in ("O", *op.data_layout[1:-1], "I")]
        outputs_first = make_call("transpose", (weight,), call.span, axes=tuple(order))
        channels, *kernel, group_size = outputs_first.tensor_type.static_shape
        outputs, steps = channels // op.groups, math.prod(kernel) * group_size
        if op.groups > 1 and group_size == 1:
            return _channels_last(call, op, outputs_first)
        rows = _count_rows(call)
        row_size = call.shape[-2] if math.prod(kernel) > 1 and isinstance(call.shape[-2], int) else 0
        row_stride = group_size * op.strides[-1]
        across, blocks = self._across_groups(call, op, channels, kernel, group_size), op.groups
        if across:
            blocks, outputs, width = 1, channels, vector_lanes(self.target)
        elif op.groups > 1:
            width = group_panel(self.target, rows, outputs, steps)
        else:
            width = self._width(_rows(call), channels, steps, row_stride, row_size)
        panels = Call(PackPanels(width=width), (reshaped(outputs_first, (blocks, outputs, steps)),), span=call.span)
        packed = reshaped(panels, (blocks * -(-outputs // width), *kernel, group_size, width))
        made = _PACKED[op.rank](
            strides=op.strides, padding=op.padding, dilation=op.dilation, groups=op.groups, channels=channels,
            across_groups=across,
        )  # fmt: skip
        return Call(made, (call.args[0], packed), span=call.span)

    def _convolution_dot4(
        self, call: Call, op: Conv2D, weight: Constant, outputs_first: Array, rows: int
    ) -> Expr | None:
        """A convolution of 8-bit quantised values; a pointwise one is a product of rows."""
        channels, *kernel, group_size = outputs_first.shape
        row_size = call.shape[-2] if math.prod(kernel) > 1 and isinstance(call.shape[-2], int) else 0
        padded = any(op.padding)
        steps, row_stride = math.prod(kernel) * group_size, group_size * op.strides[-1]
        is_product = _is_product(op, kernel)
        words = math.prod(kernel) * -(-group_size // 4)
        width = (
            amx_panel(self.target, rows, channels, words)[0]
            if is_product
            else self._amx_window_panel(call, rows, channels, words, "dot4")
        )
        on_amx = width > 0
        width = width or self._width(_rows(call), channels, steps, row_stride, row_size, "dot4")
        if is_product:
            matrix = outputs_first.reshape(channels, group_size)
            dot4 = self._dot4_operands(call, weight, matrix, f"{op.kernel_layout} as a matrix", width)
            return None if dot4 is None else dot4.product_of_rows(channels, call)
        as_windows = on_amx or (has_byte_products(self.target) and copies_windows(call.shape[-2], kernel, group_size))
        order = f"{op.kernel_layout} as windows" if as_windows else op.kernel_layout
        dot4 = self._dot4_operands(call, weight, outputs_first, order, width, flat=as_windows)
        if dot4 is None or (padded and not isinstance(dot4.zero, int)):
            return None
        border = dot4.zero if padded and isinstance(dot4.zero, int) else 0
        if dot4.table is None:
            made = Conv2DNHWCDot4(
                channels=channels, strides=op.strides, padding=op.padding, dilation=op.dilation, border=border,
                kernel_size=tuple(kernel) if as_windows else None,
            )  # fmt: skip
            return dot4.sums(made, call)
        return dot4.product_of_windows(call, op, (kernel[0], kernel[1], -(-group_size // 4)), border)

    def _dot4_operands(
        self, call: Call, weight: Constant, outputs_first: Array, order: str, width: int, *, flat: bool = False
    ) -> Dot4Product | None:
        """The operands of an 8-bit product by 4-way dot products; None if `call` is none.

        If the channels are no multiple of four, they are padded, by at most a third. Panels are `flat` if the steps of
        a window are contiguous in one dimension.
        """
        found, missing = quantized_and_zero(call.args[0]), -outputs_first.shape[-1] % 4
        if found is None or 3 * missing > outputs_first.shape[-1] or not weight.ty.size:
            return None
        key = (id(weight), order, width)
        if key not in self.dot4:
            if outputs_first.min() < -128 or outputs_first.max() > 127:
                return None
            int8_weights = _padded_last(outputs_first.astype(np.int8), missing)
            if flat:
                int8_weights = int8_weights.reshape(len(int8_weights), -1)
            if has_byte_products(self.target):
                packed = self.panels.panels(int8_weights.view("<i4"), width), None
            else:
                packed = pack_dot4_groups(self.panels, int8_weights, width)
            totals = int8_weights.reshape(len(int8_weights), -1).sum(1, dtype=np.int32)
            self.dot4[key] = None if packed is None else (
                Constant(packed[0], span=weight.span), packed[1], totals
            )  # fmt: skip
        known = self.dot4[key]
        if known is None:
            return None
        quantized, zero = unsigned(*found)
        return Dot4Product(pad_last(with_last(quantized, outputs_first.shape[-1]), missing), zero, *known)

    def _winograd_plan(self, call: Call, op: Conv2D | Conv3D) -> WinogradPlan | None:
        shape = winograd_shape(call, op) if call.dtype.is_float else None
        if shape is None:
            return None
        key = shape, call.dtype.nbytes > _SINGLE.nbytes
        if key not in self.plans:
            self.plans[key] = winograd_plan(at_precision_of(self.target, call.dtype), shape, self.winograd_tiles)
        return self.plans[key]

    def _likely_sides(self, call: Call, op: Conv2D, plan: WinogradPlan) -> tuple[int, int]:
        """The sides of an image of dynamic size that the schedule of a convolution assumes."""
        shape = winograd_shape(call, op)
        assert shape is not None
        image = image_to_plan_for(at_precision_of(self.target, call.dtype), shape, plan)
        return image.lines, image.columns

    def _winograd(
        self, call: Call, op: Conv2D | Conv3D, weight: Constant, outputs_first: Array, plan: WinogradPlan
    ) -> Expr:
        wide = _COMPUTED_IN[str(call.dtype)]
        packed = self._transformed(op, weight, outputs_first, plan, wide)
        channels = None if len(outputs_first) % plan.panel == 0 else len(outputs_first)
        if isinstance(op, Conv3D):
            made: Conv2DNHWCWinograd | Conv3DNDHWCWinograd = Conv3DNDHWCWinograd(
                tile=plan.tile, kernel_size=outputs_first.shape[-2], padding=op.padding, groups=op.groups,
                dilation=op.dilation[-1], channels=channels, depth_stride=op.strides[0], depth_dilation=op.dilation[0],
            )  # fmt: skip
        else:
            known = all(isinstance(side, int) for side in call.shape[1:3])
            made = Conv2DNHWCWinograd(
                tile=plan.tile, kernel_size=outputs_first.shape[-2], padding=op.padding, groups=op.groups,
                dilation=op.dilation[-1], channels=channels,
                likely_sides=() if known else self._likely_sides(call, op, plan),
            )  # fmt: skip
        return _as_type(Call(made, (_widened(call.args[0], wide), packed), span=call.span), call)

    def _transformed(
        self, op: Conv2D | Conv3D, weight: Constant, outputs_first: Array, plan: WinogradPlan, wide: str
    ) -> Constant:
        """The transformed weights: (O, R, R, I) in panels, of (O, KD, R, R, I) with KD before I."""
        key = (id(weight), f"{op.kernel_layout} F({plan.tile})", plan.panel)
        if key not in self.packed:
            panels = self.panels.winograd_panels(outputs_first, plan.tile, plan.panel, weight, wide)
            self.packed[key] = Constant(panels, span=weight.span)
        return self.packed[key]


def _may_be_a_column(b: Expr, columns: Dim) -> bool:
    """Can matrices of floats have a single column at run time, which the kernel that packs them reads in place?

    False for those that are computed by what is fused with their packing.
    """
    is_fused = isinstance(b, Call) and isinstance(b.op, OpDef) and b.op.pattern <= OpPattern.INJECTIVE
    return not isinstance(columns, int) and b.dtype.is_float and not isinstance(b, Constant) and not is_fused


def _in_panels(b: Expr, width: int, columns: Dim, *, transposed: bool) -> Expr:
    """Matrices (K, N) of N `columns`, or `transposed` ones, packed in panels at run time; a single column is a panel
    already."""
    if columns == width and not transposed:
        return reshaped(b, (*b.shape[:-2], 1, b.shape[-2], width))
    return Call(PackPanels(width=width, transpose=not transposed), (b,), span=b.span)


def _with_panels(
    call: Call, op: DensePacked | Conv1DNWCPacked | Conv2DNHWCPacked | Conv3DNDHWCPacked, panels: Constant
) -> Expr:
    """The product `op` of the call's data, in the type that it is computed in, with panels that may have a smaller
    type."""
    if op.pairs:
        quantized, zero_point = quantized_and_constant(call.args[0])
        return Call(op.replace(zero_point=zero_point), (quantized, panels), span=call.span)
    data = _widened(call.args[0], _COMPUTED_IN[str(call.args[0].dtype)])
    return _as_type(Call(op, (data, panels), span=call.span), call)


def _widened(data: Expr, wide: str) -> Expr:
    return data if data.dtype == wide else make_call("cast", (data,), data.span, dtype=wide)


def _as_type(product: Expr, call: Call) -> Expr:
    """A product in the type of the call that it replaces."""
    if product.dtype == call.dtype:
        return product
    return make_call("cast", (product,), call.span, dtype=str(call.dtype))


def _padded_last(x: Array, count: int) -> Array:
    """A contiguous array: `x` with `count` zeros after the last dimension."""
    whole = np.ascontiguousarray(x)
    return np.pad(whole, [*[(0, 0)] * (x.ndim - 1), (0, count)]) if count else whole


def _rows(call: Call) -> Rows:
    """The number of rows of the product or convolution, or several that are as likely."""
    return likely_rows(call.shape[:-1], _count_rows(call))


def _count_rows(call: Call) -> int:
    """The number of rows; dynamic dimensions count as `_UNKNOWN_ROWS`."""
    return math.prod(d if isinstance(d, int) else _UNKNOWN_ROWS for d in call.shape[:-1])


def _is_product(op: Conv2D, kernel: Sequence[int]) -> bool:
    """Is a convolution, pointwise and of every pixel, a product of rows?"""
    return math.prod(kernel) == 1 and not any(op.padding) and set(op.strides) == {1}


def _channels_last(call: Call, op: Conv1D | Conv2D | Conv3D, weight: Expr) -> Call:
    """A depthwise convolution with weights (KH, KW, I, C), so that vectors run along the channels."""
    if isinstance(weight, Constant):
        moved: Expr = Constant(np.ascontiguousarray(np.moveaxis(weight.data, 0, -1)), span=weight.span)
    else:
        rank = len(weight.shape)
        moved = make_call("transpose", (weight,), call.span, axes=(*range(1, rank), 0))
    return Call(op.replace(kernel_layout=f"{op.data_layout[1:-1]}IO"), (call.args[0], moved), span=call.span)
