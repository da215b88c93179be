"""Transposing kernels have as few dimensions as possible, and equal results."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay, te
from relayc.backend import Target
from relayc.backend.runtime import device, graph_executor
from relayc.relay.interpreter import evaluate
from relayc.relay.lowering.collapse_dimensions import CollapseDimensions
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.te.ir import IRModule, PassContext
from tests.relay.lowering.collapsed import collapsed

RNG = np.random.default_rng(0)
AVX512 = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=sapphirerapids")


def merged(body: relay.Expr, *params: relay.Var) -> tuple[list[tuple[te.Dim, ...]], tuple[int, ...] | None]:
    """Shapes of the parameters, and the axes of the remaining transposition; results are compared."""
    changed, shapes = collapsed(CollapseDimensions(), relay.Function(params, body))
    axes = [e.op.axes for e in relay.analysis.evaluation_order(changed.body)
            if isinstance(e, relay.Call) and e.operator.name == "transpose"]  # fmt: skip
    return shapes, axes[0] if axes else None


def var(name: str, *shape: int) -> relay.Var:
    return relay.var(name, shape=shape, dtype="float32")


@pytest.mark.parametrize(
    ("shape", "axes", "small", "order"),
    [
        ((2, 3, 4, 5), (0, 2, 3, 1), (2, 3, 20), (0, 2, 1)),
        ((1, 3, 4, 5), (0, 2, 3, 1), (3, 20), (1, 0)),
        ((4, 6, 1, 5), (1, 2, 0, 3), (4, 6, 5), (1, 0, 2)),
        ((2, 3, 4, 5), (2, 3, 0, 1), (6, 20), (1, 0)),
        ((2, 3, 4), (2, 1, 0), (2, 3, 4), (2, 1, 0)),
        ((1, 2, 2, 3, 4, 5), (0, 3, 4, 1, 5, 2), (2, 2, 12, 5), (2, 0, 3, 1)),
    ],
    ids=str,
)
def test_adjacent_dimensions_collapse(shape, axes, small, order) -> None:
    x = var("x", *shape)
    assert merged(relay.transpose(x, axes), x) == ([small], order)


def test_elementwise_operators_follow() -> None:
    x, scale = var("x", 2, 3, 4, 5), var("scale", 3)
    y = relay.nn.relu(relay.multiply(relay.transpose(relay.tanh(x), (0, 2, 3, 1)), scale))
    assert merged(y, x, scale) == ([(2, 3, 20), (1, 1, 3)], (0, 2, 1))


def test_broadcast_dimensions_do_not_collapse_with_others() -> None:
    x, row = var("x", 2, 3, 4, 5), var("row", 5, 1)
    y = relay.add(relay.transpose(x, (0, 2, 3, 1)), row)
    assert merged(y, x, row) == ([(2, 3, 4, 5), (5, 1)], (0, 2, 3, 1))


def test_constants_and_choices_follow() -> None:
    x, mask = var("x", 2, 3, 4, 5), var("mask", 2, 4, 5, 3)
    y = relay.where(relay.greater(mask, relay.const(np.float32(0))), relay.transpose(x, (0, 2, 3, 1)), mask)
    assert merged(y, x, mask) == ([(2, 3, 20), (2, 20, 3)], (0, 2, 1))


def test_a_tensor_read_in_two_orders_stays() -> None:
    x = var("x", 4, 4, 5)
    y = relay.add(x, relay.transpose(x, (1, 0, 2)))
    assert merged(y, x)[0] == [(4, 4, 5)]


def test_bools_are_moved_as_bytes() -> None:
    x = relay.var("x", shape=(4, 5), dtype="bool")
    moved = relay.Function((x,), relay.transpose(x, (1, 0)))
    changed = CollapseDimensions().transform(moved, PassContext.current())
    assert str(changed.params[0].tensor_type.dtype) == "uint8"
    inverted = relay.Function((x,), relay.logical_not(relay.transpose(x, (1, 0))))
    assert CollapseDimensions().transform(inverted, PassContext.current()) is inverted
    flags = np.random.default_rng(0).random((4, 5)) < 0.5
    module = graph_executor.GraphModule(relay.build(moved, "llvm")["default"](device("cpu", 0)))
    module.set_input("x", flags)
    module.run()
    assert np.array_equal(module.get_output(0).numpy(), flags.T)


@pytest.mark.parametrize(
    ("shapes", "small"),
    [
        (((2, 3, 4, 5), (3, 1, 1)), [(2, 3, 20), (1, 3, 1)]),
        (((2, 3, 4, 5), (5,)), [(24, 5), (1, 5)]),
        (((2, 3, 4, 5), (2, 1, 1, 5), (1, 1, 1)), [(2, 12, 5), (2, 1, 5), (1, 1, 1)]),
        (((2, 3, 4), (1, 3, 1), (4,)), [(2, 3, 4), (1, 3, 1), (4,)]),
    ],
    ids=str,
)
def test_smaller_tensors_are_broadcast_along_collapsed_dimensions(shapes, small) -> None:
    params = [var(f"x{i}", *shape) for i, shape in enumerate(shapes)]
    y: relay.Expr = params[0]
    for other in params[1:]:
        y = relay.multiply(relay.add(y, other), relay.const(np.full((1,) * len(shapes[0]), 2, np.float32)))
    assert merged(y, *params) == (small, None)


def test_dynamic_dimensions_collapse() -> None:
    n, c, h, w = (te.size_var(name) for name in "nchw")
    x, scale = relay.var("x", (n, c, h, w)), relay.var("scale", (c, 1, 1))
    function = relay.Function((x, scale), relay.multiply(x, scale))
    changed = CollapseDimensions().transform(function, PassContext.current())
    assert [len(p.tensor_type.shape) for p in changed.params] == [3, 3]
    assert changed.params[0].tensor_type.shape[:2] == (n, c)
    module = graph_executor.GraphModule(relay.build(function, "llvm")["default"](device("cpu", 0)))
    for shape in ((2, 3, 4, 5), (1, 7, 1, 1), (3, 1, 9, 33), (1, 40, 2, 3), (2, 0, 3, 3), (2, 3, 0, 5)):
        a, b = RNG.random(shape, np.float32), RNG.random((shape[1], 1, 1), np.float32)
        np.testing.assert_array_equal(module.infer({"x": a, "scale": b})[0], a * b)


def test_elementwise_operators_of_symbolic_sizes_are_of_their_number_of_elements() -> None:
    """The position in a tensor of 64 symbolic sizes took 7 s to simplify."""
    x = relay.var("x", [te.size_var(f"d{axis}") for axis in range(64)])
    function = relay.Function((x,), relay.nn.relu(x))
    changed = CollapseDimensions().transform(function, PassContext.current())
    assert len(changed.params[0].tensor_type.shape) == 1
    module = graph_executor.GraphModule(relay.build(function, "llvm")["default"](device("cpu", 0)))
    for sizes in ((2, 1, 3), (1, 0, 2)):
        data = RNG.random((*sizes, *[1] * 60, 5), np.float32) - np.float32(0.5)
        np.testing.assert_array_equal(module.infer({"x": data})[0], np.maximum(data, 0))
    fixed = var("x", 4, 5, 6)
    flat = relay.Function((fixed,), relay.nn.relu(fixed))
    assert CollapseDimensions().transform(flat, PassContext.current()) is flat


@pytest.mark.parametrize("channels", [3, 64, te.size_var("c")], ids=str)
@pytest.mark.parametrize("axes", [(0, 2, 3, 1), (0, 3, 1, 2)], ids=["to NHWC", "to NCHW"])
def test_pixels_of_dynamic_images_are_one_dimension_of_transpositions(channels: te.Dim, axes: tuple[int, ...]) -> None:
    """Tiles of a single line of an image are mostly partial: 64 channels of 56 x 56 took 2.6 times as long."""
    n, h, w = (te.size_var(name) for name in "nhw")
    x = relay.var("x", (n, channels, h, w) if axes[1] == 2 else (n, h, w, channels))
    function = relay.Function((x,), relay.transpose(x, axes))
    changed = CollapseDimensions().transform(function, PassContext.current())
    assert len(changed.params[0].tensor_type.shape) == 3
    if channels == 64:
        (node,) = make_graph(relay.optimize(IRModule({"main": function}), AVX512)["main"]).nodes
        text = str(lower(node.workload, AVX512).function)
        assert "shuffle(" in text
        assert "parallel(#0 *" in text, "threads share a single image, too"
    lib = relay.build(function, "llvm")
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    for n, c, h, w in ((1, 64, 5, 7), (2, 64, 1, 3), (1, 64, 4, 4), (2, 64, 9, 33), (1, 64, 3, 5), (1, 64, 0, 5)):
        c = channels if isinstance(channels, int) else c // 4 + h
        data = RNG.random((n, c, h, w) if axes[1] == 2 else (n, h, w, c), np.float32)
        np.testing.assert_array_equal(module.infer({"x": data})[0], data.transpose(axes))


def test_other_functions_are_unchanged() -> None:
    x = var("x", 2, 3, 4)
    assert merged(relay.nn.relu(x), x)[0] == [(2, 3, 4)]
    n = relay.var("n", shape=(2, 3, 4), dtype="float32")
    softmax = relay.Function((n,), relay.nn.softmax(relay.transpose(n, (0, 2, 1))))
    assert CollapseDimensions().transform(softmax, PassContext.current()) is softmax


def test_models_compute_the_same() -> None:
    x, bias = var("x", 3, 5, 6, 7), var("bias", 5, 1, 1)
    function = relay.Function((x, bias), relay.nn.relu(relay.transpose(relay.add(x, bias), (0, 2, 3, 1))))
    feeds = [np.random.default_rng(i).standard_normal(p.tensor_type.static_shape, dtype=np.float32)
             for i, p in enumerate(function.params)]  # fmt: skip
    module = graph_executor.GraphModule(relay.build(function, "llvm")["default"](device("cpu", 0)))
    for param, array in zip(function.params, feeds, strict=True):
        module.set_input(param.name, array)
    module.run()
    assert np.array_equal(module.get_output(0).numpy(), evaluate(function, feeds))
