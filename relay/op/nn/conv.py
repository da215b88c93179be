"""Convolutions. Layouts order the axes N, C and D, H, W of data, and O, I (channels of one group) of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

import numpy as np

from relayc import te, topi
from relayc.relay.errors import GradientError, TypeInferenceError
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import (
    MixedPrecision,
    Multiplications,
    OpDef,
    OpPattern,
    attributes_of_operator,
    get_op,
    make_call,
    register_op,
)
from relayc.relay.op.common import (
    WIDEST_VECTOR,
    Array,
    at_least,
    ints,
    numpy_dtype,
    padding_pairs,
    require,
    require_same_dtype,
)
from relayc.relay.op.gradients import leading
from relayc.relay.op.nn.windows import window_view
from relayc.relay.sizes import is_at_least
from relayc.relay.type import TensorType, Type, dims_match
from relayc.te.errors import CompileError
from relayc.te.tir import Dim, as_dim
from relayc.topi.layout import Layout
from relayc.topi.nn.conv import output_size

__all__ = [
    "Conv1D", "Conv1DTranspose", "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose",
    "conv1d", "conv1d_transpose", "conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose",
]  # fmt: skip

Ints = tuple[int, ...]


def _products(image: Type, weight: Type, layout: str, channels: str) -> Multiplications:
    """Each element of `image` is multiplied by, or the sum of, the weights of one of `channels`, "I" or "O"."""
    assert isinstance(image, TensorType) and isinstance(weight, TensorType)
    others = [d for axis, d in Layout(layout).axis_sizes(weight.shape).items() if axis != channels]
    return ((*image.shape, *others),)


@attributes_of_operator
class _Convolution(OpDef):
    """Base of convolutions. `padding` is (begin..., end...) of the spatial axes."""

    strides: Ints
    padding: Ints
    dilation: Ints
    groups: int = 1
    data_layout: str
    kernel_layout: str
    out_dtype: str | None = None

    rank: ClassVar[int]

    num_data_inputs = 1

    def transposed(self, perm: Ints, types: Sequence[Type]) -> OpDef | None:
        layout = "".join([self.data_layout[p] for p in perm])
        same_order = [a for a in layout if a not in "NC"] == [a for a in self.data_layout if a not in "NC"]
        return self.replace(data_layout=layout) if same_order else None

    def _layouts(self) -> tuple[Layout, Layout, list[str]]:
        """Data layout, kernel layout, spatial axes in order; checks (C1) and (C2)."""
        try:
            data, kernel = Layout(self.data_layout), Layout(self.kernel_layout)
        except CompileError as error:
            raise TypeInferenceError(f"(C1) {error}") from None
        spatial = [a for a in data.axes if a not in "NC"]
        valid = not data.blocks and not kernel.blocks and len(spatial) == self.rank
        valid = valid and set(data.axes) == {"N", "C", *spatial} and set(kernel.axes) == {"O", "I", *spatial}
        named = f"N, C, {self.rank} spatial axes and O, I, the same ones"
        require(valid, f"(C1) layouts {self.data_layout} and {self.kernel_layout} must name {named}")
        counts = (len(self.strides), len(self.dilation), len(self.padding))
        attributes = f"strides {self.strides}, dilation {self.dilation} and padding {self.padding}"
        needed = f"{self.rank}, {self.rank} and {2 * self.rank} numbers"
        require(counts == (self.rank, self.rank, 2 * self.rank), f"(C2) {attributes} need {needed}")
        require(min(*self.strides, *self.dilation) >= 1, "(C2) strides and dilation must be at least 1")
        return data, kernel, spatial

    def _sizes(self, data: TensorType, weight: TensorType) -> tuple[dict[str, Dim], dict[str, Dim], list[str]]:
        layout, kernel, spatial = self._layouts()
        require_same_dtype(3, data, weight)
        fits = data.ndim == layout.ndim and weight.ndim == kernel.ndim
        require(fits, f"(C4) data and weight must have {layout.ndim} dimensions; got {data} and {weight}")
        return layout.axis_sizes(data.shape), kernel.axis_sizes(weight.shape), spatial

    def _result_dtype(self, data: TensorType) -> str:
        return self.out_dtype or data.dtype


class _Forward(_Convolution):
    """Convolution of data with weight, as a cross-correlation (ONNX: Conv).

    (C1) layouts name the right axes; (C2) strides and dilation have one positive number for each spatial axis, padding
    two; (C3) both inputs have one element type; (C4) both have the layouts' ranks; (C5) C = I * groups and O is a
    multiple of groups; (C6) the dilated kernel fits into the padded input; an empty image may have no results. In an
    `open_form` `groups` of 0 are as many as outputs, whose number is dynamic.
    """

    mixed_precision = MixedPrecision.ALWAYS

    def open_form(self, types: Sequence[TensorType]) -> tuple[OpDef, Sequence[Sequence[int]]]:
        """Depthwise convolutions of channels last in several whole vectors, each of which is computed alike."""
        data, weight = types
        sizes = Layout(self.kernel_layout).axis_sizes(weight.shape)
        several = self.groups % WIDEST_VECTOR == 0 and self.groups > WIDEST_VECTOR
        if not several or self.groups != sizes["O"] or sizes["I"] != 1 or not self.data_layout.endswith("C"):
            return self, ((), ())
        return self.replace(groups=0), ((data.ndim - 1,), (Layout(self.kernel_layout).index("O"),))

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        sizes, weights, spatial = self._sizes(data, weight)
        channels, outputs = sizes["C"], weights["O"]
        groups = outputs if self.groups == 0 and not isinstance(outputs, int) else self.groups
        matches = is_at_least(groups, 1) and dims_match(channels, as_dim(weights["I"] * groups))
        matches = matches and (not isinstance(outputs, int) or not isinstance(groups, int) or outputs % groups == 0)
        groups = f"{weights['I']} in each of {groups} groups of {outputs} outputs"
        require(matches, f"(C5) {channels} input channels, weights for {groups}")
        result: dict[str, Dim] = {"N": sizes["N"], "C": outputs}
        for k, a in enumerate(spatial):
            padding = self.padding[k] + self.padding[k + self.rank]
            result[a] = output_size(sizes[a], weights[a], self.strides[k], self.dilation[k], padding)
            room = f"the {sizes[a]} + {padding} elements of axis {a}"
            require(at_least(result[a], 0 if sizes[a] == 0 else 1), f"(C6) the kernel reaches over more than {room}")
        return TensorType(Layout(self.data_layout).shape_of(result), self._result_dtype(data))

    def compute(self, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return topi.nn.conv(
            data, weight, self.strides, self.padding, self.dilation, self.groups, self.data_layout,
            self.kernel_layout, self.out_dtype,
        )  # fmt: skip

    def reference(self, data: Array, weight: Array) -> Array:
        layout, kernel, spatial = self._layouts()
        plain = ("N", "C", *spatial)
        x = data.transpose([layout.index(a) for a in plain])
        w = weight.transpose([kernel.index(a) for a in ("O", "I", *spatial)])
        y = convolve(x, w, self.strides, self.padding, self.dilation, self.groups)
        order = [plain.index(a) for a in layout.axes]
        return np.ascontiguousarray(y.transpose(order)).astype(numpy_dtype(self.out_dtype or str(data.dtype)))

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        return _products(result, types[1], self.kernel_layout, "O")

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        data, weight = call.args
        return self._data_gradient(data, weight, grad), weight_gradient(self, data, weight, grad)

    def _data_gradient(self, data: Expr, weight: Expr, grad: Expr) -> Expr:
        layout, kernel, spatial = self._layouts()
        sizes, results = layout.axis_sizes(data.shape), layout.axis_sizes(grad.shape)
        taps = kernel.axis_sizes(weight.shape)
        rest: list[int] = []
        for k, a in enumerate(spatial):
            reach = (results[a] - 1) * self.strides[k] + (taps[a] - 1) * self.dilation[k] + 1
            left = as_dim(sizes[a] + self.padding[k] + self.padding[k + self.rank] - reach)
            if not isinstance(left, int):
                raise GradientError(f"operator {self.name} has no gradient rule where {data.ty} has dynamic sizes")
            rest.append(left)
        attributes = {**self.attributes(), "kernel_layout": _with_roles_swapped(self.kernel_layout)}
        transposed = f"{self.name}_transpose"
        return make_call(transposed, (grad, weight), None, **attributes, output_padding=tuple(rest))


def _with_roles_swapped(kernel_layout: str) -> str:
    """The layout of the same weights for the adjoint convolution, whose inputs are the outputs."""
    return kernel_layout.translate(str.maketrans("OI", "IO"))


def weight_gradient(op: _Convolution, data: Expr, weight: Expr, grad: Expr) -> Expr:
    """The gradient of the weights of the convolution `op` of `data`, from that of its result.

    A convolution, too: of the data with `grad` as weights, summed over the batch; strides and dilation trade places.
    """
    layout, kernel = Layout(op.data_layout), Layout(op.kernel_layout)
    spatial = [a for a in layout.axes if a not in "NC"]
    plain = ("N", "C", *spatial)
    x, y = (make_call("transpose", (e,), axes=tuple([layout.index(a) for a in plain])) for e in (data, grad))
    batch, _, *sizes = x.shape
    group = kernel.axis_sizes(weight.shape)["I"]
    grouped = make_call("reshape", (x,), newshape=(batch, op.groups, group, *sizes))
    swapped = make_call("transpose", (grouped,), axes=(2, 1, 0, *range(3, 3 + op.rank)))
    images = make_call("reshape", (swapped,), newshape=(group, as_dim(batch * op.groups), *sizes))
    filters = make_call("transpose", (y,), axes=(1, 0, *range(2, 2 + op.rank)))
    letters = "".join(spatial)
    attributes = {
        "strides": op.dilation, "dilation": op.strides, "padding": op.padding, "groups": op.groups,
        "data_layout": "NC" + letters, "kernel_layout": "OI" + letters,
    }  # fmt: skip
    found = get_op(op.name)(**attributes)(images, filters)
    taps = [kernel.axis_sizes(weight.shape)[a] for a in spatial]
    made = ("I", "O", *spatial)
    inside = leading(found, (*found.shape[:2], *taps))
    return make_call("transpose", (inside,), axes=tuple([made.index(a) for a in kernel.axes]))


def convolve(
    x: Array, w: Array, strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Array:
    """Convolution of (N, C, spatial...) with (O, I, spatial...), summed in float64 (integers: in int64)."""
    rank = len(strides)
    wide = np.int64 if x.dtype.kind in "iu" else np.float64
    borders = [(0, 0), (0, 0), *zip(padding[:rank], padding[rank:], strict=True)]
    windows = window_view(np.pad(x.astype(wide), borders), w.shape[2:], strides, dilation)
    n, _, *out = windows.shape[: 2 + rank]
    group_in, group_out = w.shape[1], w.shape[0] // groups
    parts: list[Array] = []
    for g in range(groups):
        rows = windows[:, g * group_in : (g + 1) * group_in]
        rows = np.moveaxis(rows, 1, 1 + rank).reshape(n * math.prod(out), math.prod(w.shape[1:]))
        columns = w[g * group_out : (g + 1) * group_out].astype(wide).reshape(group_out, -1)
        parts.append(np.moveaxis((rows @ columns.T).reshape(n, *out, group_out), -1, 1))
    return np.concatenate(parts, 1)


@register_op("nn.conv1d", pattern=OpPattern.OUT_FUSABLE)
class Conv1D(_Forward):
    __doc__ = _Forward.__doc__
    strides: Ints = (1,)
    padding: Ints = (0, 0)
    dilation: Ints = (1,)
    data_layout: str = "NCW"
    kernel_layout: str = "OIW"
    rank = 1


@register_op("nn.conv2d", pattern=OpPattern.OUT_FUSABLE)
class Conv2D(_Forward):
    __doc__ = _Forward.__doc__
    strides: Ints = (1, 1)
    padding: Ints = (0, 0, 0, 0)
    dilation: Ints = (1, 1)
    data_layout: str = "NCHW"
    kernel_layout: str = "OIHW"
    rank = 2


@register_op("nn.conv3d", pattern=OpPattern.OUT_FUSABLE)
class Conv3D(_Forward):
    __doc__ = _Forward.__doc__
    strides: Ints = (1, 1, 1)
    padding: Ints = (0, 0, 0, 0, 0, 0)
    dilation: Ints = (1, 1, 1)
    data_layout: str = "NCDHW"
    kernel_layout: str = "OIDHW"
    rank = 3


@attributes_of_operator
class _Transposed(_Convolution):
    """The gradient of a convolution with respect to its data (ONNX: ConvTranspose).

    The kernel's I counts all input channels, O the outputs of one group. Size: (size - 1) * stride + dilated kernel
    - padding + output_padding. (C1) to (C4) as for convolutions; (C5) C = I, a multiple of groups; (C6) the result is
    not empty, and output_padding is not negative.
    """

    mixed_precision = MixedPrecision.ALWAYS

    output_padding: Ints

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        sizes, weights, spatial = self._sizes(data, weight)
        channels = sizes["C"]
        divides = self.groups >= 1 and (not isinstance(channels, int) or channels % self.groups == 0)
        matches = dims_match(channels, weights["I"]) and divides
        require(matches, f"(C5) {channels} input channels, weights for {weights['I']} in {self.groups} groups")
        result: dict[str, Dim] = {"N": sizes["N"], "C": as_dim(weights["O"] * self.groups)}
        for k, a in enumerate(spatial):
            span = (weights[a] - 1) * self.dilation[k] + 1
            grown = (sizes[a] - 1) * self.strides[k] + span + self.output_padding[k]
            result[a] = as_dim(grown - (self.padding[k] + self.padding[k + self.rank]))
            valid = self.output_padding[k] >= 0 and at_least(result[a], 1)
            require(
                valid, f"(C6) axis {a} would have {result[a]} elements with output_padding {self.output_padding[k]}"
            )
        return TensorType(Layout(self.data_layout).shape_of(result), self._result_dtype(data))

    def compute(self, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return topi.nn.conv_transpose(
            data, weight, self.strides, self.padding, self.dilation, self.output_padding, self.groups,
            self.data_layout, self.kernel_layout, self.out_dtype,
        )  # fmt: skip

    def reference(self, data: Array, weight: Array) -> Array:
        layout, kernel, spatial = self._layouts()
        plain = ("N", "C", *spatial)
        x = data.transpose([layout.index(a) for a in plain])
        w = weight.transpose([kernel.index(a) for a in ("I", "O", *spatial)])
        shape = self.infer(TensorType(data.shape, str(data.dtype)), TensorType(weight.shape, str(data.dtype))).shape
        sizes = dict(zip(layout.axes, shape, strict=True))
        y = _scatter_taps(x, w, [int(sizes[a]) for a in spatial], self)  # type: ignore[arg-type]
        order = [plain.index(a) for a in layout.axes]
        return np.ascontiguousarray(y.transpose(order)).astype(numpy_dtype(self.out_dtype or str(data.dtype)))

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        return _products(types[0], types[1], self.kernel_layout, "I")

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        data, weight = call.args
        attributes = {**self.attributes(), "kernel_layout": _with_roles_swapped(self.kernel_layout)}
        del attributes["output_padding"]
        forward = get_op(self.name.removesuffix("_transpose"))(**attributes)
        assert isinstance(forward, _Convolution)
        windows = forward(grad, weight)
        # Output padding of a stride or more makes room for more windows than data has elements.
        return leading(windows, data.shape), weight_gradient(forward, grad, weight, data)


def _scatter_taps(x: Array, w: Array, out: Sequence[int], op: _Transposed) -> Array:
    """Each input element spread over the outputs it reaches, tap by tap, in float64 (integers: in int64)."""
    wide = np.int64 if x.dtype.kind in "iu" else np.float64
    rank, groups = len(out), op.groups
    group_in, group_out = w.shape[0] // groups, w.shape[1]
    full = [max(o + b + e, 0) for o, b, e in zip(out, op.padding[:rank], op.padding[rank:], strict=True)]
    y = np.zeros((x.shape[0], groups * group_out, *full), wide)
    for tap in np.ndindex(*w.shape[2:]):
        into = tuple([
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, s, n in zip(tap, op.dilation, op.strides, x.shape[2:], strict=True)
        ])  # fmt: skip
        for g in range(groups):
            part = x[:, g * group_in : (g + 1) * group_in].astype(wide)
            factor = w[(slice(g * group_in, (g + 1) * group_in), slice(None), *tap)].astype(wide)
            y[(slice(None), slice(g * group_out, (g + 1) * group_out), *into)] += np.einsum(
                "nc...,co->no...", part, factor
            )
    return y[(slice(None), slice(None), *[slice(b, b + o) for b, o in zip(op.padding[:rank], out, strict=True)])]


@register_op("nn.conv1d_transpose", pattern=OpPattern.OUT_FUSABLE)
class Conv1DTranspose(_Transposed):
    __doc__ = _Transposed.__doc__
    strides: Ints = (1,)
    padding: Ints = (0, 0)
    dilation: Ints = (1,)
    output_padding: Ints = (0,)
    data_layout: str = "NCW"
    kernel_layout: str = "IOW"
    rank = 1


@register_op("nn.conv2d_transpose", pattern=OpPattern.OUT_FUSABLE)
class Conv2DTranspose(_Transposed):
    __doc__ = _Transposed.__doc__
    strides: Ints = (1, 1)
    padding: Ints = (0, 0, 0, 0)
    dilation: Ints = (1, 1)
    output_padding: Ints = (0, 0)
    data_layout: str = "NCHW"
    kernel_layout: str = "IOHW"
    rank = 2


@register_op("nn.conv3d_transpose", pattern=OpPattern.OUT_FUSABLE)
class Conv3DTranspose(_Transposed):
    __doc__ = _Transposed.__doc__
    strides: Ints = (1, 1, 1)
    padding: Ints = (0, 0, 0, 0, 0, 0)
    dilation: Ints = (1, 1, 1)
    output_padding: Ints = (0, 0, 0)
    data_layout: str = "NCDHW"
    kernel_layout: str = "IODHW"
    rank = 3


IntOrInts = int | Sequence[int]
_Helper = TypeVar("_Helper", bound="Callable[..., Call]")


def _check_weight(
    weight: Expr, kernel_layout: str, channels: int | None, kernel_size: IntOrInts | None, groups: int
) -> None:
    """Check that `channels` and `kernel_size`, if set, are those of the weights (whose O counts one of `groups`)."""
    layout = Layout(kernel_layout)
    sizes = layout.axis_sizes(weight.shape)
    require("O" in sizes, f"the layout {kernel_layout} of weights names no dimension O")
    spatial = [sizes[a] for a in layout.axes if a not in "OI"]
    if channels is not None and not dims_match(sizes["O"] * groups, channels):
        raise TypeInferenceError(f"channels={channels}, but the weights {weight.ty} make {sizes['O'] * groups}")
    if kernel_size is not None and not all(map(dims_match, ints(kernel_size, len(spatial)), spatial)):
        raise TypeInferenceError(f"kernel_size={kernel_size}, but the weights are {weight.ty}")


def _forward(operator: type[Conv1D | Conv2D | Conv3D]):  # its type keeps the names of parameters
    def call(
        data: Expr,
        weight: Expr,
        strides: IntOrInts = 1,
        padding: IntOrInts = 0,
        dilation: IntOrInts = 1,
        groups: int = 1,
        channels: int | None = None,
        kernel_size: IntOrInts | None = None,
        data_layout: str = operator.data_layout,
        kernel_layout: str = operator.kernel_layout,
        out_dtype: str | None = None,
    ) -> Call:
        _check_weight(weight, kernel_layout, channels, kernel_size, 1)
        require(groups != 0, "(C5) a convolution of 0 groups; expected 1 or more")
        rank = operator.rank
        return operator(
            strides=ints(strides, rank), padding=padding_pairs(padding, rank), dilation=ints(dilation, rank),
            groups=groups, data_layout=data_layout, kernel_layout=kernel_layout, out_dtype=out_dtype,
        )(data, weight)  # fmt: skip

    return _named(call, operator)


def _transposed(operator: type[Conv1DTranspose | Conv2DTranspose | Conv3DTranspose]):
    def call(
        data: Expr,
        weight: Expr,
        strides: IntOrInts = 1,
        padding: IntOrInts = 0,
        dilation: IntOrInts = 1,
        output_padding: IntOrInts = 0,
        groups: int = 1,
        channels: int | None = None,
        kernel_size: IntOrInts | None = None,
        data_layout: str = operator.data_layout,
        kernel_layout: str = operator.kernel_layout,
        out_dtype: str | None = None,
    ) -> Call:
        _check_weight(weight, kernel_layout, channels, kernel_size, groups)
        rank = operator.rank
        return operator(
            strides=ints(strides, rank), padding=padding_pairs(padding, rank), dilation=ints(dilation, rank),
            output_padding=ints(output_padding, rank), groups=groups, data_layout=data_layout,
            kernel_layout=kernel_layout, out_dtype=out_dtype,
        )(data, weight)  # fmt: skip

    return _named(call, operator)


def _named(call: _Helper, operator: type[_Convolution]) -> _Helper:
    call.__name__ = call.__qualname__ = operator.name.removeprefix("nn.")
    call.__doc__ = (
        f"The operator `{operator.name}` on {operator.rank} spatial dimensions. `padding` is one number, one for each "
        "dimension, or those before each and then those after each; `channels` and `kernel_size` are checked."
    )
    return call


conv1d, conv2d, conv3d = _forward(Conv1D), _forward(Conv2D), _forward(Conv3D)
conv1d_transpose, conv2d_transpose = _transposed(Conv1DTranspose), _transposed(Conv2DTranspose)
conv3d_transpose = _transposed(Conv3DTranspose)
