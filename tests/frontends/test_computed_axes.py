"""Squeeze, Unsqueeze and Slice by axes and steps that are inputs of the model, and Squeeze without axes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import ArgumentError, device, graph_executor
from relayc.frontends.onnx import from_onnx

make = helper.make_node
F32, INT64 = 1, 7


def executor_of(op, shape, **integers):
    """The node `op` on x and vectors of integers, by name and length, then Neg."""
    names = ["x", *integers]
    inputs = [helper.make_tensor_value_info("x", F32, shape)]
    inputs += [helper.make_tensor_value_info(name, INT64, [length]) for name, length in integers.items()]
    nodes = [make(op, names, ["z"], name="case"), make("Neg", ["z"], ["y"])]
    graph = helper.make_graph(nodes, "axes", inputs, [helper.make_tensor_value_info("y", F32, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return graph_executor.GraphModule(relay.build(from_onnx(model)[0])["default"](device("cpu", 0)))


def ints(*values):
    return np.array(values, np.int64)


def numbers(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_squeeze():
    executor = executor_of("Squeeze", ["a", "b", "c"], axes=1)
    for shape, axis in (((1, 4, 5), 0), ((3, 1, 5), 1), ((3, 4, 1), -1), ((1, 1, 1), 1)):
        x = numbers(*shape)
        np.testing.assert_array_equal(executor(x, ints(axis))[0].numpy(), -np.squeeze(x, axis))
    with pytest.raises(ArgumentError, match="case"):
        executor(numbers(3, 4, 5), ints(1))
    executor = executor_of("Squeeze", ["a", 1, 1, 4], axes=2)
    for axes in ((1, 2), (0, -2)):
        x = numbers(1 if 0 in axes else 3, 1, 1, 4)
        np.testing.assert_array_equal(executor(x, ints(*axes))[0].numpy(), -np.squeeze(x, axes))


def test_unsqueeze():
    executor = executor_of("Unsqueeze", ["a", "b"], axes=2)
    for axes in ((0, 1), (0, -1), (2, 1), (-1, -2)):
        x = numbers(3, 4)
        np.testing.assert_array_equal(executor(x, ints(*axes))[0].numpy(), -np.expand_dims(x, axes))


def test_slice():
    executor = executor_of("Slice", ["a", "b", 5], starts=2, ends=2, axes=2)
    x = numbers(3, 4, 5)
    for axes, starts, ends in (((0, 1), (1, 0), (3, 2)), ((2, 0), (-3, 0), (-1, 100)), ((-1, -2), (0, 3), (2, 4))):
        index = [slice(None)] * 3
        for axis, start, end in zip(axes, starts, ends, strict=True):
            index[axis] = slice(start, end)
        (y,) = executor(x, ints(*starts), ints(*ends), ints(*axes))
        np.testing.assert_array_equal(y.numpy(), -x[tuple(index)])


STEPS = (
    ((0, 1), (1, 0), (3, 4), (2, 1)),
    ((2, 0), (-1, -5), (-9, 100), (-2, 2)),
    ((-1, -2), (9, 3), (-(2**63), 1), (-1, -1)),
)
"""Axes, starts, ends, steps."""


def sliced(x, axes, starts, ends, steps):
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(start, end, step)
    return x[tuple(index)]


def test_slice_by_computed_steps():
    x = numbers(3, 4, 5)
    executor = executor_of("Slice", ["a", "b", 5], starts=2, ends=2, axes=2, steps=2)
    for axes, starts, ends, steps in STEPS:
        (y,) = executor(x, ints(*starts), ints(*ends), ints(*axes), ints(*steps))
        np.testing.assert_array_equal(y.numpy(), -sliced(x, axes, starts, ends, steps))
    (y,) = executor(x[:0], ints(0, 0), ints(-9, 9), ints(0, 1), ints(-1, 3))
    np.testing.assert_array_equal(y.numpy(), -x[:0, ::3])
    with pytest.raises(ArgumentError, match="the step along axis 1 is 0"):
        executor(x, ints(0, 0), ints(2, 2), ints(0, 1), ints(1, 0))


def test_slice_by_numbers():
    """Scalars in the place of vectors of one element, as TensorFlow's exporter writes a start that it computes."""
    names = ("starts", "ends", "axes", "steps")
    inputs = [helper.make_tensor_value_info("x", F32, ["a", "b"])]
    for known in ((), ("axes",), ("axes", "steps"), names):
        computed = [helper.make_tensor_value_info(name, INT64, []) for name in names if name not in known]
        weights = [numpy_helper.from_array(np.array(v, np.int64), name)
                   for name, v in zip(names, (1, 4, 1, 2), strict=True) if name in known]  # fmt: skip
        graph = helper.make_graph([make("Slice", ["x", *names], ["y"])], "axes", [*inputs, *computed],
                                  [helper.make_tensor_value_info("y", F32, None)], weights)  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        executor = graph_executor.GraphModule(relay.build(from_onnx(model)[0])["default"](device("cpu", 0)))
        passed = [np.array(v) for name, v in zip(names, (1, 4, 1, 2), strict=True) if name not in known]
        np.testing.assert_array_equal(executor(numbers(3, 5), *passed)[0].numpy(), numbers(3, 5)[:, 1:4:2])


def test_bounds_of_a_dynamic_number():
    """As many as there are axes, which are known."""
    inputs = [helper.make_tensor_value_info("x", F32, ["a", "b"])]
    inputs += [helper.make_tensor_value_info(name, INT64, [f"number of {name}"]) for name in ("starts", "ends")]
    graph = helper.make_graph([make("Slice", ["x", "starts", "ends", "axes"], ["y"], name="case")], "axes", inputs,
                              [helper.make_tensor_value_info("y", F32, None)],
                              [numpy_helper.from_array(ints(1), "axes")])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    executor = graph_executor.GraphModule(relay.build(from_onnx(model)[0])["default"](device("cpu", 0)))
    np.testing.assert_array_equal(executor(numbers(3, 5), ints(1), ints(-1))[0].numpy(), numbers(3, 5)[:, 1:-1])
    with pytest.raises(ArgumentError):
        executor(numbers(3, 5), ints(1, 0), ints(-1, 2))


def test_steps_along_known_axes():
    """Axes that are constants, and the leading ones where none are named."""
    x, (_, starts, ends, steps) = numbers(3, 4, 5), STEPS[1]
    for axes in ((2, 0), None):
        inputs = [helper.make_tensor_value_info("x", F32, ["a", "b", 5])]
        inputs += [helper.make_tensor_value_info(name, INT64, [2]) for name in ("starts", "ends", "steps")]
        weights = [] if axes is None else [numpy_helper.from_array(ints(*axes), "axes")]
        node = make("Slice", ["x", "starts", "ends", "" if axes is None else "axes", "steps"], ["y"])
        graph = helper.make_graph([node], "axes", inputs, [helper.make_tensor_value_info("y", F32, None)], weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        executor = graph_executor.GraphModule(relay.build(from_onnx(model)[0])["default"](device("cpu", 0)))
        (y,) = executor(x, ints(*starts), ints(*ends), ints(*steps))
        np.testing.assert_array_equal(y.numpy(), sliced(x, axes or (0, 1), starts, ends, steps))


def test_squeeze_of_all_axes_of_size_one():
    """One version of the model for each size that may be 1."""
    executor = executor_of("Squeeze", ["a", "b", 1])
    for shape in ((3, 4, 1), (1, 4, 1), (3, 1, 1), (1, 1, 1)):
        x = numbers(*shape)
        np.testing.assert_array_equal(executor(x)[0].numpy(), -np.squeeze(x))
