"""Functions of an 8-bit value become lookup tables: which, with exactly the results of the operators' references."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay.analysis import evaluation_order
from relayc.relay.expr import Call, Expr, Function, Var, const, var
from relayc.relay.interpreter import evaluate
from relayc.relay.op import nn, qnn
from relayc.relay.transform.canonicalize_quantization import CanonicalizeQuantization
from relayc.relay.transform.fold_constant import FoldConstant
from relayc.relay.transform.tabulate_int8_activations import TabulateInt8Activations
from relayc.te.ir import IRModule
from relayc.te.tir import SizeVar

HASWELL = Target("llvm -mcpu=haswell -mtriple=x86_64-unknown-linux-gnu")
RANDOM = np.random.default_rng(4)
FUNCTIONS = [nn.gelu, relay.tanh, lambda x: nn.leaky_relu(x, 0.1), lambda x: relay.divide(const(np.float32(1)), x)]


def dequantized(values: Expr, scale: float = 0.05, zero: int = 3) -> Expr:
    return qnn.dequantize(values, np.float32(scale), zero)


def quantized(x: Expr, scale: float = 0.03, zero: int = 7, dtype: str = "uint8") -> Expr:
    return qnn.quantize(x, np.float32(scale), zero, out_dtype=dtype)


def silu(values: Expr) -> Expr:
    """The form in which exporters of quantised models write it."""
    x = dequantized(values)
    return quantized(relay.multiply(x, dequantized(quantized(relay.sigmoid(x), 1 / 255, 0), 1 / 255, 0)))


def values(dtype: str = "uint8", name: str = "x") -> Var:
    return var(name, (3, 5, 31), dtype)


def tabulated(body: Expr, *params: Var, target: Target = HASWELL) -> list[str]:
    """The operators after the pass, producers first."""
    module = FoldConstant()(CanonicalizeQuantization()(IRModule({"main": Function(params, body)})))
    after = TabulateInt8Activations(target)(module)["main"]
    return [e.operator.name for e in evaluation_order(after.body) if isinstance(e, Call)]


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512vbmi", "llvm -mattr=-avx512f"])
@pytest.mark.parametrize(("source", "result"), [("uint8", "uint8"), ("uint8", "int8"), ("int8", "uint8")])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_are_those_of_the_references(function, source, result, target):
    x = values(source)
    whole = Function((x,), quantized(function(dequantized(x)), dtype=result))
    data = RANDOM.integers(0, 256, (3, 5, 31)).astype(np.uint8).view(source)
    module = graph_executor.GraphModule(relay.build(whole, target)["default"](device("cpu", 0)))
    module.set_input("x", data)
    module.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), evaluate(whole, [data]))


def test_shapes_may_be_dynamic():
    # The table has 256 entries for any number of elements: its length is no dimension of the data.
    x = var("x", (SizeVar("n"),), "int8")
    whole = Function((x,), quantized(relay.sigmoid(dequantized(x)), 1 / 255, 0))
    module = graph_executor.GraphModule(relay.build(whole, "llvm")["default"](device("cpu", 0)))
    for count in (1, 7, 300):
        data = RANDOM.integers(-128, 128, count).astype(np.int8)
        module.set_input("x", data)
        module.run()
        np.testing.assert_array_equal(module.get_output(0).numpy(), evaluate(whole, [data]))


def test_intermediate_values_are_skipped():
    x = values()
    assert tabulated(silu(x), x) == ["qnn.lookup"]
    assert tabulated(silu(silu(x)), x) == ["qnn.lookup"]


def test_shared_bytes_are_read():
    x = values()
    between = silu(x)
    both = relay.Tuple((silu(between), nn.max_pool2d(relay.reshape(between, (1, 3, 5, 31)), (1, 2), (1, 2))))
    assert tabulated(both, x) == ["qnn.lookup", "qnn.lookup", "reshape", "nn.max_pool"]


def test_other_functions_stay():
    x, y = values(), values(name="y")
    sums = tabulated(quantized(relay.add(dequantized(x), dequantized(y))), x, y)
    scales = const(np.linspace(0.1, 0.2, 31, dtype=np.float32))
    assert "qnn.lookup" not in sums
    assert "qnn.lookup" not in tabulated(quantized(relay.multiply(dequantized(x), scales)), x)
    assert "qnn.lookup" not in tabulated(relay.sigmoid(dequantized(x)), x)  # no bytes in the end
    assert "qnn.lookup" not in tabulated(relay.maximum(x, const(np.uint8(3))), x)  # no floats in between
    broadcast = quantized(relay.add(dequantized(var("z", (31,), "uint8")), dequantized(x)))
    assert "qnn.lookup" not in tabulated(broadcast, x)


def test_targets_without_byte_shuffles_have_no_lookups():
    x = values()
    plain = Target("llvm -mcpu=x86-64 -mtriple=x86_64-unknown-linux-gnu")
    assert "qnn.lookup" not in tabulated(silu(x), x, target=plain)
