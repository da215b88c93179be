"""Counter-based random numbers, functions of a key and a position: elements can be computed in any order.

The generator is Philox 2x32 with 10 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011). A *key* is a uint32 vector [seed, draw]: the position of an element and `draw` are encrypted with
`seed`, which gives two words of 32 random bits for each element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Buffer, Dim, PrimExpr, Stmt, call_intrin, ir_builder
from relayc.topi.tag import INJECTIVE
from relayc.topi.utils import ravel_index

__all__ = ["RANDOM_BITS", "random_key", "random_normal", "random_uniform"]

_MULTIPLIER, _INCREMENT, _ROUNDS = 0xD256D193, 0x9E3779B9, 10

RANDOM_BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
"""Random bits of a value in [0, 1): the precision of the element type just below 1."""


def random_key(seed: int, stream: int = 0) -> Tensor:
    """The uint32 vector [seed, draw]; `draw` counts how often a key of `stream` was computed before."""

    def fill(_: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        ib = ir_builder.create()
        key = ib.buffer(outs[0])
        key[0] = te.const(seed, "uint32")
        key[1] = call_intrin("uint32", "next_draw", stream)
        return ib.get()

    return te.extern((2,), [], fill, name="random_key", dtype="uint32", tag="default")


def _words(key: Tensor, index: Sequence[Any], shape: Sequence[Dim]) -> tuple[PrimExpr, PrimExpr]:
    """The two random 32-bit words of an element."""
    left, right = te.cast("uint32", ravel_index(index, shape)), key[1]
    for number in range(_ROUNDS):
        subkey = key[0] + te.const(number * _INCREMENT % 2**32, "uint32")
        whole = te.cast("uint64", left) * te.const(_MULTIPLIER, "uint64")
        high = te.cast("uint32", whole >> te.const(32, "uint64"))
        left, right = high ^ subkey ^ right, te.cast("uint32", whole)
    return left, right


def _fraction(words: tuple[PrimExpr, PrimExpr], dtype: str) -> PrimExpr:
    """A multiple of 2^-bits in [0, 1), with the precision of `dtype`; in float32 or, for float64, in float64."""
    bits = RANDOM_BITS[dtype]
    if bits <= 32:
        return te.cast("float32", words[0] >> te.const(32 - bits, "uint32")) * te.const(2.0**-bits, "float32")
    high = te.cast("uint64", words[0]) << te.const(bits - 32, "uint64")
    low = te.cast("uint64", words[1] >> te.const(64 - bits, "uint32"))
    return te.cast("float64", high | low) * te.const(2.0**-bits, "float64")


def random_uniform(key: Tensor, shape: Sequence[Dim], dtype: str, low: float, high: float) -> Tensor:
    """Uniformly distributed values in [low, high), up to rounding to `dtype`."""

    def body(*index: Any) -> PrimExpr:
        fraction = _fraction(_words(key, index, shape), dtype)
        scaled = fraction * te.const(high - low, fraction.dtype) + te.const(low, fraction.dtype)
        return te.cast(dtype, scaled)

    return te.compute(tuple(shape), body, name="random_uniform", tag=INJECTIVE)


def random_normal(key: Tensor, shape: Sequence[Dim], dtype: str, mean: float, scale: float) -> Tensor:
    """Normally distributed values with a mean and standard deviation `scale`, by the Box-Muller transform."""
    wide = "float64" if dtype == "float64" else "float32"

    def body(*index: Any) -> PrimExpr:
        first, second = _words(key, index, shape)
        unit = te.const(2.0**-32, wide)
        above_zero = (te.cast(wide, first) + te.const(0.5, wide)) * unit
        angle = te.cast(wide, second) * (unit * te.const(2 * math.pi, wide))
        normal = te.sqrt(te.log(above_zero) * te.const(-2, wide)) * te.cos(angle)
        return te.cast(dtype, normal * te.const(scale, wide) + te.const(mean, wide))

    return te.compute(tuple(shape), body, name="random_normal", tag=INJECTIVE)
