"""Reductions of element types that few models reduce."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.relay.interpreter import evaluate


def reduction(op: str, x: np.ndarray, opset: int, **attrs: object) -> onnx.ModelProto:
    """A reduction of the last axis, or of what `attrs` say."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    attrs = {"keepdims": 0, **attrs} if opset >= 18 else {"keepdims": 0, "axes": [1], **attrs}
    names = ["x", "axes"] if opset >= 18 and "noop_with_empty_axes" not in attrs else ["x"]
    axes = [helper.make_tensor("axes", TensorProto.INT64, [1], [1])] if len(names) > 1 else []
    infos = [helper.make_tensor_value_info("x", kind, x.shape)], [helper.make_tensor_value_info("y", kind, None)]
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attrs)], "g", *infos, axes)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def results(model: onnx.ModelProto, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The results of the interpreter and of the compiled model."""
    module, params = from_onnx(model)
    lib = relay.build(module, target="llvm", params=params)
    (y,) = graph_executor.GraphModule(lib["default"](device("cpu", 0)))(x)
    return np.asarray(evaluate(module["main"], [x])), y.numpy()


LOWEST, HIGHEST = -(2**31), 2**31 - 1
SIGNED = [
    ("ReduceL2", [[1, 2, 3, 5], [-7, -7, -1, -60], [100000, 100000, 0, 0], [HIGHEST, HIGHEST, 0, 0]],
     [6, 60, 141421, HIGHEST]),
    ("ReduceLogSum", [[1, 2, 3, 5], [0, 0, 0, 0], [-3, 1, 0, 0], [HIGHEST, HIGHEST, 0, 0]], [2, LOWEST, LOWEST, 22]),
    ("ReduceLogSumExp", [[1, 2, 3, 5], [-7, -7, -1, -60], [5, 4, 4, 4], [-5, -5, -6, -6]], [5, -1, 5, -4]),
]  # fmt: skip
"""Operator, int32 values, and onnxruntime's results."""


@pytest.mark.parametrize("opset", [1, 11, 13, 18])
@pytest.mark.parametrize(("op", "values", "expected"), SIGNED)
def test_reductions_of_signed_integers(op: str, values: list[list[int]], expected: list[int], opset: int) -> None:
    x = np.array(values, np.int32)
    for y in results(reduction(op, x, opset), x):
        assert y.dtype == np.int32 and y.tolist() == expected


@pytest.mark.parametrize("dtype", ["uint32", "uint64", "int64"])
@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"])
def test_reductions_of_other_integers_are_those_of_floats_rounded_to_zero(op: str, dtype: str) -> None:
    x = np.array([[1, 2, 3, 5], [7, 7, 1, 60], [9, 8, 60, 1]], dtype)
    wide = x.astype(np.float64)
    expected = {
        "ReduceL1": wide.sum(1),
        "ReduceL2": np.sqrt((wide**2).sum(1)),
        "ReduceLogSum": np.log(wide.sum(1)),
        "ReduceLogSumExp": np.log(np.exp(wide).sum(1)),
        "ReduceSumSquare": (wide**2).sum(1),
    }[op]
    for y in results(reduction(op, x, 20), x):
        assert y.dtype == dtype and y.tolist() == np.trunc(expected).tolist()


def test_the_logarithm_of_integers_over_no_axes() -> None:
    x = np.array([[1, 8, 30]], np.int64)
    for y in results(reduction("ReduceLogSum", x, 18, noop_with_empty_axes=1), x):
        assert y.tolist() == [[0, 2, 3]]


def normalized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / x.std()


SIGNS = np.where(np.arange(256) % 3 > 0, 300.0, -300.0).reshape(1, 1, 16, 16)
LONG = {
    "ReduceL2": ({}, lambda x: np.sqrt((x * x).sum())),
    "ReduceLogSum": ({}, lambda x: np.log(x.sum())),
    "GlobalLpPool": ({}, lambda x: np.sqrt((x * x).sum())),
    "MeanVarianceNormalization": ({}, normalized),
    "LpNormalization": ({"p": 1, "axis": 1}, lambda x: x / np.abs(x).sum()),
    "BatchNormalization": ({"training_mode": 1, "epsilon": 0.0}, normalized),
    "NegativeLogLikelihoodLoss": ({}, lambda x: -x[:, 0].mean()),
}
"""Operators whose results are moderate and whose intermediate sums are not, with their attributes and formulas."""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", LONG)
def test_narrow_floats_are_summed_in_float32(op: str, dtype: str) -> None:
    kind = TensorProto.FLOAT16 if dtype == "float16" else TensorProto.BFLOAT16
    shape = {"LpNormalization": (1, 256), "NegativeLogLikelihoodLoss": (256, 1)}.get(op, SIGNS.shape)
    attrs, formula = LONG[op]
    x = (np.abs(SIGNS) if op in ("ReduceLogSum", "NegativeLogLikelihoodLoss") else SIGNS).reshape(shape)
    constants = {
        "BatchNormalization": {"scale": [1.0], "bias": [0.0], "mean": [0.0], "variance": [1.0]},
        "NegativeLogLikelihoodLoss": {"weights": [1.0]},
    }.get(op, {})
    fixed = [helper.make_tensor(name, kind, [1], value) for name, value in constants.items()]
    names = ["x", *constants]
    if op == "NegativeLogLikelihoodLoss":
        fixed.append(helper.make_tensor("target", TensorProto.INT64, [256], [0] * 256))
        names.insert(1, "target")
    infos = [helper.make_tensor_value_info("x", kind, shape)], [helper.make_tensor_value_info("y", kind, None)]
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attrs)], "g", *infos, fixed)
    narrow = x.astype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    for y in results(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), narrow):
        tolerance = 1e-3 if dtype == "float16" else 8e-3
        np.testing.assert_allclose(y.astype(np.float64).reshape(-1), np.reshape(formula(x), -1), rtol=tolerance)
