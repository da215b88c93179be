"""SumParallelConvolutions: a sum of convolutions of the same data becomes one convolution by the sum of the kernels.

Networks that are trained with several branches for each layer (RepVGG: Ding et al., 2021; MobileOne, FastViT, RepViT)
then cost as much as a single branch, even if they were exported in their training form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, ClassVar, TypeGuard, cast

import numpy as np

from relayc.relay.expr import Call, Constant, Expr, Function, numpy_dtype
from relayc.relay.expr_functor import Sharing, rewrite_calls_knowing_uses
from relayc.relay.op.base import make_call
from relayc.relay.op.nn.conv import Conv1D, Conv2D, Conv3D
from relayc.relay.transform.builders import array_of, is_call_of
from relayc.relay.transform.fold_scale_axis import per_output_channel
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext

__all__ = ["SumParallelConvolutions"]

_Array = np.ndarray[Any, Any]
_Conv = Conv1D | Conv2D | Conv3D

_MAX_ADDITIONS = 256
"""Most additions of one sum that are looked at, so that the time is linear in the length of a chain of them."""


class SumParallelConvolutions(FunctionPass):
    """conv(x, w1) + conv(x, w2) = conv(x, w1 + w2), if the kernels have the same size, or one surrounds the other.

    Likewise x + conv(x, w) and x * s + conv(x, w), with s constant per channel: x is a convolution by a kernel that is
    1 in the middle. Constants in the sum are added up. Weights are constant floats.
    """

    opt_level: ClassVar[int] = 3

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite_calls_knowing_uses(function, _rewritten)


def _rewritten(call: Call, is_shared: Sharing) -> Expr:
    if not is_call_of(call, "add") or not call.tensor_type.dtype.is_float:
        return call
    terms = _terms(call, is_shared)
    layers = [t for t in terms if _is_layer(t) and not is_shared(t) and t.ty is call.ty]
    for layer in sorted(layers, key=lambda e: math.prod(_taps(e)), reverse=True):
        others = [t for t in terms if t is not layer and not (_is_layer(t) and is_shared(t))]
        parts = [(t, place) for t in others if (place := _place(layer, t)) is not None]
        if parts:
            kernel = _kernel(layer).copy()
            for term, place in parts:
                kernel[:, :, *place] += _kernel(term) if _is_layer(term) else _of_scale(layer, term)
            one = make_call(_op(layer), (layer.args[0], Constant(_in_layout(layer, kernel))), layer.span)
            return _sum([one, *[t for t in terms if t is not layer and all(t is not part for part, _ in parts)]], call)
    return call


def _terms(total: Call, is_shared: Sharing) -> list[Expr]:
    """The operands of the sum `total`, from left to right; a sum of many additions is taken apart only in part."""
    found: list[Expr] = []
    stack: list[Expr] = [total]
    additions = 0
    while stack:
        e = stack.pop()
        is_sum = additions < _MAX_ADDITIONS and isinstance(e, Call) and is_call_of(e, "add")
        if is_sum and (e is total or not is_shared(e)):
            additions += 1
            stack.extend(reversed(cast(Call, e).args))
        else:
            found.append(e)
    return found


def _sum(terms: Sequence[Expr], total: Call) -> Expr:
    """The sum of the first term, the sum of all constants, and the other terms."""
    first, *others = terms
    constants = [array_of(t) for t in others if isinstance(t, Constant)]
    bias = [Constant(reduce(np.add, constants))] if constants else []
    rest = [t for t in others if not isinstance(t, Constant)]
    return reduce(lambda a, b: make_call("add", (a, b), total.span), [*bias, *rest], first)


def _is_layer(e: Expr) -> TypeGuard[Call]:
    return isinstance(e, Call) and isinstance(e.op, _Conv) and isinstance(e.args[1], Constant)


def _op(layer: Call) -> _Conv:
    return cast("_Conv", layer.op)


def _axes(layer: Call) -> list[str]:
    """O, I and the spatial axes in the order of the data's."""
    return ["O", "I", *[axis for axis in _op(layer).data_layout if axis not in "NC"]]


def _taps(layer: Call) -> list[int]:
    """The size of the kernel along each spatial axis."""
    sizes = layer.args[1].tensor_type.static_shape
    return [sizes[_op(layer).kernel_layout.index(axis)] for axis in _axes(layer)[2:]]


def _kernel(layer: Call) -> _Array:
    """The weights as (O, I, spatial axes in the order of the data's)."""
    return array_of(layer.args[1]).transpose([_op(layer).kernel_layout.index(axis) for axis in _axes(layer)])


def _in_layout(layer: Call, kernel: _Array) -> _Array:
    """Weights (O, I, spatial axes) in the layout of the layer."""
    axes = _axes(layer)
    return np.ascontiguousarray(kernel.transpose([axes.index(axis) for axis in _op(layer).kernel_layout]))


def _place(layer: Call, term: Expr) -> list[slice] | None:
    """The offset of a term's kernel in that of `layer`, along its spatial axes; None if it does not fit inside.

    Weights are not inspected: most sums are of a convolution and its bias.
    """
    op = _op(layer)
    before, taps = list(op.padding[: op.rank]), [1] * op.rank
    if _is_layer(term):
        its, taps = _op(term), _taps(term)
        alike = its.replace(padding=op.padding, dilation=op.dilation, kernel_layout=op.kernel_layout) == op
        if not alike or term.args[0] is not layer.args[0] or term.ty is not layer.ty:
            return None
        if any(n > 1 and a != b for n, a, b in zip(taps, its.dilation, op.dilation, strict=True)):
            return None
        before = [a - b for a, b in zip(before, its.padding[: op.rank], strict=True)]
    elif _scale(layer, term) is None:
        return None
    begins = [divmod(b, d) for b, d in zip(before, op.dilation, strict=True)]
    sizes = zip(begins, _taps(layer), taps, strict=True)
    if any(rest or first < 0 or first + n > size for (first, rest), size, n in sizes):
        return None
    return [slice(first, first + n) for (first, _), n in zip(begins, taps, strict=True)]


def _scale(layer: Call, term: Expr) -> _Array | None:
    """The factor of each channel of the layer's data, which is of the result's type, in a term."""
    data = layer.args[0]
    if data.ty is not layer.ty or any(s != 1 for s in _op(layer).strides):
        return None
    if term is data:
        return np.ones(_channels(layer), numpy_dtype(layer.dtype))
    if not isinstance(term, Call) or not is_call_of(term, "multiply") or term.ty is not layer.ty:
        return None
    others = [a for a in term.args if a is not data]
    return per_output_channel(layer, others[0]) if len(others) == 1 and isinstance(others[0], Constant) else None


def _channels(layer: Call) -> int:
    return layer.args[1].tensor_type.static_shape[_op(layer).kernel_layout.index("O")]


def _of_scale(layer: Call, term: Expr) -> _Array:
    """The kernel of a term that is the scaled data: one tap, from each channel to the same one."""
    outputs, scale = np.arange(_channels(layer)), _scale(layer, term)
    assert scale is not None
    inputs = layer.args[1].tensor_type.static_shape[_op(layer).kernel_layout.index("I")]
    kernel = np.zeros((len(outputs), inputs, *[1] * _op(layer).rank), scale.dtype)
    kernel[outputs, outputs % inputs] = scale.reshape(-1, *[1] * _op(layer).rank)
    return kernel
