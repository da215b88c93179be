"""Shapes that a model computes from its sizes, element by element: what is followed, and what is left to a run."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.relay import sizes
from relayc.te.tir import SizeVar

make = helper.make_node


def to_float(name="h", result="f"):
    return make("Cast", [name], [result], to=1)


def to_int(name, result="n"):
    return make("Cast", [name], [result], to=7)


def expanding(nodes, constants):
    """Expands m[1, 1, 1, 1] to [1, 1, n, n], as a model makes its attention mask, and adds q[b, 3, n, n]; n is computed
    from h, the second size of x."""
    graph = helper.make_graph(
        [
            make("Shape", ["x"], ["sizes"]),
            make("Gather", ["sizes", "first"], ["h"]),
            *nodes,
            make("Unsqueeze", ["n", "zeros"], ["side"]),
            make("Concat", ["ones", "ones", "side", "side"], ["shape"], axis=0),
            make("Expand", ["m", "shape"], ["mask"]),
            make("Add", ["mask", "q"], ["y"]),
        ],
        "expanding",
        [
            helper.make_tensor_value_info("x", 1, ["b", "t"]),
            helper.make_tensor_value_info("q", 1, ["b", 3, "n", "n"]),
            helper.make_tensor_value_info("m", 1, [1, 1, 1, 1]),
        ],
        [helper.make_tensor_value_info("y", 1, None)],
        [
            numpy_helper.from_array(np.array(value), name)
            for name, value in {"first": 1, "zeros": [0], "ones": [1], **constants}.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


F = np.float32

FOLLOWED = {
    "a power": (
        [make("Div", ["h", "c"], ["d"]), make("Pow", ["d", "two"], ["p"]), make("Add", ["p", "one"], ["n"])],
        {"c": 14, "two": 2, "one": 1},
        lambda t: 1 + (t // 14) ** 2,
    ),
    "a float power": (
        [to_float(), make("Pow", ["f", "two"], ["p"]), to_int("p")], {"two": F(2)}, lambda t: t * t,
    ),
    "a square root": (
        [make("Mul", ["h", "h"], ["s"]), to_float("s"), make("Sqrt", ["f"], ["r"]), to_int("r")], {}, lambda t: t,
    ),
    "the floor of a quotient": (
        [to_float(), make("Div", ["f", "c"], ["d"]), make("Floor", ["d"], ["e"]), to_int("e")],
        {"c": F(14)},
        lambda t: t // 14,
    ),
    "a truncated quotient": ([to_float(), make("Div", ["f", "c"], ["d"]), to_int("d")], {"c": F(3)}, lambda t: t // 3),
    "the ceiling of a product": (
        [to_float(), make("Mul", ["f", "c"], ["d"]), make("Ceil", ["d"], ["e"]), to_int("e")],
        {"c": F(0.75)},
        lambda t: math.ceil(t * 0.75),
    ),
    "a rounded quotient": (
        [to_float(), make("Div", ["f", "c"], ["d"]), make("Round", ["d"], ["e"]), to_int("e")],
        {"c": F(3)},
        lambda t: round(t / 3),
    ),
    "half a size, and more": (
        [to_float(), make("Mul", ["f", "half"], ["d"]), make("Add", ["d", "half"], ["e"]), make("Floor", ["e"], ["g"]),
         to_int("g")],
        {"half": F(0.5)},
        lambda t: (t + 1) // 2,
    ),
    "a shift": (
        [make("Cast", ["h"], ["u"], to=13), make("BitShift", ["u", "one"], ["d"], direction="RIGHT"), to_int("d")],
        {"one": np.uint64(1)},
        lambda t: t >> 1,
    ),
    "running sums": (
        [make("CumSum", ["sizes", "axis"], ["s"]), make("Gather", ["s", "first"], ["n"])], {"axis": 0}, lambda t: t + 2,
    ),
    "a choice between equal sizes": (
        [make("Greater", ["h", "five"], ["g"]), make("Where", ["g", "h", "h"], ["n"])], {"five": 5}, lambda t: t,
    ),
}  # fmt: skip

COMPUTED = {
    "a choice": (
        [make("Greater", ["h", "five"], ["g"]), make("Where", ["g", "h", "five"], ["n"])],
        {"five": 5},
        lambda t: max(t, 5),
    ),
    "a product that is rounded": (
        [to_float(), make("Mul", ["f", "c"], ["d"]), make("Floor", ["d"], ["e"]), to_int("e")],
        {"c": F(0.7)},
        lambda t: int(np.floor(F(t) * F(0.7))),
    ),
    "a value of the input": (
        [make("ReduceMax", ["x"], ["s"], keepdims=0), to_int("s", "i"), make("Add", ["h", "i"], ["n"])],
        {},
        lambda t: t + 1,
    ),
}


@pytest.mark.parametrize("case", [*FOLLOWED, *COMPUTED])
def test_the_known_elements_of_a_shape_stay_known(case):
    """The sizes that are 1 broadcast to the 3 heads whatever the others are."""
    nodes, constants, side = {**FOLLOWED, **COMPUTED}[case]
    mod, _ = from_onnx(expanding(nodes, constants))
    bound = mod["main"].attrs.get("bound_sizes", ())
    assert len(bound) == (case in COMPUTED), "one variable for both sides, and none that is followed"
    executor = graph_executor.GraphModule(relay.build(mod)["default"](device("cpu", 0)))
    for t in (3, 10, 28):
        n = side(t)
        q = np.arange(2 * 3 * n * n, dtype=F).reshape(2, 3, n, n)
        (y,) = executor(np.ones((2, t), F), q, np.full((1, 1, 1, 1), 5, F))
        np.testing.assert_array_equal(y.numpy(), q + 5)


@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_quotients_of_what_may_be_negative_truncate(operator):
    """Of a size less a constant, as a crop to more than the picture computes them."""
    nodes = [make("Sub", ["h", "c"], ["d"]), make(operator, ["d", "three"], ["e"]), make("Add", ["e", "five"], ["n"])]
    nodes[1].attribute.extend([helper.make_attribute("fmod", 0)] if operator == "Mod" else [])
    module, params = from_onnx(expanding(nodes, {"c": 7, "three": 3, "five": 5}))
    executor = graph_executor.GraphModule(relay.build(module, params=params)["default"](device("cpu", 0)))
    for t in (1, 4, 5, 6, 7, 8, 12):
        n = 5 + (math.trunc((t - 7) / 3) if operator == "Div" else (t - 7) % 3)
        q = np.ones((1, 3, n, n), F)
        (y,) = executor(x=np.zeros((1, t), F), q=q, m=np.ones((1, 1, 1, 1), F))
        assert y.shape == q.shape and (y.numpy() == 2).all()


def test_square_roots_of_sizes():
    n, m = SizeVar("n"), SizeVar("m")
    assert sizes.square_root(sizes.product((9, n, n, m, m))) is sizes.product((3, n, m))
    assert sizes.square_root(49) == 7
    assert sizes.square_root(sizes.product((n, m))) is None
    assert sizes.square_root(sizes.product((2, n, n))) is None and sizes.square_root(-4) is None


def test_a_weight_is_reshaped_to_sizes_of_the_inputs():
    """Weights have static shapes, so this one is copied. Without elements the product is a constant, too."""
    weight = np.arange(12, dtype=F)
    nodes = [
        make("Shape", ["x"], ["sizes"]),
        make("Reshape", ["w", "sizes"], ["r"]),
        make("Add", ["r", "x"], ["s"]),
        make("MatMul", ["e", "v"], ["p"]),
        make("ReduceSum", ["p"], ["t"], keepdims=0),
        make("Add", ["s", "t"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "weights", [helper.make_tensor_value_info("x", 1, ["a", "b"]),
                           helper.make_tensor_value_info("e", 1, ["a", 0, 3])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.ones(3, F), "v")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    executor = graph_executor.GraphModule(relay.build(from_onnx(model)[0])["default"](device("cpu", 0)))
    for a, b in ((3, 4), (1, 12)):
        (y,) = executor(np.ones((a, b), F), np.zeros((a, 0, 3), F))
        np.testing.assert_array_equal(y.numpy(), weight.reshape(a, b) + 1)
