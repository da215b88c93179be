"""Products of 8-bit data by 4-way dot products: with whole words, and with a table of the words that a step reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op import broadcast
from relayc.relay.op.nn.conv import Conv2D
from relayc.relay.op.nn.dot4 import Conv2DNHWCDot4, DenseDot4, DenseDot4Groups, WindowDot4Groups, Words
from relayc.relay.op.nn.pad import pad
from relayc.relay.transform.builders import as_matrix, reshaped

__all__ = ["Dot4Product", "without_zero"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Dot4Product:
    """An 8-bit product: quantised unsigned data, in which `zero` is the zero point, by weights in panels."""

    quantized: Expr
    zero: Expr | int
    panels: Constant
    table: Array | None
    totals: Array
    """the sums of the weights, by output"""

    def product_of_rows(self, units: int, call: Call) -> Expr:
        """The result of `call`, a matrix product."""
        if self.table is not None:
            return self.sums(DenseDot4Groups(units=units), call)
        matrix, lead = as_matrix(self.quantized)
        return replace(self, quantized=matrix).sums(DenseDot4(units=units, rows=lead), call)

    def product_of_windows(self, call: Call, op: Conv2D, steps: tuple[int, int, int], border: int) -> Expr | None:
        """A convolution with a table of the `steps` (KH, KW, C / 4) to read: by their offsets in the padded image."""
        if not call.args[0].tensor_type.is_static or self.table is None:
            return None
        top, left, bottom, right = op.padding
        data = (
            pad(self.quantized, ((0, 0), (top, bottom), (left, right), (0, 0)), border)
            if any(op.padding)
            else self.quantized
        )
        images, _, columns, _ = data.tensor_type.static_shape
        down, across, word = np.unravel_index(self.table, steps)
        row_size, pixel = columns * steps[2], steps[2]
        table = (down * (row_size * op.dilation[0]) + across * (pixel * op.dilation[1]) + word).astype(np.int32)
        _, rows, width, outputs = call.tensor_type.static_shape
        pitch = (row_size * op.strides[0], pixel * op.strides[1])
        made = WindowDot4Groups(channels=outputs, grid=(rows, width), pitch=pitch, depth=math.prod(steps))
        lines = reshaped(data, (images, math.prod(data.tensor_type.static_shape[1:])))
        return replace(self, quantized=lines, table=table).sums(made, call)

    def sums(self, op: DenseDot4 | DenseDot4Groups | Conv2DNHWCDot4 | WindowDot4Groups, call: Call) -> Expr:
        """The result of `call`, of int32."""
        data = Call(Words(), (self.quantized,), span=call.span)
        table = () if self.table is None else (Constant(self.table),)
        product = Call(op, (data, self.panels, *table), span=call.span)
        return without_zero(product, self.zero, self.totals)


def without_zero(product: Expr, zero: Expr | int, totals: Array) -> Expr:
    """The product of quantised values less `zero`, from the product of the values; `totals` are the sums of the
    weights."""
    if isinstance(zero, int):
        return broadcast.subtract(product, Constant(totals * np.int32(zero))) if zero else product
    return broadcast.subtract(product, broadcast.multiply(zero, Constant(totals)))
