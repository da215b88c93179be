"""Numeric operators of ai.onnx.ml against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

from relayc.backend.runtime.errors import IndexRangeError
from relayc.frontends.onnx.backend import RelayBackend
from relayc.frontends.onnx.errors import OnnxImportError

onnxruntime = pytest.importorskip("onnxruntime")

rng = np.random.default_rng(0)
X = rng.normal(size=(9, 3)).astype(np.float32)


def model(op: str, x: np.ndarray, outputs: int = 1, **attrs: Any) -> ModelProto:
    domain, opset = "ai.onnx.ml", 3
    names = ["y", "z"][:outputs]
    node = helper.make_node(op, ["x"], names, domain=domain, **attrs)
    value = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    results = [helper.make_empty_tensor_value_info(name) for name in names]
    imports = [helper.make_opsetid(domain, opset), helper.make_opsetid("", 17)]
    return helper.make_model(helper.make_graph([node], op, [value], results), opset_imports=imports, ir_version=8)


def check(op: str, x: np.ndarray, outputs: int = 1, **attrs: Any) -> None:
    proto = model(op, x, outputs, **attrs)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})
    for have, want in zip(RelayBackend.prepare(proto).run([x]), expected, strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-6)


# Two trees: x0 <= 0.1 ? (x1 < -0.2 ? a : b) : c, and x2 > 0.3 ? d : e.
NODES: dict[str, Any] = {
    "nodes_treeids": [0] * 5 + [1] * 3,
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 1, 0, 0, 0, 2, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_LT", "LEAF", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
    "nodes_values": [0.1, -0.2, 0.0, 0.0, 0.0, 0.3, 0.0, 0.0],
    "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0],
    "nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 1, 0, 0],
}
LEAVES = {"treeids": [0, 0, 0, 1, 1], "nodeids": [2, 3, 4, 1, 2]}


def leaves(prefix: str, ids: list[int], weights: list[float]) -> dict[str, Any]:
    return {
        **NODES,
        **{f"{prefix}_{key}": value for key, value in LEAVES.items()},
        f"{prefix}_ids": ids,
        f"{prefix}_weights": weights,
    }


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_tree_regressor(aggregate):
    attrs = leaves("target", [0, 0, 0, 0, 0], [1.0, -2.0, 3.0, 0.5, -4.0])
    check("TreeEnsembleRegressor", X, n_targets=1, aggregate_function=aggregate, base_values=[0.25], **attrs)
    missing = X.copy()
    missing[::2, 0] = missing[::3, 2] = np.nan
    check("TreeEnsembleRegressor", missing, n_targets=1, aggregate_function=aggregate, **attrs)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_tree_classifier_of_several_classes(transform):
    attrs = leaves("class", [0, 1, 2, 1, 0], [0.9, 0.2, 0.7, 0.4, 0.3])
    check("TreeEnsembleClassifier", X, 2, classlabels_int64s=[3, 5, 9], post_transform=transform, **attrs)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("weights", [[0.4, 0.1, 0.3, 0.35, 0.05], [1.0, -2.0, 3.0, 0.5, -4.0]])
def test_tree_classifier_of_two_classes_with_one_score(transform, weights):
    attrs = leaves("class", [0] * 5, weights)
    check("TreeEnsembleClassifier", X, 2, classlabels_int64s=[4, 7], post_transform=transform, **attrs)


def test_features_beyond_those_that_a_node_can_tell_apart_are_rejected():
    wide = {**leaves("target", [0] * 5, [1.0] * 5), "nodes_featureids": [0, 1 << 27, 0, 0, 0, 2, 0, 0]}
    x = np.broadcast_to(np.float32(0), (1, 1 << 28))
    with pytest.raises(OnnxImportError, match="read features up to 134217728, of 134217728"):
        RelayBackend.prepare(model("TreeEnsembleRegressor", x, n_targets=1, **wide))


def test_trees_that_lead_nowhere_are_rejected():
    circular = {**leaves("target", [0] * 5, [1.0] * 5), "nodes_falsenodeids": [0, 4, 0, 0, 0, 2, 0, 0]}
    with pytest.raises(OnnxImportError, match="circle"):
        RelayBackend.prepare(model("TreeEnsembleRegressor", X, n_targets=1, **circular))


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_linear_models(transform):
    weights = rng.normal(size=9).astype(np.float32).tolist()
    check("LinearRegressor", X, coefficients=weights, intercepts=[0.1, 0.2, 0.3], targets=3)
    classes = {"coefficients": weights, "intercepts": [0.1, -0.2, 0.3], "classlabels_ints": [2, 4, 8]}
    check("LinearClassifier", X, 2, **classes, post_transform=transform)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm):
    check("Normalizer", np.concatenate([X, np.zeros((1, 3), np.float32)]), norm=norm)


def test_features():
    check("Scaler", X, offset=[0.5, 1.0, -1.0], scale=[2.0, 0.5, 3.0])
    check("Scaler", X, offset=[0.5], scale=[2.0])
    check("Binarizer", X, threshold=0.25)
    check("OneHotEncoder", np.array([[1, 4], [7, 0]], np.int64), cats_int64s=[4, 1, 9], zeros=1)
    holes = X.copy()
    holes[::2, 1] = np.nan
    check("Imputer", holes, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float("nan"))
    check("Imputer", np.array([[1, -1], [-1, 2]], np.int64), imputed_value_int64s=[5], replaced_value_int64=-1)
    check("FeatureVectorizer", X, inputdimensions=[3])


@pytest.mark.parametrize(
    ("known", "unknown", "attrs"),
    [
        (np.array([[1], [9]], np.int64), np.array([[1], [7]], np.int64), {"cats_int64s": [4, 1, 9]}),
        (np.array([["b"], ["a"]]), np.array([["a"], ["c"]]), {"cats_strings": ["a", "b"]}),
    ],
)
def test_unknown_categories_end_the_run(known: np.ndarray, unknown: np.ndarray, attrs: dict[str, Any]):
    """As scikit-learn's encoder does by default: zeros=0."""
    given = known if "cats_int64s" in attrs else known.astype(object)
    check("OneHotEncoder", given, zeros=0, **attrs)
    encoder = RelayBackend.prepare(model("OneHotEncoder", given, zeros=0, **attrs))
    with pytest.raises(IndexRangeError, match=r"OneHotEncoder.*a category that is none of its own"):
        encoder.run([unknown.astype(given.dtype)])


def test_leaves_with_several_weights():
    """All of them count, but only the first where there is one target."""
    shared = {**NODES, "target_treeids": [0, 0, 0, 0, 1, 1], "target_nodeids": [2, 2, 3, 4, 1, 2]}
    weights = {"target_weights": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]}
    check("TreeEnsembleRegressor", X, n_targets=1, target_ids=[0] * 6, **shared, **weights)
    check("TreeEnsembleRegressor", X, n_targets=2, target_ids=[0, 0, 1, 0, 1, 0], **shared, **weights)


def test_label_encoder():
    keys = np.array([3, 1, 7, 3], np.int64)
    check("LabelEncoder", keys, keys_int64s=[1, 3], values_floats=[0.5, 1.5], default_float=-2.0)
    x = np.array([1.0, np.nan, 2.0], np.float32)  # by the specification NaN is a key like any other
    proto = model("LabelEncoder", x, keys_floats=[float("nan"), 1.0], values_int64s=[4, 6])
    np.testing.assert_array_equal(RelayBackend.prepare(proto).run([x])[0], [6, 4, -1])


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_support_vector_regression(kernel, one_class):
    vectors, weights = rng.normal(size=(4, 3)), rng.normal(size=4)
    check(
        "SVMRegressor", X, coefficients=weights.tolist(), support_vectors=vectors.reshape(-1).tolist(), n_supports=4,
        rho=[0.3], kernel_type=kernel, kernel_params=[0.4, 0.2, 3.0], one_class=one_class,
    )  # fmt: skip


def test_linear_support_vector_regression():
    check("SVMRegressor", X, coefficients=[0.5, -1.0, 2.0], rho=[0.25], kernel_type="LINEAR", kernel_params=[0.0] * 3)
