"""LimitParts: concatenations and splits of thousands of parts become few kernels of bounded size."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.relay import op
from relayc.relay.analysis import evaluation_order
from relayc.relay.transform import LimitParts, PassContext

DATA = np.arange(3 * 2 * 700, dtype=np.float32).reshape(3, 2 * 700)


def run(function: relay.Function, *inputs: np.ndarray) -> tuple[list[np.ndarray], int]:
    """The outputs, and the number of kernels."""
    lib = relay.build(function)
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    for param, value in zip(function.params, inputs, strict=True):
        module.set_input(param.name, value)
    module.run()
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())], lib.build_report.kernels


def most_operands(body: relay.Expr) -> int:
    return max(len(e.args) for e in evaluation_order(body) if isinstance(e, relay.Call))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_concatenation_of_many_is_a_tree(axis: int) -> None:
    parts = [relay.var(f"x{i}", (3, 2)) for i in range(700)]
    function = relay.Function(tuple(parts), op.concatenate(parts, axis=axis))
    limited = LimitParts().transform(function, PassContext())
    assert most_operands(limited.body) == 128
    assert limited.ret_type is function.ret_type
    values = [np.ascontiguousarray(DATA[:, 2 * i : 2 * i + 2]) for i in range(700)]
    (found,), kernels = run(function, *values)
    np.testing.assert_array_equal(found, np.concatenate(values, axis))
    assert kernels <= 3


def test_few_parts_stay_as_they_are() -> None:
    x = relay.var("x", (128, 2))
    function = relay.Function((x,), op.concatenate([*op.split(x, 128)[:100], x], axis=0))
    assert LimitParts().transform(function, PassContext()) is function


@pytest.mark.parametrize("sizes", [[2] * 700, [1, 3] * 350])
def test_a_split_into_many_is_a_tree(sizes: list[int]) -> None:
    x = relay.var("x", DATA.shape)
    cuts = tuple(np.cumsum(sizes)[:-1].tolist())
    parts = op.split(x, cuts, axis=1)
    limited = LimitParts().transform(relay.Function((x,), relay.Tuple([parts[i] for i in range(700)])), PassContext())
    splits = [e for e in evaluation_order(limited.body) if isinstance(e, relay.Call)]
    assert all(len(e.ty.fields) <= 128 for e in splits)
    results = [op.tanh(parts[i]) for i in range(700)]
    found, kernels = run(relay.Function((x,), relay.Tuple(results)), DATA)
    for got, expected in zip(found, np.split(DATA, cuts, 1), strict=True):
        np.testing.assert_allclose(got, np.tanh(expected), rtol=1e-5, atol=1e-6)
    assert kernels <= 4
