"""Programs of one or a few operators at odd sizes: at least one for every family of schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relayc import relay
from relayc.relay.expr import Constant, Expr
from relayc.relay.op import get_op

__all__ = ["FAMILIES"]

_random = np.random.default_rng(11)


def _x(*shape: int, name: str = "x", dtype: str = "float32") -> relay.Var:
    return relay.var(name, shape, dtype)


def _w(*shape: int, dtype: str = "float32") -> Constant:
    values = _random.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))
    return relay.cast(relay.const(values.astype("float32")), dtype) if dtype != "float32" else relay.const(
        values.astype("float32"))  # fmt: skip


def _of(result: Expr, *params: relay.Var) -> relay.Function:
    return relay.Function(params, result)


def _op(name: str, *shapes: tuple[int, ...], **attrs: Any) -> Callable[[], relay.Function]:
    """A program of one operator on tensors of these shapes."""

    def make() -> relay.Function:
        params = [_x(*shape, name=f"x{i}") for i, shape in enumerate(shapes)]
        return _of(get_op(name)(**attrs)(*params), *params)

    return make


def _elementwise() -> relay.Function:
    x, y = _x(7, 131), _x(131, name="y")
    return _of(relay.nn.relu(relay.tanh(x) * y + relay.const(0.5)), x, y)


def _dense(dtype: str, m: int, n: int, k: int) -> Callable[[], relay.Function]:
    def make() -> relay.Function:
        x = _x(m, k)
        y = relay.nn.dense(relay.cast(x, dtype) if dtype != "float32" else x, _w(n, k, dtype=dtype))
        return _of(relay.nn.relu(relay.cast(y, "float32") + _w(n)), x)

    return make


def _block_weights(dtype: str, m: int, n: int, k: int, bits: int = 4) -> Callable[[], relay.Function]:
    """A product with weights of a few bits, blocks of 32 of which share a scale and a zero point."""

    def make() -> relay.Function:
        x, codes = _x(m, k), _random.integers(0, 256, (n, k * bits // 8)).astype("uint8")
        scales, zeros = _random.uniform(0.01, 0.1, (n, k // 32)), _random.integers(0, 1 << bits, (n, k // 32))
        half = relay.cast(x, dtype) if dtype != "float32" else x
        return _of(relay.cast(relay.nn.dense_bits(half, codes, scales.astype("float32"), zeros, bits), "float32"), x)

    return make


def _batch_matmul() -> relay.Function:
    x, y = _x(3, 37, 21), _x(3, 29, 21, name="y")
    return _of(relay.nn.batch_matmul(x, y), x, y)


def _conv(
    shape: tuple[int, ...], weight: tuple[int, ...], op: str = "nn.conv2d", **attrs: Any
) -> Callable[[], relay.Function]:
    def make() -> relay.Function:
        x = _x(*shape)
        return _of(relay.nn.relu(get_op(op)(**attrs)(x, _w(*weight)) + relay.const(0.25)), x)

    return make


def _attention() -> relay.Function:
    q, k, v = (_x(2, 33, 24, name=n) for n in "qkv")
    scores = relay.nn.softmax(relay.nn.batch_matmul(q, k) * relay.const(24**-0.5))
    return _of(relay.nn.batch_matmul(scores, v, transpose_b=False), q, k, v)


def _attention_in_float16() -> relay.Function:
    """Causal, of grouped heads, in one kernel."""
    params = [_x(2, heads, 70, 40, name=n) for n, heads in zip("qkv", (4, 2, 2), strict=True)]
    operands = [relay.cast(x, "float16") for x in params]
    return _of(relay.cast(relay.nn.attention(*operands, causal=True), "float32"), *params)


def _concatenate() -> relay.Function:
    x, y = _x(5, 3, 7), _x(5, 11, 7, name="y")
    return _of(relay.concatenate([x, relay.nn.relu(y), x], axis=1), x, y)


def _gather() -> relay.Function:
    x = _x(13, 17)
    return _of(relay.take(x, relay.const(np.array([[3, 0, 12], [5, 5, 1]], "int64")), axis=0), x)


def _scatter() -> relay.Function:
    x, updates = _x(11, 5), _x(3, 5, name="updates")
    indices = relay.const(np.array([[7] * 5, [0] * 5, [3] * 5], "int64"))
    return _of(relay.scatter_elements(x, indices, updates, axis=0), x, updates)


def _lstm() -> relay.Function:
    """A bidirectional LSTM, batch of five: two groups of threads; units that don't fill their last block."""
    products, h0, c0 = _x(4, 5, 2 * 4 * 21), _x(2, 5, 21, name="h0"), _x(2, 5, 21, name="c0")
    results = relay.nn.lstm(products, _w(2, 4 * 21, 21), h0, c0, reverse=(False, True))
    return _of(relay.Tuple(results), products, h0, c0)


def _gru() -> relay.Function:
    """A GRU with the reset state between two launches of a step."""
    products, h0 = _x(5, 1, 3 * 40), _x(1, 1, 40, name="h0")
    return _of(relay.Tuple(relay.nn.gru(products, _w(1, 3 * 40, 40), h0, _w(1, 40))), products, h0)


_WINDOW = {"pool_size": (3, 3), "strides": (2, 2), "dilation": (1, 1), "padding": (1, 1, 1, 1)}

FAMILIES: dict[str, Callable[[], relay.Function]] = {
    "elementwise": _elementwise,
    "broadcast of a scalar": _op("add", (5, 77), ()),
    "transpose": _op("transpose", (5, 33, 70), axes=(2, 0, 1)),
    "pad": _op("nn.pad", (3, 5, 7), pad_width=((0, 0), (1, 2), (3, 0)), pad_value=2.0),
    "concatenate": _concatenate,
    "strided_slice": _op("strided_slice", (20, 31), begin=(1, 2), end=(19, 31), strides=(2, 3), axes=(0, 1)),
    "gather": _gather,
    "scatter": _scatter,
    "sum of rows": _op("sum", (37, 301), axis=(1,)),
    "sum of columns": _op("sum", (301, 37), axis=(0,)),
    "sum of all": _op("sum", (3, 17, 129)),
    "variance": _op("variance", (5, 17, 129), axis=(0, 2)),
    "log_sum_exp": _op("log_sum_exp", (7, 131), axis=(1,)),
    "maximum of the middle": _op("max", (3, 45, 11), axis=(1,)),
    "argmax": _op("argmax", (9, 77), axis=(1,)),
    "softmax": _op("nn.softmax", (13, 1001)),
    "softmax of a middle axis": _op("nn.softmax", (3, 13, 7), axis=1),
    "layer_norm": _op("nn.layer_norm", (9, 147), (147,), (147,)),
    "instance_norm": _op("nn.instance_norm", (2, 5, 9, 7), (5,), (5,)),
    "lrn": _op("nn.lrn", (2, 11, 5, 3), size=5),
    "max_pool": _op("nn.max_pool", (2, 5, 13, 11), **_WINDOW),
    "avg_pool": _op("nn.avg_pool", (2, 5, 13, 11), **_WINDOW),
    "global_avg_pool": _op("mean", (2, 19, 9, 7), axis=(2, 3)),
    "adaptive_avg_pool": _op("nn.adaptive_avg_pool", (1, 6, 11, 7), output_size=(3, 4)),
    "topk": _op("topk", (5, 37), k=4),
    "sort": _op("sort", (5, 37), axis=1),
    "argsort": _op("argsort", (3, 50), axis=1),
    "cumsum": _op("cumsum", (5, 37), axis=1, dtype="float32"),
    "dense": _dense("float32", 45, 67, 83),
    "dense of one row": _dense("float32", 1, 130, 257),
    "dense in float16": _dense("float16", 64, 96, 120),
    "dense in bfloat16": _dense("bfloat16", 33, 70, 50),
    "block weights, one row": _block_weights("float32", 1, 130, 352),
    "block weights, a few rows": _block_weights("float32", 5, 37, 96, bits=8),
    "block weights in float16": _block_weights("float16", 45, 67, 160),
    "block weights, many rows": _block_weights("float32", 515, 19, 64),
    "batch_matmul": _batch_matmul,
    "attention": _attention,
    "attention in float16": _attention_in_float16,
    "conv2d": _conv((2, 5, 13, 11), (19, 5, 3, 3), padding=(1, 1, 1, 1)),
    "conv2d 1x1": _conv((1, 37, 9, 9), (29, 37, 1, 1)),
    "conv2d strided and dilated": _conv((1, 6, 15, 17), (10, 6, 3, 3), strides=(2, 2), dilation=(2, 2)),
    "conv2d grouped": _conv((1, 12, 9, 7), (18, 4, 3, 3), groups=3, padding=(1, 1, 1, 1)),
    "conv2d depthwise": _conv((1, 13, 15, 11), (13, 1, 3, 3), groups=13, padding=(1, 1, 1, 1)),
    "conv1d": _conv((2, 5, 31), (7, 5, 4), op="nn.conv1d", padding=(2, 2)),
    "conv3d": _conv((1, 3, 5, 6, 7), (5, 3, 2, 3, 2), op="nn.conv3d"),
    "lstm": _lstm,
    "gru": _gru,
    "conv2d_transpose": _conv((1, 6, 5, 7), (6, 4, 3, 3), op="nn.conv2d_transpose", strides=(2, 2)),
}
