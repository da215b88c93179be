"""Quantisation scales and zero points before norms and softmax, and scales after them."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.relay.analysis import evaluation_order
from relayc.relay.expr import Call, Expr, Function, Var, const, var
from relayc.relay.interpreter import evaluate
from relayc.relay.op import nn
from relayc.relay.transform.fold_quantization_scales import FoldQuantizationScales
from relayc.te.ir import IRModule

RANDOM = np.random.default_rng(8)
QUANTIZED = RANDOM.integers(0, 256, (6, 40)).astype(np.uint8)
GAMMA, BETA = (const(RANDOM.standard_normal(40).astype(np.float32)) for _ in range(2))


def number(value: float) -> Expr:
    return const(np.float32(value))


def dequantized(x: Expr, scale: float = 0.05) -> Expr:
    return relay.multiply(relay.subtract(relay.cast(x, "float32"), number(100)), number(scale))


def folded(body: Expr, x: Var) -> tuple[list[str], Function]:
    """The operators after the pass, producers first, and the function."""
    after = FoldQuantizationScales()(IRModule({"main": Function((x,), body)}))["main"]
    return [e.operator.name for e in evaluation_order(after.body) if isinstance(e, Call)], after


NORMS = {
    "layer_norm": (lambda x: nn.layer_norm(x, GAMMA, BETA, epsilon=1e-2), ["cast", "nn.layer_norm"]),
    "softmax": (nn.softmax, ["cast", "multiply", "nn.softmax", "multiply"]),
    "rms_norm": (lambda x: nn.rms_norm(x, GAMMA), ["cast", "subtract", "multiply", "nn.rms_norm"]),
}


@pytest.mark.parametrize("name", NORMS)
def test_scales_are_folded(name):
    norm, expected = NORMS[name]
    x = var("x", QUANTIZED.shape, "uint8")
    body = relay.divide(norm(dequantized(x)), number(0.04))
    names, after = folded(body, x)
    assert names == expected
    result, wanted = evaluate(after, [QUANTIZED]), evaluate(Function((x,), body), [QUANTIZED])
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


def test_shared_values_and_unquantised_floats_stay():
    x, y = var("x", QUANTIZED.shape, "uint8"), var("y", QUANTIZED.shape)
    made = nn.layer_norm(dequantized(x), GAMMA, BETA)
    assert "divide" in folded(relay.Tuple((made, relay.divide(made, number(0.04)))), x)[0]
    far = relay.multiply(relay.subtract(y, number(1e6)), number(0.05))  # sums of values far from zero lose precision
    assert folded(nn.layer_norm(far, GAMMA, BETA), y)[0] == ["subtract", "multiply", "nn.layer_norm"]
    transposed = dequantized(x, -0.05)
    assert folded(nn.layer_norm(transposed, GAMMA, BETA), x)[0] == ["cast", "subtract", "multiply", "nn.layer_norm"]


def test_scales_that_would_leave_float32_stay():
    x = var("x", QUANTIZED.shape, "uint8")
    scores = np.where(QUANTIZED < 90, 0, 100).astype(np.uint8)  # the lowest float32 of a mask, and zero
    body = nn.softmax(dequantized(x, 3e36))
    names, after = folded(body, x)
    assert names == ["cast", "subtract", "multiply", "nn.softmax"]
    np.testing.assert_array_equal(evaluate(after, [scores]), evaluate(Function((x,), body), [scores]))
    constant = np.full_like(QUANTIZED, 7)  # without an epsilon, the norm of a constant row is NaN
    body = nn.layer_norm(dequantized(x, 1e20), GAMMA, BETA)
    names, after = folded(body, x)
    assert names == ["cast", "subtract", "multiply", "nn.layer_norm"]
    np.testing.assert_array_equal(evaluate(after, [constant]), evaluate(Function((x,), body), [constant]))
