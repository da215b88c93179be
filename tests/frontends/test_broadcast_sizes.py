"""Sizes of different names that an operator broadcasts: either may be 1 when the model runs."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest
from onnx import helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import ArgumentError, RunCancelledError, device, graph_executor
from relayc.backend.runtime.artifact import load_model
from relayc.frontends.onnx import from_onnx
from relayc.relay.expr import Call
from relayc.relay.op.creation import Sizes
from relayc.relay.sizes import count_roundings
from relayc.te.ir import IRModule, post_order

RNG = np.random.default_rng(7)
make = helper.make_node
SIZES = [(3, 3), (1, 3), (3, 1), (1, 1), (0, 1), (1, 0), (0, 0)]
F32, INT64 = 1, 7


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model(nodes, inputs, weights=None):
    """A model with the output y; inputs by name, of float32, or of int64 if their names begin with "i"."""
    kinds = {name: INT64 if name.startswith("i") else F32 for name in inputs}
    graph = helper.make_graph(
        nodes, "broadcast", [helper.make_tensor_value_info(n, kinds[n], shape) for n, shape in inputs.items()],
        [helper.make_tensor_value_info("y", 0, None)],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in (weights or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def executor_of(mod, **options):
    return graph_executor.GraphModule(relay.build(mod, **options)["default"](device("cpu", 0)))


def runs_like(proto, expected, cases):
    """The compiled model against numpy for each case, a list of inputs."""
    mod, _ = from_onnx(proto)
    executor = executor_of(mod)
    for inputs in cases:
        (y,) = executor(*inputs)
        wanted = expected(*inputs)
        assert y.shape == wanted.shape
        np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-4, atol=1e-5)
    return mod, executor


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


ROWS = {"x": ("a", 4), "w": ("b", 4)}
PAIRS = [(floats(a, 4), floats(b, 4)) for a, b in SIZES]
TABLE = floats(9, 4)

MODELS = {
    "Add": ([make("Add", ["x", "w"], ["y"])], ROWS, {}, np.add, PAIRS),
    "Mul, and what follows": (
        [make("Mul", ["x", "w"], ["m"]), make("Relu", ["m"], ["r"]), make("Add", ["r", "x"], ["y"])],
        ROWS, {}, lambda x, w: np.maximum(x * w, 0) + x, PAIRS,
    ),
    "Where": (
        [make("Greater", ["x", "zero"], ["c"]), make("Where", ["c", "x", "w"], ["y"])],
        ROWS, {"zero": np.float32(0)}, lambda x, w: np.where(x > 0, x, w), PAIRS,
    ),
    "Expand": (
        [make("Shape", ["w"], ["s"]), make("Expand", ["x", "s"], ["y"])],
        ROWS, {}, lambda x, w: np.broadcast_to(x, np.broadcast_shapes(x.shape, w.shape)), PAIRS,
    ),
    "MatMul": (
        [make("MatMul", ["x", "w"], ["y"])],
        {"x": ("a", 2, 4), "w": ("b", 4, 3)}, {}, np.matmul,
        [(floats(a, 2, 4), floats(b, 4, 3)) for a, b in SIZES[:5]],
    ),
    "Gemm": (
        [make("Gemm", ["x", "w", "c"], ["y"])],
        {"x": ("m", 4), "w": (4, "n"), "c": ("p", "q")}, {}, lambda x, w, c: x @ w + c,
        [(floats(2, 4), floats(4, 3), floats(p, q)) for p, q in ((2, 3), (1, 3), (2, 1), (1, 1))],
    ),
    "Einsum": (
        [make("Einsum", ["x", "w"], ["y"], equation="bij,bjk->bik")],
        {"x": ("a", 2, 4), "w": ("b", 4, 3)}, {}, np.matmul, [(floats(3, 2, 4), floats(b, 4, 3)) for b in (3, 1)],
    ),
    "a constant": (
        [make("Add", ["x", "c"], ["y"])],
        {"x": ("a", "b")}, {"c": np.arange(12, dtype=np.float32).reshape(3, 4)},
        lambda x: x + np.arange(12, dtype=np.float32).reshape(3, 4),
        [(floats(a, b),) for a, b in ((3, 4), (1, 4), (3, 1), (1, 1))],
    ),
    "unnamed sizes": (
        [make("Add", ["x", "w"], ["y"])], {"x": (None, 4), "w": (None, 4)}, {}, np.add, PAIRS,
    ),
    "Paddle's question marks": (
        [make("Add", ["x", "w"], ["m"]), make("Concat", ["m", "u"], ["y"], axis=1)],
        {"x": ("?", "?"), "w": ("?", "?"), "u": ("?", 2)}, {},
        lambda x, w, u: np.concatenate([x + w, u], 1),
        [(floats(3, 5), floats(1, 5), floats(3, 2)), (floats(1, 1), floats(3, 4), floats(3, 2))],
    ),
    "attention with a mask": (
        [
            make("MatMul", ["q", "k"], ["s"]), make("Add", ["s", "m"], ["sm"]), make("Softmax", ["sm"], ["p"], axis=-1),
            make("MatMul", ["p", "v"], ["y"]),
        ],
        {"q": ("b", 2, "s", 8), "k": ("b", 2, 8, "t"), "v": ("b", 2, "t", 8), "m": ("c", 1, "u", "w")}, {},
        lambda q, k, v, m: softmax(q @ k + m) @ v,
        [
            (floats(b, 2, s, 8), floats(b, 2, 8, t), floats(b, 2, t, 8), floats(c, 1, u, w))
            for b, s, t, c, u, w in ((2, 3, 5, 2, 3, 5), (2, 3, 5, 1, 1, 5), (2, 3, 5, 2, 3, 1), (2, 1, 5, 1, 1, 5))
        ],
    ),
    "position ids": (
        [make("Gather", ["table", "ids"], ["e"]), make("Gather", ["table", "iat"], ["p"]),
         make("Add", ["e", "p"], ["y"])],
        {"ids": ("batch", "length"), "iat": ("batch_of_positions", "positions")}, {"table": TABLE},
        lambda ids, at: TABLE[ids] + TABLE[at],
        [(RNG.integers(0, 9, (a, 5)), RNG.integers(0, 9, (b, t))) for a, b, t in ((3, 3, 5), (3, 1, 5), (3, 1, 1))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_either_of_two_sizes_may_be_one(name):
    nodes, inputs, weights, expected, cases = MODELS[name]
    runs_like(model(nodes, inputs, weights), expected, cases)


def test_sizes_that_were_broadcast_are_broadcast_again():
    """Residual connections: sums of three tensors in turn, each of which may have one row."""
    nodes = [
        make("Add", ["x", "w"], ["s"]),
        make("MatMul", ["s", "k"], ["p"]),
        make("Add", ["p", "x"], ["t"]),
        make("Add", ["t", "u"], ["y"]),
    ]
    k = floats(4, 4)
    proto = model(nodes, {"x": ("a", 4), "w": ("b", 4), "u": ("c", 4)}, {"k": k})
    cases = [(floats(a, 4), floats(b, 4), floats(c, 4)) for a, b, c in itertools.product((1, 3), repeat=3)]
    runs_like(proto, lambda x, w, u: (x + w) @ k + x + u, cases)


def test_sums_of_many_sizes_are_broadcast_by_short_expressions():
    """The common size of what was broadcast before is not computed anew of all sizes: expressions would double."""
    names = [f"x{i}" for i in range(24)]
    nodes = [make("Add", [f"s{i}", name], [f"s{i + 1}"]) for i, name in enumerate(names)]
    proto = model([*nodes, make("Relu", ["s24"], ["y"])], {n: (f"n{i}", 4) for i, n in enumerate(("s0", *names))})
    mod, _ = from_onnx(proto)
    sizes = [e.op for e in post_order(mod["main"].body) if isinstance(e, Call) and isinstance(e.op, Sizes)]
    assert max(count_roundings(d) for op in sizes for d in op.values) < 50


FIRST_ROWS = {
    "behind": ("Add", ["x", "first"], lambda x, first: x + first),
    "before": ("Sub", ["first", "x"], lambda x, first: first - x),
    "of a kernel": ("Mul", ["x", "soft"], lambda x, first: x * softmax(first)),
    "choices": ("Where", ["more", "first", "x"], lambda x, first: np.where(x > 0, first, x)),
    "products": ("MatMul", ["x", "turned"], lambda x, first: x @ first.transpose(0, 2, 1)),
    "batches": ("MatMul", ["first", "turned"], lambda x, first: first @ first.transpose(0, 2, 1)),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", FIRST_ROWS)
def test_the_first_of_several_rows_is_broadcast(name, axis):
    """The slice 0:1 of n rows has min(1, n) of them, whose broadcasting is known at compile time."""
    operator, operands, expected = FIRST_ROWS[name]
    nodes = [
        make("Slice", ["w", "zero", "one", "axis"], ["first"]),
        make("Greater", ["x", "none"], ["more"]),
        make("Softmax", ["first"], ["soft"]),
        make("Transpose", ["first"], ["turned"], perm=[0, 2, 1]),
        make(operator, operands, ["y"]),
    ]
    weights = {"zero": np.array([0]), "one": np.array([1]), "axis": np.array([axis]), "none": np.float32(0)}
    shape = ("b", "n", 20) if axis else ("n", "m", 20)
    proto = model(nodes, {"x": shape, "w": shape}, weights)
    cases = [(floats(*sizes, 20), floats(*sizes, 20)) for sizes in ((2, 5), (1, 1), (1, 7), (3, 1))]
    runs_like(proto, lambda x, w: expected(x, w[:1] if axis == 0 else w[:, :1]), cases)


@pytest.mark.parametrize("shape", [(1,), ("n",)])
def test_at_most_one_row_broadcasts_with_the_number_one(shape):
    """Where none is found, there are no rows: one row of weights is not added to them."""
    nodes = [
        make("NonZero", ["x"], ["places"]),
        make("Transpose", ["places"], ["rows"]),
        make("GatherND", ["x", "rows"], ["found"]),
        make("Mul", ["found", "w"], ["y"]),
    ]
    proto = model(nodes, {"x": shape}, {"w": np.array([2], np.float32)})
    cases = [(np.array([value], np.float32),) for value in (3, 0)]
    runs_like(proto, lambda x: 2 * x[x != 0], cases)


def test_sizes_that_do_not_broadcast_are_an_error_of_the_node():
    executor = executor_of(from_onnx(model([make("Add", ["x", "w"], ["y"], name="sum")], ROWS))[0])
    for a, b in ((2, 3), (0, 3), (3, 2)):
        with pytest.raises(ArgumentError, match=r"'sum' \(Add\), broadcasting, needs two equal sizes and gets"):
            executor(floats(a, 4), floats(b, 4))
    (y,) = executor(floats(2, 4), floats(1, 4))
    assert y.shape == (2, 4)


def test_the_version_for_equal_sizes_is_the_model_with_one_name():
    """It has the same kernels, and is what runs where the sizes are equal."""
    nodes = MODELS["attention with a mask"][0]
    named = {"q": ("b", 2, "s", 8), "k": ("b", 2, 8, "t"), "v": ("b", 2, "t", 8), "m": ("b", 1, "s", "t")}
    alike = relay.build(from_onnx(model(nodes, named))[0])
    mod, _ = from_onnx(model(nodes, {**named, "m": ("c", 1, "u", "w")}))
    assert list(mod) == ["main", "equal_sizes"]
    lib = relay.build(mod)
    ((sizes, equal),) = lib.graph.variants
    assert not sizes
    assert [node.func for node in equal.nodes] == [node.func for node in alike.graph.nodes]
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    for rows, ran in ((2, [node.name for node in equal.nodes]), (1, [node.name for node in lib.graph.nodes])):
        report = executor.profile(
            repeat=1, q=floats(2, 2, 3, 8), k=floats(2, 2, 8, 5), v=floats(2, 2, 5, 8), m=floats(rows, 1, 3, 5)
        )
        assert [timing.name for timing in report.calls] == ran


def test_sizes_that_must_be_equal_anyway_need_no_second_version():
    nodes = [
        make("Add", ["x", "w"], ["s"]),
        make("Concat", ["x", "w"], ["c"], axis=1),
        make("Concat", ["s", "c"], ["y"], axis=1),
    ]
    mod, _ = from_onnx(model(nodes, ROWS))
    assert list(mod) == ["main"]
    assert list(from_onnx(model([make("Add", ["x", "w"], ["y"])], {"x": ("a", 4), "w": ("a", 4)}))[0]) == ["main"]


def test_an_artifact_and_specialisations_have_the_versions_too(tmp_path):
    mod, _ = from_onnx(model([make("Add", ["x", "w"], ["y"])], ROWS))
    lib = relay.build(mod, specialize={"a": [1, 2], "b": [2]})
    lib.save(tmp_path / "model.rlc")
    executor = graph_executor.GraphModule(load_model(tmp_path / "model.rlc")["default"](device("cpu", 0)))
    for a, b in ((1, 2), (2, 2), (3, 3), (3, 1), (1, 3)):
        x, w = floats(a, 4), floats(b, 4)
        np.testing.assert_array_equal(executor(x, w)[0].numpy(), x + w)


def test_the_model_is_right_without_its_versions():
    mod, _ = from_onnx(model([make("Add", ["x", "w"], ["y"])], ROWS))
    executor = executor_of(IRModule({"main": mod["main"]}))
    for x, w in PAIRS:
        np.testing.assert_array_equal(executor(x, w)[0].numpy(), x + w)


def test_a_version_is_cancelled_on_its_first_run():
    body = helper.make_graph(
        [make("Add", ["v", "s"], ["u"]), make("Identity", ["go"], ["on"])],
        "body",
        [helper.make_tensor_value_info(n, k, d) for n, k, d in (("k", INT64, []), ("go", 9, []), ("v", F32, ["r", 4]))],
        [helper.make_tensor_value_info(n, k, d) for n, k, d in (("on", 9, []), ("u", F32, ["r", 4]))],
    )
    nodes = [make("Add", ["x", "w"], ["s"]), make("Loop", ["i", "", "s"], ["y"], body=body)]
    mod, _ = from_onnx(model(nodes, {**ROWS, "i": []}))
    assert len(list(mod)) > 1
    executor = executor_of(mod)
    x, w = floats(3, 4), floats(3, 4)
    errors = []

    def endless():
        try:
            executor(x, w, np.array(2**62))
        except RunCancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=endless, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
        executor.cancel()
    assert errors, "the run goes on"
    np.testing.assert_allclose(executor(x, w, np.array(2))[0].numpy(), 3 * (x + w), rtol=1e-5)
