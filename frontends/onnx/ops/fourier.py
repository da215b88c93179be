"""Discrete Fourier transforms, computed in float32 (float64 for float64)."""

from __future__ import annotations

import math

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import counted, require_rank, reshape_to, transposed
from relayc.frontends.onnx.ops.fourier_bluestein import bluestein_dft, resized
from relayc.frontends.onnx.registry import converter
from relayc.frontends.onnx.tensors import check_computed
from relayc.relay import op
from relayc.relay.expr import Expr, const
from relayc.relay.op.common import at_least
from relayc.relay.sizes import add_sizes, floor_divide, is_at_least, product
from relayc.te.tir import Dim
from relayc.topi.fourier import largest_factor

_LARGE_FACTOR = 4096
"""Least prime factor whose butterfly, of that many FMAs for each element, is avoided."""

_BLUESTEIN_COST = 45
"""FMAs of `bluestein_dft` for each element, in units of the square root of the length."""


def _transformed(node: OnnxNode, x: Expr, length: Dim, inverse: bool, onesided: bool) -> Expr:
    """The transform along the second-to-last axis; the last holds real and imaginary parts."""
    dtype = "float64" if x.dtype == "float64" else "float32"
    *lead, extent, parts = x.shape
    rows = reshape_to(op.cast(x, dtype), (product(lead), extent, parts))
    if isinstance(length, int):
        check_computed((2, length), node.where)
    if isinstance(length, int) and not _is_slow(length):
        known = rows if isinstance(extent, int) else resized(rows, length // 2 + 1 if inverse and onesided else length)
        result: Expr = op.dft(known, length, inverse, onesided)
    else:
        result = bluestein_dft(node, rows, length, inverse, onesided)
    return op.cast(reshape_to(result, (*lead, *result.shape[1:])), str(x.dtype))


def _is_slow(length: int) -> bool:
    """Does the butterfly of a large prime factor cost more than Bluestein's algorithm?"""
    largest = largest_factor(length)
    return largest > _LARGE_FACTOR and largest > _BLUESTEIN_COST * math.isqrt(length)


@converter("DFT", since=17)
def dft_17(node: OnnxNode) -> Expr:
    return _dft(node, node.attr_int("axis", 1))


@converter("DFT", since=20)
def dft(node: OnnxNode) -> Expr:
    """Mixed-radix FFT of any length."""
    passed = node.constant_or_none(2, "the axis")
    return _dft(node, -2 if passed is None else int(passed.reshape(-1)[0]))


def _dft(node: OnnxNode, axis: int) -> Expr:
    """DFT along `axis`; onesided transforms take real signals or complex spectra."""
    shape, rank = node.type(0).shape, node.rank(0)
    inverse, onesided = node.attr_bool("inverse", False), node.attr_bool("onesided", False)
    axis = node.axis(axis, rank)
    if rank < 2 or axis == rank - 1 or shape[-1] not in (1, 2):
        raise node.error(f"axis {axis} of {list(shape)}", expected="a signal axis, and 1 or 2 parts in the last axis")
    if onesided and shape[-1] != 2 - (not inverse):
        raise node.error(f"onesided=1 with {shape[-1]} parts", expected="a real signal, or a complex spectrum")
    extent, wanted = shape[axis], node.known_value(1)
    if node.get(1) is None:
        length = product((2, add_sizes(extent, -1))) if inverse and onesided else extent
    else:
        length = node.sizes(1, "the length", 1)[0] if wanted is None else int(wanted.reshape(-1)[0])
    if not at_least(length, 1):
        raise node.error(f"a transform of length {length}", expected="1 or more")
    order = (*[a for a in range(rank - 1) if a != axis], axis, rank - 1)
    result = _transformed(node, transposed(node[0], order), length, inverse, onesided)
    return transposed(result, tuple(int(a) for a in np.argsort(order)))


@converter("STFT", since=17)
def stft(node: OnnxNode) -> Expr:
    """Short-time Fourier transform of signals [batch, length, parts]: [batch, frames, bins, 2].

    Exporters omit the last axis of real signals: [batch, length].
    """
    require_rank(node, 0, 2, 3)
    signal = op.expand_dims(node[0], 2) if node.rank(0) == 2 else node[0]
    _, extent, parts = signal.shape
    step = node.constant_ints(1, "the frame step")[0]
    passed = node.constant_or_none(3, "the frame length")
    window = node.get(2)
    if passed is not None:
        length: Dim = int(passed.reshape(-1)[0])
    else:
        length = extent if window is None else window.shape[0]
    onesided = node.attr_bool("onesided", True)
    if step < 1 or not at_least(length, 1) or is_at_least(add_sizes(length, -1), extent) or parts not in (1, 2):
        raise node.error(f"frames of {length} every {step} of a signal of {extent}, {parts} parts")
    count = add_sizes(floor_divide(add_sizes(extent, product((-1, length))), step), 1)
    first = op.multiply(op.reshape(counted(count, "int32"), (count, 1)), const(step, "int32"))
    frames = op.take(signal, op.add(first, counted(length, "int32")), axis=1, mode="fast")
    if window is not None:
        frames = op.multiply(frames, op.expand_dims(window, 1))
    return _transformed(node, frames, length, False, onesided)
