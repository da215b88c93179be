"""SumParallelConvolutions: convolutions of the same data, added up, are one with the sum of their kernels.

Nets that are trained with several branches for each layer (RepVGG: Ding et al., 2021; MobileOne, FastViT, RepViT) then
cost what a single branch does, also where they were exported as they were trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, ClassVar, cast

import numpy as np

from relay.expr import Call, Constant, Expr, Function
from relay.expr_functor import Sharing, rewrite_calls_knowing_uses
from relay.op.base import make_call
from relay.op.nn.conv import Conv1D, Conv2D, Conv3D
from relay.transform.builders import array_of, is_call_of
from relay.transform.fold_scale_axis import per_output_channel
from relay.transform.function_pass import FunctionPass
from te.ir import PassContext

__all__ = ["SumParallelConvolutions"]

_Array = np.ndarray[Any, Any]
_Conv = Conv1D | Conv2D | Conv3D


class SumParallelConvolutions(FunctionPass):
    """conv(x, w1) + conv(x, w2) = conv(x, w1 + w2), where one kernel is as large as the other, or larger around it.

    x + conv(x, w) and x * s + conv(x, w), with s constant per channel, likewise: x is what a kernel makes of it that is
    1 in the middle. Constants in the sum are added up. Weights are constant, of floating point numbers.
    """

    opt_level: ClassVar[int] = 3

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite_calls_knowing_uses(function, _rewritten)


def _rewritten(call: Call, is_shared: Sharing) -> Expr:
    if not is_call_of(call, "add") or not call.tensor_type.dtype.is_float:
        return call
    terms = list(_terms(call, call, is_shared))
    layers = [t for t in terms if _is_layer(t) and not is_shared(t) and t.ty is call.ty]
    for layer in sorted(layers, key=_taps, reverse=True):
        assert isinstance(layer, Call)
        kernel = _kernel(layer).copy()
        others = [t for t in terms if t is not layer and not (_is_layer(t) and is_shared(t))]
        added = [t for t in others if _add_to(kernel, layer, t)]
        if added:
            one = make_call(_op(layer), (layer.args[0], Constant(_in_layout(layer, kernel))), layer.span)
            return _sum([one, *[t for t in terms if t is not layer and all(t is not a for a in added)]], call)
    return call


def _terms(e: Expr, total: Call, is_shared: Sharing) -> Iterator[Expr]:
    """What is added up to `total`."""
    if isinstance(e, Call) and is_call_of(e, "add") and (e is total or not is_shared(e)):
        for arg in e.args:
            yield from _terms(arg, total, is_shared)
    else:
        yield e


def _sum(terms: Sequence[Expr], total: Call) -> Expr:
    """The first term, the sum of all constants, and the others, added up."""
    first, *others = terms
    constants = [array_of(t) for t in others if isinstance(t, Constant)]
    bias = [Constant(reduce(np.add, constants))] if constants else []
    rest = [t for t in others if not isinstance(t, Constant)]
    return reduce(lambda a, b: make_call("add", (a, b), total.span), [*bias, *rest], first)


def _is_layer(e: Expr) -> bool:
    return isinstance(e, Call) and isinstance(e.op, _Conv) and isinstance(e.args[1], Constant)


def _taps(layer: Expr) -> int:
    assert isinstance(layer, Call)
    return math.prod(_kernel(layer).shape[2:])


def _op(layer: Call) -> _Conv:
    return cast("_Conv", layer.op)


def _kernel(layer: Call) -> _Array:
    """The weights as (O, I, spatial axes in the order of the data's)."""
    op = _op(layer)
    spatial = [axis for axis in op.data_layout if axis not in "NC"]
    return array_of(layer.args[1]).transpose([op.kernel_layout.index(axis) for axis in ("O", "I", *spatial)])


def _in_layout(layer: Call, kernel: _Array) -> _Array:
    """Weights (O, I, spatial axes) in the layout of the layer's."""
    op = _op(layer)
    axes = ["O", "I", *(axis for axis in op.data_layout if axis not in "NC")]
    return np.ascontiguousarray(kernel.transpose([axes.index(axis) for axis in op.kernel_layout]))


def _add_to(kernel: _Array, layer: Call, term: Expr) -> bool:
    """Add a term to the kernel of `layer`, whose data is also what it is computed from; False if it can't be."""
    if _is_layer(term):
        assert isinstance(term, Call)
        return _add_kernel(kernel, layer, term)
    data = layer.args[0]
    if term is data:
        return _add_scale(kernel, layer, np.ones(kernel.shape[0], kernel.dtype))
    if not isinstance(term, Call) or not is_call_of(term, "multiply") or term.ty is not layer.ty:
        return False
    others = [a for a in term.args if a is not data]
    if len(others) != 1 or not isinstance(others[0], Constant) or data.ty is not layer.ty:
        return False
    scale = per_output_channel(layer, others[0])
    return scale is not None and _add_scale(kernel, layer, scale)


def _add_kernel(kernel: _Array, layer: Call, other: Call) -> bool:
    """Add the weights of another convolution of the same data where these taps are in the larger kernel."""
    op, its = _op(layer), _op(other)
    if other.args[0] is not layer.args[0] or other.ty is not layer.ty:
        return False
    small = _kernel(other)
    if its.replace(padding=op.padding, dilation=op.dilation, kernel_layout=op.kernel_layout) != op:
        return False
    if any(n > 1 and a != b for n, a, b in zip(small.shape[2:], its.dilation, op.dilation, strict=True)):
        return False
    before = [a - b for a, b in zip(op.padding, its.padding[: op.rank], strict=False)]
    return _add_at(kernel, op, before, small)


def _add_scale(kernel: _Array, layer: Call, scale: _Array) -> bool:
    """Add to each channel's tap of the same place of the same channel."""
    op, (outputs, inputs) = _op(layer), kernel.shape[:2]
    if layer.args[0].ty is not layer.ty or any(s != 1 for s in op.strides):
        return False
    channels = np.arange(outputs)
    small = np.zeros((outputs, inputs, *[1] * op.rank), kernel.dtype)
    small[channels, channels % inputs] = scale.reshape(-1, *[1] * op.rank)
    return _add_at(kernel, op, op.padding[: op.rank], small)


def _add_at(kernel: _Array, op: _Conv, before: Sequence[int], small: _Array) -> bool:
    """Add `small`, which begins so many elements of the data behind the first tap of `kernel`."""
    taps = [divmod(b, d) for b, d in zip(before, op.dilation, strict=True)]
    sizes = zip(taps, kernel.shape[2:], small.shape[2:], strict=True)
    if any(rest or first < 0 or first + n > size for (first, rest), size, n in sizes):
        return False
    kernel[:, :, *[slice(first, first + n) for (first, _), n in zip(taps, small.shape[2:], strict=True)]] += small
    return True
