"""WidenProducts: products of half-precision data in float32."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend import Target
from relayc.backend.runtime import device, graph_executor
from relayc.relay import Expr, Function, const, op, var
from relayc.relay.op import nn
from relayc.relay.transform import WidenProducts
from relayc.te.ir import first_difference

HASWELL = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell")
RANDOM = np.random.default_rng(2)


def transformed(*params: Expr, body: Expr) -> Function:
    return WidenProducts(HASWELL)(relay.IRModule({"main": Function(params, body)}))["main"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_operands_are_cast_and_probabilities_not_rounded(dtype):
    x, v = var("x", shape=(2, 4, 6), dtype=dtype), var("v", shape=(2, 6, 8), dtype=dtype)
    after = transformed(x, v, body=nn.batch_matmul(nn.softmax(x), v, transpose_b=False))
    wide = nn.batch_matmul(nn.softmax(op.cast(x, "float32")), op.cast(v, "float32"), transpose_b=False)
    assert first_difference(after.body, Function((x, v), op.cast(wide, dtype)).body) is None


def test_a_softmax_that_is_used_elsewhere_is_rounded_once_for_all():
    x, v = var("x", shape=(4, 6), dtype="float16"), var("v", shape=(6, 8), dtype="float16")
    weights = nn.softmax(x)
    after = transformed(x, v, body=relay.Tuple((nn.batch_matmul(weights, v, transpose_b=False), weights)))
    wide = nn.batch_matmul(op.cast(weights, "float32"), op.cast(v, "float32"), transpose_b=False)
    assert first_difference(after.body, relay.Tuple((op.cast(wide, "float16"), weights))) is None


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_weights_stay_narrow_and_float32_as_it_is(dtype):
    x = var("x", shape=(4, 6), dtype=dtype)
    y = const(np.ones((6, 2), dtype)) if dtype == "float16" else var("y", shape=(6, 2), dtype=dtype)
    body = nn.batch_matmul(x, y, transpose_b=False)
    params = [p for p in (x, y) if isinstance(p, relay.Var)]
    assert transformed(*params, body=body).body is body


@pytest.mark.parametrize(("rows", "widened"), [(1, False), (4, False), (9, True)])
@pytest.mark.parametrize("transposed", [False, True])
def test_operands_of_few_rows_stay_narrow(operators, rows: int, widened: bool, transposed: bool):
    x, y = var("x", shape=(rows, 64), dtype="float16"), var("y", shape=(64, 64), dtype="float16")
    after = transformed(x, y, body=nn.batch_matmul(x, y, transpose_b=transposed))
    assert ("cast" in operators(after)) == widened


def test_many_constant_matrices_are_packed_wide(operators):
    x, y = var("x", shape=(3, 40, 6), dtype="float16"), const(np.ones((3, 6, 2), np.float16))
    assert "cast" in operators(transformed(x, body=nn.batch_matmul(x, y, transpose_b=False)))


def test_the_result_is_that_of_exact_probabilities():
    x, v = var("x", shape=(3, 40, 50), dtype="float16"), var("v", shape=(3, 50, 8), dtype="float16")
    library = relay.build(Function((x, v), nn.batch_matmul(nn.softmax(x), v, transpose_b=False)), "llvm")
    module = graph_executor.GraphModule(library["default"](device("cpu")))
    scores, values = (RANDOM.normal(size=p.tensor_type.static_shape).astype(np.float16) for p in (x, v))
    module.set_input("x", scores)
    module.set_input("v", values)
    module.run()
    powers = np.exp(scores.astype(np.float64))
    exact = (powers / powers.sum(-1, keepdims=True)) @ values.astype(np.float64)
    got = module.get_output(0).numpy()
    assert got.dtype == np.float16 and (got == exact.astype(np.float16)).mean() > 0.99
