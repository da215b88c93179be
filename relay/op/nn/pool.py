"""Pooling. Layouts order the axes N, C and D, H, W; windows lie along the spatial ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from relayc import te, topi
from relayc.relay.errors import GradientError, TypeInferenceError
from relayc.relay.expr import Call, Constant, Expr, Tuple, TupleGetItem
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, attributes_of_operator, make_call, register_op
from relayc.relay.op.common import Array, as_expr, at_least, ints, numpy_dtype, padding_pairs, require, require_float
from relayc.relay.op.gradients import reshaped, zeros_of
from relayc.relay.op.nn.windows import window_view
from relayc.relay.sizes import product
from relayc.relay.type import TensorType, TupleType, Type
from relayc.te.errors import CompileError
from relayc.te.tir import as_dim
from relayc.topi.layout import Layout
from relayc.topi.nn.pool import Windows

__all__ = [
    "AdaptiveAvgPool", "AdaptiveMaxPool", "AvgPool", "LpPool", "MaxPool", "MaxPoolWithArgmax", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "global_avg_pool2d", "global_max_pool2d", "lp_pool", "max_pool1d",
    "max_pool2d", "max_pool3d", "max_pool_with_argmax",
]  # fmt: skip

Ints = tuple[int, ...]


def spatial_axes(number: int, layout: str, ndim: int) -> tuple[int, ...]:
    """Constraint `number`: `layout` names N, C and spatial axes, `ndim` in all. The dimensions of the spatial ones."""
    try:
        parsed = Layout(layout)
    except CompileError as error:
        raise TypeInferenceError(f"(C{number}) {error}") from None
    valid = parsed.ndim == ndim and not parsed.blocks and {"N", "C"} <= set(parsed.axes)
    require(valid, f"(C{number}) layout {layout} does not fit an input of {ndim} dimensions")
    return tuple([parsed.index(a) for a in parsed.axes if a not in "NC"])


def transposed_layout(layout: str, perm: Sequence[int]) -> str:
    """The letters of `layout` in the order of `perm`."""
    return "".join(layout[p] for p in perm)


@attributes_of_operator
class _Pool(OpDef):
    """Base of pooling over windows. `padding` is (begin..., end...) of the spatial axes, in the order of `layout`.

    (C1) the layout fits the input; (C2) pool_size, strides and dilation have one positive number for each spatial axis,
    padding two that are not negative; (C3) the padded input holds a window.
    """

    pool_size: Ints
    strides: Ints
    dilation: Ints
    padding: Ints
    layout: str = "NCHW"
    ceil_mode: bool = False

    def infer(self, x: TensorType) -> TensorType:
        rank = len(spatial_axes(1, self.layout, x.ndim))
        counts = [len(v) for v in (self.pool_size, self.strides, self.dilation, self.padding)]
        positive = (
            min((*self.pool_size, *self.strides, *self.dilation), default=1) >= 1 and min(self.padding, default=0) >= 0
        )
        attributes = f"{self.pool_size}, strides {self.strides}, dilation {self.dilation} and padding {self.padding}"
        needed = f"{rank}, {rank}, {rank} and {2 * rank} numbers, padding of 0 or more, the others of 1 or more"
        require(counts == [rank, rank, rank, 2 * rank] and positive, f"(C2) pool_size {attributes} need {needed}")
        spec = self.spec(x.ndim)
        shape = spec.pooled(x.shape)
        for k, a in enumerate(spec.axes):
            room = f"dimension {a} of {x} padded by {spec.begin[k]} and {spec.end[k]}"
            require(at_least(shape[a], 1), f"(C3) {room} holds no window of {self.pool_size[k]}")
        return x.with_shape(shape)

    def spec(self, ndim: int) -> Windows:
        """The windows over an input of `ndim` dimensions."""
        axes = spatial_axes(1, self.layout, ndim)
        return Windows(axes, self.pool_size, self.strides, self.dilation, self.padding, self.ceil_mode)

    def windows(
        self, x: Array, fill: float, out: tuple[int, ...] | None = None
    ) -> tuple[Array, Callable[[Array], Array]]:
        """Windows (N, C, out..., kernel...) of x padded with `fill`, and the permutation back to the layout.

        `out` is the shape of the result in the layout, if it is not that of pooling x.
        """
        layout = Layout(self.layout)
        spatial = [a for a in layout.axes if a not in "NC"]
        plain, rank = ("N", "C", *spatial), len(spatial)
        moved = x.transpose([layout.index(a) for a in plain])
        if out is None:
            out = self.infer(TensorType(x.shape, str(x.dtype))).static_shape
        borders: list[tuple[int, int]] = [(0, 0), (0, 0)]
        for k, a in enumerate(spatial):
            last = (out[layout.index(a)] - 1) * self.strides[k] + (self.pool_size[k] - 1) * self.dilation[k] + 1
            borders.append(
                (self.padding[k], max(self.padding[k + rank], last - x.shape[layout.index(a)] - self.padding[k]))
            )
        view = window_view(np.pad(moved, borders, constant_values=fill), self.pool_size, self.strides, self.dilation)
        kept = view[(slice(None), slice(None), *[slice(out[layout.index(a)]) for a in spatial])]
        order = [plain.index(a) for a in layout.axes]
        return kept, lambda y: np.ascontiguousarray(y.transpose(order))

    def sums(self, x: Expr) -> Expr | None:
        """The sum of each window as a convolution with ones; None in other layouts than NC..., or of dynamic sizes."""
        sizes, rank = x.shape[2:], len(self.pool_size)
        if not self.layout.startswith("NC") or not all(isinstance(d, int) for d in sizes):
            return None
        results = self.spec(len(x.shape)).pooled(x.shape)[2:]
        widths = [(0, 0), (0, 0)]
        for k, (size, result) in enumerate(zip(sizes, results, strict=True)):
            reach = as_dim((result - 1) * self.strides[k] + (self.pool_size[k] - 1) * self.dilation[k] + 1)
            widths.append((self.padding[k], int(reach - size - self.padding[k])))  # type: ignore[arg-type]
        images = reshaped(x, (product(x.shape[:2]), 1, *sizes))
        bordered = make_call("nn.pad", (images,), pad_width=tuple(widths))
        ones = Constant(np.ones((1, 1, *self.pool_size), numpy_dtype(str(x.dtype))))
        found = make_call(f"nn.conv{rank}d", (bordered, ones), strides=self.strides, dilation=self.dilation)
        return reshaped(found, (*x.shape[:2], *results))

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        new = transposed_layout(self.layout, perm)
        old_order = [a for a in self.layout if a not in "NC"]
        order = [old_order.index(a) for a in new if a not in "NC"]

        def reordered(values: Ints) -> Ints:
            return tuple([values[o] for o in order])

        rank = len(order)
        return self.replace(
            layout=new,
            pool_size=reordered(self.pool_size),
            strides=reordered(self.strides),
            dilation=reordered(self.dilation),
            padding=(*reordered(self.padding[:rank]), *reordered(self.padding[rank:])),
        )


def _kernel_axes(windows: Array) -> tuple[int, ...]:
    rank = (windows.ndim - 2) // 2
    return tuple(range(2 + rank, 2 + 2 * rank))


@register_op("nn.max_pool", pattern=OpPattern.OUT_FUSABLE)
class MaxPool(_Pool):
    """The largest value of each window (ONNX: MaxPool; TVM: nn.max_pool1d/2d/3d); padding never wins."""

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.max_pool(x, self.spec(x.ndim))

    def reference(self, x: Array) -> Array:
        lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        windows, back = self.windows(x, lowest)
        return back(windows.max(_kernel_axes(windows)))

    def decomposed(self, *args: Expr) -> Expr | None:
        if not self.layout.startswith("NC"):
            return None
        return TupleGetItem(MaxPoolWithArgmax(**self.attributes())(*args), 0)


@register_op("nn.max_pool_with_argmax", pattern=OpPattern.OPAQUE)
class MaxPoolWithArgmax(_Pool):
    """The largest value of each window, and its position in the whole of x, an int64 (ONNX: MaxPool with Indices).

    Gives a tuple (values, positions); the first among equal values counts. `column_major` counts positions with the
    first spatial axis running fastest. (C4) the layout is N, C, then the spatial axes.
    """

    column_major: bool = False

    def infer(self, x: TensorType) -> TupleType:  # pyright: ignore[reportIncompatibleMethodOverride]
        require(self.layout.startswith("NC"), f"(C4) layout {self.layout} must be N, C, then the spatial axes")
        values = super().infer(x)
        return TupleType([values, values.with_dtype("int64")])

    def compute(self, x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
        return topi.nn.max_pool_with_argmax(x, self.spec(x.ndim), self.column_major)

    def reference(self, x: Array) -> tuple[Array, Array]:
        lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        spatial = x.shape[2:][::-1] if self.column_major else x.shape[2:]
        positions = np.arange(x.size).reshape((*x.shape[:2], *spatial))
        if self.column_major:
            positions = positions.transpose((0, 1, *range(x.ndim - 1, 1, -1)))
        pool = MaxPool(**{name: value for name, value in self.attributes().items() if name != "column_major"})
        values, _ = pool.windows(x, lowest)
        places, _ = pool.windows(positions, np.iinfo(np.int64).max)
        best = values.max(_kernel_axes(values), keepdims=True)
        largest = (values == best) | (values != values)
        found = np.where(largest, places, np.iinfo(np.int64).max).min(_kernel_axes(values))
        return values.max(_kernel_axes(values)), found

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        return None

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        assert isinstance(grad, Tuple)
        (x,) = call.args
        if self.column_major:
            raise GradientError(f"operator {self.name} with column_major has no gradient rule")
        values, places = grad.fields[0], TupleGetItem(call, 1)
        count, total = product(values.shape), product(x.shape)
        empty = zeros_of(x, (total,))
        flat = make_call(
            "scatter_nd", (empty, reshaped(places, (1, count)), reshaped(values, (count,))), reduction="add"
        )
        return (reshaped(flat, x.shape),)


@register_op("nn.avg_pool", pattern=OpPattern.OUT_FUSABLE)
class AvgPool(_Pool):
    """The mean of each window (ONNX: AveragePool; TVM: nn.avg_pool1d/2d/3d). (C4) the element type is a float.

    With `count_include_pad` padding counts as zeros, otherwise it is excluded. Positions beyond the padding never
    count.
    """

    count_include_pad: bool = False

    def infer(self, x: TensorType) -> TensorType:
        require_float(4, x)
        return super().infer(x)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.avg_pool(x, self.spec(x.ndim), self.count_include_pad)

    def reference(self, x: Array) -> Array:
        windows, back = self.windows(x.astype(np.float64), 0)
        counted, _ = self.windows(np.ones(x.shape), 0)
        if self.count_include_pad:
            axes, rank = spatial_axes(1, self.layout, x.ndim), len(self.pool_size)
            borders = [(0, 0)] * x.ndim
            for k, a in enumerate(axes):
                borders[a] = (self.padding[k], self.padding[k + rank])
            bordered = self.replace(padding=(0,) * (2 * rank))
            out = self.infer(TensorType(x.shape, str(x.dtype))).static_shape
            counted, _ = bordered.windows(np.pad(np.ones(x.shape), borders, constant_values=1), 0, out)
        taps = _kernel_axes(windows)
        return back(windows.sum(taps) / counted.sum(taps)).astype(x.dtype)

    def decomposed(self, *args: Expr) -> Expr | None:
        (x,) = args
        sums = self.sums(x)
        if sums is None:
            return None
        ones = np.ones((1, 1, *x.shape[2:]), "float64")  # type: ignore[arg-type]
        windows, _ = self.windows(ones, 0)
        counted = windows.sum(_kernel_axes(windows)) / self.reference(ones)
        return sums / Constant(counted.astype(numpy_dtype(str(x.dtype))))


@register_op("nn.lp_pool", pattern=OpPattern.OUT_FUSABLE)
class LpPool(_Pool):
    """(sum of |x|^p over each window)^(1/p) (ONNX: LpPool). (C4) the element type is a float; (C5) p is at least 1."""

    mixed_precision = MixedPrecision.NEVER

    p: int = 2

    def infer(self, x: TensorType) -> TensorType:
        require_float(4, x)
        require(self.p >= 1, f"(C5) p must be at least 1; got {self.p}")
        return super().infer(x)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.lp_pool(x, self.spec(x.ndim), self.p)

    def reference(self, x: Array) -> Array:
        windows, back = self.windows(np.abs(x.astype(np.float64)) ** self.p, 0)
        return back(windows.sum(_kernel_axes(windows)) ** (1 / self.p)).astype(x.dtype)

    def decomposed(self, *args: Expr) -> Expr | None:
        (x,) = args
        sums = self.sums(make_call("power", (make_call("abs", (x,)), as_expr(self.p, x))))
        return None if sums is None else make_call("power", (sums, as_expr(1 / self.p, x)))


@attributes_of_operator
class _AdaptivePool(OpDef):
    """Base of pooling to a fixed output size: window o of n covers [floor(o * size / n), ceil((o + 1) * size / n)).

    (C1) the layout fits the input; (C2) output_size has one positive number for each spatial axis; (C3) the element
    type is a float.
    """

    output_size: Ints
    layout: str = "NCHW"
    mode: ClassVar[str]

    def infer(self, x: TensorType) -> TensorType:
        axes = spatial_axes(1, self.layout, x.ndim)
        valid = len(self.output_size) == len(axes) and min(self.output_size, default=1) >= 1
        require(valid, f"(C2) output_size {self.output_size} needs {len(axes)} numbers of 1 or more")
        require_float(3, x)
        shape = list(x.shape)
        for a, n in zip(axes, self.output_size, strict=True):
            shape[a] = n
        return x.with_shape(shape)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.adaptive_pool(x, spatial_axes(1, self.layout, x.ndim), self.output_size, self.mode)

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.float64)
        for a, n in zip(spatial_axes(1, self.layout, x.ndim), self.output_size, strict=True):
            size = wide.shape[a]
            cuts = [(o * size // n, -(-(o + 1) * size // n)) for o in range(n)]
            parts = [wide.take(range(start, end), a) for start, end in cuts]
            wide = np.stack([p.mean(a) if self.mode == "avg" else p.max(a) for p in parts], a)
        return wide.astype(x.dtype)

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        new = transposed_layout(self.layout, perm)
        order = [[a for a in self.layout if a not in "NC"].index(a) for a in new if a not in "NC"]
        return self.replace(layout=new, output_size=tuple([self.output_size[o] for o in order]))

    def decomposed(self, *args: Expr) -> Expr | None:
        if set(self.output_size) != {1}:
            return None
        axes = spatial_axes(1, self.layout, len(args[0].shape))
        return make_call("mean" if self.mode == "avg" else "max", args, axis=axes, keepdims=True)


@register_op("nn.adaptive_avg_pool", pattern=OpPattern.OUT_FUSABLE)
class AdaptiveAvgPool(_AdaptivePool):
    """The mean of each window of a fixed number of windows (ONNX: GlobalAveragePool with output_size 1)."""

    mode = "avg"


@register_op("nn.adaptive_max_pool", pattern=OpPattern.OUT_FUSABLE)
class AdaptiveMaxPool(_AdaptivePool):
    """The largest value of each window of a fixed number of windows (ONNX: GlobalMaxPool with output_size 1)."""

    mode = "max"


IntOrInts = int | Sequence[int]


def _max_pool(rank: int, default_layout: str) -> Callable[..., Call]:
    def call(
        data: Expr,
        pool_size: IntOrInts = 1,
        strides: IntOrInts = 1,
        dilation: IntOrInts = 1,
        padding: IntOrInts = 0,
        layout: str = default_layout,
        ceil_mode: bool = False,
    ) -> Call:
        return MaxPool(
            pool_size=ints(pool_size, rank), strides=ints(strides, rank), dilation=ints(dilation, rank),
            padding=padding_pairs(padding, rank), layout=layout, ceil_mode=ceil_mode,
        )(data)  # fmt: skip

    call.__name__ = call.__qualname__ = f"max_pool{rank}d"
    call.__doc__ = f"The largest value of each {rank}-D window; see `MaxPool`."
    return call


def _avg_pool(rank: int, default_layout: str) -> Callable[..., Call]:
    def call(
        data: Expr,
        pool_size: IntOrInts = 1,
        strides: IntOrInts = 1,
        dilation: IntOrInts = 1,
        padding: IntOrInts = 0,
        layout: str = default_layout,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
    ) -> Call:
        return AvgPool(
            pool_size=ints(pool_size, rank), strides=ints(strides, rank), dilation=ints(dilation, rank),
            padding=padding_pairs(padding, rank), layout=layout, ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
        )(data)  # fmt: skip

    call.__name__ = call.__qualname__ = f"avg_pool{rank}d"
    call.__doc__ = f"The mean of each {rank}-D window; see `AvgPool`."
    return call


def _adaptive(operator: type[AdaptiveAvgPool | AdaptiveMaxPool], rank: int, default_layout: str) -> Callable[..., Call]:
    def call(data: Expr, output_size: IntOrInts = 1, layout: str = default_layout) -> Call:
        return operator(output_size=ints(output_size, rank), layout=layout)(data)

    call.__name__ = call.__qualname__ = f"{operator.name.removeprefix('nn.')}{rank}d"
    call.__doc__ = operator.__doc__
    return call


max_pool1d, max_pool2d, max_pool3d = _max_pool(1, "NCW"), _max_pool(2, "NCHW"), _max_pool(3, "NCDHW")
avg_pool1d, avg_pool2d, avg_pool3d = _avg_pool(1, "NCW"), _avg_pool(2, "NCHW"), _avg_pool(3, "NCDHW")
adaptive_avg_pool1d = _adaptive(AdaptiveAvgPool, 1, "NCW")
adaptive_avg_pool2d = _adaptive(AdaptiveAvgPool, 2, "NCHW")
adaptive_avg_pool3d = _adaptive(AdaptiveAvgPool, 3, "NCDHW")
adaptive_max_pool1d = _adaptive(AdaptiveMaxPool, 1, "NCW")
adaptive_max_pool2d = _adaptive(AdaptiveMaxPool, 2, "NCHW")
adaptive_max_pool3d = _adaptive(AdaptiveMaxPool, 3, "NCDHW")


def global_avg_pool2d(data: Expr, layout: str = "NCHW") -> Call:
    """The mean over height and width."""
    return adaptive_avg_pool2d(data, 1, layout)


def global_max_pool2d(data: Expr, layout: str = "NCHW") -> Call:
    """The largest value over height and width."""
    return adaptive_max_pool2d(data, 1, layout)


def max_pool_with_argmax(
    data: Expr,
    pool_size: Sequence[int],
    strides: IntOrInts = 1,
    dilation: IntOrInts = 1,
    padding: IntOrInts = 0,
    layout: str = "NCHW",
    ceil_mode: bool = False,
    column_major: bool = False,
) -> Call:
    """A tuple: the largest value of each window, and its position in `data`."""
    rank = len(pool_size)
    return MaxPoolWithArgmax(
        pool_size=tuple(pool_size), strides=ints(strides, rank), dilation=ints(dilation, rank),
        padding=padding_pairs(padding, rank), layout=layout, ceil_mode=ceil_mode, column_major=column_major,
    )(data)  # fmt: skip


def lp_pool(
    data: Expr,
    pool_size: Sequence[int],
    strides: IntOrInts = 1,
    dilation: IntOrInts = 1,
    padding: IntOrInts = 0,
    layout: str = "NCHW",
    ceil_mode: bool = False,
    p: int = 2,
) -> Call:
    """(sum of |x|^p over each window)^(1/p)"""
    rank = len(pool_size)
    return LpPool(
        pool_size=tuple(pool_size), strides=ints(strides, rank), dilation=ints(dilation, rank),
        padding=padding_pairs(padding, rank), layout=layout, ceil_mode=ceil_mode, p=p,
    )(data)  # fmt: skip
