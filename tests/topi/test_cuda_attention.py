"""Attention on GPUs, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.target import Target
from relayc.topi.registry import schedule_for

RNG = np.random.default_rng(8)
TARGET = Target("cuda -arch=sm_90")


def expected(q, k, v, scale, causal, mask=None):
    per_group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, per_group, axis=1), np.repeat(v, per_group, axis=1)
    score = q @ k.swapaxes(-1, -2) * scale
    score = score if mask is None else score + mask
    if causal:
        rows, keys = score.shape[-2:]
        score = np.where(np.arange(keys) <= np.arange(rows)[:, None] + keys - rows, score, -np.inf)
    weight = np.exp(score - score.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "groups"), [(3, 3), (4, 2)])
def test_attention(cuda_device, heads, groups, causal, dtype):
    length, keys, depth, width = 33, 40, 16, 24
    shapes = [(2, heads, length, depth), (2, groups, keys, depth), (2, groups, keys, width), (1, 1, length, keys)]
    arrays = [RNG.standard_normal(s).astype(dtype) for s in shapes]
    q, k, v, mask = [te.placeholder(a.shape, dtype, n) for a, n in zip(arrays, "qkvm", strict=True)]
    out = topi.nn.attention(q, k, v, mask, 0.25, causal)
    library = backend.build(te.lower(schedule_for([out], TARGET), [q, k, v, mask, out]), target=TARGET)
    result = backend.nd.empty((2, heads, length, width), dtype, cuda_device)
    library(*[backend.nd.array(a, cuda_device) for a in arrays], result)
    wide = [a.astype("float32") for a in arrays]
    tolerance = 1e-4 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(
        result.numpy(), expected(*wide[:3], 0.25, causal, wide[3]), rtol=tolerance, atol=tolerance
    )
