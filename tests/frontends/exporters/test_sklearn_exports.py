"""Pipelines as skl2onnx writes them: ai.onnx.ml operators between columns of numbers and of strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from relayc.frontends.onnx.backend import RelayBackend
from tests.frontends.exporters.graphs import Graph, check, expected_outputs, onnxruntime, sklearn

rng = np.random.default_rng(0)
ML = "ai.onnx.ml"
NAMES = ["setosa", "versicolor", "virginica"]


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


def check_all(model: ModelProto, inputs: dict[str, Any]) -> list[Any]:
    """Check a model with string and map inputs and outputs through the ONNX backend."""
    results = list(RelayBackend.prepare(model).run(inputs))
    if onnxruntime is None:
        return results
    for have, want in zip(results, expected_outputs(model, inputs), strict=True):
        if isinstance(want, list):
            assert [list(row) for row in have] == [list(row) for row in want]
            numbers = [[list(row.values()) for row in rows] for rows in (have, want)]
            np.testing.assert_allclose(*numbers, rtol=1e-4, atol=1e-6)
        elif want.dtype == object:
            assert have.shape == want.shape and have.tolist() == want.tolist()
        else:
            assert (have.dtype, have.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
    return results


def test_scaler_and_logistic_regression():
    """The default export: names of classes, probabilities normalised, and maps from one to the other."""
    g = Graph(sklearn)
    x = g.input("X", ["N", 4])
    scaled = g("Scaler", x, domain=ML, offset=[5.8, 3.0, 3.7, 1.2], scale=[1.2, 2.3, 0.57, 1.3])
    g("LinearClassifier", scaled, domain=ML, outputs=["label", "raw"], coefficients=normal(12).tolist(),
      intercepts=[0.1, 0.9, -1.0], classlabels_strings=NAMES, multi_class=1, post_transform="SOFTMAX")  # fmt: skip
    label = g("Identity", "label", outputs=["output_label"])
    maps = g("ZipMap", g("Normalizer", "raw", domain=ML, norm="L1"), domain=ML, outputs=["output_probability"],
             classlabels_strings=NAMES)  # fmt: skip
    results = check_all(g.model([label, maps], 15, {ML: 1}), {"X": normal(6, 4) + 3})
    assert [max(row, key=row.get) for row in results[1]] == results[0].tolist()


def test_columns_of_numbers_and_of_names():
    """A ColumnTransformer: numbers imputed and scaled, names one-hot encoded, all in one row; then a regression."""
    g = Graph(sklearn)
    ages, fares = g.input("age", ["N", 1]), g.input("fare", ["N", 1])
    deck = g.input("deck", ["N", 1], str)
    numbers = g("Concat", ages, fares, axis=1)
    filled = g("Imputer", numbers, domain=ML, imputed_value_floats=[29.5, 14.4], replaced_value_float=float("nan"))
    scaled = g("Scaler", filled, domain=ML, offset=[29.7, 32.2], scale=[0.07, 0.02])
    hot = g("OneHotEncoder", deck, domain=ML, cats_strings=["A", "B", "C"], zeros=1)
    flat = g("Reshape", hot, g.weight(np.array([-1, 3]), "shape_tensor"))
    row = g("Concat", scaled, flat, axis=1)
    y = g("LinearRegressor", row, domain=ML, coefficients=normal(5).tolist(), intercepts=[0.5])
    age = np.array([[22], [np.nan], [35]], np.float32)
    inputs = {"age": age, "fare": normal(3, 1) * 20, "deck": np.array([["B"], ["A"], ["?"]], object)}
    check_all(g.model([y], 15, {ML: 1}), inputs)


TREES: dict[str, Any] = {
    "nodes_treeids": [0] * 5 + [1] * 3,
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 0, 2, 0, 0, 1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_values": [0.1, 0.0, -0.3, 0.0, 0.0, 0.2, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 3, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 0, 4, 0, 0, 2, 0, 0],
    "nodes_missing_value_tracks_true": [0] * 8,
    "nodes_hitrates": [1.0] * 8,
}


def test_forest_with_names():
    """Leaves vote with shares of three classes."""
    g = Graph(sklearn)
    x = g.input("X", ["N", 3])
    leaves = [(0, 1), (0, 3), (0, 4), (1, 1), (1, 2)]
    shares = rng.dirichlet(np.ones(3), 5) / 2
    attrs = {
        "class_treeids": [tree for tree, _ in leaves for _ in range(3)],
        "class_nodeids": [leaf for _, leaf in leaves for _ in range(3)],
        "class_ids": [0, 1, 2] * 5,
        "class_weights": shares.ravel().tolist(),
        "classlabels_strings": NAMES,
        "post_transform": "NONE",
    }
    g("TreeEnsembleClassifier", x, domain=ML, outputs=["label", "probabilities"], **TREES, **attrs)
    results = check_all(g.model(["label", "probabilities"], 15, {ML: 1}), {"X": normal(9, 3)})
    np.testing.assert_allclose(results[1].sum(1), 1, rtol=1e-5)


def test_boosting_of_residuals():
    """Gradient boosting: sums of leaves from a base value, through a sigmoid."""
    g = Graph(sklearn)
    x = g.input("X", ["N", 3])
    attrs = {
        "target_treeids": [0, 0, 0, 1, 1], "target_nodeids": [1, 3, 4, 1, 2], "target_ids": [0] * 5,
        "target_weights": [0.5, -1.0, 0.25, 0.75, -0.5], "n_targets": 1, "base_values": [0.1],
    }  # fmt: skip
    raw = g("TreeEnsembleRegressor", g("Cast", x, to=1), domain=ML, **TREES, **attrs)
    check(g.model([g("Sigmoid", raw)], 15, {ML: 1}), {"X": normal(5, 3)}, {"X": normal(1, 3)})


def test_vector_machine_with_probabilities():
    g = Graph(sklearn)
    x = g.input("X", [None, 3])  # type: ignore[list-item]
    attrs = {
        "support_vectors": normal(15).tolist(), "coefficients": normal(10).tolist(), "rho": normal(3).tolist(),
        "vectors_per_class": [2, 2, 1], "kernel_type": "RBF", "kernel_params": [0.4, 0.0, 3.0],
        "prob_a": [-1.0, -0.8, -1.2], "prob_b": [0.1, 0.0, -0.1], "classlabels_ints": [0, 1, 2],
    }  # fmt: skip
    g("SVMClassifier", x, domain=ML, outputs=["label", "probabilities"], **attrs)
    check_all(g.model([g("Cast", "label", to=7), "probabilities"], 15, {ML: 1}), {"X": normal(7, 3)})


def test_clusters_and_components():
    """PCA is a product; KMeans spells squared distances out, and takes the nearest centre."""
    g = Graph(sklearn)
    x = g.input("X", ["N", 4], np.float64)
    centred = g("Sub", g("Cast", x, to=1), g.weight(normal(4), "mean"))
    y = g("MatMul", centred, g.weight(normal(4, 2), "transform"))
    centres = normal(3, 2)
    own = g("ReduceSumSquare", y, axes=[1], keepdims=1)
    nothing = g.weight(np.zeros(1, np.float32), "nothing")
    cross = g("Gemm", y, g.weight(centres, "centres"), nothing, alpha=-2.0, transB=1)
    total = g("Add", g("Add", own, cross), g.weight((centres**2).sum(1)[None], "squares"))
    nearest = g("ArgMin", total, axis=1, keepdims=0)
    model = g.model([nearest, g("Sqrt", g("Max", total, g.weight(np.zeros(1, np.float32), "zero")))], 15)
    check(model, *({"X": rng.normal(size=(n, 4))} for n in (6, 1)))


def test_nearest_neighbours_with_names():
    """Votes of the neighbours by one-hot rows; the winner's name by its position."""
    g = Graph(sklearn)
    x = g.input("X", ["N", 2])
    known, owners = normal(8, 2), rng.integers(0, 3, 8)
    apart = g("Sub", g("Reshape", x, g.weight(np.array([-1, 1, 2]), "rows")), g.weight(known[None], "known"))
    distance = g("ReduceSumSquare", apart, axes=[2], keepdims=0)
    g("TopK", distance, g.weight(np.array([3]), "k"), axis=1, largest=0, outputs=["near", "at"])
    votes = g("ReduceSum", g("Gather", g.weight(np.eye(3, dtype=np.float32)[owners], "votes"), "at", axis=0),
              g.weight(np.array([1]), "axis"), keepdims=0)  # fmt: skip
    best = g("ArgMax", votes, axis=1, keepdims=0)
    label = g("ArrayFeatureExtractor", g.weight(np.array(NAMES, object), "classes"), best, domain=ML)
    flat = g("Reshape", label, g.weight(np.array([-1]), "flat"), outputs=["output_label"])
    check_all(g.model([flat, votes], 15, {ML: 1}), {"X": normal(5, 2)})


@pytest.mark.parametrize("names", [True, False])
def test_label_encoders_back_and_forth(names):
    g = Graph(sklearn)
    x = g.input("X", [5], str if names else np.int64)
    keys: dict[str, Any] = {"keys_strings": ["a", "b", "c"]} if names else {"keys_int64s": [10, 20, 30]}
    code = g("LabelEncoder", x, domain=ML, **keys, values_int64s=[0, 1, 2], default_int64=-1)
    back = g("LabelEncoder", code, domain=ML, keys_int64s=[0, 1, 2], values_strings=["x", "y", "z"], default_string="?")
    value = np.array(["b", "a", "q", "c", "b"], object) if names else np.array([20, 10, 99, 30, 20])
    results = check_all(g.model([code, back], 15, {ML: 2}), {"X": value})
    assert results[0].tolist() == [1, 0, -1, 2, 1] and results[1].tolist() == ["y", "x", "?", "z", "y"]
