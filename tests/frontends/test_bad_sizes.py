"""Invalid or contradicting sizes computed at run time: errors that name the node, never a result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from relayc import relay
from relayc.backend.runtime import ArgumentError, device, graph_executor
from relayc.frontends.onnx import from_onnx

KINDS = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


class Case:
    """A node with run-time inputs, valid values for them, and invalid ones."""

    def __init__(self, op: str, good: dict[str, Any], *bad: dict[str, Any], shape: Any = ("a", "b", "c"), **attrs: Any):
        self.op, self.good, self.bad, self.shape, self.attrs = op, good, bad, shape, attrs

    def compiled(self) -> graph_executor.GraphModule:
        shapes = {name: self.shape if name == "x" else ("n",) if name == "c" and x.ndim else x.shape
                  for name, x in self.good.items()}  # fmt: skip
        inputs = [helper.make_tensor_value_info(n, KINDS[x.dtype.kind], shapes[n]) for n, x in self.good.items()]
        node = helper.make_node(self.op, [*self.good], ["y"], name="culprit", **self.attrs)
        graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        return graph_executor.GraphModule(relay.build(from_onnx(model)[0])["default"](device("cpu", 0)))


CASES = [
    Case("Reshape", {"x": X, "s": ints(4, 6)}, {"s": ints(-5, 6)}, {"s": ints(-1, -1)}, {"s": ints(5, -1)},
         {"s": ints(5, 5)}, {"s": ints(-5, -1)}),
    Case("Reshape", {"x": X[:1, :1, :1], "s": ints(1, -1)}, {"s": ints(-1, -1)}, {"s": ints(-3, 1)}),
    Case("Expand", {"x": X, "s": ints(2, 1, 4)}, {"s": ints(2, 2, 4)}, {"s": ints(2, 3, 5)}, {"s": ints(-1, 3, 4)},
         {"s": ints(0, 3, 4)}),
    Case("Expand", {"x": X[:, :1], "s": ints(2, 7, 1)}, {"s": ints(2, -2, 4)}, {"s": ints(3, 3, 4)}, shape=(2, 1, 4)),
    Case("Tile", {"x": X, "r": ints(1, 2, 0)}, {"r": ints(1, -1, 1)}),
    Case("ConstantOfShape", {"s": ints(2, 3)}, {"s": ints(-2, 3)}, {"s": ints(2**40, 3)}),
    Case("Range", {"a": np.array(0), "b": np.array(5), "c": np.array(2)}, {"c": np.array(0)}),
    Case("Range", {n: np.array(v, np.float32) for n, v in (("a", 0), ("b", 5), ("c", 2))},
         {"c": np.array(0, np.float32)}, {"c": np.array(np.nan, np.float32)}, {"b": np.array(np.inf, np.float32)}),
    Case("Pad", {"x": X, "p": ints(0, 0, 1, 0, -1, 1)}, {"p": ints(-3, 0, 0, 0, 0, 0)}),
    Case("OneHot", {"i": ints(0, 1), "d": np.array(3), "v": np.array([0, 1], np.float32)}, {"d": np.array(-3)}),
    Case("Compress", {"x": X, "c": np.array([True, False])}, {"c": np.ones(3, bool)}, axis=0),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
def test_invalid_computed_sizes_are_rejected(case):
    module = case.compiled()
    module(**case.good)
    for bad in case.bad:
        with pytest.raises(ArgumentError) as error:
            module(**{**case.good, **bad})
        assert "culprit" in str(error.value) or "make a tensor of" in str(error.value)
    module(**case.good)


def test_an_axis_of_one_is_expanded_to_none():
    module = CASES[3].compiled()
    (y,) = module(X[:, :1], ints(2, 0, 4))
    assert y.shape == (2, 0, 4)
    (y,) = module(X[:, :1], ints(1, 2, 1))
    np.testing.assert_array_equal(y.numpy(), np.broadcast_to(X[:, :1], (2, 2, 4)))
