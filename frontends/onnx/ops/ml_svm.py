"""Support vector machines of ai.onnx.ml."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.ml import (
    POST_TRANSFORMS,
    class_labels,
    float_rows,
    floats,
    label_table,
    post_transformed,
)
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr

DOMAIN = "ai.onnx.ml"
_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def _number(value: float) -> Constant:
    return Constant(np.array(value, np.float32))


def _kernel(node: OnnxNode, x: Expr, vectors: np.ndarray) -> Expr:
    """The kernel function of each row of x and each vector: [N, vectors]."""
    kind = node.attr_choice("kernel_type", _KERNELS, "LINEAR")
    params = floats(node, "kernel_params")
    if params and len(params) != 3:
        raise node.error(f"{len(params)} kernel parameters", expected="three: gamma, coef0, degree")
    gamma, offset, degree = params or (0.0, 0.0, 0.0)
    if kind == "RBF":
        # Sums of squared differences, as expanded products would cancel for close vectors.
        apart = op.subtract(op.expand_dims(x, 1), Constant(vectors[None]))
        return op.exp(op.multiply(op.sum(op.multiply(apart, apart), axis=(2,)), _number(-gamma)))
    product = op.nn.dense(x, Constant(vectors))
    if kind == "LINEAR":
        return product
    moved = op.add(op.multiply(product, _number(gamma)), _number(offset))
    return op.tanh(moved) if kind == "SIGMOID" else op.power(moved, _number(degree))


def _vectors(node: OnnxNode, x: Expr, count: int) -> np.ndarray:
    """The support vectors [count, features]."""
    values, width = np.array(floats(node, "support_vectors"), np.float32), x.shape[1]
    if not isinstance(width, int) or values.size != count * width:
        raise node.error(f"{values.size} numbers for {count} support vectors of {width} features")
    return values.reshape(count, width)


@converter("SVMRegressor", domain=DOMAIN)
def svm_regressor(node: OnnxNode) -> Expr:
    """Kernel or linear regression; with one_class its sign."""
    node.attrs.ignore("post_transform")  # no implementation reads it
    x, count = float_rows(node), node.attr_int("n_supports", 0)
    weights, rho = np.array(floats(node, "coefficients"), np.float32), floats(node, "rho")
    if not rho:
        raise node.error("no rho")
    if count > 0:
        kernels = _kernel(node, x, _vectors(node, x, count))
    else:
        node.attrs.ignore("kernel_type", "kernel_params", "support_vectors")
        kernels = x
    if kernels.shape[1] != weights.size:
        raise node.error(f"{weights.size} coefficients for {kernels.shape[1]} terms")
    total = op.add(op.nn.dense(kernels, Constant(weights[None])), _number(rho[0]))
    if not node.attr_bool("one_class", False):
        return total
    return op.where(op.greater(total, _number(0.0)), _number(1.0), _number(-1.0))


@converter("SVMClassifier", domain=DOMAIN)
def svm_classifier(node: OnnxNode) -> list[Expr]:
    """Labels by one-vs-one voting, and probabilities or decision values.

    Without support vectors, scores are a linear function per class. The label is that of the class that wins most
    pairs, which may not be the most probable one.
    """
    labels = class_labels(node, "classlabels_ints")
    transform = node.attr_choice("post_transform", POST_TRANSFORMS, "NONE")
    x, sizes = float_rows(node), node.attr_ints("vectors_per_class", ())
    if not sizes:
        scores = _linear_scores(node, x, len(labels))
        best = op.argmax(scores, axis=(-1,))
        return [op.take(label_table(labels), best, axis=0), post_transformed(node, scores, transform)]
    if len(sizes) != len(labels) or len(labels) < 2:
        raise node.error(f"{len(labels)} labels for {len(sizes)} classes of support vectors", expected="one for each")
    decisions = _decisions(node, x, sizes)
    best = op.take(label_table(labels), op.argmax(_votes(decisions, len(sizes)), axis=(-1,)), axis=0)
    slopes, offsets = floats(node, "prob_a"), floats(node, "prob_b")
    if not slopes and not offsets:
        return [best, _decision_scores(node, decisions, transform)]
    if len(slopes) != decisions.shape[1] or len(offsets) != len(slopes):
        raise node.error(f"{len(slopes)} and {len(offsets)} numbers of probability for {decisions.shape[1]} pairs")
    return [best, post_transformed(node, _probabilities(decisions, slopes, offsets, len(sizes)), transform)]


def _linear_scores(node: OnnxNode, x: Expr, classes: int) -> Expr:
    """A linear function per class, with a common offset."""
    node.attrs.ignore("support_vectors", "prob_a", "prob_b", "kernel_params")
    weights, rho = np.array(floats(node, "coefficients"), np.float32), floats(node, "rho")
    if node.attr_choice("kernel_type", _KERNELS, "LINEAR") != "LINEAR":
        raise node.unsupported("a kernel without support vectors", expected="kernel_type 'LINEAR'")
    width = x.shape[1]
    if not isinstance(width, int) or weights.size != classes * width or not rho:
        raise node.error(f"{weights.size} coefficients and {len(rho)} rho for {classes} classes of {width} features")
    if len(rho) == 1 and classes == 2:
        raise node.unsupported("two linear functions with one rho", expected="LinearClassifier")
    return op.add(op.nn.dense(x, Constant(weights.reshape(classes, width))), _number(rho[0]))


def _decisions(node: OnnxNode, x: Expr, sizes: tuple[int, ...]) -> Expr:
    """One-vs-one decision values [N, pairs] for class pairs i < j, positive if i wins.

    The coefficients are [classes - 1, vectors]: for a vector of class i, those against the other classes, in order.
    """
    count, classes = sum(sizes), len(sizes)
    weights, rho = np.array(floats(node, "coefficients"), np.float32), floats(node, "rho")
    pairs = list(combinations(range(classes), 2))
    if min(sizes) < 0 or weights.size != (classes - 1) * count or len(rho) != len(pairs):
        raise node.error(f"{weights.size} coefficients and {len(rho)} rho for classes of {list(sizes)} vectors")
    weights, owner = weights.reshape(classes - 1, count), np.repeat(np.arange(classes), sizes)
    table = np.stack([np.where(owner == i, weights[j - 1], np.where(owner == j, weights[i], 0)) for i, j in pairs])
    kernels = _kernel(node, x, _vectors(node, x, count))
    return op.add(op.nn.dense(kernels, Constant(table.astype(np.float32))), Constant(np.array(rho, np.float32)))


def _votes(decisions: Expr, classes: int) -> Expr:
    """The number of pairs won by each class: [N, classes]."""
    pairs = list(combinations(range(classes), 2))
    wins, losses = (np.array([[float(pair[side] == c) for pair in pairs] for c in range(classes)], np.float32)
                    for side in (0, 1))  # fmt: skip
    won = op.cast(op.greater(decisions, _number(0.0)), "float32")
    return op.add(op.nn.dense(won, Constant(wins)), op.nn.dense(op.subtract(_number(1.0), won), Constant(losses)))


def _decision_scores(node: OnnxNode, decisions: Expr, transform: str) -> Expr:
    """Scores without probabilities; as in onnxruntime, two classes have a score each."""
    if decisions.shape[1] != 1:
        return post_transformed(node, decisions, transform)
    if transform == "PROBIT":
        raise node.unsupported("PROBIT of the decision between two classes", expected="another post_transform")
    if transform == "LOGISTIC":
        return op.concatenate([op.sigmoid(op.negative(decisions)), op.sigmoid(decisions)], axis=1)
    other = op.negative(decisions) if transform == "NONE" else op.subtract(_number(1.0), decisions)
    return op.concatenate([other, decisions], axis=1)


def _probabilities(decisions: Expr, slopes: tuple[float, ...], offsets: tuple[float, ...], classes: int) -> Expr:
    """Class probabilities: Platt's sigmoid of each decision value, then pairwise coupling."""
    a, b = (Constant(np.array(values, np.float32)) for values in (slopes, offsets))
    pairs = op.sigmoid(op.negative(op.add(op.multiply(decisions, a), b)))
    return op.pairwise_coupling(op.clip(pairs, 1e-7, 1.0 - 1e-7), classes)
