"""Activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import PrimExpr
from relayc.topi.elementwise import elementwise
from relayc.topi.tag import BROADCAST
from relayc.topi.utils import full_precision

__all__ = [
    "celu", "elu", "gelu", "hard_sigmoid", "hard_swish", "leaky_relu", "mish", "prelu", "relu", "selu", "silu",
    "softplus", "softsign", "thresholded_relu",
]  # fmt: skip


def _activation(f: Callable[[PrimExpr], PrimExpr], x: Tensor, name: str) -> Tensor:
    return elementwise(lambda v: full_precision(f, v), x, name)


def _c(value: float, like: PrimExpr) -> PrimExpr:
    return te.const(value, like.dtype)


def relu(x: Tensor) -> Tensor:
    """max(x, 0)"""
    return elementwise(lambda v: te.maximum(v, _c(0, v)), x, "relu")


def leaky_relu(x: Tensor, alpha: float) -> Tensor:
    """x where x > 0, else alpha * x."""
    return _activation(lambda v: te.select(v > 0, v, _c(alpha, v) * v), x, "leaky_relu")


def prelu(x: Tensor, slope: Tensor, axis: int) -> Tensor:
    """x where x > 0, else slope * x, with one slope for each position along `axis`."""

    def body(*i: Any) -> PrimExpr:
        return full_precision(lambda v, s: te.select(v > 0, v, s * v), x(*i), slope(i[axis]))

    return te.compute(x.shape, body, name="prelu", tag=BROADCAST)


def elu(x: Tensor, alpha: float) -> Tensor:
    """x where x > 0, else alpha * (exp(x) - 1)."""
    return _activation(lambda v: te.select(v > 0, v, _c(alpha, v) * te.expm1(v)), x, "elu")


def celu(x: Tensor, alpha: float) -> Tensor:
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)"""

    def f(v: PrimExpr) -> PrimExpr:
        return te.select(v > 0, v, _c(alpha, v) * te.expm1(v / _c(alpha, v)))

    return _activation(f, x, "celu")


def selu(x: Tensor, alpha: float, gamma: float) -> Tensor:
    """gamma * elu(x, alpha)"""

    def f(v: PrimExpr) -> PrimExpr:
        return _c(gamma, v) * te.select(v > 0, v, _c(alpha, v) * te.expm1(v))

    return _activation(f, x, "selu")


def gelu(x: Tensor, approximate: bool) -> Tensor:
    """x * Phi(x), Phi the normal distribution function; its tanh approximation when `approximate`."""

    def exact(v: PrimExpr) -> PrimExpr:
        half = _c(0.5, v) * v
        return half + half * te.erf(v * _c(math.sqrt(0.5), v))

    def by_tanh(v: PrimExpr) -> PrimExpr:
        # (1 + tanh(y)) / 2 is the sigmoid of 2 y, without the cancellation of 1 + tanh(y) below 0.
        factor = 2 * math.sqrt(2 / math.pi)
        return v * te.sigmoid(v * (_c(factor, v) + _c(factor * 0.044715, v) * (v * v)))

    if approximate:
        return _activation(by_tanh, x, "gelu")
    is_half = x.dtype.is_float and x.dtype.bits == 16
    return _activation(te.fast_gelu if is_half else exact, x, "gelu")


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)"""
    return _activation(lambda v: v * te.sigmoid(v), x, "silu")


def mish(x: Tensor) -> Tensor:
    """x * tanh(log(1 + exp(x))), which is x n / (n + 2) with n = e^x (e^x + 2); from 20 on n / (n + 2) is 1."""

    def f(v: PrimExpr) -> PrimExpr:
        e = te.exp_nonpositive(te.minimum(v, _c(20, v)))
        n = e * (e + _c(2, v))
        return v * (n / (n + _c(2, v)))

    return _activation(f, x, "mish")


def _softplus(v: PrimExpr) -> PrimExpr:
    return te.maximum(v, _c(0, v)) + te.log1p_fraction(te.exp_nonpositive(-te.abs(v)))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow."""
    return _activation(_softplus, x, "softplus")


def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)"""
    return _activation(lambda v: v / (_c(1, v) + te.abs(v)), x, "softsign")


def hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    """alpha * x + beta limited to [0, 1]."""

    def f(v: PrimExpr) -> PrimExpr:
        return te.maximum(_c(0, v), te.minimum(_c(1, v), _c(alpha, v) * v + _c(beta, v)))

    return _activation(f, x, "hard_sigmoid")


def hard_swish(x: Tensor) -> Tensor:
    """x * hard_sigmoid(x) with alpha 1/6 and beta 1/2."""

    def f(v: PrimExpr) -> PrimExpr:
        return v * te.maximum(_c(0, v), te.minimum(_c(1, v), v * _c(1 / 6, v) + _c(0.5, v)))

    return _activation(f, x, "hard_swish")


def thresholded_relu(x: Tensor, alpha: float) -> Tensor:
    """x where x > alpha, else 0."""
    return _activation(lambda v: te.select(v > _c(alpha, v), v, _c(0, v)), x, "thresholded_relu")
