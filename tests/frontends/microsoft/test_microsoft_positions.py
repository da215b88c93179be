"""Relative position biases and rotary embeddings of com.microsoft against numpy (GPU only in onnxruntime)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.frontends.node_cases import check, rejected

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def bucket(offset: int, count: int, longest: int, both_ways: bool) -> int:
    """The bucket of T5 for a key `offset` positions behind its query."""
    first = 0
    if both_ways:
        count //= 2
        first = count if offset > 0 else 0
    distance = abs(offset) if both_ways else max(-offset, 0)
    exact = count // 2
    if distance < exact:
        return first + distance
    return first + min(exact + int(math.log(distance / exact) / math.log(longest / exact) * (count - exact)), count - 1)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_biases_of_relative_positions(both_ways: bool, known: bool) -> None:
    table, length = normal(12, 3), 19
    places = [[bucket(k - q, 12, 15, both_ways) for k in range(length)] for q in range(length)]
    expected = table.reshape(3, 12)[:, places][None]
    size = np.array([length])
    check("RelativePositionBias", [table, size, size], expected, peer=False, weights=[0, 1, 2] if known else [0],
          max_distance=15, is_bidirectional=int(both_ways))  # fmt: skip


def test_gated_biases() -> None:
    batch, length, heads, size, width = 2, 5, 3, 4, 8
    query, bias, positions = normal(batch, length, heads * size), normal(heads * size), normal(1, heads, length, length)
    weight, gate_bias, factor = normal(size, width), normal(width), normal(1, heads, 1, 1)
    split = (query + bias).reshape(batch, length, heads, size).transpose(0, 2, 1, 3)
    halves = (split @ weight + gate_bias).reshape(batch, heads, length, 2, width // 2).sum(-1)
    update, reset = np.split(1 / (1 + np.exp(-halves)), 2, axis=-1)
    expected = (update * (reset * factor - 1) + 2) * positions
    inputs = [query, bias, positions, weight, gate_bias, factor]
    check("GatedRelativePositionBias", inputs, expected, peer=False, weights=[1, 3, 4, 5], num_heads=heads)
    check("GatedRelativePositionBias", inputs, expected, peer=False, dims={0: ("b", "s", 12), 2: (1, 3, "s", "s")},
          num_heads=heads)  # fmt: skip
    offsets = np.zeros((batch, length), np.int32)
    rejected("GatedRelativePositionBias", [*inputs, offsets], "rows of different lengths", num_heads=heads)


def test_rotary_embedding_of_explicit_angles() -> None:
    angles, parts = normal(2, 5, 8), [normal(2, heads, 5, 8) for heads in (4, 4, 1, 1)]
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    expected = [parts[i] * cosine + parts[i + 1] * sine for i in (0, 2)]
    check("GemmaRotaryEmbedding", [angles, *parts], expected, peer=False, outputs=2)
    half = [x.astype(np.float16) for x in parts]
    check("GemmaRotaryEmbedding", [angles, *half], [y.astype(np.float16) for y in expected], peer=False, outputs=2,
          rtol=1e-2, atol=1e-2)  # fmt: skip
