"""Gates of linear attention, causal convolutions and norms of com.microsoft against numpy and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontends.node_cases import check, rejected

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def test_gates_of_linear_attention():
    a, b, bias, scale = normal(2, 3, 4), normal(2, 3, 4), normal(4), -np.exp(normal(4))
    decay = scale * np.log1p(np.exp(a + bias))
    check("LinearAttentionGate", [a, bias, scale, b], [decay, sigmoid(b)], outputs=2, weights=[1, 2])
    check("LinearAttentionGate", [a, bias, scale], [decay])


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("channels_last", [0, 1])
def test_causal_convolution(dilation, channels_last):
    x, w, b = normal(2, 6, 5), normal(6, 1, 3), normal(6)
    past = normal(2, 6, 2 * dilation)
    whole = np.concatenate([past, x], 2)
    y = sum(whole[:, :, k * dilation : k * dilation + 5] * w[:, 0, k, None] for k in range(3)) + b[:, None]
    results = [y * sigmoid(y), whole[:, :, 5:]]

    def form(x):
        return x.transpose(0, 2, 1).reshape(2, -1, 2, 3) if channels_last else x

    check("CausalConvWithState", [form(x), w, b, form(past)], [form(r) for r in results], outputs=2, weights=[1, 2],
          activation="silu", dilation=dilation, channels_last=channels_last,
          dims={0: ["b", "t", 2, 3] if channels_last else ["b", 6, "t"]})  # fmt: skip


def test_norms_of_branches():
    x = normal(2, 3, 4)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    for scale in (normal(4), normal(3, 4), normal(12)):
        check("BranchwiseRMSNorm", [x, scale], y * (scale.reshape(3, 4) if scale.size == 12 else scale), weights=[1])
        flat = y * (scale.reshape(3, 4) if scale.size == 12 else scale)
        check("BranchwiseRMSNorm", [x.reshape(2, 12), scale], flat.reshape(2, 12), weights=[1], num_branches=3)


def test_forms_that_are_rejected():
    q = normal(1, 2, 4)
    heads = {"q_num_heads": 1, "kv_num_heads": 1}
    rejected("LinearAttention", [q, q, q], "state_window", update_rule="linear", state_window=2, **heads)
    rejected("CausalConvWithState", [normal(1, 2, 3, 4), normal(2, 1, 1, 3)], "ndim", ndim=2)
