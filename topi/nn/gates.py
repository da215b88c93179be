"""The gates of recurrences: their activations, and the partition of recurrences for a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relayc import te
from relayc.te.tir import PrimExpr

__all__ = ["ACTIVATIONS", "Activation", "Gates"]

Activation = str | tuple[Any, ...]
"""The name of a function, or a tuple of a name and its parameters."""


def _c(value: float, like: PrimExpr) -> PrimExpr:
    return te.const(value, like.dtype)


def _hard_sigmoid(v: PrimExpr, alpha: float, beta: float) -> PrimExpr:
    return te.maximum(_c(0, v), te.minimum(_c(1, v), _c(alpha, v) * v + _c(beta, v)))


ACTIVATIONS: dict[str, Callable[..., PrimExpr]] = {
    "sigmoid": te.sigmoid,
    "tanh": te.tanh,
    "relu": lambda v: te.maximum(v, _c(0, v)),
    "softsign": lambda v: v / (_c(1, v) + te.abs(v)),
    "softplus": lambda v: te.maximum(v, _c(0, v)) + te.log1p(te.exp(-te.abs(v))),
    "affine": lambda v, alpha, beta: _c(alpha, v) * v + _c(beta, v),
    "scaled_tanh": lambda v, alpha, beta: _c(alpha, v) * te.tanh(_c(beta, v) * v),
    "hard_sigmoid": _hard_sigmoid,
    "leaky_relu": lambda v, alpha: te.select(v > 0, v, _c(alpha, v) * v),
    "thresholded_relu": lambda v, alpha: te.select(v > _c(alpha, v), v, _c(0, v)),
    "elu": lambda v, alpha: te.select(v > 0, v, _c(alpha, v) * te.expm1(v)),
}
"""Functions that gates may apply: name -> function of the value and its parameters."""


@dataclass(frozen=True)
class Gates:
    """Parameters of gates: `activations` in the cell's order, whose arguments are clamped to [-clip, clip].

    `reverse` says for each direction whether it runs from the last step to the first; `cores` is the number of threads
    that share directions or blocks, 0 where unknown. Registers hold `sums` blocks of NR sums, each of `vectors`
    vectors.
    """

    activations: tuple[Activation, ...]
    reverse: tuple[bool, ...] = (False,)
    clip: float | None = None
    cores: int = 0
    sums: int = 6
    vectors: int = 2

    def __call__(self, number: int, value: PrimExpr) -> PrimExpr:
        """Activation `number` of the clamped `value`."""
        return self.activate(number, self.limited(value))

    def activate(self, number: int, value: PrimExpr) -> PrimExpr:
        """Activation `number` of `value`."""
        activation = self.activations[number]
        name, *parameters = (activation,) if isinstance(activation, str) else activation
        return ACTIVATIONS[name](value, *parameters)

    def limited(self, value: PrimExpr) -> PrimExpr:
        """`value` clamped to [-clip, clip]."""
        if self.clip is None:
            return value
        return te.maximum(te.minimum(value, te.const(self.clip, value.dtype)), te.const(-self.clip, value.dtype))

    @property
    def go_apart(self) -> bool:
        """Does each thread run all steps of its own directions?"""
        return self.cores > 0 and len(self.reverse) % self.cores == 0
