"""Graphs as torch's TorchScript exporter writes them: shape arithmetic in nodes, weights named by their use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontends.exporters.graphs import Graph, check, torchscript

rng = np.random.default_rng(0)
HIDDEN, HEADS = 16, 4


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


def tensor(value: Any, name: str = "") -> TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def size(g: Graph, x: str, axis: int) -> str:
    """x.size(axis)"""
    return g("Gather", g("Shape", x), g.constant(np.int64(axis)), axis=0)


def unsqueeze(g: Graph, x: str, axis: int, opset: int) -> str:
    """Axes are an attribute before opset 13, an input from there on."""
    return g("Unsqueeze", x, axes=[axis]) if opset < 13 else g("Unsqueeze", x, g.constant([axis]))


def view(g: Graph, x: str, dims: list[Any], opset: int) -> str:
    """x.view(dims), a size being a number or a scalar of the graph."""
    parts = [g.constant([d]) if isinstance(d, int) else unsqueeze(g, d, 0, opset) for d in dims]
    return g("Reshape", x, g("Concat", *parts, axis=0))


def linear(g: Graph, x: str, depth: int, width: int, name: str) -> str:
    product = g("MatMul", x, g.weight(normal(depth, width) / depth**0.5, f"onnx::MatMul_{name}"))
    return g("Add", g.weight(normal(width), f"{name}.bias"), product)


def mean(g: Graph, x: str, opset: int) -> str:
    return g("ReduceMean", x, axes=[-1]) if opset < 18 else g("ReduceMean", x, g.constant([-1]))


def layer_norm(g: Graph, x: str, opset: int) -> str:
    """One operator since opset 17, nine before."""
    scale, bias = g.weight(normal(HIDDEN), "ln.weight"), g.weight(normal(HIDDEN), "ln.bias")
    if opset >= 17:
        return g("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)
    centred = g("Sub", x, mean(g, x, opset))
    variance = mean(g, g("Pow", centred, g.constant(np.float32(2))), opset)
    deviation = g("Sqrt", g("Add", variance, g.constant(np.float32(1e-5))))
    return g("Add", g("Mul", g("Div", centred, deviation), scale), bias)


def gelu(g: Graph, x: str) -> str:
    inner = g("Erf", g("Div", x, g.constant(np.float32(2**0.5))))
    return g("Mul", g("Mul", x, g("Add", inner, g.constant(np.float32(1)))), g.constant(np.float32(0.5)))


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_transformer_layer(opset):
    """Sizes read from the input flow through Gather, Div, Cast, Unsqueeze and Concat into Reshape."""
    g = Graph(torchscript)
    x = g.input("x", ["batch", "length", HIDDEN])
    batch, length, width = (size(g, x, axis) for axis in range(3))
    per_head = g("Cast", g("Cast", g("Div", width, g.constant(np.int64(HEADS))), to=7), to=7)

    def heads(name: str, perm: list[int], last: Any) -> str:
        split = view(g, linear(g, x, HIDDEN, HIDDEN, name), [batch, length, HEADS, last], opset)
        return g("Transpose", split, perm=perm)

    query, key = heads("q", [0, 2, 1, 3], per_head), heads("k", [0, 2, 3, 1], -1)
    scores = g("Div", g("MatMul", query, key), g.constant(np.float32(2)))
    mixed = g("MatMul", g("Softmax", scores, axis=3), heads("v", [0, 2, 1, 3], per_head))
    merged = view(g, g("Transpose", mixed, perm=[0, 2, 1, 3]), [batch, length, width], opset)
    result = gelu(g, layer_norm(g, g("Add", x, linear(g, merged, HIDDEN, HIDDEN, "o")), opset))
    last = g("Gather", result, g.constant(np.int64(-1)), axis=1)
    model = g.model([result, last], opset, ir_version=6 if opset == 11 else 8)
    check(model, *({"x": normal(b, t, HIDDEN)} for b, t in ((2, 5), (1, 1), (3, 8))), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("opset", [11, 17])
def test_expand_by_minus_one_and_masks(opset):
    """`expand(-1, ..)`: where a size equals -1 it is replaced by 1; a causal mask out of Range."""
    g = Graph(torchscript)
    x = g.input("x", ["batch", "length"])
    batch, length = size(g, x, 0), size(g, x, 1)
    steps = g("Range", g.constant(np.int64(0)), g("Cast", length, to=7), g.constant(np.int64(1)))
    if opset >= 12:
        seen = g("LessOrEqual", unsqueeze(g, steps, 0, opset), unsqueeze(g, steps, 1, opset))
    else:
        seen = g("Not", g("Greater", unsqueeze(g, steps, 0, opset), unsqueeze(g, steps, 1, opset)))
    parts = [unsqueeze(g, d, 0, opset) for d in (batch, length, length)]
    target = g("Reshape", g("Concat", *parts, axis=0), g.constant([-1]))
    ones = g("ConstantOfShape", g("Shape", target), value=tensor([1]))
    minus = g("Equal", target, g("Mul", ones, g.constant(np.int64(-1))))
    spread = g("Expand", unsqueeze(g, x, 1, opset), g("Where", minus, ones, target))
    masked = g("Where", g("Cast", g("Not", seen), to=9), g.constant(np.float32(-np.inf)), spread)
    model = g.model([g("Softmax", masked, axis=2 if opset < 13 else -1)], opset)
    check(model, *({"x": normal(b, t)} for b, t in ((2, 6), (1, 3), (4, 1))))


@pytest.mark.parametrize("opset", [11, 17])
def test_convolutional_network(opset):
    """Folded batch norms (onnx::Conv_123), padding amounts reversed by reshapes, resizing by sizes."""
    g = Graph(torchscript)
    x = g.input("x", ["batch", 3, 16, 16])
    first = g("Conv", x, g.weight(normal(8, 3, 3, 3), "onnx::Conv_123"), g.weight(normal(8), "onnx::Conv_124"),
              dilations=[1, 1], group=1, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])  # fmt: skip
    y = g("Clip", first, g.constant(np.float32(0)), g.constant(np.float32(6)))
    depth = g("Conv", y, g.weight(normal(8, 1, 3, 3), "onnx::Conv_126"), group=8, kernel_shape=[3, 3],
              pads=[1, 1, 1, 1])  # fmt: skip
    y = g("Add", y, g("Mul", depth, g("Sigmoid", depth)))
    # F.pad(y, (1, 2, 0, 1)): the last axis comes first in torch, the first one in ONNX.
    amounts = g("Concat", g.constant([1, 2, 0, 1]), g("ConstantOfShape", g.constant([4]), value=tensor([0])), axis=0)
    pairs = g("Reshape", amounts, g.constant([-1, 2]))
    reversed_pairs = g("Slice", pairs, g.constant([-1]), g.constant([-(2**63) + 1]), g.constant([0]), g.constant([-1]))
    flat = g("Reshape", g("Transpose", reversed_pairs, perm=[1, 0]), g.constant([-1]))
    padded = g("Pad", y, g("Cast", flat, to=7), g.constant(np.float32(0)), mode="constant")
    begin = g("Slice", g("Shape", padded), g.constant([0]), g.constant([2]), g.constant([0]))
    target = g("Concat", begin, g.constant([13, 7]), axis=0)
    roi = "" if opset >= 13 else g.constant(np.zeros(0, np.float32))
    no_scales = "" if opset >= 13 else g.constant(np.zeros(0, np.float32))
    resized = g("Resize", padded, roi, no_scales, target, coordinate_transformation_mode="half_pixel",
                mode="linear", cubic_coeff_a=-0.75, nearest_mode="floor")  # fmt: skip
    pooled = g("Flatten", g("GlobalAveragePool", resized), axis=1)
    logits = g("Gemm", pooled, g.weight(normal(10, 8), "fc.weight"), g.weight(normal(10), "fc.bias"), transB=1,
               alpha=1.0, beta=1.0)  # fmt: skip
    model = g.model([logits, resized], opset)
    check(model, {"x": normal(2, 3, 16, 16)}, {"x": normal(1, 3, 16, 16)}, rtol=1e-3, atol=1e-4)


def test_recurrent_network_with_states_of_the_batch():
    """The state begins as zeros of a shape that is read from the input and cut for each layer."""
    g = Graph(torchscript)
    words = g.input("words", ["batch", 7], np.int64)
    embedded = g("Gather", g.weight(normal(20, 8), "e.weight"), words)
    batch = g("Unsqueeze", size(g, embedded, 0), g.constant([0]))
    states = g("ConstantOfShape", g("Concat", g.constant([2]), batch, g.constant([6]), axis=0), value=tensor([0.0]))
    states = g("Cast", states, to=1)
    y = g("Transpose", embedded, perm=[1, 0, 2])
    state = g("Slice", states, g.constant([0]), g.constant([2]), g.constant([0]))
    weights = [g.weight(normal(2, 24, 8) / 3), g.weight(normal(2, 24, 6) / 3), g.weight(normal(2, 48))]
    attrs = {"direction": "bidirectional", "hidden_size": 6}
    g("LSTM", y, *weights, "", state, state, outputs=["out", "h", "c"], **attrs)
    merged = g("Reshape", g("Transpose", "out", perm=[0, 2, 1, 3]), g.constant([0, 0, -1]))
    back = g("Transpose", merged, perm=[1, 0, 2])
    model = g.model([g("LogSoftmax", linear(g, back, 12, 20, "o"), axis=-1), "h"], 17)
    check(model, *({"words": rng.integers(0, 20, (b, 7))} for b in (2, 1, 5)), rtol=1e-3, atol=1e-4)


def test_shared_weights_and_squeezes_that_depend_on_the_shape():
    """Tied weights are Identity nodes; `squeeze(1)` asks in an If whether there is something to squeeze."""
    g = Graph(torchscript)
    x = g.input("x", ["batch", 1, HIDDEN])
    weight = g.weight(normal(HIDDEN, HIDDEN) / 4, "encoder.weight")
    tied = g("Identity", weight, outputs=["decoder.weight"])
    one = g("Equal", size(g, x, 1), g.constant(np.int64(1)))
    then = helper.make_graph([helper.make_node("Squeeze", ["x", "axis"], ["squeezed"])], "then", [],
                             [helper.make_empty_tensor_value_info("squeezed")], [tensor([1], "axis")])  # fmt: skip
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["kept"])], "else", [],
                              [helper.make_empty_tensor_value_info("kept")])  # fmt: skip
    flat = g("If", one, then_branch=then, else_branch=other)
    y = g("MatMul", g("Tanh", g("MatMul", flat, g("Transpose", weight, perm=[1, 0]))), tied)
    check(g.model([y], 17), {"x": normal(3, 1, HIDDEN)}, {"x": normal(1, 1, HIDDEN)})


def test_assignments_to_slices():
    """`y[:, 1] = 1` becomes ScatterND at positions that are expanded to the shape of what is replaced."""
    g = Graph(torchscript)
    x = g.input("x", [4, 6])
    rows = g("Range", g.constant(np.int64(0)), size(g, x, 0), g.constant(np.int64(1)))
    column = g("Reshape", rows, g.constant([-1, 1]))
    place = g("Add", g("Mul", column, g.constant(np.int64(0))), g.constant(np.int64(1)))
    at = g("Concat", g("Unsqueeze", column, g.constant([-1])), g("Unsqueeze", place, g.constant([-1])), axis=-1)
    target = g("Slice", g("Shape", at), g.constant([0]), g.constant([-1]), g.constant([0]))
    update = g("Reshape", g("Expand", g.constant(np.float32(1)), target), target)
    y = g("ScatterND", x, at, update)
    best = g("TopK", x, g.constant([3]), axis=1, largest=1, sorted=1, outputs=["values", "places"])
    taken = g("GatherElements", y, "places", axis=1)
    hot = g("OneHot", "places", g.constant([6]), g.constant([0, 1]), axis=-1)
    check(g.model([y, best, taken, g("Cast", hot, to=1)], 17), {"x": normal(4, 6)})
