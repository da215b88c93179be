"""Decoding operators of com.microsoft against numpy and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontends.node_cases import check, rejected

rng = np.random.default_rng(0)
BATCH, HEADS, PAST, SIZE = 2, 3, 5, 8


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


def split(x):
    return x.reshape(BATCH, 1, HEADS, SIZE).transpose(0, 2, 1, 3)


def attention(query, key, value, bias=0.0):
    scores = query.astype(np.float64) @ key.transpose(0, 1, 3, 2) / np.sqrt(SIZE) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result = weights / weights.sum(-1, keepdims=True) @ value
    return result.transpose(0, 2, 1, 3).reshape(BATCH, 1, HEADS * SIZE).astype(np.float32)


@pytest.mark.parametrize("packed", [False, True])
def test_one_position_with_a_past(packed):
    new, bias = [normal(BATCH, 1, HEADS * SIZE) for _ in range(3)], normal(3 * HEADS * SIZE)
    past, added = [normal(BATCH, HEADS, PAST, SIZE) for _ in range(2)], normal(1, HEADS, 1, PAST + 1)
    query, key, value = [split(x + part) for x, part in zip(new, np.split(bias, 3), strict=True)]
    key, value = np.concatenate([past[0], key], 2), np.concatenate([past[1], value], 2)
    first = [np.concatenate(new, 2), None, None] if packed else new
    check("DecoderMaskedMultiHeadAttention", [*first, None, added, *past, None, None, None, bias],
          [attention(query, key, value, added), key, value], outputs=3, num_heads=HEADS, peer=False)  # fmt: skip


def test_one_position_with_spare_cache_capacity():
    new, past, before = [normal(BATCH, 1, HEADS * SIZE) for _ in range(3)], [normal(BATCH, HEADS, PAST, SIZE)] * 2, 3
    key, value = past[0].copy(), past[1].copy()
    key[:, :, before], value[:, :, before] = split(new[1])[:, :, 0], split(new[2])[:, :, 0]
    expected = attention(split(new[0]), key[:, :, : before + 1], value[:, :, : before + 1])
    check("DecoderMaskedMultiHeadAttention", [*new, None, None, *past, np.array([before], np.int32)],
          [expected, key, value], outputs=3, num_heads=HEADS, past_present_share_buffer=1)  # fmt: skip


def test_one_position_against_an_encoder():
    query, key, value = normal(BATCH, 1, HEADS * SIZE), *[normal(BATCH, HEADS, PAST, SIZE) for _ in range(2)]
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    bias = np.where(mask, 0.0, -10000.0)[:, None, None]
    check("DecoderMaskedMultiHeadAttention", [query, key, value, mask], attention(split(query), key, value, bias),
          num_heads=HEADS)  # fmt: skip


def test_beams_are_rejected():
    new = [normal(BATCH, 1, HEADS * SIZE) for _ in range(3)]
    rejected("DecoderMaskedMultiHeadAttention", [*new, *[None] * 5, np.array([2], np.int32)], "width of a beam",
            num_heads=HEADS)  # fmt: skip


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("layout", "sections"), [(0, [1, 2, 1]), (1, [2, 1, 1]), (0, [4, 0, 0])])
def test_rotation_by_three_positions(layout, sections, interleaved):
    x, positions = normal(BATCH, HEADS, 6, SIZE), rng.integers(0, 9, (3, BATCH, 6))
    tables = normal(10, 4), normal(10, 4)
    source = np.repeat(np.arange(3), sections) if layout == 0 else np.array([0, 1, 2, 0])
    cosine, sine = (np.stack([t[positions[s], i] for i, s in enumerate(source)], -1)[:, None] for t in tables)
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :4], x[..., 4:])
    rotated = first * cosine - second * sine, second * cosine + first * sine
    joined = np.stack(rotated, -1).reshape(x.shape) if interleaved else np.concatenate(rotated, -1)
    check("MRotaryEmbedding", [x, positions, *tables], joined, weights=[2, 3], mrope_section=sections,
          mrope_layout=layout, interleaved=interleaved)  # fmt: skip
    flat = [v.transpose(0, 2, 1, 3).reshape(BATCH, 6, HEADS * SIZE) for v in (x, joined)]
    check("MRotaryEmbedding", [flat[0], positions, *tables], flat[1], mrope_section=sections, num_heads=HEADS,
          mrope_layout=layout, interleaved=interleaved, rotary_embedding_dim=SIZE, peer=False)  # fmt: skip
