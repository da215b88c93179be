"""Attention of com.microsoft against numpy and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relayc.frontends.onnx.backend import RelayBackend
from relayc.frontends.onnx.errors import OnnxImportError, UnsupportedOperatorError
from tests.frontends.node_cases import check, node_model, rejected

rng = np.random.default_rng(0)
BATCH, LENGTH, HEADS, SIZE = 2, 4, 2, 8
HIDDEN = HEADS * SIZE


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


def split(x, heads=HEADS):
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def merge(x):
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attend(q, k, v, kept=None, bias=0.0, scale=None, causal=False, floor=-10000.0):
    """Reference attention of [batch, heads, length, size]; `kept` is the mask of valid keys."""
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    if kept is not None:
        scores = scores + np.where(kept, 0, np.float32(floor))
    if causal:
        length, total = scores.shape[-2:]
        scores = np.where(np.tri(length, total, total - length, dtype=bool), scores, -np.inf)
    weights = softmax(scores)
    return (weights @ v).astype(np.float32), weights.astype(np.float32)


def masks(total):
    """Mask inputs of all forms, each with its mask of valid keys [batch, 1, 1 or length, total]."""
    ends, starts, at = np.array([total, total - 2], np.int32), np.array([1, 0], np.int32), np.arange(total)
    raw = np.array([[1] * total, [1, 0] * (total // 2) + [1] * (total % 2)], np.int32)
    square = (rng.uniform(size=(BATCH, LENGTH, total)) < 0.7).astype(np.int32)
    before = (at < ends[:, None])[:, None, None]
    return {
        "none": (None, None),
        "ends": (ends, before),
        "ends and starts": (np.concatenate([ends, starts]), before & (at >= starts[:, None])[:, None, None]),
        "raw": (raw, raw[:, None, None] > 0),
        "square": (square, square[:, None] > 0),
    }


@pytest.mark.parametrize("form", masks(4))
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_with_masks(form, unidirectional):
    x, w, b = normal(BATCH, LENGTH, 12), normal(12, 3 * HIDDEN), normal(3 * HIDDEN)
    mask, kept = masks(LENGTH)[form]
    q, k, v = (split(part) for part in np.split(x @ w + b, 3, -1))
    expected = merge(attend(q, k, v, kept, causal=unidirectional == 1)[0])
    attrs = {"num_heads": HEADS, "unidirectional": unidirectional}
    check("Attention", [x, w, b, mask], expected, weights=[1, 2], rtol=1e-3, atol=1e-4, **attrs)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_with_a_past(unidirectional):
    x, w, b = normal(BATCH, LENGTH, 12), normal(12, 3 * HIDDEN), normal(3 * HIDDEN)
    past = normal(2, BATCH, HEADS, 3, SIZE)
    mask = np.array([[1] * 7, [0, 1, 1, 1, 1, 1, 1]], np.int32)
    q, k, v = (split(part) for part in np.split(x @ w + b, 3, -1))
    k, v = np.concatenate([past[0], k], 2), np.concatenate([past[1], v], 2)
    y, _ = attend(q, k, v, mask[:, None, None] > 0, causal=unidirectional == 1)
    inputs, attrs = [x, w, b, mask, past], {"num_heads": HEADS, "unidirectional": unidirectional}
    check("Attention", inputs, [merge(y), np.stack([k, v])], weights=[1, 2], outputs=2, rtol=1e-3, atol=1e-4, **attrs)


def test_attention_with_a_bias_a_scale_and_values_of_another_size():
    x, bias = normal(BATCH, LENGTH, 12), normal(1, HEADS, LENGTH, LENGTH)
    sizes = [HIDDEN, HIDDEN, 2 * HIDDEN]
    w = normal(12, sum(sizes))
    q, k, v = (split(part) for part in np.split(x @ w, [HIDDEN, 2 * HIDDEN], -1))
    attrs: dict[str, Any] = {"num_heads": HEADS, "qkv_hidden_sizes": sizes, "scale": 0.2, "rtol": 1e-3, "atol": 1e-4}
    expected = merge(attend(q, k, v, bias=bias, scale=0.2)[0])
    check("Attention", [x, w, None, None, None, bias], expected, peer=False, **attrs)
    check("Attention", [x, w, np.zeros(sum(sizes), np.float32), None, None, bias], expected, **attrs)


def test_a_mask_of_the_longest_sequence():
    x, w, b = normal(BATCH, LENGTH, 12), normal(12, 3 * HIDDEN), normal(3 * HIDDEN)
    mask = np.tile(np.tri(6, dtype=np.int32), (BATCH, 1, 1, 1))
    q, k, v = (split(part) for part in np.split(x @ w + b, 3, -1))
    expected = merge(attend(q, k, v, mask[:, :, :LENGTH, :LENGTH] > 0)[0])
    check("Attention", [x, w, b, mask], expected, peer=False, rtol=1e-3, atol=1e-4, num_heads=HEADS)


def test_attention_of_any_batch_and_length():
    w, b = normal(12, 3 * HIDDEN), normal(3 * HIDDEN)
    x, mask = normal(BATCH, LENGTH, 12), np.ones((BATCH, LENGTH), np.int32)
    dims = {0: ["batch", "length", 12], 3: ["batch", "length"]}
    model, _ = node_model("Attention", [x, w, b, mask], weights=[1, 2], dims=dims, num_heads=HEADS, unidirectional=1)
    prepared = RelayBackend.prepare(model)
    for batch, length in [(2, 4), (1, 7), (3, 1)]:
        x, mask = normal(batch, length, 12), (rng.uniform(size=(batch, length)) < 0.7).astype(np.int32)
        q, k, v = (split(part) for part in np.split(x @ w + b, 3, -1))
        expected = merge(attend(q, k, v, mask[:, None, None] > 0, causal=True)[0])
        np.testing.assert_allclose(prepared.run([x, mask])[0], expected, rtol=1e-3, atol=1e-4)


def test_quantized_attention():
    x = rng.integers(0, 256, (BATCH, LENGTH, 12)).astype(np.uint8)
    w = rng.integers(-40, 40, (12, 3 * HIDDEN)).astype(np.int8)
    b, mask, past = normal(3 * HIDDEN), np.array([7, 5], np.int32), normal(2, BATCH, HEADS, 3, SIZE)
    x_scale, w_scale, x_zero, w_zero = np.float32(0.01), np.float32(0.02), np.uint8(120), np.int8(0)
    product = (x.astype(np.int64) - 120) @ w.astype(np.int64) * (x_scale * w_scale) + b
    q, k, v = (split(part.astype(np.float32)) for part in np.split(product, 3, -1))
    k, v = np.concatenate([past[0], k], 2), np.concatenate([past[1], v], 2)
    y, _ = attend(q, k, v, (np.arange(7) < mask[:, None])[:, None, None], causal=True)
    scalars = [np.array(value) for value in (x_scale, w_scale, x_zero, w_zero)]
    inputs = [x, w, b, *scalars[:2], mask, *scalars[2:], past]
    attrs = {"num_heads": HEADS, "unidirectional": 1, "weights": [1, 2, 3, 4, 6, 7]}
    check("QAttention", inputs, [merge(y), np.stack([k, v])], outputs=2, rtol=1e-3, atol=1e-4, **attrs)


# many heads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["none", "ends", "raw", "square"])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_multi_head_attention(form, unidirectional):
    total = LENGTH if unidirectional else 5
    q, k, v = normal(BATCH, LENGTH, HIDDEN), normal(BATCH, total, HIDDEN), normal(BATCH, total, HIDDEN)
    mask, kept = masks(total)[form]
    y, _ = attend(split(q), split(k), split(v), kept, causal=unidirectional == 1)
    attrs = {"num_heads": HEADS, "unidirectional": unidirectional}
    check("MultiHeadAttention", [q, k, v, None, mask], merge(y), rtol=1e-3, atol=1e-4, **attrs)


def test_multi_head_attention_with_everything():
    q, k, v = (normal(BATCH, LENGTH, HIDDEN) for _ in range(3))
    bias, added = normal(3 * HIDDEN), normal(BATCH, 1, LENGTH, LENGTH + 3)
    past = [normal(BATCH, HEADS, 3, SIZE) for _ in range(2)]
    parts = np.split(bias, 3)
    keys = np.concatenate([past[0], split(k + parts[1])], 2)
    values = np.concatenate([past[1], split(v + parts[2])], 2)
    y, weights = attend(split(q + parts[0]), keys, values, bias=added, scale=0.3)
    inputs = [q, k, v, bias, None, added, *past]
    expected = [merge(y), keys, values]
    attrs: dict[str, Any] = {"num_heads": HEADS, "scale": 0.3, "rtol": 1e-3, "atol": 1e-4}
    check("MultiHeadAttention", inputs, expected, outputs=3, **attrs)
    check("MultiHeadAttention", inputs, [*expected, weights], outputs=4, peer=False, **attrs)


def test_multi_head_attention_over_the_cache_of_an_encoder():
    q, k, v = normal(BATCH, LENGTH, HIDDEN), normal(BATCH, HEADS, 5, SIZE), normal(BATCH, HEADS, 5, SIZE)
    y, _ = attend(split(q), k, v)
    check("MultiHeadAttention", [q, k, v], merge(y), num_heads=HEADS, rtol=1e-3, atol=1e-4)


def test_packed_queries_keys_and_values():
    packed = normal(BATCH, LENGTH, HEADS, 3, SIZE)
    q, k, v = (packed[:, :, :, i].swapaxes(1, 2) for i in range(3))
    attrs: dict[str, Any] = {"num_heads": HEADS, "peer": False, "rtol": 1e-3, "atol": 1e-4}  # onnxruntime: on GPUs only
    check("MultiHeadAttention", [packed], merge(attend(q, k, v)[0]), **attrs)
    query, packed = normal(BATCH, LENGTH, HIDDEN), normal(BATCH, 5, HEADS, 2, SIZE)
    k, v = (packed[:, :, :, i].swapaxes(1, 2) for i in range(2))
    check("MultiHeadAttention", [query, packed], merge(attend(split(query), k, v)[0]), **attrs)


def test_what_does_not_fit_is_rejected_by_name():
    x, w, b = normal(BATCH, LENGTH, 12), normal(12, 3 * HIDDEN), normal(3 * HIDDEN)
    q = normal(BATCH, LENGTH, HIDDEN)
    for name, inputs, attrs, text in [
        ("Attention", [x, w, b], {"num_heads": 5}, "in 5 heads"),
        ("Attention", [x, w, b, np.ones((BATCH, 9), np.int32)], {"num_heads": HEADS}, "a mask of"),
        ("Attention", [x, w, b, np.ones(3 * BATCH + 2, np.int32)], {"num_heads": HEADS}, "a mask of"),
        ("Attention", [x, w, b], {"num_heads": HEADS, "do_rotary": 1}, "do_rotary=1"),
        ("Attention", [x, w, b], {"num_heads": HEADS, "qkv_hidden_sizes": [8, 8, 8]}, "sizes that add up"),
        ("Attention", [x, normal(12, 4 * HIDDEN), None, None, normal(2, BATCH, HEADS, 3, SIZE)],
         {"num_heads": HEADS, "qkv_hidden_sizes": [HIDDEN, HIDDEN, 2 * HIDDEN]}, "V as wide as K"),
        ("MultiHeadAttention", [q, q, q, normal(HIDDEN)], {"num_heads": HEADS}, "a bias of"),
        ("MultiHeadAttention", [q, q, q, *[None] * 3, normal(BATCH, HEADS, 3, SIZE)], {"num_heads": HEADS}, "past"),
    ]:
        rejected(name, inputs, text, **attrs)


def test_domains_are_told_apart():
    x, w, b = normal(BATCH, LENGTH, 12), normal(12, 3 * HIDDEN), normal(3 * HIDDEN)
    with pytest.raises(OnnxImportError, match="0 heads"):  # ONNX's own Attention has no num_heads
        RelayBackend.prepare(node_model("Attention", [x, w, b], domain="", version=23, num_heads=HEADS)[0])
    with pytest.raises(UnsupportedOperatorError, match=r"com.example::Attention at opset 1"):
        RelayBackend.prepare(node_model("Attention", [x, w, b], domain="com.example", num_heads=HEADS)[0])
    with pytest.raises(UnsupportedOperatorError, match=r"com.microsoft::NoSuchOperator at opset 1"):
        RelayBackend.prepare(node_model("NoSuchOperator", [x])[0])
