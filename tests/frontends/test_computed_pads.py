"""Pad by amounts of both signs that are computed at run time."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto, helper

from relayc.frontends.onnx.backend import RelayBackend


def padded(x: np.ndarray, pads: np.ndarray, mode: str) -> np.ndarray:
    """Reference: `x` cropped by negative amounts and padded by positive ones."""
    before, after = pads.reshape(2, -1)
    left = [slice(max(-b, 0), n - max(-a, 0)) for n, b, a in zip(x.shape, before, after, strict=True)]
    widths = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    return np.pad(x[tuple(left)], widths, mode)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_amounts_of_both_signs(mode: str) -> None:
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "columns"]),
        helper.make_tensor_value_info("pads", TensorProto.INT64, [4]),
    ]
    node = helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode)
    graph = helper.make_graph([node], "pad", inputs, [ValueInfoProto(name="y")])
    model = RelayBackend.prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9))
    random = np.random.default_rng(0)
    for _ in range(25):
        x = random.standard_normal(random.integers(4, 9, 2)).astype(np.float32)
        pads = random.integers(-1, 7, 4)
        np.testing.assert_array_equal(model.run([x, pads])[0], padded(x, pads, mode))
