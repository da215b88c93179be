"""Generators for quantised operators and for QDQ pairs."""

from __future__ import annotations

import numpy as np

from tests.fuzz.builder import GraphBuilder, Value, operator

__all__: list[str] = []

_RANGES = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767),
           "int4": (-8, 7), "uint4": (0, 15), "float8_e4m3fn": (-448, 448), "float8_e5m2": (-57344, 57344)}  # fmt: skip


@operator("QuantizeLinear", weight=2)
def quantize(g: GraphBuilder) -> Value:
    x = g.pick(("float32",), 1, exact=True, within=(-16, 16))
    kinds = ["uint8", "int8"]
    if g.opset >= 21:
        kinds += ["uint8", "int8", "uint16", "int16", "int4", "uint4"]
    kind = g.choice(kinds)
    axis = g.integer(0, x.rank - 1)
    along = g.opset >= 13 and x.is_static and g.chance(0.3)
    shape = (x.shape[axis],) if along else ()
    scale = np.full(shape, 2.0**-3, np.float32) * g.numbers.choice([1.0, 0.5, 2.0], shape).astype(np.float32)
    zero = g.constant(g.numbers.integers(0, 8, shape), kind)
    attributes = {"axis": axis} if along else {}
    return g.node("QuantizeLinear", [x, g.constant(scale, "float32"), zero], kind, x.shape, True, *_RANGES[kind],
                  **attributes)  # fmt: skip


@operator("DequantizeLinear", weight=2)
def dequantize(g: GraphBuilder) -> Value:
    kinds = ("uint8", "int8", "int32") if g.opset < 21 else ("uint8", "int8", "uint16", "int16", "int4", "uint4")
    x = g.pick(kinds, 1, within=(-40000, 70000))
    axis = g.integer(0, x.rank - 1)
    along = g.opset >= 13 and x.is_static and g.chance(0.3)
    shape = (x.shape[axis],) if along else ()
    scale = g.constant(np.full(shape, 0.125, np.float32) * g.numbers.choice([1.0, 0.5], shape), "float32")
    inputs: list[Value | str | None] = [x, scale]
    if x.dtype != "int32" and g.chance(0.8):
        inputs.append(g.constant(g.numbers.integers(0, 8, shape), x.dtype))
    bound = (x.largest + 8) / 8
    attributes = {"axis": axis} if along else {}
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
