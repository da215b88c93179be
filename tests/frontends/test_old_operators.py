"""Versions and operators that ONNX's own tests do not reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from relayc.backend.runtime import ArgumentError
from relayc.frontends.onnx import OnnxImportError, UnsupportedOperatorError
from relayc.frontends.onnx.backend import RelayBackend

RANDOM = np.random.default_rng(3)


def model(op: str, arrays: list[np.ndarray], opset: int, domain: str = "", **attributes: Any) -> ModelProto:
    names = [f"x{i}" for i in range(len(arrays))]
    types = [
        TensorProto.STRING if x.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(x.dtype) for x in arrays
    ]
    values = [helper.make_tensor_value_info(n, t, x.shape) for n, t, x in zip(names, types, arrays, strict=True)]
    node = helper.make_node(op, names, ["y"], domain=domain, **attributes)
    graph = helper.make_graph([node], op, values, [helper.make_tensor_value_info("y", 0, None)])
    imports = [helper.make_opsetid("", opset if not domain else 17)]
    return helper.make_model(graph, opset_imports=[*imports, *([helper.make_opsetid(domain, opset)] if domain else [])])


def run(op: str, arrays: list[np.ndarray], opset: int, domain: str = "", **attributes: Any) -> np.ndarray:
    (y,) = RelayBackend.run_model(model(op, arrays, opset, domain, **attributes), arrays)
    return y


def test_tile_before_opset_6_repeats_one_axis():
    x = RANDOM.normal(size=(2, 3)).astype(np.float32)
    for kind in (np.float32, np.int64):  # the schema wants floats
        got = run("Tile", [x, np.array(3, kind), np.array([1], kind)], 1)
        np.testing.assert_array_equal(got, np.tile(x, (1, 3)))
    with pytest.raises(OnnxImportError, match=r"the number of tiles \(input 1\) is 1.5"):
        run("Tile", [x, np.array(1.5, np.float32), np.array(1)], 1)


@pytest.mark.parametrize(("strings", "kind"), [(["1", "-2.5", "1E3", "inf"], np.float32), (["7", "-12"], np.int32)])
def test_strings_that_are_numbers(strings, kind):
    got = run("Cast", [np.array([strings], object)], 13, to=helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
    assert got.dtype == kind and got.tolist() == [[float(t) for t in strings]]


def test_strings_that_are_no_numbers_are_rejected():
    with pytest.raises(ArgumentError, match=r"Cast 'y': the string 'tea' is no number"):
        run("Cast", [np.array(["tea"], object)], 13, to=TensorProto.FLOAT)


def test_label_encoder_of_version_1():
    words = np.array(["b", "?", "a"], object)
    got = run("LabelEncoder", [words], 1, "ai.onnx.ml", classes_strings=["a", "b"], default_int64=-7)
    assert got.dtype == np.int64 and got.tolist() == [1, -7, 0]
    got = run("LabelEncoder", [np.array([1, 5, 0])], 1, "ai.onnx.ml", classes_strings=["a", "b"])
    assert got.tolist() == ["b", "_Unused", "a"]


def test_max_roi_pool_agrees_with_onnxruntime():
    onnxruntime = pytest.importorskip("onnxruntime")
    x = RANDOM.normal(size=(2, 3, 9, 12)).astype(np.float32)
    rois = np.array([[0, 1, 2, 9, 7], [1, 0, 0, 23, 17], [1, 4.4, 3.5, 4.6, 3.5], [0, 30, 2, 40, 5]], np.float32)
    for scale in (1.0, 0.5):
        proto = model("MaxRoiPool", [x, rois], 1, pooled_shape=(2, 3), spatial_scale=scale)
        proto.ir_version = 8
        proto.opset_import[0].version = 17
        proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        (expected,) = session.run(None, {"x0": x, "x1": rois})
        (got,) = RelayBackend.run_model(proto, [x, rois])
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("op", "domain", "why"),
    [("DictVectorizer", "ai.onnx.ml", "leave it out"), ("CastMap", "ai.onnx.ml", "leave it out"),
     ("BeamSearch", "com.microsoft", "generate with relayc.generation")],
)
def test_unsupported_operators_say_why(op, domain, why):
    opset = 1 if domain else 20
    with pytest.raises(UnsupportedOperatorError, match=why) as caught:
        RelayBackend.prepare(model(op, [np.zeros(3, np.uint8)], opset, domain))
    assert caught.value.operators == (f"{domain}::{op}" if domain else op,)
