"""Generators for products, convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.fuzz.builder import FLOATS, GraphBuilder, Value, operator
from tests.fuzz.dims import Symbolic, is_symbolic

__all__ = ["image"]

TAME = (-50.0, 50.0)


@operator("MatMul", weight=4)
def matmul(g: GraphBuilder) -> Value:
    x = g.pick(g.types("MatMul", (*FLOATS, "int32", "int64")), 1, 5, within=TAME)
    depth = x.shape[-1]
    if g.chance(0.1):
        y = g.operand(x.dtype, (depth,))
        shape: list[int] = [*x.shape[:-1]]
    else:
        columns = g.choice([g.integer(1, 17), g.integer(30, 70)]) if x.rank < 4 else g.integer(1, 17)
        lead = [1 if g.chance(0.3) else d for d in x.shape[:-2]] if g.chance(0.4) else []
        y = g.operand(x.dtype, [*lead, depth, columns])
        shape = [*x.shape[:-1], columns]
    bound = x.largest * 2 * depth
    return g.node("MatMul", [x, y], x.dtype, shape, not x.is_float and x.exact, -bound, bound)


@operator("Gemm", weight=2)
def gemm(g: GraphBuilder) -> Value:
    m, k, n = (g.choice([g.integer(1, 9), g.integer(10, 70)]) for _ in range(3))
    m = Symbolic.named("batch") if g.dynamic else m
    trans_a, trans_b = g.integer(0, 1), g.integer(0, 1)
    dtype = g.choice(g.types("Gemm", ("float32", "float32", "float64", "float16", "bfloat16")))
    a = g.input(dtype, (k, m) if trans_a else (m, k))
    b = g.operand(dtype, (n, k) if trans_b else (k, n))
    old = {"broadcast": 1} if g.opset < 7 else {}
    shapes: list[tuple[int, ...]] = [(n,), *([] if old else [(1, n), (m, n), (m, 1), (), (1,)])]
    bias = [g.operand(dtype, g.choice(shapes))] if old or g.opset < 11 or g.chance(0.7) else []
    bound = 4.0 * k + 4
    return g.node("Gemm", [a, b, *bias], dtype, (m, n), False, -bound, bound, transA=trans_a, transB=trans_b,
                  alpha=g.choice([1.0, 0.5]), beta=g.choice([1.0, 2.0]), **old)  # fmt: skip


_EQUATIONS = ("ij,jk->ik", "bij,bjk->bik", "ij,ij->i", "ij->ji", "bhid,bhjd->bhij", "i,j->ij", "ii->i", "ij->", "i,i->",
              "bij,jk,bk->bi", "ijk->kji", "bi,bi->b", "ij,jk")  # fmt: skip


@operator("Einsum", weight=2)
def einsum(g: GraphBuilder) -> Value:
    equation = g.choice(_EQUATIONS)
    sizes: dict[str, int] = {letter: g.integer(1, 5) for letter in "abcdefghijk"}
    if g.dynamic and "ii" not in equation:
        sizes["b"] = Symbolic.named("batch")
    left, _, right = equation.partition("->")
    right = right if "->" in equation else "ik"
    dtype = g.choice(["float32", "float32", "float64", "int32"])
    inputs = [g.input(dtype, [sizes[letter] for letter in term]) for term in left.split(",")]
    bound = 2.0 ** len(inputs) * math.prod([sizes[c] for c in set(left) & set(sizes) if c not in right])
    return g.node("Einsum", inputs, dtype, [sizes[letter] for letter in right], dtype == "int32", -bound, bound,
                  equation=equation)  # fmt: skip


@operator("Det")
def determinant(g: GraphBuilder) -> Value:
    n = g.integer(1, 4)
    x = g.input("float32", (*g.shape(0, 2), n, n))
    return g.node("Det", [x], "float32", x.shape[:-2], False, -400, 400)


def image(g: GraphBuilder, rank: int, channels: int | None = None, dtypes: Sequence[str] = ("float32",)) -> Value:
    """A batch of images (or signals, volumes)."""

    def fits(v: Value) -> bool:
        return not is_symbolic(v.shape[1:]) and min(v.shape[2:], default=2) >= 2 and channels in (None, v.shape[1])

    found = [v for v in g.values if v.dtype in dtypes and v.rank == rank + 2 and v.largest <= 50 and v.size and fits(v)]
    if found and g.chance(0.7):
        return g.choice(found)
    large = rank < 3 and g.chance(0.2)  # enough for whole register tiles, and for what is left over
    sizes = [g.integer(8, 20) if large else g.integer(3, 9) for _ in range(rank)]
    if g.dynamic and g.chance(0.25):
        sizes[-1] = Symbolic.named("length")
    batch = Symbolic.named("batch") if g.dynamic and g.chance(0.6) else g.integer(1, 2)
    return g.input(g.choice(dtypes), (batch, channels or g.choice([g.integer(1, 8), 16, 32 if large else 3]), *sizes))


def _fitting(pads: list[int], sizes: Sequence[int]) -> list[int]:
    """Padding with which a window of three fits into symbolic dimensions of any size."""
    return [1 if isinstance(sizes[i % len(sizes)], Symbolic) else p for i, p in enumerate(pads)]


@operator("Conv", "ConvTranspose", weight=5)
def convolution(g: GraphBuilder, name: str) -> Value:
    rank = g.choice([1, 2, 2, 2, 3])
    among = ("float32", "float32", "float32", "float32", "float16", "float64")
    x = image(g, rank, dtypes=g.types(name, among) if name == "Conv" else ("float32",))
    channels, sizes = x.shape[1], x.shape[2:]
    transposed = name == "ConvTranspose"
    group = g.choice([1, *[d for d in range(1, channels + 1) if channels % d == 0]])
    per_group = g.choice([1, g.integer(1, 5), 16, 24 if group == 1 else 2])
    kernel = [g.choice([1, 3, g.integer(1, 5)]) for _ in sizes]
    strides = [g.integer(1, 3 if transposed else 2) for _ in sizes]
    dilations = [g.choice([1, 1, 2]) for _ in sizes]
    for i, d in enumerate(sizes):
        if isinstance(d, Symbolic):
            kernel[i], dilations[i] = 3, 1
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto = g.choice(["NOTSET"] * 6 + ["VALID", "SAME_UPPER", "SAME_LOWER"])
    auto = "NOTSET" if transposed or is_symbolic(sizes) else auto
    pads = [g.integer(0, (s - 1) // 2 + (g.chance(0.1))) for s in spans * 2] if auto == "NOTSET" else [0] * (2 * rank)
    pads = _fitting(pads, sizes) if auto == "NOTSET" else pads
    extra = [g.integer(0, s - 1) if transposed and g.chance(0.3) else 0 for s in strides]
    out = []
    for i, d in enumerate(sizes):
        both = pads[i] + pads[i + rank]
        if transposed:
            out.append((d - 1) * strides[i] + spans[i] - both + extra[i])
        elif auto.startswith("SAME"):
            out.append(-(-d // strides[i]))
        else:
            out.append((d + both - spans[i]) // strides[i] + 1)
    if min(out) < 1:
        raise LookupError("the kernel is larger than the image")
    weight_shape = (channels, per_group, *kernel) if transposed else (per_group * group, channels // group, *kernel)
    weight = g.weight(x.dtype, weight_shape) if g.chance(0.85) else g.input(x.dtype, weight_shape, -1, 1)
    bias = [g.operand(x.dtype, (per_group * group,))] if g.chance(0.6) else []
    bound = x.largest * math.prod(kernel) * max(channels // group, 1) + 1
    attributes: dict[str, object] = {"auto_pad": auto} if auto != "NOTSET" else {"pads": pads}
    if any(extra):
        attributes["output_padding"] = extra
    if g.chance(0.8):
        attributes["kernel_shape"] = kernel
    return g.node(name, [x, weight, *bias], x.dtype, (x.shape[0], per_group * group, *out), False, -bound, bound,
                  group=group, strides=strides, dilations=dilations, **attributes)  # fmt: skip


@operator("MaxPool", "AveragePool", "LpPool", weight=2)
def pool(g: GraphBuilder, name: str) -> Value:
    rank = g.choice([1, 2, 2, 3])
    among = {"MaxPool": ("float32", "float64", "float16", "uint8", "int8")}.get(name, ("float32",))
    x = image(g, rank, dtypes=g.types(name, among))
    kernel = [g.integer(1, 3) for _ in range(rank)]
    strides = [g.integer(1, 2) for _ in range(rank)]
    kernel = [3 if isinstance(d, Symbolic) else k for k, d in zip(kernel, x.shape[2:], strict=True)]
    pads = _fitting([g.integer(0, k // 2) for k in kernel] * 2, x.shape[2:])
    dilations = [g.choice([1, 1, 2]) if g.has(name, "dilations") and name == "MaxPool" else 1 for _ in kernel]
    dilations = [1 if isinstance(n, Symbolic) else d for d, n in zip(dilations, x.shape[2:], strict=True)]
    ceil = g.integer(0, 1) if g.has(name, "ceil_mode") and name != "LpPool" else 0
    out = []
    for i, d in enumerate(x.shape[2:]):
        span = d + pads[i] + pads[i + rank] - (kernel[i] - 1) * dilations[i] - 1
        steps = -(-span // strides[i]) if ceil else span // strides[i]
        if ceil and steps * strides[i] >= d + pads[i]:
            steps = steps - 1  # a window may not begin in the padding behind
        out.append(steps + 1)
    if min(out) < 1:
        raise LookupError("the window is larger than the image")
    attributes: dict[str, object] = {"ceil_mode": ceil} if g.has(name, "ceil_mode") and name != "LpPool" else {}
    if max(dilations) > 1:
        attributes["dilations"] = dilations
    if name == "AveragePool" and g.has(name, "count_include_pad"):
        attributes["count_include_pad"] = g.integer(0, 1)
    bound = x.largest * (1 if name == "MaxPool" else math.prod(kernel))
    return g.node(name, [x], x.dtype, (*x.shape[:2], *out), x.exact and name == "MaxPool", -bound, bound,
                  kernel_shape=kernel, strides=strides, pads=pads, **attributes)  # fmt: skip


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(g: GraphBuilder, name: str) -> Value:
    x = image(g, g.choice([1, 2, 3]))
    bound = x.largest * (20 if name == "GlobalLpPool" else 1)
    return g.node(name, [x], "float32", (*x.shape[:2], *[1] * (x.rank - 2)), False, -bound, bound)


@operator("MaxUnpool")
def max_unpool(g: GraphBuilder) -> Value:
    n, c, h, w = g.integer(1, 2), g.integer(1, 3), g.integer(1, 3) * 2, g.integer(1, 3) * 2
    x = g.input("float32", (n, c, h, w))
    small = (n, c, h // 2, w // 2)
    how = {"kernel_shape": [2, 2], "strides": [2, 2]}
    pooled = g.node("MaxPool", [x], "float32", small, True, x.low, x.high, outputs=2, **how)
    indices = g.nodes[-1].output[1]
    g.dtypes[indices] = "int64"
    return g.node("MaxUnpool", [pooled, indices], "float32", x.shape, True, min(x.low, 0), max(x.high, 0), **how)


@operator("Col2Im")
def col2im(g: GraphBuilder) -> Value:
    n, c, h, w, k = g.integer(1, 2), g.integer(1, 3), g.integer(3, 5), g.integer(3, 5), g.integer(1, 3)
    x = g.input("float32", (n, c * k * k, (h - k + 1) * (w - k + 1)))
    sizes = [g.constant([h, w], "int64"), g.constant([k, k], "int64")]
    return g.node("Col2Im", [x, *sizes], "float32", (n, c, h, w), False, -2 * k * k, 2 * k * k)
