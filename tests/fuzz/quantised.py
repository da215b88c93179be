"""Generators for quantised operators and for QDQ pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.fuzz.builder import GraphBuilder, Value, operator

__all__: list[str] = []

_RANGES = {
    "uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767), "int4": (-8, 7),
    "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3), "float8_e4m3fn": (-448, 448), "float8_e5m2": (-57344, 57344),
    "float8_e4m3fnuz": (-240, 240), "float8_e5m2fnuz": (-57344, 57344), "float4_e2m1fn": (-6, 6),
}  # fmt: skip


def _granularity(g: GraphBuilder, op: str, x: Value) -> tuple[tuple[int, ...], dict[str, int]]:
    """The shape of scales for a tensor - one, one along an axis, one for each block - and the attributes for it."""
    axis = g.integer(0, x.rank - 1)
    if g.opset < 13 or not x.is_static or g.chance(0.6):
        return (), {}
    if g.has(op, "block_size") and g.chance(0.4):
        size = g.integer(1, 4)
        shape = [-(-d // size) if i == axis else d for i, d in enumerate(x.shape)]
        return tuple(shape), {"axis": axis, "block_size": size}
    return (x.shape[axis],), {"axis": axis - x.rank if g.chance(0.3) else axis}


def _zero_point(g: GraphBuilder, kind: str, shape: Sequence[int]) -> str:
    high = 0 if kind.startswith("float") else min(_RANGES[kind][1], 7)
    return g.constant(g.numbers.integers(0, high + 1, shape), kind)


@operator("QuantizeLinear", weight=2)
def quantize(g: GraphBuilder) -> Value:
    x = g.pick(("float32",), 1, exact=True, within=(-16, 16), smallest=1)
    kind = g.choice(g.types("QuantizeLinear", ("uint8", "int8", *_RANGES), 2))
    shape, attributes = _granularity(g, "QuantizeLinear", x)
    scale = np.full(shape, 2.0**-3, np.float32) * g.numbers.choice([1.0, 0.5, 2.0], shape).astype(np.float32)
    inputs: list[Value | str | None] = [x, g.constant(scale, "float32")]
    if kind != "uint8" or g.chance(0.8):
        inputs.append(_zero_point(g, kind, shape))
    return g.node("QuantizeLinear", inputs, kind, x.shape, True, *_RANGES[kind], **attributes)


@operator("DequantizeLinear", weight=2)
def dequantize(g: GraphBuilder) -> Value:
    kinds = g.types("DequantizeLinear", ("uint8", "int8", "int32", *_RANGES))
    x = g.pick(kinds, 1, within=(-60000, 70000), smallest=1)
    shape, attributes = _granularity(g, "DequantizeLinear", x)
    scale = g.constant(np.full(shape, 0.125, np.float32) * g.numbers.choice([1.0, 0.5], shape), "float32")
    inputs: list[Value | str | None] = [x, scale]
    if x.dtype != "int32" and g.chance(0.8):
        inputs.append(_zero_point(g, x.dtype, shape))
    bound = (x.largest + 8) / 8
    return g.node("DequantizeLinear", inputs, "float32", x.shape, x.exact, -bound, bound, **attributes)


@operator("DynamicQuantizeLinear")
def dynamic_quantize(g: GraphBuilder) -> Value:
    x = g.pick(("float32",), 1, 4, exact=True, smallest=1)
    value = g.node("DynamicQuantizeLinear", [x], "uint8", x.shape, True, 0, 255, outputs=3)
    g.also(1, value, "float32", (), False, 0, 1)
    return value


@operator("MatMulInteger")
def matmul_integer(g: GraphBuilder) -> Value:
    m, k, n = (g.choice([g.integer(1, 9), g.integer(10, 40)]) for _ in range(3))
    kinds = g.choice([("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
    lead = g.choice([(), (), (2,)])
    a, b = g.input(kinds[0], (*lead, m, k), -100, 100), g.operand(kinds[1], (k, n), -8, 8)
    zero = [g.constant(g.integer(0, 9), kinds[0])] if g.chance(0.5) else []
    if zero and g.chance(0.5):
        zero.append(g.constant(g.integer(0, 5), kinds[1]))
    bound = 200.0 * 13 * k
    return g.node("MatMulInteger", [a, b, *zero], "int32", (*lead, m, n), True, -bound, bound)


@operator("QLinearMatMul")
def qlinear_matmul(g: GraphBuilder) -> Value:
    m, k, n = (g.integer(1, 9) for _ in range(3))
    kind = g.choice(["uint8", "int8"])
    a, b = g.input(kind, (m, k), 0, 100), g.operand(kind, (k, n), 0, 20)
    scale = [g.constant(2.0**-p, "float32") for p in (4, 3, 1)]
    zero = [g.constant(g.integer(0, 5), kind) for _ in range(3)]
    inputs = [a, scale[0], zero[0], b, scale[1], zero[1], scale[2], zero[2]]
    return g.node("QLinearMatMul", inputs, kind, (m, n), True, *_RANGES[kind])


@operator("ConvInteger")
def conv_integer(g: GraphBuilder) -> Value:
    n, c, h, w, m, k = (g.integer(1, 2), g.integer(1, 4), *[g.integer(3, 7) for _ in range(2)], g.integer(1, 5), 3)
    x, weight = g.input("uint8", (n, c, h, w), 0, 200), g.operand("uint8", (m, c, k, k), 0, 9)
    zero = [g.constant(g.integer(0, 9), "uint8") for _ in range(g.integer(0, 2))]
    bound = 200.0 * 9 * c * 9
    return g.node("ConvInteger", [x, weight, *zero], "int32", (n, m, h, w), True, -bound, bound, pads=[1, 1, 1, 1])


@operator("QLinearConv")
def qlinear_conv(g: GraphBuilder) -> Value:
    n, c, h, w, m = g.integer(1, 2), g.integer(1, 4), g.integer(3, 7), g.integer(3, 7), g.integer(1, 5)
    kind = g.choice(["uint8", "int8"])
    x, weight = g.input(kind, (n, c, h, w), 0, 100), g.operand(kind, (m, c, 3, 3), 0, 9)
    scale = [g.constant(2.0**-p, "float32") for p in (4, 3, 1)]
    zero = [g.constant(g.integer(0, 5), kind) for _ in range(3)]
    bias = [g.constant(g.numbers.integers(-50, 50, (m,)), "int32")] if g.chance(0.5) else []
    inputs = [x, scale[0], zero[0], weight, scale[1], zero[1], scale[2], zero[2], *bias]
    return g.node("QLinearConv", inputs, kind, (n, m, h - 2, w - 2), True, *_RANGES[kind])
