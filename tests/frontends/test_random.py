"""Random number operators: distributions, seeds, reproducibility."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import ArgumentError, device, set_random_seed
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.frontends.onnx import OnnxImportError, from_onnx
from relayc.frontends.onnx.backend import RelayBackend

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
N = 40_000


def model(op_type: str, inputs: dict[str, Any], opset: int = 22, outputs: int = 1, **attributes: Any) -> ModelProto:
    """One node; `inputs` are (element type, shape) by name."""
    names = ["y", "mask"][:outputs]
    node = helper.make_node(op_type, list(inputs), names, **attributes)
    passed = [helper.make_tensor_value_info(name, *ty) for name, ty in inputs.items() if name]
    results = [helper.make_tensor_value_info(name, 0, None) for name in names]
    graph = helper.make_graph([node], "g", passed, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def test_uniform_numbers_fill_their_range_evenly():
    (y,) = RelayBackend.run_model(model("RandomUniform", {}, shape=[N], low=-1.0, high=3.0), [])
    assert y.dtype == np.float32 and y.min() >= -1 and y.max() < 3
    counts, _ = np.histogram(y, 16, (-1, 3))
    expected = N / 16
    assert ((counts - expected) ** 2 / expected).sum() < 37.7  # chi squared of 15 degrees, exceeded once in 1,000


def test_normal_numbers_have_the_moments_of_their_distribution():
    (y,) = RelayBackend.run_model(model("RandomNormal", {}, shape=[N], mean=2.0, scale=3.0, dtype=11), [])
    z = (y - 2) / 3
    error = 1 / np.sqrt(N)
    assert y.dtype == np.float64
    assert abs(z.mean()) < 4 * error and abs(z.std() - 1) < 3 * error
    assert abs((z**3).mean()) < 4 * np.sqrt(15) * error and abs((z**4).mean() - 3) < 4 * np.sqrt(96) * error
    assert abs((np.abs(z) < 1).mean() - 0.6827) < 4 * 0.47 * error


@pytest.mark.parametrize("op_type", ["RandomUniformLike", "RandomNormalLike"])
def test_like_takes_shape_and_type_of_any_size(op_type):
    prepared = RelayBackend.prepare(model(op_type, {"x": (TensorProto.FLOAT16, ["n", 3])}))
    for rows in (2, 5):
        (y,) = prepared.run([np.zeros((rows, 3), np.float16)])
        assert y.shape == (rows, 3) and y.dtype == np.float16 and len(np.unique(y)) > 1


def test_a_seed_gives_the_same_numbers_and_each_run_others():
    drawn = [RelayBackend.prepare(model("RandomUniform", {}, shape=[8], seed=s)) for s in (1.0, 1.0, 2.0)]
    first, same, other = [np.array([m.run([])[0] for _ in range(3)]) for m in drawn]
    np.testing.assert_array_equal(first, same)
    assert len(np.unique(np.concatenate([first, other]))) == 6 * 8


def test_nodes_without_a_seed_draw_different_numbers():
    nodes = [helper.make_node("RandomUniform", [], [name], shape=[8]) for name in "ab"]
    results = [helper.make_tensor_value_info(name, 0, None) for name in "ab"]
    graph = helper.make_graph(nodes, "g", [], results)
    a, b = RelayBackend.run_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]), [])
    assert not np.intersect1d(a, b).size


def pair(op: str, seeds: tuple[float | None, float | None], **attributes: Any) -> ModelProto:
    """Two nodes of one operator."""
    inputs = [] if op in ("RandomNormal", "RandomUniform") else ["x"]
    if op == "Dropout":
        inputs = ["x", "", "training"]
    nodes = [
        helper.make_node(op, inputs, [name], **attributes, **({} if seed is None else {"seed": seed}))
        for name, seed in zip("ab", seeds, strict=True)
    ]
    passed = [helper.make_tensor_value_info("x", FLOAT, [2, 64])] if inputs else []
    graph = helper.make_graph(
        nodes, "g", passed, [helper.make_tensor_value_info(name, 0, None) for name in "ab"],
        [numpy_helper.from_array(np.array(True), "training")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


NODES: list[tuple[str, dict[str, Any], Any]] = [
    ("RandomNormal", {"shape": [64]}, 1.0), ("RandomUniform", {"shape": [64]}, 1.0), ("RandomNormalLike", {}, 1.0),
    ("RandomUniformLike", {}, 1.0), ("Bernoulli", {}, 1.0), ("Multinomial", {"sample_size": 64}, 1.0),
    ("Dropout", {}, 1),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attributes", "seed"), NODES, ids=[op for op, _, _ in NODES])
def test_each_node_has_a_generator_of_its_own(op, attributes, seed):
    """As in onnxruntime: equal seeds draw equal numbers, in each executor the same; without seeds all draw others."""
    set_random_seed(None)
    seeded = relay.build(from_onnx(pair(op, (seed, seed), **attributes))[0])
    free = relay.build(from_onnx(pair(op, (None, None), **attributes))[0])

    def runs(compiled: Any) -> list[Any]:
        executor = GraphModule(compiled["default"](device("cpu")))
        x = {} if op in ("RandomNormal", "RandomUniform") else {"x": np.full((2, 64), 0.5, np.float32)}
        return [[y.numpy() for y in executor(**x)] for _ in range(2)]

    (a, b), (later, _) = runs(seeded)
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, later)
    np.testing.assert_array_equal(runs(seeded)[1][0], later)
    (a, b), (later, _) = runs(free)
    assert not np.array_equal(a, b) and not np.array_equal(a, later)
    assert not np.array_equal(runs(free)[0][0], a)
    set_random_seed(7)
    np.testing.assert_array_equal(runs(free), runs(free))


def test_a_seed_of_the_process_is_an_integer():
    for wrong in ("7", 1.5, True):
        with pytest.raises(ArgumentError, match="set_random_seed is"):
            set_random_seed(wrong)


def test_every_iteration_of_a_loop_draws_numbers_of_its_own():
    body = helper.make_graph(
        [helper.make_node("RandomNormal", [], ["drawn"], shape=[4]), helper.make_node("Identity", ["go"], ["more"])],
        "body",
        [helper.make_tensor_value_info("i", INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info(name, *ty) for name, *ty in (("more", 9, []), ("drawn", FLOAT, [4]))],
    )
    loop = helper.make_node("Loop", ["count", ""], ["y"], body=body)
    count = helper.make_tensor_value_info("count", INT64, [])
    graph = helper.make_graph([loop], "g", [count], [helper.make_tensor_value_info("y", FLOAT, None)])
    looped = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    (y,) = RelayBackend.run_model(looped, [np.array(5)])
    assert y.shape == (5, 4) and len(np.unique(y)) == 20


def test_bernoulli_has_the_input_probability():
    p = np.repeat(np.array([0, 0.25, 0.9, 1], np.float32), N)
    (y,) = RelayBackend.run_model(model("Bernoulli", {"p": (FLOAT, [4 * N])}, dtype=TensorProto.INT32), [p])
    assert y.dtype == np.int32 and set(np.unique(y)) == {0, 1}
    np.testing.assert_allclose(y.reshape(4, N).mean(1), [0, 0.25, 0.9, 1], atol=4 * 0.5 / np.sqrt(N))


def test_multinomial_draws_classes_by_their_weights():
    weights = np.array([[1, 2, 0, 5], [3, 1, 0, 0]], np.float32)
    with np.errstate(divide="ignore"):
        logits = np.log(weights) + np.array([[70], [-70]], np.float32)
    prepared = RelayBackend.prepare(model("Multinomial", {"x": (FLOAT, [2, 4])}, sample_size=N, dtype=INT64))
    (y,) = prepared.run([logits])
    assert y.dtype == np.int64 and y.shape == (2, N)
    found = np.array([np.bincount(row, minlength=4) / N for row in y])
    np.testing.assert_allclose(found, weights / weights.sum(1, keepdims=True), atol=4 * 0.5 / np.sqrt(N))
    assert not found[weights == 0].any()


@pytest.mark.parametrize("known", [True, False])
def test_dropout_in_training_keeps_the_mean(known):
    x = np.full((N,), 3, np.float32)
    inputs = {"x": (FLOAT, [N]), "ratio": (FLOAT, []), "training": (TensorProto.BOOL, [])}
    made = model("Dropout", inputs, outputs=2, seed=3)
    if known:
        for name in ("ratio", "training"):
            value = helper.make_tensor(name, *((FLOAT, [], [0.2]) if name == "ratio" else (9, [], [True])))
            made.graph.initializer.append(value)
        del made.graph.input[1:]
    prepared = RelayBackend.prepare(made)
    y, mask = prepared.run([x] if known else [x, np.float32(0.2), np.array(True)])
    assert mask.dtype == np.bool_ and abs(mask.mean() - 0.8) < 4 * 0.4 / np.sqrt(N)
    np.testing.assert_allclose(y, np.where(mask, 3 / 0.8, 0), rtol=1e-6)
    if not known:
        y, mask = prepared.run([x, np.float32(0.2), np.array(False)])
        assert mask.all() and (y == 3).all()


def test_an_unsupported_random_type_is_rejected():
    with pytest.raises(OnnxImportError, match=r"random numbers of type int32.*\n.*\n?.*a float type"):
        RelayBackend.prepare(model("RandomUniform", {}, shape=[2], dtype=TensorProto.INT32))
