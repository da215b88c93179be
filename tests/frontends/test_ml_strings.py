"""String labels and maps of ai.onnx.ml: constant strings selected at run time.

String inputs: test_runtime_strings_onnx.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.runtime.artifact import CompiledModel
from relayc.frontends.onnx import OnnxImportError, UnsupportedOperatorError, from_onnx
from relayc.frontends.onnx.backend import RelayBackend

try:
    import onnxruntime
except ImportError:
    onnxruntime = None

ML = "ai.onnx.ml"
X = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)
NAMES = ["setosa", "versicolor", "virginica"]
CLASSIFIER: dict[str, Any] = {
    "coefficients": WEIGHTS.ravel().tolist(),
    "intercepts": [0.1, -0.2, 0.3],
    "classlabels_strings": NAMES,
    "post_transform": "SOFTMAX",
}


def model(nodes: list[NodeProto], outputs: list[str], weights: dict[str, Any] | None = None) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    imports = [helper.make_opsetid(ML, 3), helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def outputs_of(proto: ModelProto) -> list[Any]:
    """The model's outputs, which have to be those of onnxruntime, where it is installed."""
    results = list(RelayBackend.prepare(proto).run([X]))
    if onnxruntime is not None:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        for have, want in zip(results, session.run(None, {"x": X}), strict=True):
            if isinstance(want, list):
                assert [list(row) for row in have] == [list(row) for row in want]
                numbers = [[list(row.values()) for row in rows] for rows in (have, want)]
                np.testing.assert_allclose(*numbers, rtol=1e-4)
            elif want.dtype == object:
                assert have.shape == want.shape and have.tolist() == want.tolist()
            else:
                np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-6)
    return results


def best() -> np.ndarray[Any, Any]:
    return (X @ WEIGHTS.T + np.array([0.1, -0.2, 0.3])).argmax(1)


def test_labels_that_are_names():
    node = helper.make_node("LinearClassifier", ["x"], ["l", "s"], domain=ML, **CLASSIFIER)
    labels, scores = outputs_of(model([node], ["l", "s"]))
    assert labels.tolist() == [NAMES[i] for i in best()]
    np.testing.assert_array_equal(scores.argmax(1), best())


def test_two_classes_with_one_score():
    attrs = {"coefficients": WEIGHTS[0].tolist(), "intercepts": [0.1], "classlabels_strings": ["no", "yes"]}
    node = helper.make_node("LinearClassifier", ["x"], ["l", "s"], domain=ML, post_transform="LOGISTIC", **attrs)
    labels, _ = outputs_of(model([node], ["l", "s"]))
    assert labels.tolist() == ["yes" if v > 0 else "no" for v in X @ WEIGHTS[0] + 0.1]


def test_maps_from_labels_to_scores():
    nodes = [
        helper.make_node("LinearClassifier", ["x"], ["l", "s"], domain=ML, **CLASSIFIER),
        helper.make_node("Normalizer", ["s"], ["p"], domain=ML, norm="L1"),
        helper.make_node("ZipMap", ["p"], ["m"], domain=ML, classlabels_strings=NAMES),
    ]
    _, maps = outputs_of(model(nodes, ["l", "m"]))
    assert len(maps) == len(X) and list(maps[0]) == NAMES
    assert [max(row, key=row.get) for row in maps] == [NAMES[i] for i in best()]
    nodes[2] = helper.make_node("ZipMap", ["p"], ["m"], domain=ML, classlabels_int64s=[4, 5, 6])
    assert list(outputs_of(model(nodes, ["m"]))[0][0]) == [4, 5, 6]


def test_names_taken_by_position_and_moved_about():
    """Class names selected by index, as in nearest-neighbour, voting and network models."""
    nodes = [
        helper.make_node("ArgMax", ["x"], ["i"], axis=1, keepdims=0),
        helper.make_node("ArrayFeatureExtractor", ["classes", "i"], ["row"], domain=ML),
        helper.make_node("Reshape", ["row", "shape"], ["column"]),
        helper.make_node("Gather", ["column", "first"], ["some"]),
        helper.make_node("LabelEncoder", ["some"], ["numbers"], domain=ML, keys_strings=NAMES, values_int64s=[7, 8, 9]),
    ]
    weights = {"classes": np.array(NAMES, object), "shape": np.array([-1, 1]), "first": np.array([0, 2, 4])}
    column, numbers = outputs_of(model(nodes, ["column", "numbers"], weights))
    assert column.tolist() == [[NAMES[i]] for i in X.argmax(1)]
    assert numbers.tolist() == [[7 + i] for i in X.argmax(1)[[0, 2, 4]]]


def test_numbers_become_names_and_features():
    back = {"cats_strings": ["low", "high"], "cats_int64s": [5, 6]}
    keys = {"keys_int64s": [0, 2], "values_strings": ["low", "high"], "default_string": "other"}
    nodes = [
        helper.make_node("ArgMax", ["x"], ["i"], axis=1, keepdims=0),
        helper.make_node("LabelEncoder", ["i"], ["names"], domain=ML, **keys),
        helper.make_node("OneHotEncoder", ["names"], ["hot"], domain=ML, cats_strings=["other", "high"], zeros=1),
        helper.make_node("CategoryMapper", ["names"], ["back"], domain=ML, **back),
    ]
    names, hot, back = outputs_of(model(nodes, ["names", "hot", "back"]))
    assert names.tolist() == [{0: "low", 2: "high"}.get(i, "other") for i in X.argmax(1).tolist()]
    np.testing.assert_array_equal(hot, [[n == "other", n == "high"] for n in names.tolist()])
    assert back.tolist() == [{"low": 5, "high": 6}.get(n, -1) for n in names.tolist()]


def test_an_artifact_gives_names_and_maps():
    nodes = [
        helper.make_node("LinearClassifier", ["x"], ["l", "s"], domain=ML, **CLASSIFIER),
        helper.make_node("ZipMap", ["s"], ["m"], domain=ML, classlabels_strings=NAMES),
    ]
    mod, _ = from_onnx(model(nodes, ["l", "m"]))
    assert mod.attrs["output_maps"] == {1: tuple(NAMES)}
    lib = CompiledModel.from_bytes(relay.build(mod).to_bytes())
    labels, maps = graph_executor.GraphModule(lib["default"](device("cpu", 0)))(X)
    assert labels.numpy().tolist() == [NAMES[i] for i in best()]
    assert [max(row, key=row.get) for row in maps] == labels.numpy().tolist()


@pytest.mark.parametrize("name", ["DictVectorizer", "CastMap"])
def test_inputs_that_are_maps_are_rejected_by_name(name):
    with pytest.raises(UnsupportedOperatorError, match=f"ai.onnx.ml::{name} .*map"):
        from_onnx(model([helper.make_node(name, ["x"], ["y"], domain=ML)], ["y"]))


def test_a_declared_map_says_what_to_do():
    proto = model([helper.make_node("DictVectorizer", ["x"], ["y"], domain=ML, string_vocabulary=["a"])], ["y"])
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    proto.graph.input[0].type.CopyFrom(helper.make_map_type_proto(TensorProto.STRING, value))
    with pytest.raises(OnnxImportError, match=r"input 'x': maps are no tensors\n.*export the model without"):
        from_onnx(proto)
