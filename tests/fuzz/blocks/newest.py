"""Blocks of tokens with operators of ONNX's opsets 22 to 28, as one node each."""

from __future__ import annotations

import math
from typing import Any

from onnx import TensorProto

from tests.fuzz.blocks.net import Net, Tokens, block
from tests.fuzz.blocks.sequences import apart, heads_of, together

__all__: list[str] = []

_NARROW = {
    "int4": (TensorProto.INT4, -8, 7, 21), "uint4": (TensorProto.UINT4, 0, 15, 21),
    "int8": (TensorProto.INT8, -128, 127, 21), "uint8": (TensorProto.UINT8, 0, 255, 21),
    "float8e4m3fn": (TensorProto.FLOAT8E4M3FN, -448, 448, 21),
    "float8e5m2": (TensorProto.FLOAT8E5M2, -448, 448, 21), "float4e2m1": (TensorProto.FLOAT4E2M1, -6, 6, 23),
    "int2": (TensorProto.INT2, -2, 1, 25), "uint2": (TensorProto.UINT2, 0, 3, 25),
}  # fmt: skip
"""By name: the type, its least and largest value, and the first opset that quantises to it."""


@block(Tokens)
def attended(net: Net, x: Tokens) -> Tokens:
    """Attention as one node: with heads in the width or apart, shared, causal, masked, capped, with a past."""
    net.opset = max(net.opset, net.choice((23, 24)))
    heads = heads_of(net, x.width)
    shared, size = net.choice([h for h in range(1, heads + 1) if heads % h == 0]), x.width // heads
    apart_first = net.chance(0.5)
    q = net.linear(x.name, x.width, x.width)
    k, v = (net.linear(x.name, x.width, shared * size) for _ in range(2))
    how: dict[str, Any] = {"is_causal": net.choice((0, 1))}
    if apart_first:
        q, k, v = (apart(net, t, h, h * size) for t, h in ((q, heads), (k, shared), (v, shared)))
    else:
        how |= {"q_num_heads": heads, "kv_num_heads": shared}
    if net.chance(0.3):
        how["softcap"] = net.choice((2.0, 20.0))
    if net.chance(0.3):
        how["scale"] = net.choice((0.1, 0.3))
    length, past = net.size(x.name, 1), ["", ""]
    keys = length
    if net.chance(0.4):
        past = [net.input(net.batch, shared, "past", size) for _ in range(2)]
        keys = net.op("Add", length, net.size(past[0], 2))
    mask = _mask(net, length, keys) if net.chance(0.5) else ""
    count = 3 if past[0] else 1
    y, *caches = net.ops("Attention", count, q, k, v, mask, *past, **how)
    net.results += caches
    rows = together(net, y, x.width) if apart_first else y
    return Tokens(net.op("Add", x.name, net.linear(rows, x.width, x.width)), x.width)


def _mask(net: Net, queries: str, keys: str) -> str:
    """Which keys each query sees, or a term: [queries, keys], or with batch and heads of 1 before. All see key 0."""
    rows = net.op("Unsqueeze", net.range_of(queries), net.ints(1))
    apart_by = net.op("Mod", net.op("Add", rows, net.range_of(keys)), net.whole(net.choice((2, 3, 5))))
    seen = net.op("Or", net.op("Greater", apart_by, net.whole(0)), net.op("Less", net.range_of(keys), net.whole(1)))
    if net.chance(0.4):
        seen = net.op("Where", seen, net.number(0.3), net.number(net.choice((-1e4, -2.0))))
    return net.op("Unsqueeze", seen, net.ints(0, 1)) if net.chance(0.5) else seen


@block(Tokens)
def of_a_buffer(net: Net, x: Tokens) -> Tokens:
    """Up to five tokens put into a buffer at each entry's place, perhaps around its end; all of it is attended to."""
    net.opset = max(net.opset, 24)
    heads = heads_of(net, x.width)
    size = x.width // heads
    few = net.slice(x.name, 1, 0, 5)
    start = net.integers(net.batch, low=0, high=15)
    mode = net.choice(("linear", "circular"))
    kept: list[str] = []
    for _ in range(2):
        flat = net.linear(few, x.width, x.width)
        if net.chance(0.5):
            buffer = net.input(net.batch, "room", x.width)
            written = net.ops("TensorScatter", 1, buffer, flat, start, axis=1, mode=mode)[0]
            net.results.append(written)
            kept.append(apart(net, written, heads, x.width))
        else:
            buffer = net.input(net.batch, heads, "room", size)
            written = net.ops("TensorScatter", 1, buffer, apart(net, flat, heads, x.width), start, mode=mode)[0]
            net.results.append(written)
            kept.append(written)
    q = apart(net, net.linear(few, x.width, x.width), heads, x.width)
    if net.chance(0.5):
        there = net.op("Add", start, net.size(few, 1))
        y = net.op("Attention", q, *kept, "", "", "", there, is_causal=net.choice((0, 1)))
    else:
        y = net.op("Attention", q, *kept)
    return Tokens(net.op("Add", few, net.linear(together(net, y, x.width), x.width, x.width)), x.width)


@block(Tokens)
def turned(net: Net, x: Tokens) -> Tokens:
    """Rotary positions as one node: of all channels of a head or of some, interleaved or in halves."""
    net.opset = max(net.opset, 23)
    heads = heads_of(net, x.width)
    size = x.width // heads
    if size % 2:
        return x
    part = net.choice([n for n in (0, 2, size // 2) if n % 2 == 0])
    angles = [[p * 50 ** (-2 * i / size) for i in range((part or size) // 2)] for p in range(1024)]
    cos, sin = (net.constant([[f(a) for a in row] for row in angles], "float32") for f in (math.cos, math.sin))
    how: dict[str, Any] = {"interleaved": net.choice((0, 1))}
    if part:
        how["rotary_embedding_dim"] = part
    places = net.op("Unsqueeze", net.range_of(net.size(x.name, 1)), net.ints(0))
    places = net.op("Expand", places, net.op("Shape", x.name, start=0, end=2))
    if net.chance(0.4):
        tables = [net.op("Gather", table, places) for table in (cos, sin)]
    else:
        tables = [cos, sin, places]
    y = net.linear(x.name, x.width, x.width)
    if net.chance(0.5):
        y = net.op("RotaryEmbedding", y, *tables, num_heads=heads, **how)
    else:
        y = together(net, net.op("RotaryEmbedding", apart(net, y, heads, x.width), *tables, **how), x.width)
    return Tokens(net.op("Add", x.name, y), x.width)


@block(Tokens)
def by_root_mean_square(net: Net, x: Tokens) -> Tokens:
    """RMS normalisation as one node, of the width or of each head."""
    net.opset = max(net.opset, 23)
    if net.chance(0.6):
        return Tokens(net.op("RMSNormalization", x.name, net.bias(x.width), axis=net.choice((-1, 2))), x.width)
    heads = heads_of(net, x.width)
    four = net.op("Reshape", x.name, net.ints(0, 0, heads, x.width // heads))
    scale, axis = net.choice(((net.bias(x.width // heads), -1), (net.bias(heads, x.width // heads), 2)))
    y = net.op("RMSNormalization", four, scale, axis=axis, epsilon=1e-6)
    return Tokens(net.op("Reshape", y, net.ints(0, 0, x.width)), x.width)


@block(Tokens)
def gated(net: Net, x: Tokens) -> Tokens:
    """A feed-forward layer with Swish as one node, or with SwiGLU."""
    wide, alpha = net.hidden(), net.choice((1.0, 1.702, 0.5))
    a = net.linear(x.name, x.width, wide, bias=net.chance(0.5))
    b = net.linear(x.name, x.width, wide, bias=net.chance(0.5))
    if net.chance(0.3):
        net.opset = 28
        y = net.op("SwiGLU", a, b, alpha=alpha)
    else:
        net.opset = max(net.opset, 24)
        y = net.op("Mul", net.op("Swish", a, alpha=alpha), b)
    return Tokens(net.op("Add", x.name, net.linear(y, wide, x.width)), x.width)


@block(Tokens)
def multiplied_along(net: Net, x: Tokens) -> Tokens:
    """Products along the length of factors near 1."""
    net.opset = max(net.opset, 26)
    factor = net.op("Add", net.op("Mul", net.op("Tanh", x.name), net.number(0.1)), net.number(0.97))
    product = net.op("CumProd", factor, net.whole(net.choice((1, 1, 2))), exclusive=net.choice((0, 1)),
                     reverse=net.choice((0, 1)))  # fmt: skip
    return Tokens(net.op("Mul", x.name, product), x.width)


@block(Tokens)
def of_narrow_weights(net: Net, x: Tokens) -> Tokens:
    """A dense layer with weights of few bits: one scale, one for each column or row, or one for each block."""
    name = net.choice(list(_NARROW))
    kind, low, high, since = _NARROW[name]
    net.opset = max(net.opset, since)
    width = net.width()
    transposed = net.chance(0.3)
    shape = (width, x.width) if transposed else (x.width, width)
    step = 1.0 if abs(low) < 400 else 64.0
    codes = net.numbers.integers(low // step, high // step + 1, shape) * step
    weight = net.narrow(codes, kind)
    spread = max(abs(low), high) * math.sqrt(x.width)
    how: dict[str, Any] = {}
    by = net.choice(("one", "axis", "block"))
    if by == "one":
        scales: tuple[int, ...] = ()
    else:
        axis = net.choice((0, 1))
        how["axis"] = axis
        scales = (shape[axis],)
        if by == "block":
            size = net.choice([n for n in (2, 4, 16, 32) if shape[axis] % n == 0])
            how["block_size"] = size
            scales = tuple(n // size if i == axis else n for i, n in enumerate(shape))
    scale = net.constant(net.numbers.uniform(0.5, 1.5, scales) * 2 / spread, "float32")
    point = [net.narrow(net.numbers.integers(max(low, 0), min(high, 3) + 1, scales), kind)] if "int" in name else []
    dense = net.op("DequantizeLinear", weight, scale, *(point if net.chance(0.6) else []), **how)
    y = net.op("MatMul", x.name, net.transpose(dense, 1, 0) if transposed else dense)
    return Tokens(net.op("Add", y, net.bias(width)) if net.chance(0.6) else y, width)


@block(Tokens)
def rounded(net: Net, x: Tokens) -> Tokens:
    """Part of the tokens is what is left of them in few bits."""
    name = net.choice(list(_NARROW))
    kind, _, high, since = _NARROW[name]
    net.opset = max(net.opset, since)
    if "float8" in name and net.chance(0.4):
        y = net.op("Cast", net.op("Cast", x.name, to=kind), to=TensorProto.FLOAT)
    elif net.chance(0.3):  # scales of powers of two
        net.opset = max(net.opset, 24)
        mode = net.choice(("up", "down", "nearest"))
        positive = net.op("Add", net.op("Abs", x.name), net.number(1e-3))
        y = net.op("Cast", net.op("Cast", positive, to=TensorProto.FLOAT8E8M0, round_mode=mode), to=TensorProto.FLOAT)
    else:
        scale = net.number(4.0 / max(high, 1))
        codes = net.op("QuantizeLinear", x.name, scale, net.narrow(0, kind))
        y = net.op("DequantizeLinear", codes, scale)
    return Tokens(net.op("Add", x.name, net.op("Mul", y, net.number(0.05))), x.width)


@block(Tokens)
def without_signs(net: Net, x: Tokens) -> Tokens:
    """Magnitudes by the bits of floats."""
    net.opset = max(net.opset, 26)
    words = net.op("BitCast", x.name, to=TensorProto.INT32)
    bits = net.op("BitwiseAnd", words, net.constant(0x7FFFFFFF, "int32"))
    return Tokens(net.op("Sub", x.name, net.op("BitCast", bits, to=TensorProto.FLOAT)), x.width)


@block(Tokens)
def in_linear_time(net: Net, x: Tokens) -> Tokens:
    """Linear attention as one node: its states decay, or are corrected, and may come from an earlier run."""
    net.opset = max(net.opset, 27)
    heads = heads_of(net, x.width)
    shared, size = net.choice([h for h in range(1, heads + 1) if heads % h == 0]), x.width // heads
    rule = net.choice(("linear", "gated", "delta", "gated_delta"))
    q = net.linear(x.name, x.width, x.width)
    k, v = (net.linear(x.name, x.width, shared * size) for _ in range(2))
    k = net.op("Mul", k, net.number(1 / size))
    past = net.input(net.batch, shared, size, size) if net.chance(0.5) else ""
    decay = beta = ""
    if "gated" in rule:
        decay = net.op("Neg", net.op("Softplus", net.linear(x.name, x.width, net.choice((shared, shared * size)))))
    if "delta" in rule:
        beta = net.op("Sigmoid", net.linear(x.name, x.width, shared))
    y, state = net.ops("LinearAttention", 2, q, k, v, past, decay, beta, q_num_heads=heads, kv_num_heads=shared,
                       update_rule=rule)  # fmt: skip
    net.results.append(state)
    return Tokens(net.op("Add", x.name, net.op("Tanh", net.linear(y, x.width, x.width))), x.width)


@block(Tokens)
def convolved_with_state(net: Net, x: Tokens) -> Tokens:
    """A causal convolution of each channel as one node, behind the last positions of an earlier run."""
    net.opset = max(net.opset, 27)
    kernel = net.choice((2, 3, 4, 7))
    past = net.input(net.batch, x.width, kernel - 1) if net.chance(0.6) else ""
    y, state = net.ops("CausalConvWithState", 2, net.transpose(x.name, 0, 2, 1), net.weight(x.width, 1, kernel),
                       net.bias(x.width) if net.chance(0.5) else "", past,
                       activation=net.choice(("none", "silu", "swish")))  # fmt: skip
    net.results.append(state)
    return Tokens(net.op("Add", x.name, net.transpose(y, 0, 2, 1)), x.width)
