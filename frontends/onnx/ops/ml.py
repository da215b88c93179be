"""Operators of ai.onnx.ml: features, scaling, linear models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import require_rank, reshape_to
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr
from relayc.relay.op.index_check import IndexCheck
from relayc.relay.sizes import dims_match, product

__all__ = ["POST_TRANSFORMS", "class_labels", "float_rows", "floats", "label_table", "labelled", "post_transformed"]

DOMAIN = "ai.onnx.ml"
POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def _constant(values: float | Sequence[float] | np.ndarray, like: Expr) -> Constant:
    return Constant(np.asarray(values, dtype=str(like.dtype)))


def post_transformed(node: OnnxNode, scores: Expr, transform: str) -> Expr:
    """Apply the `post_transform` attribute to scores [N, targets]."""
    if transform == "NONE":
        return scores
    if transform == "LOGISTIC":
        return op.sigmoid(scores)
    if transform == "SOFTMAX":
        return op.nn.softmax(scores, axis=-1)
    if transform == "PROBIT":
        return _probit(scores)
    # SOFTMAX_ZERO as in onnxruntime: scores of about zero stay zero and are left out of the sum.
    highest = op.max(scores, axis=(-1,), keepdims=True)
    small = op.less_equal(op.abs(scores), _constant(1e-7, scores))
    powers = op.where(small, op.multiply(scores, op.exp(op.negative(highest))), op.exp(op.subtract(scores, highest)))
    return op.divide(powers, op.sum(powers, axis=(-1,), keepdims=True))


def _probit(scores: Expr) -> Expr:
    """sqrt(2) * erfinv(2 s - 1) by Winitzki's approximation, as other ONNX implementations compute it."""
    x = op.subtract(op.multiply(scores, _constant(2.0, scores)), _constant(1.0, scores))
    log = op.log(op.multiply(op.subtract(_constant(1.0, x), x), op.add(_constant(1.0, x), x)))
    half = op.add(_constant(2 / (np.pi * 0.147), x), op.multiply(log, _constant(0.5, x)))
    inner = op.subtract(op.multiply(half, half), op.multiply(log, _constant(1 / 0.147, x)))
    size = op.sqrt(op.subtract(op.sqrt(inner), half))
    return op.multiply(op.multiply(op.sign(x), size), _constant(1.41421356, x))


Labels = Sequence[int | str]


def class_labels(node: OnnxNode, ints: str) -> Labels:
    """The labels of a classifier."""
    labels = node.attrs.get_strings("classlabels_strings") or node.attr_ints(ints, ())
    if not labels:
        raise node.error("no class labels")
    return labels


def label_table(labels: Labels) -> Constant:
    """Labels as a vector of int64 or of strings."""
    return Constant(np.array(labels, object if isinstance(labels[0], str) else np.int64))


def labelled(
    node: OnnxNode, scores: Expr, labels: Labels, transform: str, single: bool, positive: bool
) -> list[Expr]:
    """The labels of the classes with the highest scores [N], and the scores [N, classes].

    A `single` score per row belongs to the second of two classes, which is chosen above 0, or above 0.5 if all weights
    are `positive` and the score is a probability.
    """
    if not single:
        best = op.argmax(scores, axis=(-1,))
        return [op.take(label_table(labels), best, axis=0), post_transformed(node, scores, transform)]
    limit = _constant(0.5 if positive else 0.0, scores)
    if len(labels) == 1 and isinstance(labels[0], str):
        raise node.unsupported("one string label", expected="two, or integer labels")
    pair = labels if len(labels) == 2 else (0, *labels)
    wins = reshape_to(op.greater(scores, limit), (scores.shape[0],))
    label = op.take(label_table(pair), op.cast(wins, "int64"), axis=0, mode="fast")
    if transform == "PROBIT":
        return [label, _probit(scores)]
    if positive and transform != "LOGISTIC":
        other = op.subtract(_constant(1.0, scores), scores)
        return [label, op.concatenate([other, scores], axis=1)]
    both = op.concatenate([op.negative(scores), scores], axis=1)
    return [label, op.sigmoid(both) if transform == "LOGISTIC" else both]


def floats(node: OnnxNode, name: str) -> tuple[float, ...]:
    """The floats of an attribute; empty when it is omitted."""
    return node.attrs.get_floats(name) or ()


def float_rows(node: OnnxNode) -> Expr:
    """Input 0 as a float32 matrix; a vector is one row."""
    require_rank(node, 0, 1, 2)
    x = node[0] if node.rank(0) != 1 else op.expand_dims(node[0], 0)
    return op.cast(x, "float32")


@converter("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(node: OnnxNode) -> Expr:
    """Selects elements along the last axis by index."""
    rows = node[0] if node.rank(0) > 1 else op.expand_dims(node[0], 0)
    return op.take(rows, reshape_to(node[1], (-1,)), axis=len(rows.shape) - 1, mode="numpy")


@converter("Binarizer", domain=DOMAIN)
def binarizer(node: OnnxNode) -> Expr:
    """1 above the threshold, else 0."""
    x = node[0] if node.dtype(0).is_float else op.cast(node[0], "float64")
    return op.cast(op.greater(x, _constant(node.attr_float("threshold", 0.0), x)), str(node.dtype(0)))


@converter("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(node: OnnxNode) -> Expr:
    """Concatenates columns, each input truncated or zero-padded to its size."""
    sizes = node.attr_ints("inputdimensions", ())
    parts: list[Expr] = []
    for index, x in enumerate(node.all_inputs()):
        rows = op.cast(x if len(x.shape) > 1 else op.expand_dims(x, 1), "float32")
        have = node.extent(rows, 1, "the columns")
        want = sizes[index] if index < len(sizes) else have
        rows = op.strided_slice(rows, (0,), (want,), axes=(1,)) if want < have else rows
        parts.append(op.nn.pad(rows, [(0, 0), (0, want - have)]) if want > have else rows)
    return op.concatenate(parts, axis=1)


@converter("Imputer", domain=DOMAIN)
def imputer(node: OnnxNode) -> Expr:
    """Replaces a value by another one, optionally per column."""
    require_rank(node, 0, 1)
    x = node[0]
    if x.dtype.is_float:
        missing, values = node.attr_float("replaced_value_float", 0.0), floats(node, "imputed_value_floats")
        node.attrs.ignore("replaced_value_int64", "imputed_value_int64s")
    else:
        missing, values = node.attr_int("replaced_value_int64", 0), node.attr_ints("imputed_value_int64s", ())
        node.attrs.ignore("replaced_value_float", "imputed_value_floats")
    if len(values) != 1 and len(values) != node.extent(node[0], -1, "the columns"):
        raise node.error(f"{len(values)} imputed values", expected="one, or one per column")
    if x.dtype.is_uint and min(missing, *values) < 0:
        raise node.error("negative numbers for unsigned ones")
    found = op.isnan(x) if x.dtype.is_float and missing != missing else op.equal(x, _constant(missing, x))
    return op.where(found, _constant(values, x), x)


@converter("Scaler", domain=DOMAIN)
def scaler(node: OnnxNode) -> Expr:
    """(x - offset) * scale, optionally per column."""
    require_rank(node, 0, 1)
    x = op.cast(node[0], "float32")
    for name, function in (("offset", op.subtract), ("scale", op.multiply)):
        values = floats(node, name)
        if values:
            if len(values) != 1 and len(values) != node.extent(node[0], -1, "the columns"):
                raise node.error(f"{len(values)} numbers in {name}", expected="one, or one per column")
            x = function(x, _constant(values, x))
    return x


@converter("Normalizer", domain=DOMAIN)
def normalizer(node: OnnxNode) -> Expr:
    """Rows divided by their norm; zero rows are unchanged. As in onnxruntime, "MAX" is the largest value, signed."""
    x = op.cast(node[0], "float32")
    norm = node.attr_choice("norm", ("MAX", "L1", "L2"), "MAX")
    axis = (len(x.shape) - 1,)
    if norm == "MAX":
        size = op.max(x, axis=axis, keepdims=True)
    elif norm == "L1":
        size = op.sum(op.abs(x), axis=axis, keepdims=True)
    else:
        size = op.sqrt(op.sum(op.multiply(x, x), axis=axis, keepdims=True))
    zero = op.equal(size, _constant(0.0, x))
    return op.divide(x, op.where(zero, _constant(1.0, x), size))


@converter("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(node: OnnxNode) -> Expr:
    """One-hot over categories; unknown ones give zeros, or with zeros=0 end the run with an error."""
    names = node.attrs.get_strings("cats_strings")
    columns: Sequence[Any] = names or node.attr_ints("cats_int64s")
    known: list[Any] = list(dict.fromkeys(columns))
    if names:
        index = op.strings.index(node[0], known)
    else:
        found = op.equal(op.expand_dims(op.cast(node[0], "int64"), node.rank(0)), Constant(np.array(known, np.int64)))
        places, none = np.arange(len(known), dtype=np.int64), np.array(len(known), np.int64)
        index = op.min(op.where(found, Constant(places), Constant(none)), axis=(node.rank(0),))
    if not node.attr_bool("zeros", True):
        check = IndexCheck(axes=("0",), source=f"OneHotEncoder {node.name!r}, a category that is none of its own: ")
        index = check(index, Constant(np.array([len(known)], np.int64)))
    table = np.array([[value == category for category in columns] for value in [*known, None]], np.float32)
    return op.take(Constant(table), index, axis=0, mode="fast")


def _linear(node: OnnxNode, targets: int) -> Expr:
    """x W' + b: [N, targets]."""
    x = float_rows(node)
    coefficients = np.array(floats(node, "coefficients"), np.float32)
    if targets < 1:
        raise node.error(f"{targets} targets", expected="one or more")
    if not dims_match(product((x.shape[1], targets)), coefficients.size):
        raise node.error(f"{coefficients.size} coefficients for {targets} targets")
    scores = op.nn.dense(x, Constant(coefficients.reshape(targets, -1)))
    intercepts = floats(node, "intercepts")
    if not intercepts:
        return scores
    if len(intercepts) != targets:
        raise node.error(f"{len(intercepts)} intercepts for {targets} targets")
    return op.add(scores, _constant(intercepts, scores))


@converter("LinearRegressor", domain=DOMAIN)
def linear_regressor(node: OnnxNode) -> Expr:
    transform = node.attr_choice("post_transform", POST_TRANSFORMS, "NONE")
    return post_transformed(node, _linear(node, node.attr_int("targets", 1)), transform)


@converter("LinearClassifier", domain=DOMAIN)
def linear_classifier(node: OnnxNode) -> list[Expr]:
    """Label of the highest score, and all scores."""
    node.attrs.ignore("multi_class")
    labels = class_labels(node, "classlabels_ints")
    transform = node.attr_choice("post_transform", POST_TRANSFORMS, "NONE")
    features = node.extent(float_rows(node), 1, "the features")
    targets = len(floats(node, "coefficients")) // max(features, 1)
    single = targets == 1 and len(labels) <= 2
    if not single and targets != len(labels):
        raise node.error(f"scores of {targets} classes with {len(labels)} labels")
    return labelled(node, _linear(node, targets), labels, transform, single, positive=False)
