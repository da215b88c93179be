"""Random numbers. A key is drawn once in a run; each element is a function of the key and its position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc import te
from relayc.backend.runtime.context import RANDOM_STREAMS
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, attributes_of_operator, register_op
from relayc.relay.op.common import Array, numpy_dtype, require
from relayc.relay.type import TensorType, Type
from relayc.te.tir import Dim
from relayc.topi.random import RANDOM_BITS, random_key, random_normal, random_uniform

__all__ = ["RandomKey", "RandomNormal", "RandomUniform", "key", "normal", "uniform"]


@register_op("random.key", pattern=OpPattern.OPAQUE)
class RandomKey(OpDef):
    """A key: the uint32 vector [seed, draw] (TVM: random.threefry_key and threefry_split).

    `draw` counts the keys of the same `stream` that an executor drew: each run gets other values. Streams below
    `RANDOM_STREAMS` start at 0, so that a new executor draws the same sequence again; as many others start at random.
    The reference gives the first key of the former. (C1) the seed fits 32 bits; (C2) there is such a stream.
    """

    has_side_effect = True

    seed: int
    stream: int = 0

    def infer(self) -> TensorType:
        require(0 <= self.seed < 2**32, f"(C1) the seed {self.seed} must fit 32 bits")
        require(0 <= self.stream < 2 * RANDOM_STREAMS, f"(C2) there is no stream {self.stream}")
        return TensorType((2,), "uint32")

    def compute(self) -> te.Tensor:
        return random_key(self.seed, self.stream)

    def reference(self) -> Array:
        return np.array([self.seed, 0], np.uint32)


@attributes_of_operator
class _Distribution(OpDef):
    """Base of tensors of random numbers. (C1) the key is a uint32 vector of 2; (C2) the type is a float."""

    mixed_precision = MixedPrecision.NEVER

    shape: tuple[Dim, ...]
    dtype: str = "float32"

    def infer(self, key: TensorType) -> TensorType:
        require(key == TensorType((2,), "uint32"), f"(C1) {key} must be a key: Tensor[(2), uint32]")
        require(self.dtype in RANDOM_BITS, f"(C2) {self.dtype} must be one of {', '.join(RANDOM_BITS)}")
        return TensorType(self.shape, self.dtype)

    def words(self, key: Array) -> tuple[Array, Array]:
        """Two words of 32 random bits for each element, as uint64."""
        shape = TensorType(self.shape, self.dtype).static_shape
        low = np.uint64(2**32 - 1)
        left = np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint64).reshape(shape) & low
        right, subkey = np.full(shape, key[1], np.uint64), np.uint64(key[0])
        for _ in range(10):
            whole = left * np.uint64(0xD256D193)
            left, right = (whole >> np.uint64(32)) ^ subkey ^ right, whole & low
            subkey = (subkey + np.uint64(0x9E3779B9)) & low
        return left, right

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        return None


@register_op("random.uniform", pattern=OpPattern.INJECTIVE)
class RandomUniform(_Distribution):
    """Values uniformly distributed in [low, high) (ONNX: RandomUniform; TVM: random.uniform)."""

    low: float = 0.0
    high: float = 1.0

    def compute(self, key: te.Tensor) -> te.Tensor:
        return random_uniform(key, self.shape, self.dtype, self.low, self.high)

    def reference(self, key: Array) -> Array:
        bits, (left, right) = RANDOM_BITS[self.dtype], self.words(key)
        whole = (left << np.uint64(32) | right) >> np.uint64(64 - bits)
        wide = np.dtype(np.float64 if bits > 32 else np.float32).type
        fraction = whole.astype(wide) * wide(2.0**-bits)
        return (fraction * wide(self.high - self.low) + wide(self.low)).astype(numpy_dtype(self.dtype))


@register_op("random.normal", pattern=OpPattern.INJECTIVE)
class RandomNormal(_Distribution):
    """Normally distributed values (ONNX: RandomNormal; TVM: random.normal)."""

    mean: float = 0.0
    scale: float = 1.0

    def compute(self, key: te.Tensor) -> te.Tensor:
        return random_normal(key, self.shape, self.dtype, self.mean, self.scale)

    def reference(self, key: Array) -> Array:
        left, right = self.words(key)
        radius = np.sqrt(-2 * np.log((left + 0.5) / 2**32))
        normal = radius * np.cos(right * (2 * np.pi / 2**32))
        return (normal * self.scale + self.mean).astype(numpy_dtype(self.dtype))


def key(seed: int, stream: int = 0) -> Call:
    """A key drawn when the program runs; another one each time."""
    return RandomKey(seed=seed, stream=stream)()


def uniform(key: Expr, shape: Sequence[Dim], dtype: str = "float32", low: float = 0.0, high: float = 1.0) -> Call:
    """Values uniformly distributed in [low, high)."""
    return RandomUniform(shape=tuple(shape), dtype=dtype, low=low, high=high)(key)


def normal(key: Expr, shape: Sequence[Dim], dtype: str = "float32", mean: float = 0.0, scale: float = 1.0) -> Call:
    """Normally distributed values."""
    return RandomNormal(shape=tuple(shape), dtype=dtype, mean=mean, scale=scale)(key)
