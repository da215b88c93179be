"""Graphs as tf2onnx writes them: channels last between transposes, sizes through float casts, names with : and /."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontends.exporters.graphs import Graph, check, tensorflow

rng = np.random.default_rng(0)
TO_NCHW, TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


def squeezed(g: Graph, x: str, axes: list[int], opset: int) -> str:
    return g("Squeeze", x, axes=axes) if opset < 13 else g("Squeeze", x, g.weight(np.array(axes), folded(g)))


def folded(g: Graph) -> str:
    """The name of a constant that the converter computed."""
    return f"const_fold_opt__{len(g.weights) + 12}"


def unsqueezed(g: Graph, x: str, axes: list[int], opset: int) -> str:
    return g("Unsqueeze", x, axes=axes) if opset < 13 else g("Unsqueeze", x, g.weight(np.array(axes), folded(g)))


def extent(g: Graph, x: str, axis: int, opset: int) -> str:
    """tf.shape(x)[axis]: Shape, Cast to int32, Slice, Squeeze."""
    shape = g("Cast", g("Shape", x), to=6)
    starts, ends, axes = ([axis], [axis + 1], [0])
    part = g("Slice", shape, *(g.weight(np.array(v), folded(g)) for v in (starts, ends, axes)))
    return squeezed(g, part, [0], opset)


def reshaped(g: Graph, x: str, parts: list[Any], opset: int) -> str:
    """tf.reshape(x, tf.stack(parts))"""
    vectors = [g.weight(np.array([p], np.int32), folded(g)) if isinstance(p, int) else unsqueezed(g, p, [0], opset)
               for p in parts]  # fmt: skip
    return g("Reshape", x, g("Cast", g("Concat", *vectors, axis=0), to=7))


@pytest.mark.parametrize("opset", [9, 11, 13, 15])
def test_convolutional_network(opset):
    """Transposes around each convolution, bias as Add in NHWC, ReLU6, depthwise, mean over the image, dense."""
    g = Graph(tensorflow)
    image = g.input("serving_default_input:0", ["unk__618", 12, 12, 3])
    y = g("Transpose", image, perm=TO_NCHW)
    y = g("Conv", y, g.weight(normal(8, 3, 3, 3), "StatefulPartitionedCall/model/conv/Conv2D/ReadVariableOp:0"),
          g.weight(normal(8), "StatefulPartitionedCall/model/conv/BiasAdd:0"), strides=[2, 2], kernel_shape=[3, 3],
          auto_pad="SAME_UPPER", group=1, dilations=[1, 1])  # fmt: skip
    y = g("Transpose", y, perm=TO_NHWC)
    y = g("Add", y, g.weight(normal(8), folded(g)))
    y = g("Min", g("Relu", y), g.weight(np.float32(6), folded(g))) if opset < 11 else g(
        "Clip", y, g.weight(np.float32(0), "zero__27"), g.weight(np.float32(6), "six__28"))  # fmt: skip
    skip = y
    y = g("Conv", g("Transpose", y, perm=TO_NCHW), g.weight(normal(8, 1, 3, 3), "depthwise:0"), group=8,
          kernel_shape=[3, 3], pads=[1, 1, 1, 1])  # fmt: skip
    y = g("Add", skip, g("Transpose", y, perm=TO_NHWC))
    y = g("Transpose", g("MaxPool", g("Transpose", y, perm=TO_NCHW), kernel_shape=[2, 2], strides=[2, 2],
          auto_pad="VALID"), perm=TO_NHWC)  # fmt: skip
    mean = g("ReduceMean", y, axes=[1, 2], keepdims=0)
    flat = g("Reshape", y, g.weight(np.array([-1, 3 * 3 * 8]), folded(g)))
    dense = g("Add", g("MatMul", flat, g.weight(normal(72, 5) / 8, "dense/MatMul/ReadVariableOp:0")),
              g.weight(normal(5), "dense/BiasAdd/ReadVariableOp:0"))  # fmt: skip
    result = g("Softmax", dense, axis=1, outputs=["Identity:0"])
    model = g.model([result, mean], opset)
    check(model, *({"serving_default_input:0": normal(n, 12, 12, 3)} for n in (2, 1)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("opset", [11, 13])
def test_sizes_by_casts_slices_and_squeezes(opset):
    """tf.shape, arithmetic on it in int32, and tf.reshape; an einsum as products of reshaped tensors."""
    g = Graph(tensorflow)
    x = g.input("input_1:0", ["batch", "length", 12])
    batch, length = extent(g, x, 0, opset), extent(g, x, 1, opset)
    rows = g("Mul", batch, length)
    product = g("MatMul", reshaped(g, x, [rows, 12], opset), g.weight(normal(12, 12) / 4, "kernel:0"))
    heads = g("Transpose", reshaped(g, product, [batch, length, 3, 4], opset), perm=[0, 2, 1, 3])
    products = g("MatMul", heads, g("Transpose", heads, perm=[0, 1, 3, 2]))
    scores = g("Mul", products, g.weight(np.float32(0.5), "scale:0"))
    mask = g("Cast", g.input("input_mask:0", ["batch", "length"], np.int32), to=1)
    off = g("Mul", g("Sub", g.weight(np.float32(1), "one:0"), mask), g.weight(np.float32(-10000), "far:0"))
    wide = unsqueezed(g, off, [1, 2], opset)
    mixed = g("MatMul", g("Softmax", g("Add", scores, wide), axis=3), heads)
    merged = reshaped(g, g("Transpose", mixed, perm=[0, 2, 1, 3]), [batch, length, 12], opset)
    count = g("Cast", g("Cast", rows, to=1), to=6)
    model = g.model([merged, count], opset)
    cases = [{"input_1:0": normal(b, t, 12), "input_mask:0": rng.integers(0, 2, (b, t)).astype(np.int32)}
             for b, t in ((2, 5), (1, 1), (3, 4))]  # fmt: skip
    check(model, *cases, rtol=1e-3, atol=1e-4)


def test_resizing_and_padding_of_images():
    """tf.image.resize in NCHW, tf.pad with amounts as a transposed table, tf.concat of channels."""
    g = Graph(tensorflow)
    x = g.input("image:0", [1, 6, 6, 4])
    y = g("Transpose", x, perm=TO_NCHW)
    sizes = g("Concat", g("Slice", g("Shape", y), *(g.weight(np.array(v), folded(g)) for v in ([0], [2], [0]))),
              g("Cast", g.weight(np.array([9, 12], np.int32), folded(g)), to=7), axis=0)  # fmt: skip
    empty = g.weight(np.zeros(0, np.float32), "roi__47")
    smooth = g("Resize", y, empty, empty, sizes, mode="linear", coordinate_transformation_mode="half_pixel")
    coarse = g("Resize", y, empty, empty, sizes, mode="nearest", coordinate_transformation_mode="half_pixel",
               nearest_mode="round_prefer_ceil")  # fmt: skip
    both = g("Concat", g("Transpose", smooth, perm=TO_NHWC), g("Transpose", coarse, perm=TO_NHWC), axis=-1)
    table = g.weight(np.array([[0, 0], [1, 2], [0, 1], [0, 0]], np.int32), "paddings:0")
    amounts = g("Cast", g("Reshape", g("Transpose", table, perm=[1, 0]), g.weight(np.array([-1]), folded(g))), to=7)
    padded = g("Pad", both, amounts, mode="reflect")
    check(g.model([padded], 11), {"image:0": normal(1, 6, 6, 4)})


def test_loop_over_time():
    """tf.while_loop: a counter, a condition out of Less, a state that the body carries, rows collected."""
    g = Graph(tensorflow)
    g.input("x:0", [5, 3])  # read from within the body
    steps = g.input("steps:0", [], np.int32)
    state = g.weight(np.zeros(3, np.float32), "while/zeros:0")
    names = ["i", "go", "s", "row", "sum", "next", "again", "copy"]
    i, go, s, row, total, after, again, copy = (f"while/{name}:0" for name in names)
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["x:0", i], [row], axis=0),
            helper.make_node("Add", [s, row], [total]),
            helper.make_node("Cast", [i], ["while/i32:0"], to=TensorProto.INT32),
            helper.make_node("Add", ["while/i32:0", "while/one:0"], [after]),
            helper.make_node("Less", [after, "steps:0"], [again]),
            helper.make_node("Tanh", [total], [copy]),
        ],
        "while_body",
        [
            helper.make_tensor_value_info(i, TensorProto.INT64, []),
            helper.make_tensor_value_info(go, TensorProto.BOOL, []),
            helper.make_tensor_value_info(s, TensorProto.FLOAT, [3]),
        ],
        [
            helper.make_tensor_value_info(again, TensorProto.BOOL, []),
            helper.make_tensor_value_info(total, TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info(copy, TensorProto.FLOAT, [3]),
        ],
        [numpy_helper.from_array(np.array(1, np.int32), "while/one:0")],
    )
    most = g.weight(np.int64(5), "while/maximum_iterations:0")
    begin = g("Less", g.weight(np.int32(0), "while/zero:0"), steps)
    last = g("Loop", most, begin, state, body=body, outputs=["while:0", "while:1"])
    model = g.model([last, "while:1"], 13)
    check(model, *({"x:0": normal(5, 3), "steps:0": np.array(n, np.int32)} for n in (5, 2)))
