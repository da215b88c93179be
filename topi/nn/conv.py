"""Convolutions of 1, 2 or 3 spatial dimensions, in any order of the axes.

A convolution is a border stage (tag "pad", a schedule may inline it or compute it at an outer axis) and a reduction
over kernel positions and the input channels of a group. Tags name what a schedule can be written for:
"conv2d_nhwc", "depthwise_conv2d_nhwc", "conv2d_nchw", "conv2d_nhwc_packed", ...; attributes carry strides, dilation
and groups. Sums of low-precision floats are kept in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.arith import Analyzer
from relayc.te.tir import Dim, IterVar, PrimExpr, as_dim, as_int
from relayc.topi.layout import Layout
from relayc.topi.nn.dense import Pairs, int16_pairs, widened
from relayc.topi.nn.pad import pad, pad_spatial
from relayc.topi.tag import ELEMWISE, INJECTIVE
from relayc.topi.utils import accumulator_type, ceil_div, num_elements, ravel_index, unravel_index

__all__ = [
    "conv", "conv_across_groups", "conv_packed", "conv_transpose", "copies_windows", "kernel_axes", "output_size",
    "output_sizes", "taps_at", "windows_of",
]  # fmt: skip


_FEWEST_COPIED = 64
"""Fewest channels of which windows are copied."""


def output_size(size: Dim, kernel: Dim, stride: int, dilation: int, padding: int) -> Dim:
    """The positions of a window of `kernel` taps along `size` elements plus `padding`, that of both sides.

    Simplified: a schedule finds that a reader has as many elements only where both are the same expression.
    """
    span = (kernel - 1) * dilation + 1
    positions = as_dim((size + (padding - span)) // stride + 1)
    return positions if isinstance(positions, int) else as_dim(Analyzer().simplify(positions))


def output_sizes(
    sizes: Sequence[Dim], kernel: Sequence[Dim], strides: Sequence[int], dilation: Sequence[int], padding: Sequence[int]
) -> list[Dim]:
    """`output_size` along each of `sizes`; `padding` is that before each, then that after each."""
    rank = len(sizes)
    return [
        output_size(sizes[k], kernel[k], strides[k], dilation[k], padding[k] + padding[k + rank]) for k in range(rank)
    ]


def _rounded(total: Tensor, dtype: str) -> Tensor:
    """`total` converted to `dtype`; `total` itself where it has that type."""
    if total.dtype == dtype:
        return total
    return te.compute(total.shape, lambda *i: te.cast(dtype, total(*i)), name=f"{total.op.name}_rounded", tag=ELEMWISE)


def _sum(terms: PrimExpr, axes: Sequence[IterVar]) -> PrimExpr:
    return te.sum(terms, axis=list(axes)) if axes else terms


def kernel_axes(names: Sequence[str], sizes: Sequence[Dim]) -> list[IterVar]:
    """Reduce axes over the taps of a kernel."""
    return [te.reduce_axis((0, size), name=f"k{name.lower()}") for name, size in zip(names, sizes, strict=True)]


def taps_at(outputs: Sequence[Any], taps: Sequence[Any], strides: Sequence[int], dilation: Sequence[int]) -> list[Any]:
    """The positions in the padded input that `taps` of output positions `outputs` read."""
    return [o * s + t * d for o, t, s, d in zip(outputs, taps, strides, dilation, strict=True)]


def conv(
    data: Tensor,
    weight: Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_dtype: str | None = None,
) -> Tensor:
    """Convolution (cross-correlation) of `data` with `weight`.

    `data_layout` orders N, C and the spatial axes ("NCHW", "NHWC", "NCW", "NCDHW", ...), `kernel_layout` orders O, I
    (the channels of one group) and the same spatial axes. `padding` is (begin..., end...) of the spatial axes in the
    order of `data_layout`. `groups` of 0 are as many as outputs.
    """
    layout, kernel = Layout(data_layout), Layout(kernel_layout)
    spatial = [a for a in layout.axes if a not in "NC"]
    rank = len(spatial)
    sizes, weights = layout.axis_sizes(data.shape), kernel.axis_sizes(weight.shape)
    begin, end = padding[:rank], padding[rank:]
    padded = pad_spatial(data, [layout.index(a) for a in spatial], begin, end, 0)
    out_dtype = out_dtype or data.dtype
    wide = accumulator_type(out_dtype)

    taps = kernel_axes(spatial, [weights[a] for a in spatial])
    rc = te.reduce_axis((0, weights["I"]), name="rc")
    reduced = taps if as_int(weights["I"]) == 1 else [*taps, rc]
    out_sizes: dict[str, Dim] = {"N": sizes["N"], "C": weights["O"]}
    for a, s, d, b, e in zip(spatial, strides, dilation, begin, end, strict=True):
        out_sizes[a] = output_size(sizes[a], weights[a], s, d, b + e)
    outputs_per_group = as_dim(weights["O"] // groups) if groups else 1

    def body(*i: Any) -> PrimExpr:
        at = layout.axis_positions(i)
        channel = _group_channel(at["C"], outputs_per_group, groups, weights["I"], rc)
        positions = taps_at([at[a] for a in spatial], taps, strides, dilation)
        source = {"N": at["N"], "C": channel, **dict(zip(spatial, positions, strict=True))}
        inner = te.const(0) if as_int(weights["I"]) == 1 else rc
        tap = {"O": at["C"], "I": inner, **dict(zip(spatial, taps, strict=True))}
        value = te.cast(wide, padded(*layout.index_of(source))) * te.cast(wide, weight(*kernel.index_of(tap)))
        return _sum(value, reduced)

    depthwise = groups != 1 and as_int(weights["I"]) == 1
    tag = f"{'depthwise_' if depthwise else ''}conv{rank}d_{data_layout.lower()}"
    attrs = _attributes(strides, dilation, groups, data_layout=data_layout, kernel_layout=kernel_layout)
    total = te.compute(layout.shape_of(out_sizes), body, name=f"conv{rank}d", tag=tag, attrs=attrs)
    return _rounded(total, out_dtype)


def _group_channel(out_channel: Any, outputs_per_group: Dim, groups: int, group_size: Dim, rc: IterVar) -> Any:
    """The input channel that `out_channel` reads at position `rc` within its group."""
    if groups == 1:
        return rc if as_int(group_size) != 1 else te.const(0)
    group = out_channel if as_int(outputs_per_group) == 1 else out_channel // outputs_per_group
    return group if as_int(group_size) == 1 else group * group_size + rc


def _attributes(strides: Sequence[int], dilation: Sequence[int], groups: int, **more: Any) -> Mapping[str, Any]:
    return {"strides": tuple(strides), "dilation": tuple(dilation), "groups": groups, **more}


def conv_packed(
    data: Tensor,
    weight: Tensor,
    channels: Dim,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    out_dtype: str | None = None,
    pairs: Pairs | None = None,
) -> Tensor:
    """Convolution of `data` (N, spatial..., C) with packed weights (ceil(O / NR), spatial..., I, NR).

    With `pairs`, which require one group, a step is a 2-way dot product of two channels.

    `channels` is O without padding; with groups a block is a whole group, whose outputs a schedule may tile freely, or
    a group is a whole number of blocks. The result is computed as a matrix, pixels by the columns of all blocks (tag
    "conv2d_nhwc_packed", "conv1d_nwc_packed" or "conv3d_ndhwc_packed"), so that tiles may cross ends of rows and
    padding of blocks. Windows may be copied before (`copies_windows`).
    """
    blocks, *kernel, group_size, nr = weight.shape
    rank = len(kernel)
    outputs, group = as_dim(channels // groups), blocks // groups * nr  # columns of a group, in all its blocks
    spatial = range(1, 1 + rank)
    out_dtype = out_dtype or data.dtype
    wide = accumulator_type(out_dtype)
    if pairs:
        data = int16_pairs(data, -1, zero_point=pairs.zero_point)
        factors = int16_pairs(weight, -2, "widened_weights")
    else:
        factors = widened(weight, wide)
    padded = pad_spatial(data, spatial, padding[:rank], padding[rank:], 0)
    grid = (data.shape[0], *output_sizes(data.shape[1:-1], kernel, strides, dilation, padding))
    names = "dhw"[-rank:]
    taps = kernel_axes(names, kernel)
    rc = te.reduce_axis((0, ceil_div(group_size, 2) if pairs else group_size), name="rc")
    copies = groups == 1 and not pairs and rank > 1 and copies_windows(grid[-1], kernel, group_size)
    windows = windows_of(padded, grid, kernel, strides, dilation) if copies else None

    def body(p: Any, c: Any) -> PrimExpr:
        if windows is None:
            b, *position = unravel_index(p, grid)
            channel = rc if groups == 1 else c // group * group_size + rc
            value = padded(b, *taps_at(position, taps, strides, dilation), channel)
        else:
            value = windows(p, ravel_index([*taps, rc], [*kernel, group_size]))
        factor = factors(c // nr, *taps, rc, c % nr)
        product = te.dot2(value, factor) if pairs else te.cast(wide, value) * factor
        return te.sum(product, axis=[*taps, rc])

    attrs = _attributes(strides, dilation, groups, blocks=blocks, block=nr, outputs=outputs)
    if windows is not None:
        attrs = {**attrs, "strides": (1,) * rank, "dilation": (1,) * rank}  # rows of a matrix, one after the other
    tag = f"conv{rank}d_n{names}c_packed"
    total = te.compute((num_elements(grid), as_dim(blocks * nr)), body, name=f"conv{rank}d", tag=tag, attrs=attrs)

    def image(*i: Any) -> PrimExpr:
        column = i[-1] if groups == 1 or group == outputs else i[-1] // outputs * group + i[-1] % outputs
        return total(ravel_index(i[:-1], grid), column)

    return _rounded(te.compute((*grid, channels), image, name="image", tag=INJECTIVE), out_dtype)


def copies_windows(line: Dim, kernel: Sequence[Dim], channels: Dim) -> bool:
    """Are windows of an image, whose results have lines of this length, copied before they are multiplied on CPUs?

    Lines of dynamic length begin anywhere in a tile, so that its pixels have an address each, more than there are
    registers. Loops over few channels are unrolled, and share the addresses. (Zen 5, time of copies relative to that
    of addresses: 1.19 for 32 channels, 0.68 for 64, 0.63 for 256; 8-bit 1.07, 0.74, 0.35.)
    """
    taps, known = as_int(num_elements(kernel)), as_int(channels)
    return as_int(line) is None and taps is not None and taps > 1 and known is not None and known >= _FEWEST_COPIED


def windows_of(
    padded: Tensor, grid: Sequence[Dim], kernel: Sequence[Dim], strides: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """The windows of images (N, spatial..., C) as rows of a matrix (im2col, tag "windows"): taps, then channels.

    The attribute "run" has the elements of a row that are contiguous in the images.
    """
    channels = padded.shape[-1]
    run = as_dim(channels * (kernel[-1] if dilation[-1] == 1 else 1))

    def window(p: Any, k: Any) -> PrimExpr:
        b, *position = unravel_index(p, grid)
        *tap, channel = unravel_index(k, (*kernel, channels))
        return padded(b, *taps_at(position, tap, strides, dilation), channel)

    attrs = {"run": run, "grid": grid, "kernel": kernel, "strides": strides, "dilation": dilation}
    shape = (num_elements(grid), num_elements((*kernel, channels)))
    return te.compute(shape, window, name="windows", tag="windows", attrs=attrs)


def conv_across_groups(
    data: Tensor,
    weight: Tensor,
    channels: int,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    out_dtype: str | None = None,
) -> Tensor:
    """Convolution of `data` (N, spatial..., C) in groups, with weights (ceil(O / NR), spatial..., I, NR).

    Unlike in `conv_packed`, blocks hold consecutive outputs of any groups (tag "conv2d_nhwc_across_groups", ...). With
    at most two groups in a block, an output reads a channel of the first or the last one: for a vector, two broadcasts
    and a blend.
    """
    blocks, *kernel, group_size, nr = weight.shape
    rank, names = len(kernel), "dhw"[-len(kernel) :]
    assert isinstance(blocks, int) and isinstance(nr, int)
    out_dtype = out_dtype or data.dtype
    wide, outputs = accumulator_type(out_dtype), channels // groups
    whole = group_size == outputs and nr % outputs == 0 and (any(padding) or channels % nr == 0)  # groups in a vector
    more = -channels % nr if whole and any(padding) else 0  # channels, so that vectors of the data are whole, too
    padded = data
    if any(padding):
        padded = pad(data, [0, *padding[:rank], 0], [0, *padding[rank:], more], 0)
    sizes = output_sizes(data.shape[1:-1], kernel, strides, dilation, padding)
    taps = kernel_axes(names, kernel)
    rc = te.reduce_axis((0, group_size), name="rc")
    ends = [(b * nr // outputs, (min(b * nr + nr, channels) - 1) // outputs) for b in range(blocks)]
    most = max(last - first for first, last in ends)

    def value(position: Sequence[Any], c: Any) -> PrimExpr:
        begin = c // nr * nr
        if most == 0:
            return padded(*position, begin // outputs * group_size + rc)
        if whole:
            return padded(*position, c // outputs * group_size + rc)
        if most > 1:
            return padded(*position, te.min(c, channels - 1) // outputs * group_size + rc)
        first, last = begin // outputs, (begin + (nr - 1)) // outputs
        if channels % nr:
            last = te.min(last, groups - 1)
        ends = [padded(*position, group * group_size + rc) for group in (first, last)]
        return te.select(c < last * outputs, *ends)

    def body(*i: Any) -> PrimExpr:
        b, *position, c = i
        factor = te.cast(wide, weight(c // nr, *taps, rc, c % nr))
        data_at = (b, *taps_at(position, taps, strides, dilation))
        return te.sum(te.cast(wide, value(data_at, c)) * factor, axis=[*taps, rc])

    attrs = _attributes(strides, dilation, groups, outputs=outputs, has_border=any(padding))
    tag = f"conv{rank}d_n{names}c_across_groups"
    total = te.compute((data.shape[0], *sizes, blocks * nr), body, name=f"conv{rank}d", tag=tag, attrs=attrs)
    image = te.compute((*total.shape[:-1], channels), total, name="image", tag=INJECTIVE)
    return _rounded(image, out_dtype)


def conv_transpose(
    data: Tensor,
    weight: Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int = 1,
    data_layout: str = "NCHW",
    kernel_layout: str = "IOHW",
    out_dtype: str | None = None,
) -> Tensor:
    """The gradient of a convolution with respect to its input, as a gather, without inserted zeros.

    Output position y sums the taps t for which y + begin - t * dilation is a multiple of the stride, read from input
    position (y + begin - t * dilation) / stride. `kernel_layout` orders I (all input channels), O (the outputs of one
    group) and the spatial axes.
    """
    layout, kernel = Layout(data_layout), Layout(kernel_layout)
    spatial = [a for a in layout.axes if a not in "NC"]
    rank = len(spatial)
    sizes, weights = layout.axis_sizes(data.shape), kernel.axis_sizes(weight.shape)
    begin, end = padding[:rank], padding[rank:]
    out_dtype = out_dtype or data.dtype
    wide = accumulator_type(out_dtype)
    inputs_per_group = as_dim(sizes["C"] // groups)
    taps = kernel_axes(spatial, [weights[a] for a in spatial])
    rc = te.reduce_axis((0, inputs_per_group), name="rc")
    out_sizes: dict[str, Dim] = {"N": sizes["N"], "C": as_dim(weights["O"] * groups)}
    for k, a in enumerate(spatial):
        span = (weights[a] - 1) * dilation[k] + 1
        out_sizes[a] = as_dim((sizes[a] - 1) * strides[k] + span - (begin[k] + end[k]) + output_padding[k])

    def body(*i: Any) -> PrimExpr:
        at = layout.axis_positions(i)
        channel = rc if groups == 1 else at["C"] // weights["O"] * inputs_per_group + rc
        source: dict[str, Any] = {"N": at["N"], "C": channel}
        read: list[PrimExpr] = []
        for k, (a, tap) in enumerate(zip(spatial, taps, strict=True)):
            position = at[a] + begin[k] - tap * dilation[k]
            source[a] = position // strides[k]
            read += [position >= 0, source[a] < sizes[a]]
            if strides[k] > 1:
                read.append(position % strides[k] == 0)
        tap_at = {"I": channel, "O": at["C"] % weights["O"] if groups > 1 else at["C"]}
        factor = weight(*kernel.index_of({**tap_at, **dict(zip(spatial, taps, strict=True))}))
        value = te.if_then_else(te.all(*read), data(*layout.index_of(source)), te.const(0, data.dtype))
        return te.sum(te.cast(wide, value) * te.cast(wide, factor), axis=[*taps, rc])

    attrs = _attributes(strides, dilation, groups, padding=tuple(padding), kernel_layout=kernel_layout)
    tag = f"conv{rank}d_transpose_{data_layout.lower()}"
    total = te.compute(layout.shape_of(out_sizes), body, name=f"conv{rank}d_transpose", tag=tag, attrs=attrs)
    return _rounded(total, out_dtype)
