"""Pooling by windows of thousands of elements, as at the end of an EfficientNet: reduced axis by axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.relay.expr import Call
from relayc.relay.op.nn.pool import AvgPool, MaxPool
from relayc.te.ir import post_order

RNG = np.random.default_rng(4)


def expected(kind: str, x: np.ndarray, kernel: tuple[int, int], strides: tuple[int, int], include: bool, ceil: bool):
    """Each window by itself, with a border of one element on all sides."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf if kind == "MaxPool" else 0.0)
    inside = np.pad(np.ones(x.shape, bool), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=include)
    counts = []
    for size, k, stride in zip(padded.shape[2:], kernel, strides, strict=True):
        count = -(-(size - k) // stride) + 1 if ceil else (size - k) // stride + 1
        counts.append(count - ((count - 1) * stride >= size - 1))  # a window begins before the border at the end
    result = np.empty((*x.shape[:2], *counts), np.float32)
    for i, j in np.ndindex(*counts):
        rows = slice(i * strides[0], i * strides[0] + kernel[0])
        columns = slice(j * strides[1], j * strides[1] + kernel[1])
        part = padded[:, :, rows, columns]
        sums = part.sum((2, 3)) / inside[:, :, rows, columns].sum((2, 3)) if kind == "AveragePool" else part.max((2, 3))
        result[:, :, i, j] = sums
    return result


@pytest.mark.parametrize("kind, include", [("MaxPool", False), ("AveragePool", False), ("AveragePool", True)])
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kernel, strides", [((40, 33), (40, 33)), ((36, 31), (7, 5)), ((34, 60), (1, 60))])
def test_large_windows(
    kind: str, include: bool, ceil: bool, dynamic: bool, kernel: tuple[int, int], strides: tuple[int, int]
) -> None:
    attributes: dict[str, Any] = {"count_include_pad": int(include)} if kind == "AveragePool" else {}
    node = helper.make_node(kind, ["x"], ["y"], kernel_shape=kernel, strides=strides, pads=[1, 1, 1, 1],
                            ceil_mode=int(ceil), **attributes)  # fmt: skip
    shape = ["n", 3, "h", "w"] if dynamic else [2, 3, 50, 61]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in (("x", shape), ("y", None))]
    graph = helper.make_graph([node], "pool", values[:1], values[1:])
    mod, _ = from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9))
    pools = [e.op for e in post_order(mod["main"].body) if isinstance(e, Call) and isinstance(e.op, AvgPool | MaxPool)]
    assert [sorted(op.pool_size)[0] for op in pools] == [1, 1]
    executor = graph_executor.GraphModule(relay.build(mod)["default"](device("cpu", 0)))
    x = RNG.standard_normal((2, 3, 50, 61)).astype(np.float32)
    (y,) = executor(x)
    wanted = expected(kind, x, kernel, strides, include, ceil)
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-4, atol=1e-6)
