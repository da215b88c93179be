"""Grouped-query attention with a KV cache, and rotary embedding, of com.microsoft against numpy and onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relayc.frontends.onnx.backend import RelayBackend
from tests.frontends.node_cases import check, node_model, rejected

try:
    import onnxruntime
except ImportError:
    onnxruntime = None

rng = np.random.default_rng(0)
HEADS, GROUPS, SIZE = 4, 2, 16
FLOAT8 = ml_dtypes.float8_e4m3fn


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


def split(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def angles(most, pairs):
    angle = np.arange(most)[:, None] / 10.0 ** np.linspace(0, 2, pairs)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rotate(x, positions, cosine, sine, interleaved=False):
    """Rotary embedding of x [batch, heads, length, size] at positions [batch, length]."""
    pairs = cosine.shape[1]
    c, s = cosine[positions][:, None], sine[positions][:, None]
    first, second = (x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]) if interleaved else (
        x[..., :pairs], x[..., pairs : 2 * pairs])  # fmt: skip
    real, imaginary = c * first - s * second, s * first + c * second
    rotated = np.stack([real, imaginary], -1).reshape(*x.shape[:3], -1) if interleaved else np.concatenate(
        [real, imaginary], -1)  # fmt: skip
    return np.concatenate([rotated, x[..., 2 * pairs :]], -1)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("form", ["flat", "four axes", "partial", "offset"])
def test_rotary_embedding(form, interleaved):
    pairs = SIZE // 4 if form == "partial" else SIZE // 2
    x, (cosine, sine) = normal(2, HEADS, 3, SIZE), angles(8, pairs)
    positions = np.array([2], np.int64) if form == "offset" else np.array([[0, 1, 2], [4, 3, 7]], np.int64)
    spread = 2 + np.arange(3)[None] if form == "offset" else positions
    expected = rotate(x, spread, cosine, sine, interleaved)
    attrs: dict[str, Any] = {"interleaved": interleaved}
    if form == "partial":
        attrs.update(num_heads=HEADS, rotary_embedding_dim=2 * pairs)
    if form != "four axes":
        x, expected = (a.swapaxes(1, 2).reshape(2, 3, HEADS * SIZE) for a in (x, expected))
    check("RotaryEmbedding", [np.ascontiguousarray(x), positions, cosine, sine], expected, weights=[2, 3], **attrs)


def test_positions_of_rotary_embeddings_in_three_rows_are_refused() -> None:
    """MRotaryEmbedding takes such; with symbolic sizes they were taken for one number."""
    x, table = np.zeros((1, 5, 8), np.float32), np.zeros((9, 4), np.float32)
    rejected("RotaryEmbedding", [x, np.zeros((3, 1, 5), np.int64), table, table], "rank 3")


def softmax(scores, sink=None):
    top = scores.max(-1, keepdims=True)
    rest = 0 if sink is None else np.exp(sink - top)
    e = np.exp(scores - top)
    return e / (e.sum(-1, keepdims=True) + rest)


def grouped(q, k, v, past, lengths, total, window=-1, cap=0.0, sink=None, tables=None, interleaved=False, bias=0.0,
            causal=True, scale=SIZE**-0.5):  # fmt: skip
    """Reference implementation, row by row of the batch. `past` is keys and values or None."""
    batch, _, new, _ = q.shape
    room = 0 if past is None else past[0].shape[2]
    buffers = [np.zeros((batch, GROUPS, max(total, room), SIZE), np.float32) for _ in range(2)]
    result = np.zeros_like(q)
    for b in range(batch):
        old = 0 if new == total else lengths[b] + 1 - new
        at = np.arange(old, old + new)
        rotated = [q[b : b + 1], k[b : b + 1]]
        rotated = rotated if tables is None else [rotate(x, at[None], *tables, interleaved) for x in rotated]
        for i, (buffer, fresh) in enumerate(zip(buffers, (rotated[1], v[b : b + 1]), strict=True)):
            if past is not None:
                buffer[b, :, :old] = past[i][b, :, :old]
            buffer[b, :, old : old + new] = fresh[0]
        for h in range(HEADS):
            keys, values = (buffer[b, h // (HEADS // GROUPS)] for buffer in buffers)
            scores = rotated[0][0, h] @ keys.T * scale
            scores = cap * np.tanh(scores / cap) if cap else scores
            column = np.arange(len(keys))
            seen = column <= at[:, None] if causal else np.tile(column <= lengths[b], (new, 1))
            seen &= (column > at[:, None] - window) if window > 0 else True
            own = bias[h] if isinstance(bias, list) else bias
            scores = np.where(seen, scores + own, -np.inf)
            result[b, h] = softmax(scores, None if sink is None else sink[h]) @ values
    return [result.swapaxes(1, 2).reshape(batch, new, -1).astype(np.float32), *buffers]


ATTRS: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": GROUPS, "outputs": 3, "rtol": 1e-3, "atol": 1e-4}


def tensors(batch, new):
    return normal(batch, new, HEADS * SIZE), normal(batch, new, GROUPS * SIZE), normal(batch, new, GROUPS * SIZE)


def sizes(lengths, total):
    return np.array(lengths, np.int32), np.array(total, np.int32)


def coded(x, scale, bits):
    """Quantise values, packing two of 4 bits in a byte; as `FLOAT8` by rounding."""
    if bits == FLOAT8:
        return np.clip(x / scale, -448, 448).astype(FLOAT8)
    codes = np.clip(np.rint(x / scale), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1).astype(np.int8)
    if bits == 8:
        return codes
    upper = (codes + 8).astype(np.uint8)
    return upper[..., ::2] | upper[..., 1::2] << 4


def decoded(codes, scale, bits):
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1).astype(np.int8) - 8
    return codes.astype(np.float32) * scale


@pytest.mark.parametrize("bits", [8, 4, FLOAT8])
@pytest.mark.parametrize("shape", [(1,), (1, GROUPS, 1, SIZE), (GROUPS * SIZE,)])
@pytest.mark.parametrize("old", [0, 3])
def test_quantized_kv_cache(bits, shape, old):
    """New keys and values are quantised too; scales of channels are a vector as the builder of genai stores them."""
    batch, new, room = 1, 2, 6
    kind = "PER_TENSOR" if shape == (1,) else "PER_CHANNEL"
    stored_scales = [rng.uniform(0.1, 0.3, shape).astype(np.float32) for _ in range(2)]
    scales = [s if s.size == 1 else s.reshape(1, GROUPS, 1, SIZE) for s in stored_scales]
    q, k, v = normal(batch, new, HEADS * SIZE), normal(batch, new, GROUPS * SIZE), normal(batch, new, GROUPS * SIZE)
    past = [coded(normal(batch, GROUPS, room, SIZE), s, bits) for s in scales]
    fresh = [coded(split(x, GROUPS), s, bits) for x, s in zip((k, v), scales, strict=True)]
    kept = [decoded(x, s, bits) for x, s in zip([*past, *fresh], [*scales, *scales], strict=True)]
    lengths, total = np.full(batch, old + new - 1, np.int32), np.array(old + new, np.int32)
    expected = grouped(split(q, HEADS), kept[2], kept[3], kept[:2], lengths, old + new)[0]
    stored = []
    for buffer, codes in zip(past, fresh, strict=True):
        held = np.zeros_like(buffer)
        held[:, :, :old] = buffer[:, :, :old]
        held[:, :, old : old + new] = codes
        stored.append(held)
    inputs = [q, k, v, *past, lengths, total, *[None] * 5, *stored_scales]
    how = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": 4 if bits == 4 else 8}
    model, passed = node_model("GroupQueryAttention", inputs, outputs=3, weights=[12, 13], num_heads=HEADS,
                              kv_num_heads=GROUPS, **how)  # fmt: skip
    results = RelayBackend.prepare(model).run(passed)
    np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-5)
    for have, want in zip(results[1:], stored, strict=True):
        np.testing.assert_array_equal(have, want)
    if onnxruntime is not None and bits != FLOAT8:  # its CPU kernel has integers only
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        theirs = session.run(None, passed)
        np.testing.assert_allclose(results[0], theirs[0], rtol=1e-4, atol=1e-5)
        for have, want in zip(results[1:], theirs[1:], strict=True):  # what is behind is of no account
            np.testing.assert_array_equal(have[:, :, : old + new], want[:, :, : old + new])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
def test_prefill(packed, rotary):
    q, k, v = tensors(2, 5)
    lengths, total = sizes([4, 4], 5)
    tables = angles(8, SIZE // 2) if rotary else (None, None)
    expected = grouped(split(q, HEADS), split(k, GROUPS), split(v, GROUPS), None, lengths, 5,
                       tables=tables if rotary else None)  # fmt: skip
    data = [np.concatenate([q, k, v], -1), None, None] if packed else [q, k, v]
    inputs = [*data, None, None, lengths, total, *tables]
    check("GroupQueryAttention", inputs, expected, do_rotary=int(rotary), weights=[6], **ATTRS)
    past = [np.zeros((2, GROUPS, 0, SIZE), np.float32)] * 2
    check("GroupQueryAttention", [*data, *past, lengths, total, *tables], expected, do_rotary=int(rotary), weights=[6],
          **ATTRS)  # fmt: skip


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"local_window_size": 3},
    "cap": {"softcap": 2.0},
    "scale": {"scale": 0.2},
    "smooth": {"smooth_softmax": 1},
    "rotary": {"do_rotary": 1},
    "interleaved": {"do_rotary": 1, "rotary_interleaved": 1},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("room", [6, 9])
def test_decoding_one_position(form, room):
    """Rows of different lengths; the cache has capacity for the new position or grows by it."""
    attrs = FORMS[form]
    q, k, v = tensors(2, 1)
    lengths, total = sizes([6, 3], 7)
    past = [normal(2, GROUPS, room, SIZE) for _ in range(2)]
    tables = angles(16, SIZE // 2) if "do_rotary" in attrs else None
    expected = grouped(
        split(q, HEADS), split(k, GROUPS), split(v, GROUPS), past, lengths, 7,
        window=attrs.get("local_window_size", -1), cap=attrs.get("softcap", 0.0), scale=attrs.get("scale", SIZE**-0.5),
        sink=np.zeros(HEADS) if "smooth_softmax" in attrs else None, tables=tables,
        interleaved="rotary_interleaved" in attrs,
    )  # fmt: skip
    inputs = [q, k, v, *past, lengths, total, *(tables or ())]
    check("GroupQueryAttention", inputs, expected, weights=[6], **attrs, **ATTRS)


def test_decoding_several_positions():
    q, k, v = tensors(1, 3)
    lengths, total = sizes([6], 7)
    past, tables = [normal(1, GROUPS, 4, SIZE) for _ in range(2)], angles(16, SIZE // 2)
    expected = grouped(split(q, HEADS), split(k, GROUPS), split(v, GROUPS), past, lengths, 7, tables=tables)
    check("GroupQueryAttention", [q, k, v, *past, lengths, total, *tables], expected, do_rotary=1, weights=[6], **ATTRS)


def test_attention_sinks_and_bias():
    q, k, v = tensors(2, 1)
    lengths, total = sizes([6, 3], 7)
    past, sink, bias = [normal(2, GROUPS, 6, SIZE) for _ in range(2)], normal(HEADS), normal(1, 1, 1, 7)
    heads = split(q, HEADS), split(k, GROUPS), split(v, GROUPS)
    expected = grouped(*heads, past, lengths, 7, sink=sink, bias=bias[0, 0])
    inputs = [q, k, v, *past, lengths, total, None, None, None, bias, sink]
    check("GroupQueryAttention", inputs, expected, weights=[6], **ATTRS)


def test_normalised_heads():
    q, k, v = tensors(2, 5)
    scales = normal(2, SIZE)

    def rms(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale

    lengths, total = sizes([4, 4], 5)
    query, key = rms(split(q, HEADS), scales[0]), rms(split(k, GROUPS), scales[1])
    expected = grouped(query, key, split(v, GROUPS), None, lengths, 5)
    inputs = [q, k, v, None, None, lengths, total, *[None] * 7, *scales]
    check("GroupQueryAttention", inputs, expected, weights=[6], peer=False, **ATTRS)  # onnxruntime: on GPUs only


def test_decoder_of_dynamic_length():
    """One compiled model for prefill and decoding: batch, new positions and cache length are dynamic."""
    tables = angles(32, SIZE // 2)
    lengths, total = sizes([4, 4], 5)
    dims = {0: ["batch", "new", HEADS * SIZE], 1: ["batch", "new", GROUPS * SIZE], 2: ["batch", "new", GROUPS * SIZE],
            3: ["batch", GROUPS, "past", SIZE], 4: ["batch", GROUPS, "past", SIZE], 5: ["batch"]}  # fmt: skip
    empty = np.zeros((2, GROUPS, 0, SIZE), np.float32)
    inputs = [*tensors(2, 5), empty, empty, lengths, total, *tables]
    attrs = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1}
    model, _ = node_model("GroupQueryAttention", inputs, outputs=3, weights=[7, 8], dims=dims, **attrs)
    prepared = RelayBackend.prepare(model)
    past = [empty, empty]
    for new, lengths in [(5, [4, 4]), (1, [5, 5]), (1, [6, 6])]:
        q, k, v = tensors(2, new)
        lengths, total = sizes(lengths, lengths[0] + 1)
        heads = split(q, HEADS), split(k, GROUPS), split(v, GROUPS)
        expected = grouped(*heads, past, lengths, int(total), tables=tables)
        results = prepared.run([q, k, v, *past, lengths, total])
        for have, want in zip(results, expected, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-4)
        past = list(results[1:])


def test_what_is_not_supported_is_rejected_by_name():
    q, k, v = tensors(1, 2)
    lengths, total = sizes([1], 2)
    inputs = [q, k, v, None, None, lengths, total]
    for passed, attrs, text in [
        (inputs, {"kv_num_heads": 3}, "4 heads of queries for 3 of keys"),
        (inputs, {"k_quant_type": "PER_TENSOR"}, "input 12 is missing"),
        (inputs, {"sliding_window_cache": 1, "local_window_size": 2}, "sliding_window_cache"),
        (inputs, {"qk_output": 1}, "qk_output"),
        ([q[..., :60], None, None, *inputs[3:]], {}, "heads side by side"),
    ]:
        rejected("GroupQueryAttention", passed, text, **{"num_heads": HEADS, "kv_num_heads": GROUPS, **attrs})


def compressed(layouts):
    """Row pointers and column indices of CSR block layouts, columns padded with -1."""
    columns = [np.concatenate([np.flatnonzero(row) for row in layout]) for layout in layouts]
    table = np.full((len(layouts), max(map(len, columns))), -1, np.int32)
    for line, found in zip(table, columns, strict=True):
        line[: len(found)] = found
    return np.concatenate([np.zeros((len(layouts), 1)), layouts.sum(2).cumsum(1)], 1).astype(np.int32), table


def run_in_place(session, passed):
    """The first output by onnxruntime, which requires past and present caches to share a buffer."""
    binding = session.io_binding()
    for name, x in passed.items():
        if name in ("x3", "x4"):
            value = onnxruntime.OrtValue.ortvalue_from_numpy(x.copy())
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output("y1" if name == "x3" else "y2", value)
        else:
            binding.bind_cpu_input(name, x)
    binding.bind_output("y0")
    session.run_with_iobinding(binding)
    return next(x for x in binding.copy_outputs_to_cpu() if x.ndim == 3)


@pytest.mark.parametrize(("new", "total"), [(40, 40), (1, 41)])
@pytest.mark.parametrize("rotary", [0, 1])
def test_sparse_attention(new, total, rotary):
    batch, block, blocks = 2, 16, 4
    layouts = np.array([np.tri(4), [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]], bool)
    rows, columns = compressed(layouts)
    q, k, v = normal(batch, new, HEADS * SIZE), normal(batch, new, GROUPS * SIZE), normal(batch, new, GROUPS * SIZE)
    past = [normal(batch, GROUPS, block * blocks, SIZE) for _ in range(2)]
    lengths, tables = np.full(batch, total, np.int32), angles(block * blocks, SIZE // 2)
    at = np.arange(total - new, total)
    seen = layouts[:, at // block][:, :, np.arange(block * blocks) // block]
    bias = [np.where(seen[h % 2], 0, -np.inf) for h in range(HEADS)]
    expected = grouped(split(q, HEADS), split(k, GROUPS), split(v, GROUPS), past, lengths - 1, total,
                       tables=tables if rotary else None, bias=bias)  # fmt: skip
    inputs = [q, k, v, *past, rows, columns, np.array(total, np.int32), lengths, *(tables if rotary else ())]
    model, passed = node_model("SparseAttention", inputs, outputs=3, weights=[5, 6], num_heads=HEADS, do_rotary=rotary,
                              kv_num_heads=GROUPS, sparse_block_size=block)  # fmt: skip
    results = RelayBackend.prepare(model).run(passed)
    np.testing.assert_allclose(results[0], expected[0], rtol=1e-4, atol=1e-5)
    for have, want in zip(results[1:], expected[1:], strict=True):
        np.testing.assert_allclose(have[:, :, :total], want[:, :, :total], rtol=1e-5, atol=1e-6)
    if onnxruntime is not None:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(results[0], run_in_place(session, passed), rtol=1e-4, atol=1e-5)
    strange = [*inputs[:6], columns + 9, *inputs[7:]]
    rejected("SparseAttention", strange, "columns below 4", outputs=3, weights=[5, 6], num_heads=HEADS,
            kv_num_heads=GROUPS, sparse_block_size=block, do_rotary=rotary)  # fmt: skip
