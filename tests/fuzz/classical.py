"""Generators for the operators of ai.onnx.ml: features, linear models, support vectors, trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import numpy_helper

from tests.fuzz.builder import GraphBuilder, Value, operator
from tests.fuzz.dims import Symbolic, is_symbolic

__all__: list[str] = []

KINDS = ("float32", "float32", "float64", "int64", "int32")
TRANSFORMS = ("NONE", "NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")


def _rows(g: GraphBuilder, kinds: Sequence[str] = KINDS, features: int | None = None, exact: bool = False) -> Value:
    """A table [N, features]; the number of rows may be symbolic."""

    def fits(v: Value) -> bool:
        return not is_symbolic(v.shape[1:]) and features in (None, v.shape[1])

    found = [v for v in g.values if v.dtype in kinds and v.rank == 2 and v.size and v.largest < 20 and fits(v)]
    found = [v for v in found if v.exact or not exact]
    if found and g.chance(0.6):
        return g.choice(found)
    batch = Symbolic.named("batch") if g.dynamic and g.chance(0.7) else g.integer(1, 6)
    return g.input(g.choice(kinds), (batch, features or g.integer(1, 6)), -3, 3)


def _numbers(g: GraphBuilder, count: int, low: float = -2.0, high: float = 2.0) -> list[float]:
    return [float(np.float32(v)) for v in g.numbers.uniform(low, high, count)]


@operator("ai.onnx.ml.Scaler")
def scaler(g: GraphBuilder) -> Value:
    x = _rows(g)
    count = g.choice([1, x.shape[1]])
    how = {name: _numbers(g, count) for name in ("offset", "scale") if g.chance(0.9)}
    bound = 2 * x.largest + 4
    return g.node("ai.onnx.ml.Scaler", [x], "float32", x.shape, False, -bound, bound,
                  **{"offset": [0.0], "scale": [1.0], **how})  # fmt: skip


@operator("ai.onnx.ml.Normalizer")
def normalizer(g: GraphBuilder) -> Value:
    x = _rows(g, ("float32", "float64", "int64"))
    if x.low <= 0 < x.high and not g.chance(0.7):
        x = g.input("float32", x.shape, 0.5, 2.0)
    norm = g.choice(["L1", "L2", *(["MAX"] if x.low > 0 else [])])
    return g.node("ai.onnx.ml.Normalizer", [x], "float32", x.shape, False, -1, 1, norm=norm)


@operator("ai.onnx.ml.Binarizer")
def binarizer(g: GraphBuilder) -> Value:
    x = g.pick(("float32", "int64", "int32"), 1, 4, exact=True)
    return g.node("ai.onnx.ml.Binarizer", [x], x.dtype, x.shape, True, 0, 1, threshold=g.choice([0.0, 0.5, -1.0]))


@operator("ai.onnx.ml.Imputer")
def imputer(g: GraphBuilder) -> Value:
    x = _rows(g, ("float32", "int64"), exact=True)
    count = g.choice([1, x.shape[1]])
    if x.is_float:
        made = g.input("float32", x.shape, special=True)
        how: dict[str, Any] = {"replaced_value_float": float("nan"), "imputed_value_floats": _numbers(g, count)}
        return g.node("ai.onnx.ml.Imputer", [made], "float32", x.shape, True, -np.inf, np.inf, **how)
    how = {"replaced_value_int64": 0, "imputed_value_int64s": [g.integer(-3, 3) for _ in range(count)]}
    return g.node("ai.onnx.ml.Imputer", [x], "int64", x.shape, True, min(x.low, -3), max(x.high, 3), **how)


@operator("ai.onnx.ml.ArrayFeatureExtractor")
def feature_extractor(g: GraphBuilder) -> Value:
    x = _rows(g, ("float32", "float64", "int64", "int32"))
    picked = [g.integer(0, x.shape[1] - 1) for _ in range(g.integer(1, 4))]
    return g.node("ai.onnx.ml.ArrayFeatureExtractor", [x, g.constant(picked, "int64")], x.dtype,
                  (x.shape[0], len(picked)), x.exact, x.low, x.high)  # fmt: skip


@operator("ai.onnx.ml.FeatureVectorizer")
def feature_vectorizer(g: GraphBuilder) -> Value:
    x = _rows(g, ("float32",))
    others = [g.input("float32", (x.shape[0], g.integer(1, 4))) for _ in range(g.integer(0, 2))]
    parts = [x, *others]
    sizes = [p.shape[1] for p in parts]
    bound = max(p.largest for p in parts)
    return g.node("ai.onnx.ml.FeatureVectorizer", parts, "float32", (x.shape[0], sum(sizes)), x.exact, -bound, bound,
                  inputdimensions=sizes)  # fmt: skip


@operator("ai.onnx.ml.LinearRegressor", weight=2)
def linear_regressor(g: GraphBuilder) -> Value:
    x = _rows(g, ("float32",))
    targets, features = g.integer(1, 4), x.shape[1]
    bias = {"intercepts": _numbers(g, targets)} if g.chance(0.7) else {}
    bound = x.largest * 2 * features + 2
    transform = g.choice(TRANSFORMS) if targets > 1 else "NONE"
    return g.node("ai.onnx.ml.LinearRegressor", [x], "float32", (x.shape[0], targets), False, -bound, bound,
                  coefficients=_numbers(g, targets * features), targets=targets, post_transform=transform,
                  **bias)  # fmt: skip


def _classified(g: GraphBuilder, op: str, x: Value, classes: int, bound: float, **how: Any) -> Value:
    """A node that gives labels and scores: the scores."""
    labels = g.node(op, [x], "int64", (x.shape[0],), False, -9, 9, outputs=2, **how)
    return g.also(1, labels, "float32", (x.shape[0], classes), False, -bound, bound)


@operator("ai.onnx.ml.LinearClassifier", weight=2)
def linear_classifier(g: GraphBuilder) -> Value:
    x = _rows(g, ("float32", "float32", "int64"))
    classes, features = g.integer(2, 4), x.shape[1]
    how = {"classlabels_ints": g.rng.sample(range(-5, 9), classes), "post_transform": g.choice(TRANSFORMS),
           "coefficients": _numbers(g, classes * features), "intercepts": _numbers(g, classes)}  # fmt: skip
    return _classified(g, "ai.onnx.ml.LinearClassifier", x, classes, x.largest * 2 * features + 2, **how)


def _kernel(g: GraphBuilder) -> dict[str, Any]:
    kind = g.choice(["LINEAR", "POLY", "RBF", "SIGMOID"])
    return {"kernel_type": kind, "kernel_params": [0.25, 0.5, 2.0 if kind == "POLY" else 3.0]}


@operator("ai.onnx.ml.SVMRegressor")
def support_vector_regressor(g: GraphBuilder) -> Value:
    x = _rows(g, ("float32",))
    features, count = x.shape[1], g.integer(1, 5)
    how = {"n_supports": count, "support_vectors": _numbers(g, count * features), "coefficients": _numbers(g, count),
           "rho": _numbers(g, 1), **_kernel(g)}  # fmt: skip
    if g.chance(0.2):
        how = {"coefficients": _numbers(g, features), "rho": _numbers(g, 1), "n_supports": 0}
    bound = count * 2 * (x.largest * features + 1) ** 2 + 2
    return g.node("ai.onnx.ml.SVMRegressor", [x], "float32", (x.shape[0], 1), False, -bound, bound, **how)


@operator("ai.onnx.ml.SVMClassifier")
def support_vector_classifier(g: GraphBuilder) -> Value:
    x = _rows(g, ("float32",))
    features, classes = x.shape[1], g.integer(2, 4)
    each = [g.integer(1, 3) for _ in range(classes)]
    count, pairs = sum(each), classes * (classes - 1) // 2
    how: dict[str, Any] = {
        "vectors_per_class": each, "support_vectors": _numbers(g, count * features), "rho": _numbers(g, pairs),
        "coefficients": _numbers(g, count * (classes - 1)), "classlabels_ints": list(range(classes)), **_kernel(g),
    }  # fmt: skip
    columns = pairs if classes > 2 else 2
    if g.chance(0.4):
        how.update(prob_a=_numbers(g, pairs, -2, -1), prob_b=_numbers(g, pairs, -0.2, 0.2))
        columns = classes
    bound = count * 2 * (x.largest * features + 1) ** 2 + 2
    return _classified(g, "ai.onnx.ml.SVMClassifier", x, columns, bound, **how)


_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


class _Tree:
    """Nodes of random trees, as attribute lists. `every`: leaves have weights for every target."""

    def __init__(self, g: GraphBuilder, features: int, targets: int, mixed: bool, every: bool = False) -> None:
        self.g, self.features, self.targets = g, features, targets
        self.every = every
        self.mode = None if mixed else g.choice([*_MODES, None])
        self.nodes: list[dict[str, Any]] = []
        self.leaves: list[tuple[int, int, int, float]] = []
        for tree in range(g.integer(1, 4)):
            self.grow(tree, [0], g.integer(0, 3))

    def grow(self, tree: int, counter: list[int], depth: int) -> int:
        g, number = self.g, counter[0]
        counter[0] += 1
        node = {"treeids": tree, "nodeids": number, "truenodeids": 0, "falsenodeids": 0, "modes": "LEAF", "values": 0.0,
                "featureids": 0, "missing_value_tracks_true": 0, "hitrates": 1.0}  # fmt: skip
        self.nodes.append(node)
        if depth == 0 or (number and g.chance(0.25)):
            some = range(self.targets) if self.every else g.rng.sample(range(self.targets), g.integer(1, self.targets))
            for target in some:
                self.leaves.append((tree, number, target, float(np.float32(g.numbers.uniform(-1, 1)))))
            return number
        node.update(modes=self.mode or g.choice(_MODES), featureids=g.integer(0, self.features - 1),
                    values=g.choice([-1.0, -0.5, 0.0, 0.5, 1.0]),
                    missing_value_tracks_true=g.integer(0, 1))  # fmt: skip
        node["truenodeids"] = self.grow(tree, counter, depth - 1)
        node["falsenodeids"] = self.grow(tree, counter, depth - 1)
        return number

    def attributes(self, what: str) -> dict[str, Any]:
        """Attributes of TreeEnsembleRegressor ("target") or TreeEnsembleClassifier ("class"), by `what`."""
        columns = {f"nodes_{name}": [node[name] for node in self.nodes] for name in self.nodes[0]}
        trees, nodes, ids, weights = (list(column) for column in zip(*self.leaves, strict=True))
        return {**columns, f"{what}_treeids": trees, f"{what}_nodeids": nodes, f"{what}_ids": ids,
                f"{what}_weights": weights}  # fmt: skip


@operator("ai.onnx.ml.TreeEnsembleRegressor", weight=2)
def tree_regressor(g: GraphBuilder) -> Value:
    x = _rows(g, ("float32", "float32", "float64", "int64"), exact=True)
    targets = g.integer(1, 3)
    based = g.chance(0.5)  # onnxruntime adds no base value where no leaf that was reached has a weight
    how = _Tree(g, x.shape[1], targets, False, every=based).attributes("target")
    if based:
        how["base_values"] = _numbers(g, targets)
    transform = g.choice(TRANSFORMS) if targets > 1 else "NONE"
    return g.node("ai.onnx.ml.TreeEnsembleRegressor", [x], "float32", (x.shape[0], targets), False, -10, 10,
                  n_targets=targets, aggregate_function=g.choice(["SUM", "AVERAGE", "MIN", "MAX"]),
                  post_transform=transform, **how)  # fmt: skip


@operator("ai.onnx.ml.TreeEnsembleClassifier", weight=2)
def tree_classifier(g: GraphBuilder) -> Value:
    x = _rows(g, ("float32", "float32", "float64", "int64"), exact=True)
    classes = g.integer(3, 5)
    # In onnxruntime a class without a weight in the leaves that were reached is never the best.
    how = _Tree(g, x.shape[1], classes, False, every=True).attributes("class")
    how.update(classlabels_int64s=g.rng.sample(range(-5, 9), classes), post_transform=g.choice(TRANSFORMS))
    if g.chance(0.5):
        how["base_values"] = _numbers(g, classes)
    return _classified(g, "ai.onnx.ml.TreeEnsembleClassifier", x, classes, 12, **how)


@operator("ai.onnx.ml.TreeEnsemble", weight=2)
def tree_ensemble(g: GraphBuilder) -> Value:
    x = _rows(g, ("float32", "float64"), exact=True)
    targets = g.integer(1, 3)
    tree = _Tree(g, x.shape[1], targets, True)
    inner = [n for n in tree.nodes if n["modes"] != "LEAF"]
    if len({n["treeids"] for n in inner}) < len({n["treeids"] for n in tree.nodes}):
        raise LookupError("a tree that is a leaf has no node here")
    leaves = [(t, n) for t, n, _, _ in tree.leaves]
    if len(set(leaves)) < len(leaves):
        raise LookupError("a leaf has one weight here")
    place = {(n["treeids"], n["nodeids"]): i for i, n in enumerate(inner)}
    how: dict[str, Any] = {
        "n_targets": targets, "aggregate_function": g.integer(0, 3), "post_transform": 0,
        "tree_roots": [place[t, 0] for t in sorted({n["treeids"] for n in inner})],
        "nodes_modes": np.array([_MODES.index(n["modes"]) for n in inner], np.uint8),
        "nodes_featureids": [n["featureids"] for n in inner],
        "nodes_splits": np.array([n["values"] for n in inner], x.dtype),
        "nodes_missing_value_tracks_true": [n["missing_value_tracks_true"] for n in inner],
        "leaf_targetids": [target for _, _, target, _ in tree.leaves],
        "leaf_weights": np.array([weight for *_, weight in tree.leaves], x.dtype),
    }  # fmt: skip
    for way in ("true", "false"):
        ends = [(n["treeids"], n[f"{way}nodeids"]) for n in inner]
        how[f"nodes_{way}leafs"] = [int(end in leaves) for end in ends]
        how[f"nodes_{way}nodeids"] = [leaves.index(end) if end in leaves else place[end] for end in ends]
    tensors = {name: numpy_helper.from_array(value, name) for name, value in how.items() if hasattr(value, "dtype")}
    return g.node("ai.onnx.ml.TreeEnsemble", [x], x.dtype, (x.shape[0], targets), False, -10, 10, **{**how, **tensors})

