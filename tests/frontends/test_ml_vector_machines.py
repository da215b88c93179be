"""Support vector machines of ai.onnx.ml against numpy and onnxruntime."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from tests.frontends.node_cases import check, rejected

rng = np.random.default_rng(0)
X = rng.normal(size=(9, 3)).astype(np.float32)
VECTORS = rng.normal(size=(6, 3)).astype(np.float32)
GAMMA, OFFSET, DEGREE = 0.5, 0.25, 3.0
ML: dict[str, Any] = {"domain": "ai.onnx.ml", "kernel_params": [GAMMA, OFFSET, DEGREE]}

KERNELS = {
    "LINEAR": lambda a, b: a @ b.T,
    "POLY": lambda a, b: (GAMMA * (a @ b.T) + OFFSET) ** DEGREE,
    "RBF": lambda a, b: np.exp(-GAMMA * ((a[:, None] - b[None]) ** 2).sum(-1)),
    "SIGMOID": lambda a, b: np.tanh(GAMMA * (a @ b.T) + OFFSET),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_regressor(kernel, one_class):
    weights = rng.normal(size=6).astype(np.float32)
    total = (KERNELS[kernel](X, VECTORS) @ weights + 0.3).astype(np.float32)[:, None]
    expected = np.where(total > 0, 1, -1).astype(np.float32) if one_class else total
    attrs = {"support_vectors": VECTORS.ravel().tolist(), "coefficients": weights.tolist(), "rho": [0.3]}
    check("SVMRegressor", [X], expected, kernel_type=kernel, n_supports=6, one_class=one_class, **attrs, **ML)


def test_linear_regressor():
    weights = rng.normal(size=3).astype(np.float32)
    expected = (X @ weights + 0.3).astype(np.float32)[:, None]
    check("SVMRegressor", [X], expected, coefficients=weights.tolist(), rho=[0.3], n_supports=0, **ML)


def machine(sizes, kernel):
    """Attributes of a classifier, the decisions of its pairs of classes, and the winners."""
    classes = len(sizes)
    weights = rng.normal(size=(classes - 1, 6)).astype(np.float32)
    rho = rng.normal(size=classes * (classes - 1) // 2).astype(np.float32)
    kernels, ends = KERNELS[kernel](X, VECTORS), np.cumsum([0, *sizes])
    decisions, votes = [], np.zeros((len(X), classes))
    for pair, (i, j) in enumerate(combinations(range(classes), 2)):
        a, b = slice(ends[i], ends[i + 1]), slice(ends[j], ends[j + 1])
        decisions.append(kernels[:, a] @ weights[j - 1, a] + kernels[:, b] @ weights[i, b] + rho[pair])
        votes[np.arange(len(X)), np.where(decisions[-1] > 0, i, j)] += 1
    attrs = {
        "support_vectors": VECTORS.ravel().tolist(), "coefficients": weights.ravel().tolist(), "rho": rho.tolist(),
        "vectors_per_class": list(sizes), "kernel_type": kernel, "outputs": 2, **ML,
    }  # fmt: skip
    return attrs, np.stack(decisions, 1).astype(np.float32), votes.argmax(1)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


LABELS = np.array([10, 20, 30, 40])


@pytest.mark.parametrize("sizes", [(3, 3), (2, 2, 2), (1, 2, 1, 2)])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("kernel", ["RBF", "LINEAR"])
def test_classifier(sizes, transform, kernel):
    attrs, decisions, winners = machine(sizes, kernel)
    scores = np.concatenate([-decisions, decisions], 1) if len(sizes) == 2 else decisions
    scores = sigmoid(scores) if transform == "LOGISTIC" else scores
    labels = LABELS[: len(sizes)].tolist()
    expected = [LABELS[winners], scores.astype(np.float32)]
    check("SVMClassifier", [X], expected, classlabels_ints=labels, post_transform=transform, **attrs)


@pytest.mark.parametrize("sizes", [(3, 3), (2, 2, 2), (1, 2, 1, 2)])
def test_classifier_with_probabilities(sizes):
    attrs, decisions, winners = machine(sizes, "RBF")
    slopes, offsets = rng.normal(size=(2, decisions.shape[1])).astype(np.float32)
    pairs = np.clip(sigmoid(-(decisions * slopes + offsets)), 1e-7, 1 - 1e-7)
    wins = np.zeros((len(X), len(sizes), len(sizes)))
    for pair, (i, j) in enumerate(combinations(range(len(sizes)), 2)):
        wins[:, i, j], wins[:, j, i] = pairs[:, pair], 1 - pairs[:, pair]
    # The minimum that the iteration comes close to, by the linear system of its conditions.
    q = -wins * wins.transpose(0, 2, 1)
    q[:, np.arange(len(sizes)), np.arange(len(sizes))] = (wins**2).sum(1)
    ones = np.ones((len(X), len(sizes), 1))
    system = np.block([[q, ones], [ones.transpose(0, 2, 1), np.zeros((len(X), 1, 1))]])
    target = np.broadcast_to(np.eye(len(sizes) + 1)[:, -1:], (len(X), len(sizes) + 1, 1))
    exact = np.linalg.solve(system, target)[:, :-1, 0]
    passed = {"prob_a": slopes.tolist(), "prob_b": offsets.tolist(), "classlabels_ints": LABELS[: len(sizes)].tolist()}
    expected = [LABELS[winners], exact.astype(np.float32)]
    results = check("SVMClassifier", [X], expected, rtol=0.0, atol=5e-3, **passed, **attrs)
    np.testing.assert_allclose(results[1].sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_linear_classifier(transform):
    weights, rho = rng.normal(size=(3, 3)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    scores = X @ weights.T + rho[0]
    e = np.exp(scores - scores.max(1, keepdims=True))
    passed = {"NONE": scores, "SOFTMAX": e / e.sum(1, keepdims=True), "LOGISTIC": sigmoid(scores)}[transform]
    attrs = {"coefficients": weights.ravel().tolist(), "rho": rho.tolist(), "classlabels_ints": [10, 20, 30]}
    expected = [LABELS[scores.argmax(1)], passed.astype(np.float32)]
    check("SVMClassifier", [X], expected, outputs=2, post_transform=transform, kernel_type="LINEAR", **attrs, **ML)


def test_machines_whose_numbers_do_not_fit():
    attrs, _, _ = machine((3, 3), "RBF")
    for changed, text in [
        ({"rho": [0.1, 0.2]}, "2 rho for classes of"),
        ({"support_vectors": [0.0] * 17}, "17 numbers for 6 support vectors"),
        ({"classlabels_ints": [1, 2, 3]}, "3 labels for 2 classes"),
        ({"prob_a": [0.1]}, "1 and 0 numbers of probability"),
        ({"kernel_params": [0.1]}, "1 kernel parameters"),
    ]:
        rejected("SVMClassifier", [X], text, **{**attrs, "classlabels_ints": [1, 2], **changed})
