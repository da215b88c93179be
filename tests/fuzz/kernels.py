"""Random single operators with parameters of many kinds, for many processors, beside onnxruntime.

    python -m tests.fuzz.kernels --cases 500 [--start 0] [--kinds convolution,...] [--targets "llvm -mcpu=znver3,..."]

Networks have few of the shapes for which schedules have plans of their own; these have many: images of a pixel and of
forty, one to forty rows, strides, dilations and groups, each size fixed or dynamic. Every case is compiled for its
target in a process of its own, as LLVM may end the process, and then run, emulated where need be. Exits with 1 when a
case failed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from relayc.backend.target import Target
from tests.fuzz.blocks.check import Network, WrongNetwork, check_network, compiled_model, filled
from tests.fuzz.blocks.net import EXTENTS, Net
from tests.fuzz.isolated import outcomes
from tests.processor_emulation.emulation import emulating

__all__ = ["KINDS", "TARGETS", "check_case", "main", "random_case"]

TARGETS = (
    "x86-64-v2", "haswell", "znver3", "alderlake", "skylake-avx512", "cascadelake", "znver5", "sapphirerapids",
    "neoverse-v1", "apple-m1",
)  # fmt: skip
PRECISIONS = ("", "", "bfloat16", "float16")
_PATIENCE = 60
"""Seconds of CPU that a case may take."""


@dataclass(slots=True)
class Kernel(Net):
    """A graph of few operators, and the spans of its dynamic sizes."""

    spans: dict[str, tuple[int, int]] = field(default_factory=dict)

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def dim(self, low: int, high: int, dynamic: float = 0.6) -> int | str:
        """A size between two: a fixed one, or a name of one."""
        if not self.chance(dynamic):
            return self.integer(low, high)
        name = f"d{len(self.spans)}"
        self.spans[name] = (low, high)
        return name

    def rows(self) -> int | str:
        """A number of rows: mostly few, as plans differ for those."""
        return self.dim(1, self.choice((4, 13, 20, 40, 40, 70)))

    def before(self, x: str) -> str:
        """The operand of the kernel: an input, or what another operator computes of one."""
        return self.choice((lambda: x, lambda: x, lambda: self.op("Relu", x), lambda: self.op("Tanh", x)))()

    def after(self, y: str) -> str:
        """An epilogue."""
        return self.choice((lambda: y, lambda: self.activation(y), lambda: self.op("Add", y, y)))()


KINDS: dict[str, Callable[[Kernel], str]] = {}


def _kind(function: Callable[[Kernel], str]) -> Callable[[Kernel], str]:
    KINDS[function.__name__] = function
    return function


def _windows(k: Kernel, rank: int, kernels: tuple[int, ...]) -> tuple[list[int], dict[str, list[int]], list[int]]:
    """Kernel sizes, attributes of a window, and the least size of each axis."""
    sizes = [k.choice(kernels) for _ in range(rank)]
    strides = [k.choice((1, 1, 1, 2, 2, 3, 4)) for _ in range(rank)]
    if k.chance(0.5):
        strides = strides[:1] * rank
    dilations = [k.choice((1, 1, 1, 1, 2, 3)) for _ in range(rank)]
    reach = [(n - 1) * d + 1 for n, d in zip(sizes, dilations, strict=True)]
    if k.chance(0.6):
        pads = [r // 2 for r in reach] * 2
    else:
        pads = [k.integer(0, min(r // 2 + 1, n - 1)) for _ in "be" for r, n in zip(reach, sizes, strict=True)]
    least = [max(1, r - pads[i] - pads[i + rank]) for i, r in enumerate(reach)]
    return sizes, {"strides": strides, "dilations": dilations, "pads": pads}, least


def _image(k: Kernel, channels: int, least: list[int]) -> str:
    most = {1: (3, 40, 150), 2: (1, 4, 12, 40), 3: (1, 3, 9)}[len(least)]
    sizes = [k.dim(n, n + k.integer(0, k.choice(most))) for n in least]
    return k.input(k.dim(1, 3), channels, *sizes)


@_kind
def convolution(k: Kernel) -> str:
    rank = k.choice((1, 2, 2, 2, 3))
    channels = k.choice((1, 3, 4, 8, 12, 16, 24, 30, 32, 64, 65, 96, 128) if rank < 3 else (1, 3, 8, 16, 33, 64))
    outputs = k.choice((1, 2, 5, 8, 16, 24, 32, 33, 48, 64, 72, 100, 128))
    group = k.choice([g for g in (1, 1, 1, 2, 3, 4, channels) if channels % g == 0])
    outputs = -(-outputs // group) * group if group < channels else channels * k.choice((1, 1, 1, 2))
    sizes, window, least = _windows(k, rank, (1, 1, 3, 3, 3, 5, 7) if rank < 3 else (1, 3, 3))
    x = k.before(_image(k, channels, least))
    operands = [k.weight(outputs, channels // group, *sizes), *([k.bias(outputs)] if k.chance(0.7) else [])]
    y = k.after(k.op("Conv", x, *operands, group=group, **window))
    if k.chance(0.2):
        return k.transpose(y, 0, *range(2, rank + 2), 1)
    return y


@_kind
def stem(k: Kernel) -> str:
    rank = k.choice((1, 2, 2, 2, 3))
    channels, outputs = k.choice((1, 2, 3, 3, 3, 4, 5, 6, 7)), k.choice((1, 8, 16, 24, 32, 33, 64, 96))
    sizes, window, least = _windows(k, rank, (3, 3, 4, 5, 7, 11) if rank < 3 else (3, 5))
    x = k.before(_image(k, channels, least))
    return k.after(k.op("Conv", x, k.weight(outputs, channels, *sizes), k.bias(outputs), **window))


@_kind
def transposed_convolution(k: Kernel) -> str:
    rank = k.choice((1, 2, 2, 2, 3))
    channels, outputs = k.choice((1, 3, 8, 16, 32, 40, 64)), k.choice((1, 3, 8, 16, 30, 64))
    group = k.choice([g for g in (1, 1, 1, 2, channels) if channels % g == 0])
    if group == channels and k.chance(0.7):
        outputs = channels
    outputs = -(-outputs // group)
    sizes = [k.choice((1, 2, 3, 4, 5, 8) if rank < 3 else (2, 3)) for _ in range(rank)]
    strides, dilations = [k.choice((1, 2, 2, 3)) for _ in range(rank)], [k.choice((1, 1, 1, 2)) for _ in range(rank)]
    pads = [k.integer(0, n // 2) for _ in "be" for n in sizes]
    extra = [k.integer(0, max(s, d) - 1) if k.chance(0.3) else 0 for s, d in zip(strides, dilations, strict=True)]
    x = k.before(_image(k, channels, [k.choice((1, 2, 4)) for _ in sizes]))
    weight = k.weight(channels, outputs, *sizes)
    return k.after(k.op("ConvTranspose", x, weight, k.bias(outputs * group), strides=strides, pads=pads, group=group,
                        dilations=dilations, output_padding=extra))  # fmt: skip


@_kind
def product(k: Kernel) -> str:
    depth, width = (k.choice((1, 3, 8, 16, 17, 64, 100, 130, 256, 500, 768)) for _ in "kn")
    transposed = k.chance(0.3)
    weight = k.weight(width, depth) if transposed else k.weight(depth, width, depth=depth)
    if k.chance(0.4):
        x = k.before(k.input(k.rows(), depth))
        return k.after(k.op("Gemm", x, weight, k.bias(width), transB=int(transposed)))
    x = k.before(k.input(*[k.dim(1, 3) for _ in range(k.integer(0, 2))], k.rows(), depth))
    y = k.op("MatMul", x, k.transpose(weight, 1, 0) if transposed else weight)
    return k.after(k.op("Add", y, k.bias(width)) if k.chance(0.7) else y)


@_kind
def batched_product(k: Kernel) -> str:
    batch = [k.dim(1, 4) for _ in range(k.integer(1, 2))]
    m, n, depth = k.rows(), k.dim(1, 70), k.choice((k.dim(1, 70), 8, 16, 64, 80))
    a = k.before(k.input(*batch, m, depth))
    if k.chance(0.4):
        b = k.input(*batch, n, depth)
        b = k.transpose(b, *range(len(batch)), len(batch) + 1, len(batch))
    else:
        b = k.input(*batch, depth, n)
    return k.after(k.op("MatMul", a, b))


@_kind
def attention(k: Kernel) -> str:
    heads, size = k.choice((1, 2, 3, 4, 8)), k.choice((4, 8, 16, 32, 40, 64, 80))
    batch, queries = k.dim(1, 3), k.rows()
    keys = queries if k.chance(0.5) else k.dim(1, 90)
    q, key, v = (k.input(batch, heads, n, size) for n in (queries, keys, keys))
    scores = k.op("Mul", k.op("MatMul", q, k.transpose(key, 0, 1, 3, 2)), k.number(size**-0.5))
    if k.chance(0.4):
        scores = k.op("Add", scores, k.input(batch, 1, queries, keys))
    y = k.op("MatMul", k.op("Softmax", scores, axis=-1), v)
    if k.chance(0.5):
        y = k.op("Reshape", k.transpose(y, 0, 2, 1, 3), k.ints(0, 0, heads * size))
    return y


@_kind
def pooling(k: Kernel) -> str:
    rank, channels = k.choice((1, 2, 2, 2, 3)), k.choice((1, 3, 8, 16, 17, 33, 64))
    sizes, window, least = _windows(k, rank, (2, 3, 3, 5, 7))
    window["pads"] = [min(p, n - 1) for p, n in zip(window["pads"], sizes * 2, strict=True)]
    x = k.before(_image(k, channels, [n + 3 * d for n, d in zip(least, window["dilations"], strict=True)]))
    kind = k.choice(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
    if kind.startswith("Global"):
        return k.after(k.op(kind, x))
    how = {"count_include_pad": k.choice((0, 1))} if kind == "AveragePool" else {}
    return k.after(k.op(kind, x, kernel_shape=sizes, ceil_mode=k.choice((0, 0, 1)), **window, **how))


@_kind
def norm(k: Kernel) -> str:
    width = k.choice((1, 3, 8, 17, 48, 64, 100, 256, 515))
    which = k.integer(0, 4)
    if which < 2:
        x = k.before(k.input(*[k.dim(1, 5) for _ in range(k.integer(0, 2))], k.rows(), width))
        if which:
            return k.after(k.op("LayerNormalization", x, k.bias(width), k.bias(width), axis=-1))
        return k.after(k.layer_norm(x, width))
    if which == 2:
        return k.op("LpNormalization", k.input(k.rows(), k.dim(1, 300)), axis=k.choice((0, 1)), p=k.choice((1, 2)))
    channels = k.choice((4, 8, 12, 32, 64))
    x = k.before(k.input(k.dim(1, 3), channels, *[k.dim(2, 30) for _ in range(k.integer(1, 2))]))
    if which == 3:
        return k.after(k.op("InstanceNormalization", x, k.bias(channels), k.bias(channels)))
    y = k.op("Reshape", x, k.ints(0, k.choice((2, 4)), -1))
    y = k.op("Sub", y, k.op("ReduceMean", y, k.ints(2)))
    y = k.op("Div", y, k.op("Sqrt", k.op("Add", k.op("ReduceMean", k.op("Mul", y, y), k.ints(2)), k.number(1e-5))))
    return k.after(k.op("Reshape", y, k.op("Shape", x)))


@_kind
def softmax(k: Kernel) -> str:
    shape = [k.dim(1, 4) for _ in range(k.integer(0, 2))] + [k.dim(1, k.choice((3, 20, 90, 400))) for _ in "ab"]
    x = k.before(k.input(*shape))
    return k.after(k.op(k.choice(("Softmax", "Softmax", "LogSoftmax")), x, axis=k.integer(-len(shape), -1)))


@_kind
def reduction(k: Kernel) -> str:
    shape = [k.dim(1, k.choice((1, 4, 17, 33, 130))) for _ in range(k.integer(1, 4))]
    x = k.before(k.input(*shape))
    kind = k.choice(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp",
                     "ReduceSumSquare", "ReduceL1", "ArgMax", "ArgMin"))  # fmt: skip
    if kind.startswith("Arg"):
        which = k.op(kind, x, axis=k.integer(0, len(shape) - 1), keepdims=k.choice((0, 1)))
        return k.real(which)
    axes = k.rng.sample(range(len(shape)), k.integer(1, len(shape)))
    return k.after(k.op(kind, x, k.ints(*axes), keepdims=k.choice((0, 1))))


@_kind
def scan(k: Kernel) -> str:
    shape = [k.dim(1, k.choice((1, 4, 17, 90))) for _ in range(k.integer(1, 3))]
    x = k.before(k.input(*shape))
    axis = k.integer(0, len(shape) - 1)
    return k.op("CumSum", x, k.whole(axis), exclusive=k.choice((0, 1)), reverse=k.choice((0, 1)))


@_kind
def resize(k: Kernel) -> str:
    x = k.before(k.input(k.dim(1, 3), k.choice((1, 3, 8, 17)), k.dim(1, 24), k.dim(1, 24)))
    mode = k.choice(("nearest", "linear", "cubic"))
    where = k.choice(("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"))
    narrow = mode != "nearest" and where in ("half_pixel", "pytorch_half_pixel") and k.chance(0.3)
    how: dict[str, Any] = {"antialias": int(narrow)} if mode != "nearest" else {"nearest_mode": "floor"}
    if where != "align_corners" and k.chance(0.5):  # onnxruntime's corners are not ONNX's where extents are rounded
        scales = [1, 1, *[k.choice((0.5, 1.5, 2, 2, 3, 4)) for _ in "hw"]]
        return k.after(k.op("Resize", x, "", k.constant(scales, "float32"), mode=mode,
                            coordinate_transformation_mode=where, **how))  # fmt: skip
    size = k.sizes(k.op("Shape", x, start=0, end=2), *[k.integer(1, 50) for _ in "hw"])
    return k.after(k.op("Resize", x, "", "", size, mode=mode, coordinate_transformation_mode=where, **how))


@_kind
def movement(k: Kernel) -> str:
    rank = k.integer(2, 4)
    shape = [k.dim(2, k.choice((3, 9, 33, 70)) if rank < 4 else 12) for _ in range(rank)]
    return k.after(_moved(k, k.before(k.input(*shape)), rank, k.number(0.5)))


@_kind
def movement_of_integers(k: Kernel) -> str:
    """Elements of one to eight bytes, whose lines end in vectors of a few bytes."""
    dtype, rank = k.choice(_INTEGERS), k.integer(1, 4)
    shape = [k.dim(2, k.choice((3, 9, 33, 70, 200)) if rank < 4 else 12) for _ in range(rank)]
    x = _moved(k, k.integers(*shape, low=0, high=100, dtype=dtype), rank, k.constant(7, dtype))
    if k.chance(0.4):
        return k.real(x)
    k.dtypes[x] = dtype
    return x


_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "int64")


def _moved(k: Kernel, x: str, rank: int, filling: str) -> str:
    for _ in range(k.integer(1, 3)):
        which, axis = k.integer(0, 5), k.integer(0, rank - 1)
        if which == 0:
            x = k.transpose(x, *k.rng.sample(range(rank), rank))
        elif which == 1:
            x = k.op("Concat", x, k.op("Identity", x), axis=axis)
        elif which == 2:
            x = k.slice(x, axis, k.choice((0, 1, -2)), k.choice((2**31, 5)), k.choice((1, 1, 2)))
            if k.chance(0.5):
                x = k.op("Concat", x, x, axis=axis)
        elif which == 3:
            pads = [k.integer(0, 3) if i % rank == axis else 0 for i in range(2 * rank)]
            x = k.op("Pad", x, k.ints(*pads), filling, mode=k.choice(("constant", "edge")))
        elif which == 4:
            x = k.op("Concat", x, k.slice(x, axis, -1, -(2**31), -1), axis=axis)
        else:
            x = k.op("Gather", x, k.ints(*[k.choice((0, 1, -1)) for _ in range(k.integer(1, 5))]), axis=axis)
    return x


@_kind
def arithmetic_of_integers(k: Kernel) -> str:
    dtype = k.choice(_INTEGERS)
    shape = [k.dim(1, k.choice((1, 4, 17, 33, 130))) for _ in range(k.integer(1, 4))]
    x = k.integers(*shape, low=0, high=60, dtype=dtype)
    which = k.choice(("reduce", "extremum", "sum", "with", "compared", "cast", "position"))
    if which == "sum":
        if dtype != "int64":
            x, dtype = k.op("Cast", x, to=TensorProto.INT32), "int32"
        x = k.op("CumSum", x, k.whole(k.integer(0, len(shape) - 1)), reverse=k.choice((0, 1)))
    elif which in ("reduce", "extremum"):
        kind = "ReduceSum" if which == "reduce" else k.choice(("ReduceMax", "ReduceMin"))
        if dtype not in (("int32", "int64") if which == "reduce" else ("int8", "uint8", "int32", "int64")):
            x, dtype = k.op("Cast", x, to=TensorProto.INT32), "int32"
        axes = k.rng.sample(range(len(shape)), k.integer(1, len(shape)))
        x = k.op(kind, x, k.ints(*axes), keepdims=k.choice((0, 1)))
    elif which == "with":
        x = k.op(k.choice(("Add", "Sub", "Mul", "Max", "Min")), x, k.integers(*shape[-1:], low=0, high=4, dtype=dtype))
    elif which == "compared":
        x = k.op("Greater", x, k.integers(*shape[-1:], low=0, high=60, dtype=dtype))
        dtype = "bool"
    elif which == "position":
        x = k.op(k.choice(("ArgMax", "ArgMin")), x, axis=k.integer(0, len(shape) - 1), keepdims=k.choice((0, 1)))
        dtype = "int64"
    else:
        dtype = k.choice((*_INTEGERS, "float32"))
        x = k.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    k.dtypes[x] = dtype
    return x


def _quantised(k: Kernel, x: str, scale: float, dtype: str, zero: int) -> str:
    pair = k.number(scale), k.constant(zero, dtype)
    return k.op("DequantizeLinear", k.op("QuantizeLinear", x, *pair), *pair)


def _codes(k: Kernel, shape: tuple[int, ...], axis: int, depth: int, dtype: str = "int8") -> str:
    """Dequantised weights."""
    low, high = {"int8": (-127, 127), "uint8": (0, 255)}[dtype]
    per_channel = k.chance(0.6)
    codes = k.constant(k.numbers.integers(low, high + 1, shape), dtype)
    size = (shape[axis],) if per_channel else ()
    scale = k.constant(k.numbers.uniform(0.5, 1.5, size) / 127 / np.sqrt(depth), "float32")
    zero = k.constant(np.full(size, 0 if dtype == "int8" else 128), dtype)
    return k.op("DequantizeLinear", codes, scale, zero, **({"axis": axis} if per_channel else {}))


@_kind
def quantised_convolution(k: Kernel) -> str:
    rank = k.choice((1, 2, 2, 2, 2, 3))
    channels = k.choice((1, 3, 4, 8, 12, 16, 20, 32, 33, 64, 96))
    outputs = k.choice((1, 5, 8, 16, 24, 32, 33, 48, 64, 72))
    group = k.choice([g for g in (1, 1, 1, 2, channels) if channels % g == 0])
    outputs = -(-outputs // group) * group if group < channels else channels
    sizes, window, least = _windows(k, rank, (1, 1, 3, 3, 3, 5, 7) if rank < 3 else (1, 3))
    dtype, zero = k.choice((("uint8", 0), ("uint8", 128), ("uint8", 113), ("int8", 0), ("int8", -7)))
    x = _quantised(k, _image(k, channels, least), 0.03, dtype, zero)
    depth = channels // group * int(np.prod(sizes))
    weight = _codes(k, (outputs, channels // group, *sizes), 0, depth)
    y = k.op("Conv", x, weight, *([k.bias(outputs)] if k.chance(0.7) else []), group=group, **window)
    y = k.op("Relu", y) if k.chance(0.4) else y
    return _quantised(k, y, 0.03, dtype, zero) if k.chance(0.8) else y


@_kind
def quantised_product(k: Kernel) -> str:
    depth, width = (k.choice((3, 8, 16, 17, 64, 100, 130, 256, 500)) for _ in "kn")
    dtype, zero = k.choice((("uint8", 0), ("uint8", 128), ("uint8", 113), ("int8", 0), ("int8", -7)))
    x = k.input(*[k.dim(1, 3) for _ in range(k.integer(0, 2))], k.rows(), depth)
    if k.chance(0.4):
        codes, scale, point = k.ops("DynamicQuantizeLinear", 3, x)
        weight = k.constant(k.numbers.integers(-127, 128, (depth, width)), k.choice(("int8",)))
        y = k.op("MatMulInteger", codes, weight, point, k.constant(0, "int8"))
        y = k.op("Mul", k.real(y), k.op("Mul", scale, k.number(1 / 127 / np.sqrt(depth))))
        return k.after(y)
    x = _quantised(k, x, 0.03, dtype, zero)
    y = k.op("MatMul", x, _codes(k, (depth, width), 1, depth, k.choice(("int8", "uint8"))))
    y = k.op("Add", y, k.bias(width)) if k.chance(0.6) else y
    return _quantised(k, y, 0.03, dtype, zero) if k.chance(0.8) else y


@_kind
def blocks_of_bits(k: Kernel) -> str:
    bits, size = k.choice((4, 4, 8)), k.choice((16, 32, 32, 64, 128, 256))
    blocks, width = k.integer(1, max(2, 512 // size)), k.choice((16, 32, 48, 64, 100, 128, 160, 250, 512))
    depth = blocks * size
    codes = k.constant(k.numbers.integers(0, 256, (width, blocks, size * bits // 8)), "uint8")
    scale = k.constant(k.numbers.uniform(0.2, 1.0, width * blocks) / 2 ** (bits - 1) / np.sqrt(depth), "float32")
    zeros = k.constant(k.numbers.integers(0, 256, width * ((blocks * bits + 7) // 8)), "uint8")
    x = k.before(k.input(*[k.dim(1, 3) for _ in range(k.integer(0, 1))], k.rows(), depth))
    y = k.ops("MatMulNBits", 1, x, codes, scale, *([zeros] if k.chance(0.4) else []), domain="com.microsoft", K=depth,
              N=width, bits=bits, block_size=size, accuracy_level=k.choice((0, 4, 4)))[0]  # fmt: skip
    return k.after(y)


_QUANTISED = ("quantised_convolution", "quantised_product", "blocks_of_bits")


def random_case(seed: int, kind: str) -> Network:
    """The case of a seed and a kind, with inputs of several sizes."""
    k = Kernel(random.Random(f"{kind}{seed}"), np.random.default_rng(seed), EXTENTS["small"])
    result = KINDS[kind](k)
    runs = [{d: k.integer(*span) for d, span in k.spans.items()} for _ in range(5 if k.spans else 1)]
    runs.append({d: span[0] for d, span in k.spans.items()})
    inputs = [{name: filled(k, value, sizes) for name, value in k.inputs.items()} for sizes in runs]
    quantum = 0.07 if kind in _QUANTISED else 0.0
    return Network(seed, k.model([result]), [(kind, result)], [*inputs, inputs[0]], k, quantum)



def check_case(seed: int, kind: str, processor: str, precision: str) -> None:
    """Compile a case for a processor, and compare it with onnxruntime. Raises `WrongNetwork`."""
    case, target = random_case(seed, kind), f"llvm -mcpu={processor} -num-cores=2"
    if target_needs_emulation(target):
        compiled_model(case.model, target, precision)  # as LLVM compiles it for the processor
        with emulating():
            check_network(case, target, precision)
    else:
        check_network(case, target, precision)


def target_needs_emulation(target: str) -> bool:
    """Whether this machine lacks instructions of the target."""
    return not Target(target).features <= Target("llvm").features


def main(arguments: list[str] | None = None) -> int:
    """Check the cases of the seeds from `start` on; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--kinds", default=",".join(KINDS), help="that seeds take in turns")
    parser.add_argument("--targets", default=",".join(TARGETS), help="LLVM's names of processors, taken in turns")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="taken in turns")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    options = parser.parse_args(arguments)
    os.environ["RELAYC_CACHE_DIR"] = "off"
    kinds, targets, precisions = (text.split(",") for text in (options.kinds, options.targets, options.precisions))

    def drawn(seed: int) -> tuple[str, str, str]:
        numbers = random.Random(seed)
        return kinds[seed % len(kinds)], numbers.choice(targets), numbers.choice(precisions)

    def attempt(seed: int) -> str:
        warnings.simplefilter("ignore")
        try:
            check_case(seed, *drawn(seed))
        except WrongNetwork as wrong:
            return str(wrong)
        except Exception as error:  # noqa: BLE001 - it is reported
            return f"{type(error).__name__}: {error}"
        return "runs"

    failed = done = 0
    end = time.monotonic() + options.seconds
    for seed, outcome in outcomes(range(options.start, options.start + options.cases), attempt, _PATIENCE):
        done += 1
        if outcome != "runs":
            failed += 1
            print(f"seed {seed}, {', '.join(drawn(seed))}: {outcome}", flush=True)
        if done % 200 == 0:
            print(f"{done} cases, {failed} failed", flush=True)
        if time.monotonic() > end:
            break
    print(f"{failed} of {done} cases failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
