"""Generators for products, convolutions, pooling, normalisation, recurrences and quantisation."""

from __future__ import annotations

import math

import numpy as np

from tests.fuzz.builder import NAMED, GraphBuilder, Value, operator
from tests.fuzz.structure import is_static

__all__: list[str] = []

REAL = ("float32", "float32", "float64")
TAME = (-50.0, 50.0)


@operator("MatMul")
def matmul(g: GraphBuilder) -> Value:
    x = g.pick(("float32", "float32", "float64", "int32"), 1, within=TAME)
    depth = x.shape[-1]
    columns = g.integer(1, 17)
    lead = [1 if g.chance(0.3) else d for d in x.shape[:-2]] if g.chance(0.4) else []
    make = g.weight if g.chance(0.7) and NAMED.isdisjoint(lead) else g.input
    y = make(x.dtype, [*lead, depth, columns])
    bound = x.largest * 2 * depth
    return g.node("MatMul", [x, y], x.dtype, [*x.shape[:-1], columns], not x.is_float and x.exact, -bound, bound)


@operator("Gemm")
def gemm(g: GraphBuilder) -> Value:
    m, k, n = (g.integer(1, 9) for _ in range(3))
    trans_a, trans_b = g.integer(0, 1), g.integer(0, 1)
    a = g.input("float32", (k, m) if trans_a else (m, k))
    b = g.weight("float32", (n, k) if trans_b else (k, n))
    bias = [g.weight("float32", g.choice([(n,), (m, n), (m, 1), ()]))] if g.chance(0.7) else []
    return g.node("Gemm", [a, b, *bias], "float32", (m, n), False, -40, 40, transA=trans_a, transB=trans_b,
                  alpha=g.choice([1.0, 0.5]), beta=g.choice([1.0, 2.0]))  # fmt: skip


@operator("Einsum")
def einsum(g: GraphBuilder) -> Value:
    equation = g.choice(["ij,jk->ik", "bij,bjk->bik", "ij,ij->i", "ij->ji", "bhid,bhjd->bhij", "i,j->ij", "ii->i"])
    sizes = {letter: g.integer(1, 5) for letter in "abcdefghijk"}
    left, right = equation.split("->")
    inputs = [g.input("float32", [sizes[letter] for letter in term]) for term in left.split(",")]
    return g.node("Einsum", inputs, "float32", [sizes[letter] for letter in right], False, -40, 40, equation=equation)


def image(g: GraphBuilder, rank: int, channels: int | None = None) -> Value:
    """A batch of images (or signals, volumes)."""
    def fits(v: Value) -> bool:
        return is_static(g, v) and min(v.shape[2:]) >= 2 and (channels is None or v.shape[1] == channels)

    found = [v for v in g.values if v.dtype == "float32" and v.rank == rank + 2 and v.largest <= 50 and fits(v)]
    if found and g.chance(0.7):
        return g.choice(found)
    sizes = [g.integer(3, 9) for _ in range(rank)]
    return g.input("float32", (g.integer(1, 2), channels or g.integer(1, 8), *sizes))


@operator("Conv", "ConvTranspose")
def convolution(g: GraphBuilder, name: str) -> Value:
    rank = g.choice([1, 2, 2, 2, 3])
    x = image(g, rank)
    channels, sizes = x.shape[1], x.shape[2:]
    group = g.choice([d for d in range(1, channels + 1) if channels % d == 0])
    per_group = g.integer(1, 5)
    kernel = [g.integer(1, 3) for _ in sizes]
    strides = [g.integer(1, 2) for _ in sizes]
    dilations = [g.integer(1, 2) for _ in sizes]
    pads = [g.integer(0, 1) for _ in range(2 * rank)]
    transposed = name == "ConvTranspose"
    out = []
    for i, d in enumerate(sizes):
        reach, both = (kernel[i] - 1) * dilations[i] + 1, pads[i] + pads[i + rank]
        out.append((d - 1) * strides[i] + reach - both if transposed else (d + both - reach) // strides[i] + 1)
    if min(out) < 1:
        raise LookupError("the kernel is larger than the image")
    weight_shape = (channels, per_group, *kernel) if transposed else (per_group * group, channels // group, *kernel)
    weight = g.weight("float32", weight_shape)
    bias = [g.weight("float32", (per_group * group,))] if g.chance(0.6) else []
    bound = x.largest * math.prod(kernel) * max(channels // group, 1) + 1
    return g.node(name, [x, weight, *bias], "float32", (x.shape[0], per_group * group, *out), False, -bound, bound,
                  group=group, kernel_shape=kernel, strides=strides, dilations=dilations, pads=pads)  # fmt: skip


@operator("MaxPool", "AveragePool", "LpPool")
def pool(g: GraphBuilder, name: str) -> Value:
    rank = g.choice([1, 2, 2, 3])
    x = image(g, rank)
    kernel = [g.integer(1, 3) for _ in range(rank)]
    strides = [g.integer(1, 2) for _ in range(rank)]
    pads = [g.integer(0, k // 2) for k in kernel] * 2
    ceil = g.integer(0, 1) if name != "LpPool" else 0
    out = []
    for i, d in enumerate(x.shape[2:]):
        span = d + pads[i] + pads[i + rank] - kernel[i]
        steps = -(-span // strides[i]) if ceil else span // strides[i]
        if ceil and steps * strides[i] >= d + pads[i]:
            steps -= 1  # a window may not begin in the padding behind
        out.append(steps + 1)
    if min(out) < 1:
        raise LookupError("the window is larger than the image")
    attributes: dict[str, object] = {"ceil_mode": ceil}
    if name == "AveragePool":
        attributes["count_include_pad"] = g.integer(0, 1)
    bound = x.largest * math.prod(kernel)
    return g.node(name, [x], "float32", (*x.shape[:2], *out), x.exact and name == "MaxPool", -bound, bound,
                  kernel_shape=kernel, strides=strides, pads=pads, **attributes)  # fmt: skip


@operator("GlobalAveragePool", "GlobalMaxPool")
def global_pool(g: GraphBuilder, name: str) -> Value:
    x = image(g, g.choice([1, 2, 3]))
    return g.node(name, [x], "float32", (*x.shape[:2], *[1] * (x.rank - 2)), False, x.low, x.high)


@operator("BatchNormalization")
def batch_norm(g: GraphBuilder) -> Value:
    x = image(g, g.choice([1, 2]))
    c = x.shape[1]
    parts = [*[g.weight("float32", (c,)) for _ in range(3)], g.weight("float32", (c,), 0.5, 2)]
    bound = (x.largest + 1) * 1.5 + 1
    return g.node("BatchNormalization", [x, *parts], "float32", x.shape, False, -bound, bound)


@operator("InstanceNormalization", "GroupNormalization")
def instance_norm(g: GraphBuilder, name: str) -> Value:
    x = image(g, g.choice([1, 2]))
    c = x.shape[1]
    parts = [g.weight("float32", (c,)), g.weight("float32", (c,))]
    attributes: dict[str, object] = {"epsilon": 0.01}
    if name == "GroupNormalization":
        attributes["num_groups"] = g.choice([d for d in range(1, c + 1) if c % d == 0])
    return g.node(name, [x, *parts], "float32", x.shape, False, -30, 30, **attributes)


@operator("LayerNormalization")
def layer_norm(g: GraphBuilder) -> Value:
    x = g.pick(("float32",), 1, within=TAME, smallest=1)
    axis = g.integer(0, x.rank - 1)
    parts = [g.weight("float32", x.shape[axis:]) for _ in range(g.integer(1, 2))]
    return g.node("LayerNormalization", [x, *parts], "float32", x.shape, False, -30, 30, axis=axis, epsilon=0.01)


@operator("LRN")
def local_response(g: GraphBuilder) -> Value:
    x = image(g, 2)
    return g.node("LRN", [x], "float32", x.shape, False, -x.largest, x.largest, size=g.choice([1, 3, 5]), bias=1.0)


@operator("LpNormalization")
def lp_norm(g: GraphBuilder) -> Value:
    x = g.input("float32", g.shape(1, 3), 0.5, 2.0)
    return g.node("LpNormalization", [x], "float32", x.shape, False, -1, 1, p=g.integer(1, 2), axis=-1)


@operator("LSTM", "GRU", "RNN")
def recurrence(g: GraphBuilder, name: str) -> Value:
    steps, batch, features, hidden = (g.integer(1, 4) for _ in range(4))
    direction = g.choice(["forward", "reverse", "bidirectional"])
    count, gates = 1 + (direction == "bidirectional"), {"LSTM": 4, "GRU": 3, "RNN": 1}[name]
    x = g.input("float32", (steps, batch, features))
    parts: list[Value | str | None] = [
        x, g.weight("float32", (count, gates * hidden, features)), g.weight("float32", (count, gates * hidden, hidden)),
    ]  # fmt: skip
    if g.chance(0.6):
        parts.append(g.weight("float32", (count, 2 * gates * hidden)))
    attributes = {"linear_before_reset": g.integer(0, 1)} if name == "GRU" else {}
    shape = (steps, count, batch, hidden)
    return g.node(name, parts, "float32", shape, False, -1, 1, hidden_size=hidden, direction=direction, **attributes)


@operator("QuantizeLinear")
def quantize(g: GraphBuilder) -> Value:
    x = g.pick(("float32",), 1, exact=True)
    kind = g.choice(["uint8", "int8"])
    zero = g.constant(g.integer(0, 9), kind)
    low, high = (0, 255) if kind == "uint8" else (-128, 127)
    return g.node("QuantizeLinear", [x, g.constant(0.03125, "float32"), zero], kind, x.shape, True, low, high)


@operator("DequantizeLinear")
def dequantize(g: GraphBuilder) -> Value:
    x = g.pick(("uint8", "int8"))
    zero = g.constant(g.integer(0, 9), x.dtype)
    return g.node("DequantizeLinear", [x, g.constant(0.125, "float32"), zero], "float32", x.shape, x.exact, -40, 40)


@operator("MatMulInteger")
def matmul_integer(g: GraphBuilder) -> Value:
    m, k, n = (g.integer(1, 9) for _ in range(3))
    a, b = g.input("uint8", (m, k), 0, 200), g.weight("int8", (k, n), -8, 8)
    zero = [g.constant(g.integer(0, 9), "uint8")] if g.chance(0.5) else []
    bound = 200.0 * 10 * k
    return g.node("MatMulInteger", [a, b, *zero], "int32", (m, n), True, -bound, bound)


@operator("GridSample")
def grid_sample(g: GraphBuilder) -> Value:
    x = image(g, 2)
    grid = g.input("float32", (x.shape[0], g.integer(1, 4), g.integer(1, 4), 2), -1.1, 1.1)
    return g.node("GridSample", [x, grid], "float32", (*x.shape[:2], *grid.shape[1:3]), False, x.low - 1, x.high + 1,
                  mode="linear", padding_mode=g.choice(["zeros", "border"]), align_corners=g.integer(0, 1))  # fmt: skip


@operator("EyeLike")
def eye_like(g: GraphBuilder) -> Value:
    x = g.pick(("float32", "int32"), 2, 2)
    return g.node("EyeLike", [x], x.dtype, x.shape, True, 0, 1, k=g.integer(-1, 1))


@operator("ConstantOfShape")
def constant_of_shape(g: GraphBuilder) -> Value:
    shape = g.shape(0, 3, smallest=0)
    return g.node("ConstantOfShape", [g.constant(list(shape), "int64")], "float32", shape, True, 0, 0)


@operator("Range")
def range_(g: GraphBuilder) -> Value:
    start, limit, delta = g.integer(-3, 3), g.integer(4, 9), g.integer(1, 3)
    inputs = [g.constant(v, "int64") for v in (start, limit, delta)]
    return g.node("Range", inputs, "int64", (len(np.arange(start, limit, delta)),), True, -3, 9)
