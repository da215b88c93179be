"""The table of test cases of all operators: operator, attributes and inputs.

Rows share one random generator: a row inserted in between changes the inputs of all rows after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from relayc.topi.fourier import dft_roots
from relayc.topi.trees import pack_nodes

Array = np.ndarray


@dataclass(frozen=True)
class Row:
    """One case: operator `op` with `attrs` on `inputs`; results may differ by `tolerance` of the largest value."""

    op: str
    inputs: tuple[Array, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-6

    def __str__(self) -> str:
        shapes = ",".join("x".join(map(str, x.shape)) or "scalar" for x in self.inputs)
        attrs = ",".join(f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.op}({shapes}){{{attrs}}}"


_random = np.random.default_rng(7)


def f32(*shape: int, low: float = -2.0, high: float = 2.0) -> Array:
    return _random.uniform(low, high, shape).astype(np.float32)


def u8(*shape: int) -> Array:
    return _random.integers(0, 256, shape).astype(np.uint8)


def i32(*shape: int, low: int = -9, high: int = 9) -> Array:
    return _random.integers(low, high, shape).astype(np.int32)


def words(*shape: int, low: int = 0, high: int = 256) -> Array:
    """Four bytes packed in each int32."""
    return _random.integers(low, high, (*shape, 4)).astype(np.uint8).view(np.int32)[..., 0]


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


def bools(*shape: int) -> Array:
    return _random.integers(0, 2, shape).astype(np.bool_)


def special() -> Array:
    return np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5, 0.5], np.float32)


def bf16(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16)


def bf16_words(*shape: int) -> Array:
    """Two bfloat16 packed in each int32."""
    return bf16(f32(*shape, 2)).view(np.int32)[..., 0]


def row(op: str, *inputs: Array, tolerance: float = 1e-6, **attrs: Any) -> Row:
    return Row(op, inputs, attrs, tolerance)


_UNIT, _ABOVE_ONE, _POSITIVE = f32(2, 3, low=-0.9, high=0.9), f32(2, 3, low=1.1, high=3), f32(2, 3, low=0.1, high=3)

ELEMENTWISE = [
    *[row(op, f32(2, 3)) for op in ("atan", "asinh", "cos", "cosh", "erf", "exp", "sigmoid", "sin", "sinh", "tanh")],
    *[row(op, _UNIT) for op in ("acos", "asin", "atanh", "tan")],
    *[row(op, _POSITIVE) for op in ("log", "log1p", "log2", "log10", "rsqrt", "sqrt")],
    row("acosh", _ABOVE_ONE),
    *[row(op, special()) for op in ("isnan", "isinf", "isfinite", "abs", "sign", "ceil", "floor", "round", "trunc")],
    row("round", np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2.4], np.float32)),
    row("abs", i32(5)),
    row("sign", i32(5)),
    row("sign", np.array([0, 3, 200], np.uint8)),
    row("negative", f32(3)),
    row("negative", i32(3)),
    row("bitwise_not", i32(4)),
    row("logical_not", bools(4)),
    row("copy", f32(2, 2)),
    row("copy", f32()),
    row("exp", f32(5).astype(np.float16), tolerance=1e-3),
    row("tanh", bf16(f32(5)), tolerance=1e-2),
    row("cast", f32(4, low=-9, high=9), dtype="int32"),
    row("cast", i32(4), dtype="float32"),
    row("cast", f32(4), dtype="bool"),
    row("cast", bools(4), dtype="float32"),
    row("cast", i32(4), dtype="int8"),
    row("cast", f32(4), dtype="bfloat16"),
    row("reinterpret", f32(4), dtype="int32"),
    row("clip", f32(6), a_min=-0.5, a_max=1.0),
    row("clip", i32(6), a_min=0),
    row("clip", f32(6), a_max=0.25),
]

_FLOAT_PAIR = (f32(2, 3), f32(2, 3, low=0.5, high=2))
_INT_PAIR = (np.array([7, -7, 7, -7, 5, -(2**31)], np.int32), np.array([2, 2, -2, -2, 0, -1], np.int32))

BROADCAST = [
    *[
        row(op, *_FLOAT_PAIR, tolerance=2e-6)
        for op in ("add", "subtract", "multiply", "divide", "trunc_divide", "floor_divide", "trunc_mod", "floor_mod")
    ],
    *[
        row(op, *_INT_PAIR)
        for op in ("add", "subtract", "multiply", "divide", "trunc_divide", "floor_divide", "trunc_mod", "floor_mod")
    ],
    row("trunc_mod", np.array([5.5, -5.5, 5.5], np.float32), np.array([2, 2, -2], np.float32)),
    row("floor_mod", np.array([5.5, -5.5, 5.5], np.float32), np.array([2, 2, -2], np.float32)),
    row("divide", np.array([7, 9, 3], np.uint8), np.array([2, 0, 5], np.uint8)),
    row("power", _POSITIVE, f32(2, 3), tolerance=1e-5),
    row("power", np.array([2, -3, 0, 0, 1, -1], np.int32), np.array([10, 3, 0, 5, 60, 7], np.int32)),
    row("power", np.array([3, 2], np.int64), np.array([30, 40], np.int64)),
    *[row(op, f32(2, 1, 3), f32(4, 1)) for op in ("maximum", "minimum", "add")],
    row("maximum", special(), special()[::-1].copy()),
    row("minimum", special(), special()[::-1].copy()),
    row("add", f32(2, 3), f32()),
    *[row(op, i32(3, low=0), i32(3, low=0, high=5)) for op in ("left_shift", "right_shift")],
    row("right_shift", i32(3), i32(3, low=0, high=5)),
    *[row(op, i32(4), np.array([-1, 31, 32, 99], np.int32)) for op in ("left_shift", "right_shift")],
    row("right_shift", np.array([255, 255], np.uint8), np.array([7, 8], np.uint8)),
    *[row(op, i32(2, 3), i32(3)) for op in ("bitwise_and", "bitwise_or", "bitwise_xor")],
    *[row(op, bools(2, 3), bools(3)) for op in ("logical_and", "logical_or", "logical_xor", "equal", "not_equal")],
    *[
        row(op, i32(8, low=0, high=3), i32(8, low=0, high=3))
        for op in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    ],
    row("less", special(), f32(8)),
    row("not_equal", special(), special()),
    row("where", bools(3, 1), f32(2), f32(1, 2)),
    row("where", bools(), i32(2), i32(2)),
    row("broadcast_to", f32(3, 1), shape=(2, 3, 4)),
]

TRANSFORM = [
    row("reshape", f32(2, 6), newshape=(3, 4)),
    row("reshape", f32(2, 6), newshape=(4, -1)),
    row("reshape", f32(1, 1), newshape=()),
    row("transpose", f32(2, 3, 4), axes=(2, 0, 1)),
    row("expand_dims", f32(2, 3), axis=1, num_newaxis=2),
    row("expand_dims", f32(2, 3), axis=-1),
    row("squeeze", f32(1, 3, 1)),
    row("squeeze", f32(1, 3, 1), axis=(-1,)),
    row("concatenate", *[f32(3, 1 + k % 3, 2) for k in range(18)], axis=1),
    row("concatenate", f32(2, 3), f32(2, 1), f32(2, 2), axis=1),
    row("concatenate", f32(2, 3), f32(4, 3), axis=-2),
    row("concatenate", f32(2, 3)),
    row("stack", f32(2, 3), f32(2, 3), f32(2, 3), axis=1),
    row("stack", f32(2), f32(2), axis=-1),
    row("split", f32(2, 6), indices_or_sections=3, axis=1),
    row("split", f32(7, 2), indices_or_sections=(2, 3)),
    row("strided_slice", f32(5, 6), begin=(1, 5), end=(4, -7), strides=(2, -2), axes=(0, 1)),
    row("strided_slice", f32(5, 6), begin=(-3,), end=(100,), strides=(1,), axes=(-1,)),
    row("strided_slice", f32(5), begin=(4,), end=(2,), strides=(1,), axes=(0,)),
    row("slice_at", f32(5, 6), np.int32(1), np.int32(5), sizes=(3, 2), strides=(1, -2), axes=(0, 1)),
    row("reverse", f32(3, 4), axis=(1,)),
    row("reverse", f32(3, 4), axis=(0, -1)),
    row("roll", f32(3, 4, 5), shifts=(-1, 7), axes=(0, -1)),
    row("roll", f32(2, 3, 4), shifts=(2,), axes=(1,)),
    row("roll", f32(2, 0, 4), shifts=(2,), axes=(1,)),
    row("reverse_sequence", f32(4, 3, 2), i64(1, 4, 0), seq_axis=0, batch_axis=1),
    row("reverse_sequence", f32(2, 5), i64(3, 9)),
    row("tile", f32(2, 3), reps=(2, 1)),
    row("tile", f32(2, 3), reps=(2, 1, 3)),
    row("tile", f32(2, 3), reps=(2,)),
    row("repeat", f32(2, 3), repeats=2, axis=0),
    row("repeat", f32(2, 3), repeats=3, axis=-1),
    row("trilu", f32(2, 3, 4), k=1),
    row("trilu", i32(4, 3), k=-1, upper=False),
    row("full", shape=(2, 3), dtype="float32", fill_value=1.5),
    row("full", shape=(), dtype="int64", fill_value=7),
    row("arange", start=1, stop=2, step=0.25),
    row("arange", start=5, stop=-2, step=-3, dtype="int64"),
    row("layout_transform", f32(2, 3, 4, 5), src_layout="NCHW", dst_layout="NHWC"),
    row("layout_transform", f32(1, 6, 2, 2), src_layout="NCHW", dst_layout="NCHW4c"),
    row("layout_transform", f32(1, 2, 2, 2, 4), src_layout="NCHW4c", dst_layout="NHWC"),
    row("layout_transform", f32(6, 3, 2, 1), src_layout="OIHW", dst_layout="OHWI4o"),
    row("layout_transform", f32(5, 3), src_layout="NC", dst_layout="NC4n"),
]

_SMALL = f32(2, 3, 4)

REDUCE = [
    *[row(op, _SMALL, axis=(1,)) for op in ("sum", "prod", "max", "min", "mean", "variance", "log_sum_exp")],
    *[row(op, _SMALL, axis=(0, -1), keepdims=True) for op in ("sum", "max", "mean", "variance", "log_sum_exp")],
    *[row(op, _SMALL) for op in ("sum", "max", "mean", "variance", "log_sum_exp")],
    row("sum", i32(3, 4), axis=(0,)),
    row("mean", i32(3, 4), axis=(1,)),
    row("sum", f32(2, 3), axis=()),
    row("sum", f32(4, 50).astype(np.float16), axis=(1,), tolerance=1e-3),
    row("max", np.full((2, 2), -np.inf, np.float32), axis=(1,)),
    row("max", special()),
    row("min", i32(2, 3), axis=(-1,)),
    row("all", bools(3, 4), axis=(1,)),
    row("any", bools(3, 4), axis=(0,), keepdims=True),
    *[row(op, i32(3, 7, low=0, high=3), axis=(1,)) for op in ("argmax", "argmin")],
    *[row(op, i32(3, 7, low=0, high=3), axis=(1,), select_last_index=True) for op in ("argmax", "argmin")],
    row("argmax", _SMALL),
    row("argmax", _SMALL, axis=(0, 2), keepdims=True, dtype="int64"),
    row("argmax", special()),
    row("argmin", np.array([np.nan, 1, np.nan], np.float32), select_last_index=True),
]

INDEXING = [
    row("take", f32(5, 3), i64(0, 4, 7, -2), axis=0),
    row("take", f32(5, 3), i32(2, 2), axis=-1, mode="wrap"),
    row("take", f32(5, 3), i64(-1, -9, 3), axis=0, mode="numpy"),
    row("take", f32(4, 3), i64(1, 3), axis=0, mode="fast"),
    row("take", f32(2, 5, 3), i32(2, 4, low=0, high=5), axis=1, batch_dims=1),
    row("take", f32(4), np.array(2), axis=0),
    row("gather", f32(4, 3), i64(0, -1, 2, 1, 9, 0).reshape(2, 3), axis=0),
    row("gather", f32(4, 3), i32(4, 2, low=-3, high=3), axis=1),
    row("gather", f32(2, 4, 3), i32(1, 4, 5, low=-3, high=3), axis=2, broadcasts=True),
    row("gather_nd", f32(3, 4, 2), i32(2, 5, low=0, high=3)),
    row("gather_nd", f32(3, 4), i32(1, 2, 2, low=-3, high=3)),
    row("gather_nd", f32(2, 3, 4), i32(1, 2, 3, low=0, high=3), batch_dims=1),
    row("scatter_elements", f32(4, 3), i32(2, 3, low=-4, high=4), f32(2, 3)),
    row("scatter_elements", f32(4, 3), i32(4, 2, low=0, high=3), f32(4, 2), axis=1, reduction="add"),
    *[
        row("scatter_elements", f32(4), i32(6, low=0, high=4), f32(6), reduction=reduction)
        for reduction in ("mul", "min", "max")
    ],
    *[
        row(name, np.arange(6) % 2 > 0, np.array([0, 1, 0, 1, 2, 3, 4, 4]).reshape(lead), np.arange(8) % 3 > 0,
            reduction=reduction)
        for name, lead in (("scatter_elements", (8,)), ("scatter_nd", (1, 8)))
        for reduction in ("update", "add", "mul", "min", "max")
    ],
    row("scatter_nd", f32(4, 3), i32(2, 3, low=0, high=3), f32(3)),
    row("scatter_nd", f32(4, 3), i32(1, 3, low=-4, high=4), f32(3, 3), reduction="add"),
    row("one_hot", i64(0, 2, -1, 3, -4), np.float32(5), np.float32(-1), depth=3),
    row("one_hot", i32(2, 2, low=0, high=3), np.int32(1), np.int32(0), depth=3, axis=0),
    row("argsort", i32(3, 7, low=0, high=4), axis=1),
    row("argsort", i32(5, 2, low=0, high=3), axis=0, is_ascend=False, dtype="int64"),
    row("argsort", special()),
    row("searchsorted", np.array([-3, 0, 0, 5, 9], np.int64), np.arange(-5, 11).reshape(4, 4)),
    row("searchsorted", np.array([-0.5, 0, 0, 0.25], np.float32), np.array([0, 0.25, 1, -1], np.float32), right=True),
    row("searchsorted", np.array([7], np.int32), np.array([6, 7, 8], np.int32), dtype="int64"),
    row("argsort", special(), is_ascend=False),
    row("sort", f32(2, 9)),
    row("sort", f32(6, 2), axis=0, is_ascend=False),
    row("sort", f32(1)),
    *[row("nn.embedding_bag", f32(5, columns), i64(0, 4, -1, 2, 2, 3, 9, -7), i64(0, 2, 2, -3, 9),
          i64(2, 2, 5, 9, 12), *factors, mode=mode)
      for columns, factors, mode in ((3, (), "sum"), (70, (f32(8),), "sum"), (4, (), "mean"), (9, (), "max"))],
    row("topk", i32(2, 9, low=0, high=5), k=4),
    row("topk", f32(6, 2), k=3, axis=0, is_ascend=True, dtype="int64"),
    row("cumsum", f32(3, 4), axis=1, dtype="float32"),
    row("cumsum", i32(3, 4), axis=0, dtype="int64", exclusive=True),
    row("cumsum", f32(3, 40), axis=1, dtype="float32", reverse=True),
    row("cumsum", i32(3, 37), axis=1, dtype="int32", exclusive=True, reverse=True),
    row("cumsum", i32(3, 4), axis=0, dtype="int64", exclusive=True, reverse=True),
    row("cumprod", f32(2, 4), axis=-1, dtype="float32"),
    row("cumprod", f32(2, 4), axis=0, dtype="float32", reverse=True),
    row("cumprod", f32(2, 4), axis=1, dtype="float32", exclusive=True),
]

_X = f32(2, 6, low=-8, high=8)

ACTIVATION = [
    *[row(f"nn.{op}", _X) for op in ("relu", "silu", "softsign", "hard_swish", "hard_sigmoid", "thresholded_relu")],
    *[row(f"nn.{op}", _X, tolerance=2e-6) for op in ("mish", "softplus", "elu", "celu", "selu", "gelu", "leaky_relu")],
    row("nn.relu", i32(5)),
    row("nn.gelu", _X, approximate=True, tolerance=2e-6),
    row("nn.leaky_relu", _X, alpha=0.3),
    row("nn.celu", _X, alpha=2.0),
    row("nn.gelu", _X.astype(np.float16), tolerance=1e-3),
    row("nn.prelu", f32(2, 3, 2), f32(3)),
    row("nn.prelu", f32(2, 3), f32(3), axis=-1),
    row("nn.bias_add", f32(2, 3, 2), f32(3)),
    row("nn.bias_add", f32(2, 3), f32(3), axis=-1),
]

CONVOLUTION = [
    row("nn.conv2d", f32(1, 3, 5, 6), f32(4, 3, 3, 3), padding=(1, 1, 1, 1)),
    row("nn.conv2d", f32(1, 3, 7, 6), f32(4, 3, 3, 2), strides=(2, 1), padding=(1, 0, 2, 1), dilation=(2, 1)),
    row("nn.conv2d", f32(2, 4, 5, 5), f32(6, 2, 3, 3), groups=2, padding=(1, 1, 1, 1)),
    row("nn.conv2d", f32(1, 4, 5, 5), f32(8, 1, 3, 3), groups=4),
    row("nn.conv2d", f32(1, 5, 5, 3), f32(3, 3, 3, 4), data_layout="NHWC", kernel_layout="HWIO"),
    row("nn.conv2d", f32(1, 5, 5, 4), f32(3, 3, 1, 4), groups=4, data_layout="NHWC", kernel_layout="HWIO"),
    row("nn.conv2d", i32(1, 2, 4, 4).astype(np.int8), i32(2, 2, 2, 2).astype(np.int8), out_dtype="int32"),
    row("nn.conv2d", f32(1, 2, 4, 4).astype(np.float16), f32(2, 2, 3, 3).astype(np.float16), tolerance=1e-3),
    row("nn.conv1d", f32(2, 3, 8), f32(4, 3, 3), padding=(1, 1), strides=(2,)),
    row("nn.conv3d", f32(1, 2, 3, 4, 3), f32(3, 2, 2, 2, 2), padding=(0, 1, 0, 1, 0, 1)),
    row("nn.conv2d_nhwc_packed", f32(1, 4, 5, 3), f32(2, 3, 3, 3, 4), channels=6, padding=(1, 1, 1, 1), strides=(1, 2)),
    row("nn.conv2d_nhwc_packed", f32(1, 3, 3, 4), f32(2, 1, 1, 2, 3), channels=6, groups=2),
    row("nn.conv2d_nhwc_packed", f32(2, 3, 3, 10), f32(2, 1, 1, 5, 44), channels=88, groups=2),
    row("nn.conv2d_nhwc_packed", f32(2, 3, 3, 6), f32(6, 3, 2, 3, 16), channels=96, groups=2, padding=(1, 0, 1, 1)),
    row("nn.conv2d_nhwc_packed", f32(1, 4, 4, 6), f32(3, 3, 2, 2, 21), channels=63, groups=3, padding=(1, 0, 1, 1)),
    row(
        "nn.conv2d_nhwc_packed", f32(1, 4, 5, 9), f32(2, 3, 3, 3, 8), channels=15, groups=3, padding=(1, 1, 1, 1),
        across_groups=True,
    ),
    row("nn.conv1d_nwc_packed", f32(2, 11, 3), f32(2, 3, 3, 8), channels=13, padding=(1, 2), strides=(2,)),
    row("nn.conv1d_nwc_packed", f32(1, 14, 8), f32(2, 3, 4, 8), channels=16, groups=2, dilation=(2,)),
    row("nn.conv3d_ndhwc_packed", f32(1, 3, 4, 5, 6), f32(1, 2, 1, 3, 6, 8), channels=8, padding=(1, 0, 1, 0, 0, 1)),
    row("nn.conv2d_nhwc_winograd", f32(1, 5, 9, 3), f32(2, 4, 4, 3, 4), tile=2, padding=(1, 0, 1, 1)),
    row("nn.conv2d_nhwc_winograd", f32(2, 5, 3, 2), f32(1, 6, 6, 2, 4), tile=4, padding=(1, 1, 1, 1)),
    row("nn.conv2d_nhwc_winograd", f32(1, 7, 8, 2), f32(2, 6, 6, 2, 2), tile=4),
    row("nn.conv2d_nhwc_winograd", f32(1, 7, 10, 2), f32(1, 4, 4, 2, 4), tile=2, padding=(3, 2, 3, 3), dilation=3),
    row("nn.conv2d_nhwc_winograd", f32(1, 7, 6, 8), f32(4, 6, 6, 4, 8), tile=2, kernel_size=5, groups=2),
    row("nn.conv2d_nhwc_winograd", f32(1, 7, 8, 5), f32(2, 6, 6, 5, 4), tile=4, channels=7),
    row("nn.conv2d_nhwc_winograd", f32(1, 3, 3, 18), f32(2, 4, 4, 18, 16), tile=2, padding=(1, 1, 1, 1), channels=19),
    row("nn.conv3d_ndhwc_winograd", f32(1, 2, 5, 4, 20), f32(1, 4, 4, 2, 20, 32), tile=2, channels=26),
    row("nn.conv3d_ndhwc_winograd", f32(1, 3, 3, 5, 3), f32(2, 4, 4, 3, 3, 4), tile=2, padding=(1, 1, 0, 1, 1, 1)),
    row("nn.conv3d_ndhwc_winograd", f32(1, 2, 5, 4, 4), f32(1, 6, 6, 2, 4, 4), tile=4, padding=(0, 1, 1, 1, 1, 1)),
    row("nn.conv3d_ndhwc_winograd", f32(2, 5, 5, 4, 4), f32(2, 6, 6, 2, 2, 4), tile=4, padding=(2, 1, 1, 0, 1, 1),
        groups=2, depth_stride=2, depth_dilation=3),
    row("nn.conv3d_ndhwc_winograd", f32(1, 2, 7, 8, 2), f32(1, 4, 4, 1, 2, 4), tile=2, padding=(0, 3, 3, 0, 3, 3),
        dilation=3),
    row("nn.conv2d_transpose", f32(1, 3, 3, 4), f32(3, 2, 3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),
    row("nn.conv2d_transpose", f32(1, 4, 3, 3), f32(4, 2, 2, 3), groups=2, dilation=(2, 1), output_padding=(1, 0)),
    row("nn.conv2d_transpose", f32(1, 3, 3, 2), f32(2, 2, 2, 3), data_layout="NHWC", kernel_layout="IHWO"),
    row("nn.conv1d_transpose", f32(2, 3, 4), f32(3, 2, 3), strides=(3,), padding=(1, 0), output_padding=(2,)),
    row("nn.conv3d_transpose", f32(1, 2, 2, 2, 3), f32(2, 1, 2, 2, 2), strides=(2, 1, 2)),
    row("nn.dense", f32(3, 5), f32(4, 5)),
    row("nn.dense", f32(2, 2, 5), f32(4, 5)),
    row("nn.dense", i32(2, 5).astype(np.int8), i32(3, 5).astype(np.int8), out_dtype="int32"),
    row("nn.dense_packed", f32(3, 5), f32(2, 5, 4), units=7),
    *[row("nn.routed_dense", f32(3, rows, 5), f32(2, 2, 5, 4), np.array([1, 0, 1]), units=7) for rows in (1, 6)],
    *[row("nn.dense_bits", f32(*lead, 32), i32(2, bits, 8, low=-(2**31), high=2**31 - 1), f32(2, 2, 8), *zeros,
          units=units, bits=bits, tolerance=1e-5)
      for bits, lead, units, zeros in ((4, (3,), 16, ()), (4, (2, 1), 13, (u8(2, 2, 8),)), (8, (), 9, (f32(2, 2, 8),)),
                                       (8, (5,), 16, ()), (4, (1,), 9, ()))],
    *[row(name, f32(3, 32), i32(2, 4, 8, low=-(2**31), high=2**31 - 1), f32(2, 2, 8), f32(16), units=13, bits=4,
          has_table=True, tolerance=1e-5)
      for name in ("nn.dense_bits", "nn.dense_blocks")],
    *[row("nn.dense_bits", f32(3, rows, 32), i32(4, bits, 8, low=-(2**31), high=2**31 - 1), f32(4, 2, 8), *zeros,
          np.array([1, 0, 1]), units=13, bits=bits, experts=2, tolerance=1e-5)
      for bits, rows, zeros in ((4, 1, ()), (8, 5, (u8(4, 2, 8),)))],
    *[row("nn.dense_blocks", data, i32(4, bits, 8, low=-(2**31), high=2**31 - 1), f32(4, 2, 8), f32(3, 5, 2), *rest,
          np.array([1, 0, 1]), units=13, bits=bits, experts=2, tolerance=1e-5, **attrs)
      for bits, data, rest, attrs in ((4, f32(3, 5, 32), (), {}), (8, words(3, 5, 8), (f32(3, 5, 2),), {}),
                                      (4, words(3, 5, 8), (f32(3, 5, 2), u8(4, 2, 8)), {"has_zeros": True}))],
    *[row("nn.dense_blocks", data, i32(2, bits, 8, low=-(2**31), high=2**31 - 1), scales, *rest, units=units, bits=bits,
          tolerance=1e-5, **attrs)
      for bits, data, units, scales, rest, attrs in (
          (4, f32(3, 32), 16, f32(2, 2, 8), (f32(3, 2),), {}),
          (4, words(3, 8), 13, f32(2, 2, 8).astype(np.float16), (f32(3, 2), f32(3, 2)), {}),
          (8, words(1, 1, 8), 9, f32(2, 1, 8), (f32(1, 1, 1), f32(1, 1, 1), u8(2, 1, 8)), {"has_zeros": True}),
          (8, words(17, 8), 16, f32(2, 4, 8), (f32(17, 4), f32(17, 4)), {"in_16_bits": True}),
          (4, words(2, 8), 16, f32(2, 2, 8), (f32(2, 2), f32(2, 2)), {"in_16_bits": True}),
          (8, f32(5, 32), 16, f32(2, 2, 8), (f32(5, 2), f32(2, 2, 8)), {"has_zeros": True}))],
    row("qnn.dequantize_blocks", u8(3, 5).view(np.int8), f32(3, 2), u8(3, 2).view(np.int8), axis=1, block=3),
    row("qnn.dequantize_blocks", u8(6, 2), f32(3, 2).astype(np.float16), u8(3, 2), axis=0, block=2, tolerance=1e-3),
    row("nn.take_bits", i32(2, 4, 8, low=-(2**31), high=2**31 - 1), f32(2, 2, 8), i64(0, 15, -1, 20), units=16, bits=4,
        mode="numpy"),
    row("nn.take_bits", i32(2, 8, 8, low=-(2**31), high=2**31 - 1), f32(2, 2, 8), u8(2, 2, 8), i64(12, 3), units=13,
        bits=8, dtype="float16", tolerance=1e-3),
    row("nn.quantize_blocks", f32(3, 64), blocks=2, unit=8.0),
    row("nn.quantize_blocks", f32(2, 1, 48), blocks=3),
    row("nn.words", u8(3, 8)),
    row("nn.words", u8(2, 8).view(np.int8)),
    row("nn.dense_dot4", words(3, 5), words(2, 5, 4, low=-64, high=65), units=7),
    row("nn.dense_dot4", words(6, 5), words(1, 5, 8, low=-64, high=65), units=7, rows=(2, 3)),
    row("nn.conv2d_nhwc_dot4", words(2, 5, 7, 3), words(2, 18, 8, low=-64, high=65), channels=13, kernel_size=(3, 2),
        padding=(1, 0, 1, 1), strides=(1, 2), border=9),
    row("nn.conv2d_nhwc_dot4", words(1, 6, 9, 2), words(1, 8, 8, low=-64, high=65), channels=8, kernel_size=(2, 2),
        dilation=(2, 3)),
    row("nn.dense_dot4_groups", words(5, 3), words(2, 4, 1, 8, low=-64, high=65), i32(2, 4, 1, low=0, high=3), units=9),
    row("nn.dense_dot4_groups", words(3, 2, 3), words(2, 4, 2, 8, low=-32, high=33), i32(2, 4, 2, low=0, high=3),
        units=16),
    row("nn.conv2d_nhwc_dot4", words(1, 5, 6, 2), words(2, 3, 2, 2, 8, low=-64, high=65), channels=13,
        strides=(2, 1), padding=(1, 0, 1, 1), dilation=(1, 2), border=200),
    row("nn.window_dot4_groups", words(1, 120), words(2, 5, 2, 8, low=-32, high=33), i32(2, 5, 2, low=0, high=20),
        channels=13, grid=(3, 2), pitch=(12, 3), depth=4),
    row("nn.pack_panels", f32(2, 5, 3), width=4),
    row("nn.pack_panels", f32(3, 8), width=4, transpose=True),
    row("nn.take_from_panels", f32(3, 5, 4), i32(2, 7, low=-11, high=11), rows=11, mode="numpy"),
    row("nn.take_from_panels", f32(2, 3, 8), i64(-20, 3, 15, 16, 30), rows=16),
    row("nn.take_from_panels", f32(2, 3, 8), i32(low=0, high=9), rows=9, mode="wrap"),
    row("nn.batch_matmul_packed", f32(2, 3, 4), f32(2, 2, 4, 5), columns=7),
    row("nn.batch_matmul_packed", f32(3, 4), f32(2, 4, 5), columns=7),
    row("nn.batch_matmul_packed", f32(2, 4, 9), f32(2, 2, 4, 8), columns=9, transpose_a=True),
    row("nn.batch_matmul_packed", f32(1, 9, 4), f32(3, 2, 1, 4, 8), columns=5),
    row("nn.batch_matmul", f32(2, 3, 4), f32(2, 5, 4)),
    row("nn.batch_matmul", f32(2, 1, 3, 4), f32(3, 4, 2), transpose_b=False),
    row("nn.batch_matmul", f32(4, 3), f32(5, 4), transpose_a=True),
    row("nn.batch_matmul", f32(2, 3, 64), f32(2, 7, 64)),
    row("nn.batch_matmul", f32(2, 1, 5), f32(2, 5, 50), transpose_b=False),
    row("nn.batch_matmul", f32(5, 3), f32(5, 130), transpose_a=True, transpose_b=False),
    row("nn.batch_matmul", f32(64, 2), f32(9, 64), transpose_a=True),
    row("nn.batch_matmul", f32(4, 32), f32(3, 33, 32)),
    row("nn.batch_matmul", bf16(f32(3, 4)), bf16(f32(5, 4)), tolerance=1e-2),
]

_WINDOW = {"pool_size": (3, 2), "strides": (2, 1), "dilation": (1, 1), "padding": (1, 0, 1, 1)}
_DILATED = {"pool_size": (2, 2), "strides": (1, 2), "dilation": (2, 3), "padding": (1, 1, 1, 1)}
_CEIL = {"pool_size": (3, 3), "strides": (2, 2), "dilation": (1, 1), "padding": (1, 1, 1, 1), "ceil_mode": True}
_LINE = {"pool_size": (3,), "strides": (2,), "dilation": (1,), "padding": (1, 1)}

POOLING = [
    *[
        row(f"nn.{op}", f32(1, 2, 6, 6), **window)
        for op in ("max_pool", "avg_pool", "lp_pool")
        for window in (_WINDOW, _DILATED, _CEIL)
    ],
    *[row("nn.avg_pool", f32(1, 2, 6, 6), **window, count_include_pad=True) for window in (_WINDOW, _DILATED, _CEIL)],
    *[row(f"nn.{op}", f32(1, 2, 7), **_LINE, layout="NCW") for op in ("max_pool", "avg_pool", "lp_pool")],
    row("nn.max_pool", i32(1, 5, 5, 2).astype(np.uint8), **_WINDOW, layout="NHWC"),
    row("nn.max_pool", i32(1, 2, 5, 5).astype(np.int8), **_WINDOW),
    row("nn.avg_pool", f32(1, 5, 6, 2), **_WINDOW, layout="NHWC"),
    row("nn.avg_pool", f32(1, 2, 5, 5).astype(np.float16), **_WINDOW, tolerance=1e-3),
    row("nn.lp_pool", f32(1, 2, 5, 5), **_WINDOW, p=3, tolerance=2e-6),
    *[row("nn.lp_pool", f32(1, 2, 5, 5), **_WINDOW, p=p, tolerance=4e-6) for p in (1, 4, 10)],
    row("nn.adaptive_avg_pool", f32(1, 2, 5, 7), output_size=(3, 4)),
    row("nn.adaptive_avg_pool", f32(1, 5, 4, 2), output_size=(1, 1), layout="NHWC"),
    row("nn.adaptive_max_pool", f32(1, 2, 5, 6), output_size=(2, 3)),
    row("nn.adaptive_max_pool", f32(1, 2, 5), output_size=(1,), layout="NCW"),
    row("nn.pad", f32(2, 3), pad_width=((1, 0), (2, 1)), pad_value=7.0),
    row("nn.pad", f32(4, 5), pad_width=((-1, 2), (1, -2))),
    row("nn.pad", i32(3), pad_width=((0, 2),), pad_value=-3),
    *[
        row("nn.pad", f32(3, 4), pad_width=((2, 1), (1, 3)), pad_mode=mode)
        for mode in ("edge", "reflect", "symmetric", "wrap")
    ],
    row("nn.pad", f32(2), pad_width=((5, 4),), pad_mode="reflect"),
    row("nn.pad", f32(1, 3), pad_width=((2, 1), (-1, 1)), pad_mode="reflect"),
]

_C = 4
_CHANNELS = (f32(_C), f32(_C))

NORMALIZATION = [
    row("nn.softmax", f32(2, 5)),
    row("nn.softmax", f32(2, 5, 3), axis=1),
    row("nn.softmax", f32(2, 5).astype(np.float16), tolerance=1e-3),
    row("nn.log_softmax", f32(2, 5)),
    row("nn.log_softmax", f32(2, 5, 3), axis=0),
    row("nn.log_softmax", f32(2, 3, 2, 37), axis=1),
    row("nn.layer_norm", f32(2, 3, _C), *_CHANNELS),
    row("nn.layer_norm", f32(2, 3, _C), f32(3, _C), f32(3, _C), axis=1, epsilon=1e-3),
    row("nn.rms_norm", f32(2, 3, _C), f32(_C)),
    row("nn.batch_norm", f32(2, _C, 3), *_CHANNELS, f32(_C), f32(_C, low=0.5)),
    row("nn.batch_norm", f32(2, 3, _C), *_CHANNELS, f32(_C), f32(_C, low=0.5), axis=-1, epsilon=0.1),
    row("nn.instance_norm", f32(2, _C, 3, 2), *_CHANNELS),
    row("nn.instance_norm", f32(2, 3, 2, _C), *_CHANNELS, axis=3),
    row("nn.group_norm", f32(2, _C, 3, 2), *_CHANNELS, num_groups=2),
    row("nn.group_norm", f32(2, 3, _C), *_CHANNELS, num_groups=2, axis=-1),
    row("nn.l2_normalize", f32(2, 5), axis=(1,)),
    row("nn.l2_normalize", f32(2, 3, 2), axis=(0, 2)),
    row("nn.standardize", f32(2, 5, 3), axis=(1,)),
    row("nn.standardize", f32(2, 5, 3, 2), axis=(0, 2, 3), epsilon=0.0, margin=1e-9),
    row("nn.standardize", f32(2, 5, 3), axis=(2, 1), centred=False),
    row("nn.standardize", f32(3, 5, 2, 4), axis=(-1, 0), epsilon=1e-3),
    row("nn.lrn", f32(1, 6, 2, 2)),
    row("nn.lrn", f32(1, 2, 6), size=4, axis=2, bias=1.0, alpha=0.5, beta=0.4),
    row("nn.attention", f32(1, 2, 3, 4), f32(1, 2, 5, 4), f32(1, 2, 5, 3), scale=0.5),
    row("nn.attention", f32(1, 4, 3, 4), f32(1, 2, 3, 4), f32(1, 2, 3, 4), scale=0.5, causal=True),
    row("nn.attention", f32(2, 2, 3, 4), f32(2, 2, 5, 4), f32(2, 2, 5, 4), f32(2, 1, 1, 5), scale=0.5),
    row("nn.attention", *[f32(1, 1, 2, 4)] * 3, np.array([[True, False], [False, False]]), scale=1.0),
    row("nn.attention", *[f32(1, 1, 2, 4)] * 3, np.eye(2, dtype=bool), scale=1.0, masked_value=-0.5),
    row("nn.attention", *[f32(1, 2, 3, 4)] * 3, f32(2, 1, 3), scale=2.0, softcap=0.7),
    row("nn.attention", *[f32(1, 2, 3, 4)] * 3, np.eye(3, dtype=bool), f32(2, 1, 3), scale=1.0, masked_value=-0.5),
    row("nn.attention", *[f32(1, 2, 3, 4).astype("float16")] * 3, f32(2, 1, 3), scale=0.5, rounded=True,
        tolerance=1e-3),
    row("nn.rotary_embedding", f32(2, 3, 2, 8), f32(3, 1, 8), f32(3, 1, 8)),
    row("nn.rotary_embedding", f32(2, 3, 2, 6), f32(2, 3, 1, 3), f32(2, 3, 1, 3)),
    row("nn.rotary_embedding", f32(2, 2, 6), f32(2, 3), f32(2, 3), interleaved=True),
    row("nn.rotary_embedding", f32(4), f32(4), f32(4), interleaved=True),
    row("nn.blocked_attention", *[f32(1, 3, 2, 4)] * 3, np.eye(3, dtype=bool), f32(2, 1, 3), scale=1.0, queries=4,
        panel=8, masked_value=-0.5),
    row("nn.blocked_attention", *[f32(2, 3, 2, 4)] * 3, f32(2, 1, 3, 3), f32(2, 3, 3), scale=1.0, queries=4, panel=8),
    row("nn.blocked_attention", f32(2, 9, 2, 4), f32(2, 5, 2, 4), f32(2, 5, 2, 3), scale=0.5, queries=4, panel=8),
    row("nn.blocked_attention", *[f32(1, 9, 2, 4)] * 3, scale=0.5, queries=4, panel=8, fill=4),
    row("nn.blocked_attention", f32(1, 8, 4, 3), f32(1, 9, 2, 3), f32(1, 9, 2, 17), scale=0.5, queries=8, panel=16,
        causal=True),
    row("nn.blocked_attention", *[f32(1, 5, 2, 4)] * 3, f32(2, 1, 5), scale=0.5, queries=2, panel=4),
    row("nn.blocked_attention", *[f32(1, 5, 2, 4)] * 3, f32(2, 1, 5), scale=2.0, queries=2, panel=4, softcap=0.7),
    row("nn.blocked_attention", *[f32(1, 5, 2, 4).astype("float16")] * 3, f32(2, 1, 5), scale=2.0, queries=2, panel=4,
        rounded=True, tolerance=1e-3),
    row("nn.blocked_attention", *[f32(1, 2, 1, 4)] * 3, np.array([[True, False], [False, False]]), scale=1.0,
        queries=2, panel=8),
]

_LSTM = (f32(3, 2, 20), f32(1, 2, 4, 5, 4), f32(1, 2, 5), f32(1, 2, 5))
_LSTMS = (f32(3, 2, 40), f32(2, 2, 4, 5, 4), f32(2, 2, 5), f32(2, 2, 5))
_GRU = (f32(3, 2, 12), f32(1, 2, 3, 4, 2), f32(1, 2, 4), f32(1, 4))
_GRUS = (f32(3, 2, 24), f32(2, 2, 3, 4, 2), f32(2, 2, 4), f32(2, 4))
_RNN = (f32(4, 2, 5), f32(1, 2, 1, 5, 4), f32(1, 2, 5))
_BOTH = (False, True)
_HARD = ("relu", "tanh", ("hard_sigmoid", 0.3, 0.4))
_PARAMETRIC = [
    "softsign", "softplus", ("affine", 0.5, 0.1), ("scaled_tanh", 0.5, 2.0), ("leaky_relu", 0.1),
    ("thresholded_relu", 0.3), ("elu", 0.7),
]  # fmt: skip

RECURRENT = [
    row("nn.lstm", *_LSTM, tolerance=2e-6),
    row("nn.lstm", *_LSTM, i64(2, 0), has_lengths=True, reverse=(True,), tolerance=2e-6),
    row("nn.lstm", *_LSTM, f32(1, 3, 5), i64(3, 1), has_lengths=True, has_peepholes=True, clip=0.5, tolerance=2e-6),
    row("nn.lstm", *_LSTM, activations=_HARD, input_forget=True, tolerance=4e-6),
    row("nn.lstm", *_LSTMS, f32(2, 3, 5), i64(3, 1), has_lengths=True, has_peepholes=True, reverse=_BOTH, cores=2,
        tolerance=2e-6),
    row("nn.lstm", *_LSTMS, reverse=_BOTH, cores=3, tolerance=2e-6),
    *[row("nn.lstm", f32(3, batch, 40), i32(2, 2, 4, 4, 4, low=-(1 << 15), high=1 << 15).astype(np.int16),
          f32(2, batch, 5, high=largest), f32(2, batch, 5), i64(*[2] * batch), f32(2, 20, low=-0.01, high=0.01),
          has_lengths=True, has_scales=True, reverse=_BOTH, tolerance=1e-3 * largest)
      for batch, largest in ((1, 1.0), (3, 7.0))],
    row("nn.lstm", *_LSTMS, reverse=(True, True), tolerance=2e-6),
    row("nn.gru", *_GRU, tolerance=2e-6),
    row("nn.gru", *_GRUS, reverse=_BOTH, cores=1, tolerance=2e-6),
    row("nn.gru", *_GRUS, i64(1, 3), reset_after=True, has_lengths=True, reverse=_BOTH, cores=4, tolerance=2e-6),
    row("nn.gru", *_GRU, reset_after=True, reverse=(True,), tolerance=2e-6),
    row("nn.gru", *_GRU, i64(1, 3), has_lengths=True, clip=1.0, tolerance=2e-6),
    row("nn.rnn", *_RNN, tolerance=2e-6),
    row("nn.rnn", f32(3, 2, 20), f32(1, 3, 1, 20, 8), f32(1, 2, 20), tolerance=4e-6),
    row("nn.rnn", f32(3, 1, 18), f32(1, 3, 1, 18, 8), f32(1, 1, 18), tolerance=4e-6),
    row("nn.gru", f32(3, 2, 66), f32(1, 3, 3, 22, 8), f32(1, 2, 22), f32(1, 22), tolerance=4e-6),
    *[row("nn.rnn", *_RNN, activations=(a,), tolerance=4e-6) for a in _PARAMETRIC],
    row("nn.rnn", *_RNN, i64(0, 2), has_lengths=True, reverse=(True,), activations=("relu",), tolerance=2e-6),
]

_NOTHING = np.zeros((0, 3), np.int64)

EMPTY = [
    row("nn.relu", f32(0, 3)),
    row("add", f32(0, 3), f32(3)),
    row("broadcast_to", f32(1, 3), shape=(0, 3)),
    row("concatenate", f32(2, 0), f32(2, 3), axis=1),
    row("reshape", f32(0, 3), newshape=(3, 0)),
    row("transpose", f32(0, 3, 2), axes=(2, 0, 1)),
    row("split", f32(4, 3), indices_or_sections=(0, 4)),
    row("tile", f32(2, 3), reps=(0, 1)),
    *[row(op, f32(2, 0), axis=(1,)) for op in ("sum", "prod", "max", "min")],
    row("mean", f32(0, 3), axis=(1,)),
    row("variance", f32(0, 3), axis=(1,)),
    row("variance", f32(0, 3), axis=(0,)),
    row("log_sum_exp", f32(0, 3), axis=(0,)),
    row("nn.instance_norm", f32(2, 0, 3), f32(3), f32(3), axis=2),
    row("take", f32(4, 3), i64(), axis=0),
    row("gather", f32(4, 3), _NOTHING, axis=0),
    row("scatter_elements", f32(4, 3), _NOTHING, f32(0, 3)),
    row("topk", f32(5), k=0),
    row("sort", f32(0)),
    row("cumsum", f32(0, 3), axis=1, dtype="float32"),
    row("nn.softmax", f32(0, 5)),
    row("nn.layer_norm", f32(0, 4), f32(4), f32(4)),
    row("nn.dense", f32(3, 0), f32(4, 0)),
    row("nn.batch_matmul", f32(2, 3, 0), f32(2, 4, 0)),
    row("nn.conv2d", f32(0, 3, 5, 5), f32(4, 3, 3, 3)),
    row("nn.max_pool", f32(0, 2, 6, 6), **_WINDOW),
    row("nn.pad", f32(0, 2), pad_width=((1, 2), (0, 0)), pad_value=3.0),
    row("nn.attention", f32(1, 2, 3, 4), f32(1, 2, 0, 4), f32(1, 2, 0, 3), scale=0.5),
]

_TREES = np.array(  # x[0] <= 0.5 ? (x[1] > -0.25 ? leaf : leaf) : leaf, and a tree that is a leaf
    [[0, 0, 1, 2, 1], [3, 1, 3, 4, 0], [6, 0, 0, 1, 0], [6, 0, 1, 2, 0], [6, 0, 2, 4, 0]], np.int32
)
_SPLITS = np.array([0.5, -0.25, 0, 0, 0], np.float32)
_LEAVES = (np.array([0, 1, 1, 0], np.int32), f32(4), np.array([0, 2], np.int32))
_FOREST = (pack_nodes(_TREES, _SPLITS), *_LEAVES)
_WIDE_FOREST = (pack_nodes(_TREES, _SPLITS.astype(np.float64)), *_LEAVES)
_REGIONS = (np.array([[0, 0, 5, 4], [1.5, 0.5, 3, 2.25], [-3, -3, 9, 9]], np.float32), np.array([0, 1, 1]))

_BOXES, _SCORES = f32(2, 6, 4, low=0, high=3), f32(2, 3, 6, low=0, high=1)

SPECIAL = [
    row("sizes", values=(3, 5, 7, 9), shape=(2, 2)),
    row("sizes", values=(4, 1, 7), shape=(3,)), row("sizes", values=(9, 6, 3, 0), shape=(4, 1), dtype="int32"),
    row("sizes", values=(4,), shape=(), dtype="int32"),
    row("nonzero", i32(20, low=0, high=2)),
    row("nonzero", bools(9)),
    *[
        row("vision.non_max_suppression", _BOXES, _SCORES, i64(4),
            np.array([iou], np.float32), np.array([0.2], np.float32), center=center, most=most)
        for iou, center, most in ((0.3, False, None), (0.5, True, 3), (1.0, False, 30))
    ],
    row("det", f32(3, 4, 4), tolerance=1e-5),
    row("det", f32(2, 2), tolerance=1e-5),
    row("det", np.zeros((2, 3, 3), np.float32)),
    row("inverse", f32(3, 4, 4) + 2 * np.eye(4, dtype=np.float32), tolerance=1e-4),
    row("inverse", np.array([[0, 2], [4, 0]], np.float64)),
    row("inverse", np.zeros((0, 3, 3), np.float32)),
    row("ml.pairwise_coupling", f32(5, 1, low=0.05, high=0.95), classes=2, tolerance=1e-4),
    row("ml.pairwise_coupling", f32(5, 3, low=0.05, high=0.95), classes=3, tolerance=1e-4),
    row("ml.pairwise_coupling", f32(5, 10, low=0.05, high=0.95), classes=5, tolerance=1e-4),
    *[
        row("ml.tree_ensemble", f32(count, 2, low=-1), *_FOREST, num_targets=2, aggregate=a, modes=(0, 3))
        for count, a in ((5, "sum"), (70, "min"), (5, "max"))
    ],
    row("ml.tree_ensemble", np.array([[np.nan, 0], [0, np.nan]], np.float32), *_FOREST, num_targets=3, modes=(0, 3)),
    row("ml.tree_ensemble", np.array([[0.5 + 1e-12, 0], [0.5, np.nan]]), *_WIDE_FOREST, num_targets=2, modes=(0, 3)),
    *[
        row("vision.roi_align", f32(2, 3, 6, 5), *_REGIONS, pooled_size=(2, 3), mode=mode, sample_ratio=ratio,
            half_pixel=half, tolerance=1e-5)
        for mode, ratio, half in (("avg", 2, True), ("avg", 0, False), ("max", 0, True))
    ],
    row("vision.weighted_pixels", f32(2, 9, 20), i32(2, 4, 7, low=-1), f32(2, 4, 7), tolerance=1e-5),
    row("vision.weighted_pixels", f32(2, 3, 9), i32(2, 4, 21, low=-1), f32(2, 4, 21), channels_last=False,
        tolerance=1e-5),
    row("vision.weighted_pixels", f32(1, 3, 9), i32(1, 1, 21, low=-1), channels_last=False),
    row("nn.col2im", f32(2, 12, 9), image_shape=(4, 4), block_shape=(2, 2), strides=(1, 1), dilation=(1, 1),
        padding=(0, 0, 0, 0)),
    row("nn.col2im", f32(1, 12, 4), image_shape=(5, 5), block_shape=(2, 3), strides=(2, 1), dilation=(1, 2),
        padding=(0, 1, 0, 0), tolerance=1e-5),
    *[
        row("nn.col2im", f32(2, 2 * prod(block), count), image_shape=image, block_shape=block, strides=strides,
            dilation=dilation, padding=padding, tolerance=1e-5)
        for image, block, strides, dilation, padding, count in (
            ((9, 11), (3, 3), (2, 2), (1, 1), (1, 0, 1, 1), 25),
            ((30,), (4,), (3,), (2,), (2, 3), 10),
            ((40,), (12,), (10,), (1,), (0, 5), 4),
            ((3, 4, 9), (2, 2, 2), (1, 1, 1), (1, 2, 3), (0, 0, 1, 1, 0, 0), 42),
            ((7, 3), (1, 3), (2, 1), (1, 1), (0, 1, 0, 1), 12),
        )
    ],
    *[
        row("nn.overlap_add", f32(2, *windows, groups, *taps, channels), sizes=sizes, strides=strides,
            dilation=dilation, begin=begin, tolerance=1e-5)
        for windows, groups, taps, channels, sizes, strides, dilation, begin in (
            ((3, 4), 1, (3, 3), 8, (6, 8), (2, 2), (1, 1), (1, 1)),
            ((4, 9), 1, (3, 3), 20, (9, 19), (2, 2), (2, 1), (0, 2)),
            ((5, 3), 2, (2, 3), 16, (14, 9), (3, 4), (2, 2), (1, 0)),
            ((3, 2), 3, (4, 1), 5, (12, 3), (4, 6), (2, 4), (3, 1)),
            ((11,), 1, (16,), 4, (60,), (5,), (1,), (5,)),
            ((30,), 1, (3,), 32, (62,), (2,), (3,), (0,)),
            ((2, 2, 3), 2, (3, 3, 3), 16, (4, 3, 8), (2, 2, 2), (1, 1, 1), (1, 1, 0)),
        )
    ],
    row("nn.max_pool_with_argmax", i32(2, 2, 5, 5), **_WINDOW),
    *[
        row("unpack_bits", np.arange(37, 37 + nbytes, dtype=np.uint8), newshape=shape, dtype=kind)
        for kind, shape, nbytes in (("int4", (3, 5), 8), ("uint2", (3, 3), 3), ("float4_e2m1fn", (4,), 2))
    ],
    row("nn.max_pool_with_argmax", f32(1, 2, 5, 6), **_WINDOW, column_major=True),
]  # fmt: skip

RANDOM = [
    row("random.key", seed=5),
    *[row("random.uniform", np.array([7, 3], np.uint32), shape=(3, 5), dtype=dtype, low=-1.0, high=3.0)
      for dtype in ("float16", "bfloat16", "float32", "float64")],
    row("random.normal", np.array([7, 3], np.uint32), shape=(4, 9), mean=1.0, scale=2.0, tolerance=1e-5),
]  # fmt: skip

_REAL_RESULT = {"inverse": True, "onesided": True}

FOURIER = [
    row("dft", x, dft_roots(n).astype(x.dtype), length=n, **form)
    for x, n, form in (
        (f32(3, 10, 2), 10, {"inverse": True}),
        (f32(9, 24, 2), 24, {}),
        (f32(2, 7, 1), 7, {}),
        (f32(1, 12, 1), 16, {"onesided": True}),
        (f32(3, 20, 2), 15, {}),
        (f32(2, 6, 2), 10, _REAL_RESULT),
        (f32(2, 5, 2), 9, _REAL_RESULT),
        (f32(2, 26, 1), 26, {"onesided": True}),
        (f32(2, 8, 2).astype(np.float64), 8, {}),
        (f32(2, 1, 1), 1, {}),
    )
]

QUANTISATION = [
    row("qnn.quantize", f32(3, 4, 5), np.float32(0.01), np.uint8(100)),
    row("qnn.quantize", f32(3, 4, 5), f32(4, low=0.005, high=0.02), i32(4).astype(np.int8), axis=1, out_dtype="int8"),
    row("qnn.quantize", f32(3, 5), np.float32(1e-4), np.int16(-7), out_dtype="int16"),
    row("qnn.dequantize", u8(3, 4, 5), np.float32(0.01), np.uint8(100)),
    row("qnn.dequantize", u8(3, 4, 5), f32(5, low=0.005, high=0.02), u8(5)),
    row("qnn.dequantize", i32(3, 4), f32(3, low=0.005, high=0.02), i32(3), axis=0),
    row("qnn.lookup", u8(3, 50, 5), u8(256)),
    row("qnn.lookup", u8(3, 7).view(np.int8), u8(256).view(np.int8)),
    row("qnn.lookup", u8(3, 70), f32(256)),
    row("qnn.choose_qparams", np.linspace(-1, 3, 4099, dtype=np.float32)),
    row("qnn.choose_qparams", np.linspace(2, 3, 60, dtype=np.float32).reshape(3, 4, 5)),
    row("qnn.choose_qparams", np.zeros((2, 3), np.float32)),
]

_HEADS = (f32(2, 4, 6, 5), f32(2, 4, 3, 5), f32(2, 4, 3, 7), f32(2, 3, 5, 7))
_FACTORS = {"low": 0.2, "high": 1.0}

LINEAR_ATTENTION = [
    row("nn.linear_attention", *_HEADS, scale=0.5),
    row("nn.linear_attention", *_HEADS, f32(2, 4, 3, 1, **_FACTORS), scale=0.5, has_decay=True),
    row("nn.linear_attention", *_HEADS, f32(2, 4, 1, **_FACTORS), scale=0.5, has_rate=True, tolerance=1e-5),
    row("nn.linear_attention", f32(1, 3, 3, 4), f32(1, 3, 1, 4), f32(1, 3, 1, 35), f32(1, 1, 4, 35),
        f32(1, 3, 1, 4, **_FACTORS), f32(1, 3, 1, **_FACTORS), scale=1.0, has_decay=True, has_rate=True,
        tolerance=1e-5),
    row("nn.linear_attention", *[x.astype(np.float16) for x in _HEADS[:3]], _HEADS[3], scale=0.5, tolerance=2e-3),
]

BFLOAT16 = [
    row("nn.words", bf16(f32(3, 8))),
    row("nn.dense_dot2_bfloat16", bf16_words(3, 5), bf16_words(2, 5, 4), units=7),
    row("nn.dense_dot2_bfloat16", bf16_words(6, 5), bf16_words(1, 5, 16), units=16, rows=(2, 3)),
    row("nn.conv2d_nhwc_dot2_bfloat16", bf16_words(1, 5, 6, 2), bf16_words(2, 3, 2, 2, 8), channels=13,
        strides=(2, 1), padding=(1, 0, 1, 1), dilation=(1, 2)),
]

ROWS = [
    *ELEMENTWISE,
    *BROADCAST,
    *TRANSFORM,
    *REDUCE,
    *INDEXING,
    *ACTIVATION,
    *CONVOLUTION,
    *POOLING,
    *NORMALIZATION,
    *RECURRENT,
    *SPECIAL,
    *QUANTISATION,
    *RANDOM,
    *FOURIER,
    *EMPTY,
    *LINEAR_ATTENTION,
    *BFLOAT16,
]
