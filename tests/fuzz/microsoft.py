"""Generators for operators of com.microsoft: fused operators of exporters and optimisers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fuzz.builder import GraphBuilder, Value, operator
from tests.fuzz.dims import Symbolic, is_symbolic
from tests.fuzz.products import image

__all__: list[str] = []

TAME = (-20.0, 20.0)
Inputs = list["Value | str | None"]


def _trimmed(inputs: Sequence[Value | str | None]) -> Inputs:
    """Drop omitted trailing inputs."""
    kept = list(inputs)
    while kept[-1] is None:
        kept.pop()
    return kept


def _maybe(g: GraphBuilder, dtype: str, shape: Sequence[int], share: float = 0.5) -> Value | None:
    return g.operand(dtype, shape) if g.chance(share) else None


# activations ----------------------------------------------------------------------------------------------------------


@operator("com.microsoft.Gelu", "com.microsoft.QuickGelu", "com.microsoft.BiasGelu", "com.microsoft.FastGelu")
def gelu(g: GraphBuilder, name: str) -> Value:
    x = g.pick(("float32",), 1, 4, within=TAME, smallest=1, where=lambda v: not is_symbolic(v.shape[-1:]))
    bias = [g.operand("float32", x.shape[-1:])] if name.endswith("BiasGelu") or g.chance(0.5) else []
    if name.endswith((".Gelu", "QuickGelu")):
        bias = []
    how = {"alpha": g.choice([1.0, 1.702, 0.5])} if name.endswith("QuickGelu") else {}
    return g.node(name, [x, *bias], "float32", x.shape, False, -2, x.largest + 2, **how)


_FUSED = ("Relu", "Tanh", "Sigmoid", "LeakyRelu")


@operator("com.microsoft.FusedGemm")
def fused_gemm(g: GraphBuilder) -> Value:
    m = Symbolic.named("batch") if g.dynamic else g.integer(1, 9)
    k, n = g.integer(1, 20), g.integer(1, 40)
    trans_a, trans_b = g.integer(0, 1), g.integer(0, 1)
    a = g.input("float32", (k, m) if trans_a else (m, k))
    b = g.operand("float32", (n, k) if trans_b else (k, n))
    activation = g.choice(_FUSED)
    how = {"activation_alpha": 0.2} if activation == "LeakyRelu" else {}
    bound = 4.0 * k + 4
    inputs = _trimmed([a, b, _maybe(g, "float32", (n,), 0.7)])
    return g.node("com.microsoft.FusedGemm", inputs, "float32", (m, n), False, -bound, bound,
                  transA=trans_a, transB=trans_b, activation=activation, **how)  # fmt: skip


@operator("com.microsoft.FusedConv")
def fused_conv(g: GraphBuilder) -> Value:
    x = image(g, 2)
    if is_symbolic(x.shape[2:]) or min(x.shape[2:]) < 3:
        raise LookupError("kept to images that hold the window")
    m = g.integer(1, 20)
    weight = g.weight("float32", (m, x.shape[1], 3, 3))
    shape = (x.shape[0], m, *x.shape[2:])
    bias, more = _maybe(g, "float32", (m,)), _maybe(g, "float32", shape, 0.3)
    activation = g.choice(_FUSED)
    how = {"activation_params": [0.2]} if activation == "LeakyRelu" else {}
    bound = x.largest * 9 * x.shape[1] + 4
    return g.node("com.microsoft.FusedConv", _trimmed([x, weight, bias, more]), "float32", shape, False, -bound, bound,
                  pads=[1, 1, 1, 1], activation=activation, **how)  # fmt: skip


# products -------------------------------------------------------------------------------------------------------------


@operator("com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul", weight=2)
def fused_matmul(g: GraphBuilder, name: str) -> Value:
    lead: list[int] = [g.integer(1, 3) for _ in range(g.integer(0, 2))]
    m, k, n = g.integer(1, 9), g.integer(1, 20), g.choice([g.integer(1, 9), 33])
    if g.dynamic:
        m = Symbolic.named("length")
    trans_a, trans_b = g.integer(0, 1), g.integer(0, 1)
    a = g.input("float32", (*lead, k, m) if trans_a else (*lead, m, k))
    b = g.operand("float32", (*lead, n, k) if trans_b else (*lead, k, n))
    return g.node(name, [a, b], "float32", (*lead, m, n), False, -4.0 * k, 4.0 * k, transA=trans_a, transB=trans_b,
                  alpha=g.choice([1.0, 0.125]))  # fmt: skip


@operator("com.microsoft.Inverse")
def inverse(g: GraphBuilder) -> Value:
    n = g.integer(1, 4)
    lead = g.shape(0, 1)
    if is_symbolic(lead):
        raise LookupError("kept to fixed sizes")
    x = g.fill("float32", (*lead, n, n), -0.3, 0.3) + 2 * np.eye(n, dtype=np.float32)
    return g.node("com.microsoft.Inverse", [g.constant(x, "float32")], "float32", x.shape, False, -2, 2)


@operator("com.microsoft.MatMulNBits", weight=2)
def few_bits(g: GraphBuilder) -> Value:
    bits, size = g.choice([4, 4, 8]), g.choice([16, 32])
    k, n = g.choice([size, 2 * size, size + 16, 40]), g.integer(1, 20)
    blocks = -(-k // size)
    rows: Sequence[int] = g.choice([(g.integer(1, 5),), (2, 3), (1,), (20,)])
    if g.dynamic:
        rows = (Symbolic.named("batch"), *rows[1:])
    x = g.input("float32", (*rows, k))
    codes = g.constant(g.numbers.integers(0, 256, (n, blocks, size * bits // 8)), "uint8")
    scales = g.constant(g.fill("float32", (n, blocks), 0.01, 0.05), "float32")
    zeros = [g.constant(g.numbers.integers(0, 256, (n, -(-blocks * bits // 8))), "uint8")] if g.chance(0.5) else []
    bound = 2 * k * 0.05 * (1 << bits)
    return g.node("com.microsoft.MatMulNBits", [x, codes, scales, *zeros], "float32", (*rows, n), False, -bound, bound,
                  K=k, N=n, bits=bits, block_size=size)  # fmt: skip


@operator("com.microsoft.DynamicQuantizeMatMul", "com.microsoft.MatMulIntegerToFloat")
def matmul_to_float(g: GraphBuilder, name: str) -> Value:
    m, k, n = g.integer(1, 9), g.integer(1, 20), g.integer(1, 20)
    columns = g.choice([(), (n,)])
    scale = g.constant(np.full(columns, 2.0**-6, np.float32) * g.numbers.choice([1.0, 0.5], columns), "float32")
    bias = _maybe(g, "float32", (n,))
    bound = 2.0 * k * 300 * 2**-6 + 2
    if name.endswith("ToFloat"):
        a, b = g.input("uint8", (m, k), 0, 200), g.operand("uint8", (k, n), 0, 20)
        zeros = [g.constant(g.integer(0, 20), "uint8") if g.chance(0.6) else None for _ in range(2)]
        inputs = _trimmed([a, b, g.constant(2.0**-4, "float32"), scale, *zeros, bias])
        return g.node(name, inputs, "float32", (m, n), False, -bound * 20, bound * 20)
    # an input between 0 and 255 steps, which every implementation rounds to the same codes
    a = g.fill("float32", (m, k), 0, 1)
    a = np.round(a * 255).astype(np.float32) / np.float32(64)
    a.flat[:1] = 255 / 64
    zero = g.constant(g.integer(0, 5), "uint8") if g.chance(0.5) else None
    inputs = _trimmed([g.constant(a, "float32"), g.operand("uint8", (k, n), 0, 20), scale, zero, bias])
    return g.node(name, inputs, "float32", (m, n), False, -bound * 20, bound * 20)


@operator("com.microsoft.MatMulInteger16")
def matmul_16(g: GraphBuilder) -> Value:
    m, k, n = g.integer(1, 9), g.integer(1, 20), g.integer(1, 20)
    a, b = g.input("int16", (m, k), -1000, 1000), g.operand("int16", (k, n), -1000, 1000)
    return g.node("com.microsoft.MatMulInteger16", [a, b], "int32", (m, n), True, -1e6 * k, 1e6 * k)


# normalisation --------------------------------------------------------------------------------------------------------


@operator("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization", weight=2)
def skip_norm(g: GraphBuilder, name: str) -> Value:
    batch: int = Symbolic.named("batch") if g.dynamic else g.integer(1, 3)
    x = g.input("float32", (batch, g.integer(1, 4), g.choice([g.integer(2, 9), 32])))
    skip = g.input("float32", x.shape)
    vectors: Inputs = [g.weight("float32", x.shape[-1:], 0.5, 1.5)]
    if ".SkipLayer" in name:
        vectors.append(_maybe(g, "float32", x.shape[-1:], 0.7))
    vectors.append(_maybe(g, "float32", x.shape[-1:]))
    outputs = g.choice([1, 4])
    value = g.node(name, _trimmed([x, skip, *vectors]), "float32", x.shape, False, -30, 30, epsilon=0.01,
                   outputs=1)  # fmt: skip
    if outputs == 4:
        node = g.nodes[-1]
        node.output.extend(["", "", g.name("t")])
        return g.also(3, value, "float32", x.shape, False, -8, 8)
    return value


@operator("com.microsoft.EmbedLayerNormalization")
def embeddings(g: GraphBuilder) -> Value:
    batch: int = Symbolic.named("batch") if g.dynamic else g.integer(1, 3)
    length, hidden = g.integer(1, 5), g.integer(2, 9)
    words = g.input("int32", (batch, length), 0, 6)
    segments = g.input("int32", (batch, length), 0, 1) if g.chance(0.5) else None
    tables = [g.weight("float32", (rows, hidden)) for rows in (7, 6)]
    third = g.weight("float32", (2, hidden)) if segments is not None else None
    gamma, beta = g.weight("float32", (hidden,), 0.5, 1.5), g.weight("float32", (hidden,))
    mask = g.input("int32", (batch, length), 0, 1) if g.chance(0.5) else None
    inputs = _trimmed([words, segments, *tables, third, gamma, beta, mask])
    value = g.node("com.microsoft.EmbedLayerNormalization", inputs, "float32", (batch, length, hidden), False, -30, 30,
                   outputs=2, epsilon=0.01)  # fmt: skip
    return g.also(1, value, "int32", (batch,), True, 0, 5) if mask is not None else value


# attention ------------------------------------------------------------------------------------------------------------


def _sizes(g: GraphBuilder) -> tuple[int, int, int, int]:
    """Batch, length, heads, size of a head."""
    batch: int = Symbolic.named("batch") if g.dynamic and g.chance(0.6) else g.integer(1, 3)
    length: int = Symbolic.named("length") if g.dynamic and g.chance(0.6) else g.integer(1, 6)
    return batch, length, g.integer(1, 3), g.choice([2, 4, 8, 16])


@operator("com.microsoft.Attention", weight=2)
def packed_attention(g: GraphBuilder) -> Value:
    batch, length, heads, size = _sizes(g)
    width, hidden = g.integer(2, 9), heads * size
    x = g.input("float32", (batch, length, width))
    weight, bias = g.weight("float32", (width, 3 * hidden)), g.weight("float32", (3 * hidden,))
    mask = g.input("int32", (batch, length), 0, 1) if g.chance(0.4) else None
    how: dict[str, Any] = {"unidirectional": 1} if g.chance(0.4) else {}
    if g.chance(0.3):
        how["scale"] = 0.3
    return g.node("com.microsoft.Attention", _trimmed([x, weight, bias, mask]), "float32", (batch, length, hidden),
                  False, -2.0 * width - 1, 2.0 * width + 1, num_heads=heads, **how)  # fmt: skip


@operator("com.microsoft.MultiHeadAttention", weight=2)
def many_heads(g: GraphBuilder) -> Value:
    batch, length, heads, size = _sizes(g)
    keys = length if g.chance(0.5) else g.integer(1, 6)
    hidden = heads * size
    q = g.input("float32", (batch, length, hidden))
    k, v = (g.input("float32", (batch, keys, hidden)) for _ in range(2))
    bias = _maybe(g, "float32", (3 * hidden,), 0.3)
    mask = g.input("int32", (batch, keys), 0, 1) if g.chance(0.3) else None
    more = g.input("float32", (1, heads, length, keys)) if g.chance(0.3) else None
    how: dict[str, Any] = {"unidirectional": 1} if keys is length and g.chance(0.4) else {}
    inputs = _trimmed([q, k, v, bias, mask, more])
    return g.node("com.microsoft.MultiHeadAttention", inputs, "float32", (batch, length, hidden), False, -4, 4,
                  num_heads=heads, **how)  # fmt: skip


@operator("com.microsoft.GroupQueryAttention", weight=2)
def grouped_attention(g: GraphBuilder) -> Value:
    batch, groups, each, size = g.integer(1, 2), g.integer(1, 2), g.integer(1, 3), g.choice([8, 16])
    total = g.integer(2, 7)
    prompt = g.chance(0.5)
    new, room = (total, 0) if prompt else (1, total - 1)
    heads = groups * each
    q = g.input("float32", (batch, new, heads * size))
    k, v = (g.input("float32", (batch, new, groups * size)) for _ in range(2))
    past = [g.input("float32", (batch, groups, room, size)) for _ in range(2)]
    lengths = g.constant([total - 1] * batch, "int32")
    inputs: Inputs = [q, k, v, *past, lengths, g.constant(total, "int32")]
    how: dict[str, Any] = {}
    if g.chance(0.4):
        angle = np.arange(8)[:, None] / 10.0 ** np.linspace(0, 1, size // 2)
        inputs += [g.constant(np.cos(angle), "float32"), g.constant(np.sin(angle), "float32")]
        how = {"do_rotary": 1, "rotary_interleaved": g.integer(0, 1)}
    if g.chance(0.3):
        how["softcap"] = 2.0
    if g.chance(0.3):
        how["local_window_size"] = g.integer(1, 4)
    value = g.node("com.microsoft.GroupQueryAttention", inputs, "float32", q.shape, False, -3, 3, outputs=3,
                   num_heads=heads, kv_num_heads=groups, **how)  # fmt: skip
    for output in (1, 2):
        value = g.also(output, value, "float32", (batch, groups, total, size), False, -3, 3)
    return value


@operator("com.microsoft.RotaryEmbedding")
def rotary(g: GraphBuilder) -> Value:
    batch, length, heads, half = g.integer(1, 3), g.integer(1, 5), g.integer(1, 3), g.integer(1, 4)
    x = g.input("float32", (batch, length, heads * 2 * half))
    tables = [g.weight("float32", (8, half)) for _ in range(2)]
    positions = g.input("int64", (batch, length), 0, 7) if g.chance(0.6) else g.constant([g.integer(0, 2)], "int64")
    return g.node("com.microsoft.RotaryEmbedding", [x, positions, *tables], "float32", x.shape, False, -6, 6,
                  interleaved=g.integer(0, 1))  # fmt: skip


# quantised ------------------------------------------------------------------------------------------------------------

_RANGES = {"uint8": (0, 255), "int8": (-128, 127)}
_ZERO = {"uint8": 128, "int8": -20}


def _codes(g: GraphBuilder, kind: str, shape: Sequence[int], fixed: bool = False) -> Inputs:
    """A quantised tensor, its scale (a power of 2) and its zero point; `fixed`: these as initializers."""
    low, high = _RANGES[kind]
    zero, scale = _ZERO[kind] + g.integer(-9, 9), 2.0 ** -g.integer(3, 5)
    scaling = [g.constant(scale, "float32", fixed=fixed), g.constant(zero, kind, fixed=fixed)]
    return [g.input(kind, shape, low / 2, high), *scaling]


def _target(g: GraphBuilder, kind: str, scale: float, zero: int | None = None, fixed: bool = False) -> Inputs:
    zero = _ZERO[kind] if zero is None else zero
    return [g.constant(scale, "float32", fixed=fixed), g.constant(zero, kind, fixed=fixed)]


def _image_shape(g: GraphBuilder) -> tuple[int, ...]:
    batch: int = Symbolic.named("batch") if g.dynamic and g.chance(0.5) else g.integer(1, 2)
    return (batch, g.integer(1, 6), g.integer(2, 6), g.integer(2, 6))


@operator("com.microsoft.QLinearAdd", "com.microsoft.QLinearMul", weight=2)
def quantised_arithmetic(g: GraphBuilder, name: str) -> Value:
    kind = g.choice(["uint8", "int8"])
    shape = g.shape(1, 4)
    other = tuple(1 if g.chance(0.3) and not isinstance(d, Symbolic) else d for d in shape)
    inputs = [*_codes(g, kind, shape), *_codes(g, kind, other), *_target(g, kind, 0.5 if "Mul" in name else 0.125)]
    return g.node(name, inputs, kind, shape, True, *_RANGES[kind])


@operator("com.microsoft.QLinearSigmoid", "com.microsoft.QLinearLeakyRelu", "com.microsoft.QLinearSoftmax")
def quantised_function(g: GraphBuilder, name: str) -> Value:
    kind = g.choice(["uint8", "int8"])
    shape = g.shape(1, 3)
    scale = {"com.microsoft.QLinearLeakyRelu": 0.25}.get(name, 2.0**-8)
    how: dict[str, Any] = {"alpha": 0.125} if "Leaky" in name else {}
    zero = None
    if "Softmax" in name:  # onnxruntime's codes wrap where others saturate
        how, scale, zero = {"axis": len(shape) - 1, "opset": 13}, 2.0**-7, _RANGES[kind][0]
    inputs = [*_codes(g, kind, shape), *_target(g, kind, scale, zero)]
    return g.node(name, inputs, kind, shape, "Leaky" in name, *_RANGES[kind], **how)


@operator("com.microsoft.QLinearGlobalAveragePool", "com.microsoft.QLinearReduceMean")
def quantised_mean(g: GraphBuilder, name: str) -> Value:
    kind = "uint8" if "Reduce" in name else g.choice(["uint8", "int8"])
    shape = _image_shape(g)
    last = g.integer(0, 1) if "Global" in name else 0
    result = (shape[0], 1, 1, shape[3]) if last else (*shape[:2], 1, 1)
    how = {"channels_last": last} if "Global" in name else {"axes": [2, 3], "keepdims": 1}
    inputs = [*_codes(g, kind, shape), *_target(g, kind, 0.0625)]
    return g.node(name, inputs, kind, result, False, *_RANGES[kind], **how)


@operator("com.microsoft.QLinearAveragePool", "com.microsoft.NhwcMaxPool")
def quantised_pool(g: GraphBuilder, name: str) -> Value:
    kind = g.choice(["uint8", "int8"])
    n, c, h, w = _image_shape(g)
    how: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [g.integer(1, 2)] * 2}
    out = [(d - 2) // how["strides"][0] + 1 for d in (h, w)]
    if "Max" in name:
        x = g.input(kind, (n, h, w, c), *_RANGES[kind])
        return g.node(name, [x], kind, (n, *out, c), True, *_RANGES[kind], **how)
    inputs = [*_codes(g, kind, (n, c, h, w)), *_target(g, kind, 0.0625)]
    return g.node(name, inputs, kind, (n, c, *out), False, *_RANGES[kind], **how)


@operator("com.microsoft.QLinearConcat", "com.microsoft.QLinearWhere")
def quantised_choice(g: GraphBuilder, name: str) -> Value:
    kind = "uint8" if "Concat" in name else g.choice(["uint8", "int8"])
    shape = g.shape(1, 3)
    fixed = "Where" in name  # onnxruntime crashes where scales are computed
    parts = [*_codes(g, kind, shape, fixed), *_codes(g, kind, shape, fixed)]
    if fixed:
        inputs = [g.input("bool", shape), *parts, *_target(g, kind, 0.125, fixed=True)]
        return g.node(name, inputs, kind, shape, True, *_RANGES[kind])
    wide = (*shape[:-1], shape[-1] * 2)
    return g.node(name, [*_target(g, kind, 0.125), *parts], kind, wide, True, *_RANGES[kind], axis=len(shape) - 1)


@operator("com.microsoft.QGemm")
def quantised_gemm(g: GraphBuilder) -> Value:
    m, k, n = g.integer(1, 6), g.integer(1, 20), g.integer(1, 20)
    kind = g.choice(["uint8", "int8"])
    trans_a, trans_b = g.integer(0, 1), g.integer(0, 1)
    a = _codes(g, kind, (k, m) if trans_a else (m, k))
    b = [g.weight(kind, (n, k) if trans_b else (k, n), 0, 30), g.constant(2.0**-5, "float32"), g.constant(3, kind)]
    c = g.constant(g.numbers.integers(-50, 50, (n,)), "int32") if g.chance(0.5) else None
    target = _target(g, kind, 0.25) if g.chance(0.7) else []
    dtype = kind if target else "float32"
    bounds = _RANGES[kind] if target else (-30.0 * k - 9, 30.0 * k + 9)
    return g.node("com.microsoft.QGemm", _trimmed([*a, *b, c, *target]), dtype, (m, n), bool(target), *bounds,
                  transA=trans_a, transB=trans_b, alpha=1.0)  # fmt: skip


@operator("com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear", weight=2)
def quantise(g: GraphBuilder, name: str) -> Value:
    kind = g.choice(["uint8", "int8", "uint16", "int16"])
    shape = g.shape(1, 4)
    axis = len(shape) - 1
    along = shape[axis:] if not is_symbolic(shape[axis:]) and g.chance(0.3) else ()
    scale = g.constant(np.full(along, 0.125, np.float32) * g.numbers.choice([1.0, 0.5], along), "float32")
    zero = g.constant(np.full(along, g.integer(0, 30)), kind)
    if ".Q" in name:
        x = g.input("float32", shape, -4, 4)
        return g.node(name, [x, scale, zero], kind, shape, True, -32768, 65535, axis=axis)
    x = g.input(kind, shape, -100, 200)
    return g.node(name, [x, scale, zero], "float32", shape, True, -40, 40, axis=axis)


# elements moved -------------------------------------------------------------------------------------------------------


@operator("com.microsoft.Trilu", "com.microsoft.ExpandDims", "com.microsoft.GatherND")
def moved(g: GraphBuilder, name: str) -> Value:
    x = g.pick(("float32", "int64"), 2, 4, smallest=1)
    if name.endswith("Trilu"):
        inputs = [x, g.constant(g.integer(-2, 2), "int64")]
        return g.node(name, inputs, x.dtype, x.shape, x.exact, min(x.low, 0), max(x.high, 0), upper=g.integer(0, 1))
    if name.endswith("ExpandDims"):
        axis = g.integer(0, x.rank)
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        return g.node(name, [x, g.constant(axis, "int32")], x.dtype, shape, x.exact, x.low, x.high)
    rows = 1 if isinstance(x.shape[0], Symbolic) else x.shape[0]
    picked = [[g.integer(0, rows - 1)] for _ in range(g.integer(1, 3))]
    inputs = [x, g.constant(picked, "int64")]
    return g.node(name, inputs, x.dtype, (len(picked), *x.shape[1:]), x.exact, x.low, x.high)


@operator("com.microsoft.GatherBlockQuantized")
def quantised_rows(g: GraphBuilder) -> Value:
    rows, size, blocks = g.integer(1, 6), 16, g.integer(1, 3)
    kind = g.choice(["uint4", "int4"])
    depth = size * blocks
    codes = g.constant(g.numbers.integers(0, 8, (rows, depth)), kind)
    indices = g.input("int64", g.shape(1, 2), 0, rows - 1)
    scales = g.constant(g.fill("float32", (rows, blocks), 0.1, 0.5), "float32")
    zeros = [g.constant(g.numbers.integers(0, 8, (rows, blocks)), kind)] if g.chance(0.5) else []
    return g.node("com.microsoft.GatherBlockQuantized", [codes, indices, scales, *zeros], "float32",
                  (*indices.shape, depth), False, -8, 8, block_size=size, gather_axis=0, quantize_axis=1)  # fmt: skip
