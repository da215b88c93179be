"""Near misses of `RecognizePatterns`: why decomposed norms, activations and rotary embeddings were not recognised."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from relayc import relay
from relayc.relay import nn
from relayc.relay.analysis import free_vars
from relayc.relay.transform import RecognizePatterns
from relayc.te.ir import IRModule, collect
from relayc.te.ir.decisions import recording

SHAPE = (2, 4, 8, 16)


def x() -> relay.Var:
    return relay.var("x", shape=SHAPE)


def number(value: float) -> relay.Expr:
    return relay.const(np.float32(value))


def reasons(*parts: relay.Expr) -> dict[str, str]:
    """The reasons of the rules that refused a part of the model, by rule."""
    body = parts[0] if len(parts) == 1 else relay.Tuple(parts)
    function = relay.Function(free_vars(body), body)
    with recording() as decisions:
        RecognizePatterns()(IRModule({"main": function}))
    return {d.subject: reason for d in decisions for _, reason in d.refused}


def layer_norm(data: relay.Expr, mean_axis: int, variance_axis: int) -> relay.Expr:
    distance = data - relay.mean(data, axis=mean_axis, keepdims=True)
    variance = relay.variance(data, axis=variance_axis, keepdims=True)
    return distance / relay.sqrt(variance + number(1e-5))


def gelu() -> tuple[relay.Expr, relay.Expr]:
    data = x()
    gate = relay.erf(data * number(0.5**0.5))
    return data * (gate + number(1.0)) * number(0.5), gate


def rotated(shift: int, columns: int) -> relay.Expr:
    data, half = x(), SHAPE[-1] // 2
    tables = [relay.var(name, shape=(8, columns)) for name in ("cosine", "sine")]
    first, second = (
        relay.strided_slice(data, begin=(b,), end=(b + half,), strides=(1,), axes=(3,)) for b in (0, half - shift)
    )
    swapped = relay.concatenate((relay.negative(second), first), axis=-1)
    return data * tables[0] + swapped * tables[1]


def shifted_softmax() -> relay.Expr:
    data = x()
    return nn.softmax(data - relay.max(data, axis=1, keepdims=True), axis=3)


@pytest.mark.parametrize(
    ("parts", "rule", "reason"),
    [
        ((layer_norm(x(), -1, -2),), "DecomposedLayerNorm", "different dimensions"),
        (gelu(), "DecomposedGelu", "erf is used elsewhere"),
        ((rotated(1, 16),), "DecomposedRotaryEmbedding", "not the halves"),
        ((rotated(0, 1),), "DecomposedRotaryEmbedding", "not 16 columns"),
        ((shifted_softmax(),), "UnshiftedSoftmax", "varies along the dimension"),
    ],
)
def test_a_refusal_has_its_reason(parts: tuple[relay.Expr, ...], rule: str, reason: str) -> None:
    assert reason in reasons(*parts)[rule]


def test_what_is_recognised_refuses_nothing() -> None:
    assert reasons(layer_norm(x(), -1, -1)) == {} == reasons(gelu()[0]) == reasons(rotated(0, 16))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("inner_first", [False, True])
def test_gelu_is_recognised_in_any_order_of_its_factors(order: tuple[int, ...], inner_first: bool) -> None:
    data = x()
    gate = relay.tanh(number((2 / np.pi) ** 0.5) * data * (data * number(0.044715) * data + number(1.0))) + number(1.0)
    a, b, c = ((data, gate, number(0.5))[i] for i in order)
    body = a * (b * c) if inner_first else (a * b) * c
    module = RecognizePatterns()(IRModule({"main": relay.Function([data], body)}))
    assert [call.op.name for call in collect(module["main"], relay.Call)] == ["nn.gelu"]
