"""8-bit products by 4-way dot products: unsigned data by signed weights, summed in int32.

Both operands hold four 8-bit integers in an int32, which `te.dot4` multiplies. With VNNI instructions weights are used
as they are. Elsewhere weights that would overflow 16-bit sums are split into several words when they are packed, and
two words whose sums fit together may share them (`te.dot8`). A table gives the data that each step reads, for each
panel. Products of bfloat16, two in each int32, are like those of bytes, with sums of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Dim, PrimExpr, as_dim
from relayc.te.tir.ops import bitwise_or, call_intrin, left_shift
from relayc.topi.nn.conv import kernel_axes, output_sizes, taps_at, windows_of
from relayc.topi.nn.dense import first_columns, with_rows
from relayc.topi.nn.pad import pad_spatial
from relayc.topi.tag import INJECTIVE
from relayc.topi.utils import num_elements, ravel_index, unravel_index

__all__ = ["conv2d_dot4", "dense_dot4", "dense_dot4_groups", "window_dot4_groups", "words"]

REPEATED = 0x01010101
"""Multiplying a byte by this repeats it four times."""


DOTS = {"dot4": te.dot4, "dot2_bfloat16": te.dot2_bfloat16}
"""Products of two words, by the form of a product."""


def words(x: Tensor) -> Tensor:
    """Bytes (..., 4 n), or bfloat16 (..., 2 n), packed as int32 (..., n), the first in the low bits."""
    count, bits = 4 // x.dtype.nbytes, x.dtype.bits
    unsigned = f"uint{bits}"

    def element(value: PrimExpr) -> PrimExpr:
        return te.cast("int32", value if x.dtype == unsigned else call_intrin(unsigned, "reinterpret", value))

    def body(*i: Any) -> PrimExpr:
        parts = [left_shift(element(x(*i[:-1], i[-1] * count + k)), k * bits) for k in range(count)]
        return reduce(bitwise_or, parts)

    return te.compute((*x.shape[:-1], as_dim(x.shape[-1] // count)), body, name="words", tag=INJECTIVE)


def dense_dot4(
    data: Tensor, weight: Tensor, units: int, rows: Sequence[Dim] | None = None, form: str = "dot4"
) -> Tensor:
    """data (..., K) times panels (ceil(N / NR), K, NR), both of four bytes: (..., N) with N = `units`.

    The result is (*rows, N) with `rows`, whose product must be that of the data's leading dimensions. With the form
    "dot2_bfloat16" elements hold two bfloat16.
    """
    lead = data.shape[:-1]
    panels, count, nr = weight.shape
    k = te.reduce_axis((0, count), name="k")

    def body(m: Any, n: Any) -> PrimExpr:
        return te.sum(DOTS[form](data(*unravel_index(m, lead), k), weight(n // nr, k, n % nr)), axis=k)

    shape = (num_elements(lead), as_dim(panels * nr))
    product = te.compute(shape, body, name="dense", tag="dense_packed", attrs=_attrs(nr, form))
    return with_rows(first_columns(product, units), lead if rows is None else rows)


def dense_dot4_groups(data: Tensor, weight: Tensor, table: Tensor, units: int) -> Tensor:
    """data (..., K) times panels (ceil(N / NR), S, G, NR), both of four bytes: (..., N) with N = `units`.

    Step s of panel p reads the columns ``table[p, s, :]`` of the data, one or two.
    """
    lead = data.shape[:-1]
    panels, count, _, nr = weight.shape
    k = te.reduce_axis((0, count), name="k")

    def body(m: Any, n: Any) -> PrimExpr:
        def read(column: PrimExpr) -> PrimExpr:
            return data(*unravel_index(m, lead), column)

        return te.sum(_group(read, weight, table, n, k), axis=k)

    shape, attrs = (num_elements(lead), as_dim(panels * nr)), _attrs(nr, _form(weight))
    product = te.compute(shape, body, name="dense", tag="dense_packed", attrs=attrs)
    return with_rows(first_columns(product, units), lead)


def _form(weight: Tensor) -> str:
    return "dot4" if weight.shape[-2] == 1 else "dot8"


def _group(read: Callable[[Any], PrimExpr], weight: Tensor, table: Tensor, n: Any, k: Any) -> PrimExpr:
    """Step `k` of a panel: the products of its words by the data that the table selects."""
    nr, single = weight.shape[-1], _form(weight) == "dot4"
    operands = [(read(table(n // nr, k, i)), weight(n // nr, k, i, n % nr)) for i in range(1 if single else 2)]
    return te.dot4(*operands[0]) if single else te.dot8(*operands[0], *operands[1])


def _attrs(block: Any, form: str) -> dict[str, Any]:
    return {"block": block, "groups": 1, "form": form}


def conv2d_dot4(
    data: Tensor,
    weight: Tensor,
    channels: int,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    border: int,
    kernel_size: Sequence[int] | None = None,
    form: str = "dot4",
) -> Tensor:
    """Convolution of `data` (N, H, W, C) with weights (ceil(O / NR), KH, KW, C, NR), both of four bytes.

    `border` is the padding byte. With a `kernel_size` weights are (ceil(O / NR), KH * KW * C, NR), and windows become
    rows of a matrix first (im2col, tag "windows"). With the form "dot2_bfloat16" elements hold two bfloat16.
    """
    *_, nr = weight.shape
    kernel, depth = (weight.shape[1:-2], weight.shape[-2]) if kernel_size is None else (kernel_size, data.shape[-1])
    around = (border * REPEATED + (1 << 31)) % (1 << 32) - (1 << 31)
    padded = pad_spatial(data, (1, 2), padding[:2], padding[2:], around)
    grid = (data.shape[0], *output_sizes(data.shape[1:-1], kernel, strides, dilation, padding))
    if kernel_size is not None:
        return _product_of_windows(padded, weight, channels, kernel, strides, dilation, grid, form)
    taps, rc = kernel_axes("hw", kernel), te.reduce_axis((0, depth), name="rc")

    def body(p: Any, c: Any) -> PrimExpr:
        b, *position = unravel_index(p, grid)
        value = padded(b, *taps_at(position, taps, strides, dilation), rc)
        return te.sum(DOTS[form](value, weight(c // nr, *taps, rc, c % nr)), axis=[*taps, rc])

    return _image(body, grid, channels, weight, form)


def _product_of_windows(
    padded: Tensor, weight: Tensor, channels: int, kernel: Sequence[Dim], strides: Sequence[int],
    dilation: Sequence[int], grid: Sequence[Dim], form: str,
) -> Tensor:  # fmt: skip
    steps, nr = weight.shape[1:]
    windows = windows_of(padded, grid, kernel, strides, dilation)
    k = te.reduce_axis((0, steps), name="k")

    def body(p: Any, c: Any) -> PrimExpr:
        return te.sum(DOTS[form](windows(p, k), weight(c // nr, k, c % nr)), axis=k)

    return _image(body, grid, channels, weight, form)


def window_dot4_groups(
    data: Tensor, weight: Tensor, table: Tensor, channels: int, grid: Sequence[int], pitch: Sequence[int]
) -> Tensor:
    """Products of windows of `data` (N, L) with panels (ceil(O / NR), S, G, NR), both of four bytes: (N, *grid, O).

    The window of result (n, y, x) begins at ``y * pitch[0] + x * pitch[1]`` of row n of the data; step s of panel p
    reads the words ``table[p, s, :]`` further on, one or two.
    """
    places = (data.shape[0], *grid)
    k = te.reduce_axis((0, weight.shape[1]), name="k")

    def body(p: Any, c: Any) -> PrimExpr:
        n, y, x = unravel_index(p, places)

        def read(further: PrimExpr) -> PrimExpr:
            return data(n, y * pitch[0] + x * pitch[1] + further)

        return te.sum(_group(read, weight, table, c, k), axis=k)

    return _image(body, places, channels, weight, _form(weight))


def _image(
    body: Callable[[Any, Any], PrimExpr], grid: Sequence[Dim], channels: int, weight: Tensor, form: str
) -> Tensor:
    """(N, H, W, O) from a product that is computed as a matrix, pixels by the columns of all panels."""
    blocks, *_, nr = weight.shape
    attrs = {"blocks": blocks, "outputs": channels, **_attrs(nr, form)}
    shape = (num_elements(grid), as_dim(blocks * nr))
    total = te.compute(shape, body, name="conv2d", tag="conv2d_nhwc_packed", attrs=attrs)

    def image(*i: Any) -> PrimExpr:
        return total(ravel_index(i[:-1], grid), i[-1])

    return te.compute((*grid, channels), image, name="image", tag=INJECTIVE)
