"""LinearAttention of ONNX and of com.microsoft against numpy and onnxruntime, and as loops on several processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relayc.frontends.onnx import from_onnx
from tests.frontends.node_cases import check, node_model, rejected

Array = np.ndarray[Any, Any]
RULES = ["linear", "gated", "delta", "gated_delta"]
rng = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return rng.normal(size=shape).astype(np.float32)


def linear_attention(
    q: Array, k: Array, v: Array, state: Array, decay: Array | None, beta: Array | None
) -> tuple[Array, Array]:
    """[batch, length, heads, size] each, the state [batch, groups, size, value size]; position by position."""
    state, rows = state.copy(), []
    share = q.shape[2] // k.shape[2]
    for t in range(q.shape[1]):
        if decay is not None:
            state *= np.exp(decay[:, t])[..., None]
        step = v[:, t]
        if beta is not None:
            step = beta[:, t] * (step - np.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + np.einsum("bhk,bhv->bhkv", k[:, t], step)
        rows.append(np.einsum("bhkv,bhk->bhv", np.repeat(state, share, 1), q[:, t]) / np.sqrt(q.shape[-1]))
    return np.stack(rows, 1).astype(np.float32), state.astype(np.float32)


def flat(x: Array | None) -> Array | None:
    """Heads side by side."""
    return None if x is None else x.reshape(*x.shape[:2], -1)


def inputs_of(rule: str, batch: int, length: int, heads: int, groups: int, size: int, width: int, rates: int = 1):
    """The inputs with heads as an axis; `rates`, 1 or `size`, is the number of decay values per head."""
    q, k = normal(batch, length, heads, size), normal(batch, length, groups, size)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    decay = -np.abs(normal(batch, length, groups, rates)) if "gated" in rule else None
    beta = 1 / (1 + np.exp(-normal(batch, length, groups, 1))) if "delta" in rule else None
    return q, k, normal(batch, length, groups, width), normal(batch, groups, size, width), decay, beta


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("heads", "groups", "size", "width", "rates"),
    [(2, 2, 4, 3, 1), (4, 2, 16, 64, 16), (6, 2, 20, 100, 1), (5, 1, 3, 1, 3)],
)
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_each_rule(domain, rule, heads, groups, size, width, rates):
    passed = inputs_of(rule, 2, 5, heads, groups, size, width, rates)
    q, k, v, state, decay, beta = passed
    y, last = linear_attention(*passed)
    result = flat(y)
    assert result is not None
    check("LinearAttention", [flat(q), flat(k), flat(v), state, flat(decay), flat(beta)], [result, last], outputs=2,
          domain=domain, version=27 if domain == "" else 21, peer=domain != "", update_rule=rule, q_num_heads=heads,
          kv_num_heads=groups, dims={0: ["b", "t", heads * size]}, rtol=1e-3)  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_all_sizes_may_be_dynamic(rule):
    passed = inputs_of(rule, 2, 5, 4, 2, 6, 40)
    y, last = linear_attention(*passed)
    result, inputs = flat(y), [flat(x) if i != 3 else x for i, x in enumerate(passed)]
    assert result is not None
    with_symbolic_dims = {i: [f"x{i}_{axis}" for axis in range(x.ndim)] for i, x in enumerate(inputs) if x is not None}
    check("LinearAttention", inputs, [result, last], outputs=2, version=21, update_rule=rule, q_num_heads=4,
          kv_num_heads=2, dims=with_symbolic_dims, rtol=1e-3)  # fmt: skip


@pytest.mark.parametrize("rule", ["linear", "gated_delta"])
@pytest.mark.parametrize(("heads", "keys", "groups"), [(2, 2, 4), (1, 1, 3), (4, 2, 4), (2, 4, 4), (4, 1, 2)])
def test_heads_of_values_may_share_queries_and_keys(rule: str, heads: int, keys: int, groups: int) -> None:
    """As in Qwen3.5, whose values have more heads than its keys."""
    q, k, v, state, decay, beta = inputs_of(rule, 2, 5, heads, groups, 8, 12)
    k = k[:, :, :keys]
    whole = np.repeat(q, max(groups // heads, 1), 2), np.repeat(k, groups // keys, 2)
    y, last = linear_attention(*whole, v, state, decay, beta)
    result, inputs = flat(y), [flat(q), flat(k), flat(v), state, flat(decay), flat(beta)]
    assert result is not None
    check("LinearAttention", inputs, [result, last], outputs=2, version=21, update_rule=rule, q_num_heads=heads,
          kv_num_heads=groups, dims={0: ["b", "t", heads * 8]}, rtol=1e-3)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_without_a_state_it_begins_at_zero(dtype):
    q, k, v, state, _, _ = inputs_of("linear", 1, 6, 2, 1, 8, 24)
    y, last = linear_attention(q, k, v, np.zeros_like(state), None, None)
    passed = [x.reshape(1, 6, -1).astype(dtype) for x in (q, k, v)]
    expected = [y.reshape(1, 6, -1).astype(dtype), last.astype(dtype)]
    check("LinearAttention", passed, expected, outputs=2, domain="", version=27, peer=False, update_rule="linear",
          q_num_heads=2, kv_num_heads=1, rtol=1e-2 if dtype == "float16" else 1e-4, atol=1e-2)  # fmt: skip


def test_all_positions_are_one_operator():
    q, k, v, state, decay, beta = inputs_of("gated_delta", 1, 5, 2, 2, 4, 4)
    model, _ = node_model("LinearAttention", [flat(q), flat(k), flat(v), state, flat(decay), flat(beta)], outputs=2,
                          domain="", version=27, q_num_heads=2, kv_num_heads=2)  # fmt: skip
    text = str(from_onnx(model)[0])
    assert text.count("nn.linear_attention") == 1 and "scan" not in text


def test_forms_that_are_rejected():
    q = normal(1, 2, 4)
    one, gated = {"q_num_heads": 1, "kv_num_heads": 1}, {"update_rule": "gated"}
    rejected("LinearAttention", [q, q, q], "1 heads of queries for 2", domain="", version=27,
             q_num_heads=1, kv_num_heads=2)  # fmt: skip
    rejected("LinearAttention", [q, q, q], "2 heads of queries for 3", q_num_heads=2, kv_num_heads=3)
    rejected("LinearAttention", [q, q, q], "update_rule", update_rule="other", **one)
    rejected("LinearAttention", [q, q, q], "3 heads", q_num_heads=3, kv_num_heads=1, update_rule="linear")
    rejected("LinearAttention", [q, q[:, :1], q], "keys", update_rule="linear", **one)
    rejected("LinearAttention", [q, q, q, normal(1, 1, 3, 4)], "past_state", update_rule="linear", **one)
    rejected("LinearAttention", [q, q, q], "decay is left out", **gated, **one)
    rejected("LinearAttention", [q, q, q, None, normal(1, 2, 3)], "decay is", **gated, **one)
    rejected("LinearAttention", [q, q, q, None, None, normal(1, 2, 3)], "beta is", update_rule="delta", **one)
