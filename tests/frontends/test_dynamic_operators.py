"""Operators with dynamic shapes: one model for all sizes agrees with models compiled for each of them.

The latter are checked by ONNX's operator tests; here every case runs at two sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from relayc import relay
from relayc.backend.runtime import ArgumentError, device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.frontends.onnx.errors import ValueNeededError

RNG = np.random.default_rng(5)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values):
    return np.array(values, np.int64)


@dataclass
class Case:
    """One node: `shapes` of its inputs with named sizes, `passed` constants by input, `sizes` to run at."""

    op: str
    shapes: dict[str, tuple[Any, ...]]
    sizes: tuple[dict[str, int], dict[str, int]]
    passed: dict[str, np.ndarray] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    inputs: list[str] | None = None
    outputs: int = 1
    name: str = ""
    domain: str = ""

    def model(self):
        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(self.kinds.get(name, "float32"))), shape
            )
            for name, shape in self.shapes.items()
        ]
        names = [*self.shapes, *self.passed] if self.inputs is None else self.inputs
        results = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, results, domain=self.domain, name="case", **self.attrs)
        weights = [numpy_helper.from_array(v, name) for name, v in self.passed.items()]
        outputs = [helper.make_tensor_value_info(r, 0, None) for r in results]
        graph = helper.make_graph([node], "case", inputs, outputs, weights)
        opsets = [helper.make_opsetid("", 27), helper.make_opsetid("ai.onnx.ml", 4)]
        return helper.make_model(graph, opset_imports=opsets)


DECIDING = ("k", "starts", "ends", "pads", "fill", "depth")
"""Inputs whose values determine sizes."""

IMAGE = {"x": ("n", 4, "h", "w")}
IMAGES = ({"n": 1, "h": 8, "w": 6}, {"n": 2, "h": 5, "w": 9})
SIGNALS = ({"n": 2, "t": 5}, {"n": 3, "t": 8})
ROWS = ({"n": 2, "t": 5}, {"n": 3, "t": 2})

CASES = [
    Case("Conv", IMAGE, IMAGES, {"w": floats(6, 4, 3, 3)}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, name="same"),
    Case("Conv", IMAGE, IMAGES, {"w": floats(4, 1, 4, 3)},
         {"auto_pad": "SAME_LOWER", "strides": [3, 2], "group": 4}, name="same depthwise"),
    Case("ConvTranspose", IMAGE, IMAGES, {"w": floats(4, 3, 3, 3)}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    Case("MaxRoiPool", IMAGE, IMAGES,
         {"r": np.array([[0, 1, 2, 7, 5], [0, 0, 0, 23, 17], [0, 4.4, 3.5, 4.6, 3.5], [0, 30, 2, 40, 5]], np.float32)},
         {"pooled_shape": [2, 3], "spatial_scale": 0.5}),
    Case("Conv", {"x": ("n", 64, "h", "w")}, ({"n": 1, "h": 30, "w": 41}, {"n": 2, "h": 7, "w": 3}),
         {"w": floats(64, 64, 3, 3) / 64}, {"pads": [1, 1, 1, 1]}, name="by Winograd's algorithm"),
    Case("Conv", {**IMAGE, "w": ("m", 2, "k", "l"), "b": ("m",)},
         ({"n": 1, "h": 8, "w": 6, "m": 4, "k": 3, "l": 2}, {"n": 2, "h": 5, "w": 9, "m": 6, "k": 1, "l": 5}),
         attrs={"auto_pad": "SAME_UPPER", "group": 2}, name="any filters"),
    Case("Conv", {"x": ("n", "c", "h", "w"), "w": ("m", "c", "k", "l")},
         ({"n": 1, "c": 3, "h": 8, "w": 6, "m": 4, "k": 3, "l": 2},
          {"n": 2, "c": 9, "h": 5, "w": 9, "m": 6, "k": 3, "l": 2}),
         attrs={"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}, name="any channels"),
    Case("ConvTranspose", {"x": ("n", 4, "t"), "w": (4, "m", "k")},
         ({"n": 1, "t": 8, "m": 4, "k": 3}, {"n": 2, "t": 5, "m": 3, "k": 4}),
         attrs={"strides": [2]}, name="any filters"),
    Case("ConvTranspose", {"x": ("n", 4, "t")}, ({"n": 1, "t": 8}, {"n": 2, "t": 5}), {"w": floats(4, 6, 16)},
         {"strides": [8], "pads": [4, 4]}, name="of a line"),
    Case("CausalConvWithState", {"x": ("n", "c", "t"), "w": ("c", 1, "k"), "b": ("c",), "past": ("n", "c", "p")},
         ({"n": 1, "c": 3, "t": 8, "k": 3, "p": 2}, {"n": 2, "c": 4, "t": 2, "k": 4, "p": 3}),
         attrs={"activation": "silu"}, outputs=2),
    Case("MaxPool", IMAGE, IMAGES, attrs={"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    Case("MaxPool", IMAGE, IMAGES, attrs={"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
         outputs=2, name="with positions"),
    Case("MaxPool", IMAGE, IMAGES, attrs={"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER", "storage_order": 1},
         outputs=2, name="with positions by columns"),
    Case("Col2Im", {"x": ("n", "c", "l")}, ({"n": 1, "c": 12, "l": 12}, {"n": 2, "c": 24, "l": 12}),
         {"image": ints(4, 6), "block": ints(2, 3)}, name="of any channels"),
    Case("AveragePool", IMAGE, IMAGES, attrs={"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    Case("AveragePool", IMAGE, IMAGES, name="ceil",
         attrs={"kernel_shape": [3, 3], "strides": [2, 3], "pads": [1, 0, 1, 1], "ceil_mode": 1}),
    Case("MaxPool", IMAGE, IMAGES, attrs={"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}, name="ceil"),
    Case("Resize", IMAGE, IMAGES, {"scales": np.array([1, 1, 2, 0.5], np.float32)},
         {"mode": "linear"}, inputs=["x", "", "scales"], name="linear"),
    Case("Resize", IMAGE, IMAGES, {"scales": np.array([1.7, 1.3], np.float32)},
         {"mode": "nearest", "axes": [2, 3], "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
         inputs=["x", "", "scales"], name="nearest"),
    Case("Resize", IMAGE, IMAGES, {"sizes": ints(7, 12)},
         {"mode": "cubic", "axes": [2, 3]}, inputs=["x", "", "", "sizes"], name="cubic to sizes"),
    Case("GridSample", {**IMAGE, "grid": ("n", "a", "b", 2)},
         ({"n": 1, "h": 5, "w": 4, "a": 3, "b": 2}, {"n": 2, "h": 3, "w": 6, "a": 2, "b": 5})),
    Case("GroupNormalization", IMAGE, IMAGES, {"scale": floats(4), "bias": floats(4)}, {"num_groups": 2}),
    Case("InstanceNormalization", IMAGE, IMAGES, {"scale": floats(4), "bias": floats(4)}),
    Case("DepthToSpace", IMAGE, IMAGES, attrs={"blocksize": 2}),
    Case("SpaceToDepth", IMAGE, ({"n": 1, "h": 8, "w": 6}, {"n": 3, "h": 4, "w": 10}), attrs={"blocksize": 2}),
    Case("CenterCropPad", IMAGE, IMAGES, {"shape": ints(6, 7)}, {"axes": [2, 3]}),
    Case("LSTM", {"x": ("t", "n", 3)}, ROWS, {"w": floats(2, 16, 3), "r": floats(2, 16, 4), "b": floats(2, 32)},
         {"hidden_size": 4, "direction": "bidirectional"}, outputs=3),
    Case("GRU", {"x": ("n", "t", 3)}, ROWS, {"w": floats(1, 12, 3), "r": floats(1, 12, 4)},
         {"hidden_size": 4, "layout": 1, "linear_before_reset": 1}, outputs=2),
    Case("Attention", {"q": ("n", "t", 24), "k": ("n", "s", 12), "v": ("n", "s", 12)},
         ({"n": 2, "t": 3, "s": 5}, {"n": 1, "t": 4, "s": 4}),
         attrs={"q_num_heads": 4, "kv_num_heads": 2, "is_causal": 1}),
    Case("Attention", {"q": ("n", 2, "t", 8), "k": ("n", 2, "t", 8), "v": ("n", 2, "t", 8), "mask": ("t", "m"),
                       "past_k": ("n", 2, "p", 8), "past_v": ("n", 2, "p", 8)},
         ({"n": 2, "t": 3, "p": 4, "m": 7}, {"n": 1, "t": 2, "p": 6, "m": 5}), outputs=3, name="with a cache"),
    Case("RotaryEmbedding", {"x": ("n", 2, "t", 8), "at": ("n", "t")}, ROWS,
         {"cos": floats(9, 4), "sin": floats(9, 4)}, kinds={"at": "int64"}, inputs=["x", "cos", "sin", "at"]),
    Case("QuantizeLinear", IMAGE, IMAGES, {"scale": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
                                           "zero": np.array([1, 2, 3, 4], np.uint8)}, {"axis": 1}),
    Case("Einsum", {"a": ("n", "t", 4), "b": ("n", 4, "t")}, ROWS, attrs={"equation": "nij,njk->nk"}),
    Case("Einsum", {"a": ("t", "n", "t")}, ROWS, attrs={"equation": "ini->n"}, name="diagonal"),
    Case("EyeLike", {"x": ("n", "t")}, ROWS, attrs={"k": 1}),
    Case("Trilu", {"x": ("n", "t", "t")}, ROWS, attrs={"upper": 0}),
    Case("CumSum", {"x": ("n", "t")}, ROWS, {"axis": ints(1)}, {"reverse": 1, "exclusive": 1}),
    Case("TopK", {"x": ("n", "t"), "k": (1,)}, ROWS, kinds={"k": "int64"}, outputs=2),
    Case("Slice", {"x": ("n", "t")}, ROWS, {"starts": ints(-1), "ends": ints(-9), "axes": ints(1), "steps": ints(-2)}),
    Case("Slice", {"x": ("n", "t"), "starts": (1,), "ends": (1,)}, ROWS, {"axes": ints(1), "steps": ints(-1)},
         kinds={"starts": "int64", "ends": "int64"}, name="backwards from a computed place"),
    Case("Slice", {"x": ("n", "t")}, ROWS, {"starts": ints(-(2**63), -(2**31)), "ends": ints(-1, 2**31),
                                            "axes": ints(0, 1), "steps": ints(2**40, 1)}, name="from far before"),
    Case("Slice", {"x": ("n", "t")}, ROWS, {"starts": ints(2**31, 2**40), "ends": ints(-(2**63), -(2**40)),
                                            "axes": ints(0, 1), "steps": ints(-1, -(2**40))}, name="from far behind"),
    Case("NegativeLogLikelihoodLoss", {"x": ("n", 5, "t"), "target": ("n", "t")}, ROWS,
         {"weight": np.abs(floats(5))}, {"ignore_index": 2}, kinds={"target": "int64"}),
    Case("STFT", {"x": ("n", "t", 1)}, ({"n": 1, "t": 16}, {"n": 2, "t": 21}),
         {"step": ints(3).reshape(()), "window": np.abs(floats(8))}),
    Case("STFT", {"x": ("n", "t")}, ({"n": 1, "t": 16}, {"n": 2, "t": 21}),
         {"step": ints(3).reshape(()), "window": np.abs(floats(8))}, name="of real signals without parts"),
    Case("Resize", {**IMAGE, "roi": (4,)}, IMAGES, {"sizes": ints(7, 5)}, inputs=["x", "roi", "", "sizes"],
         attrs={"mode": "linear", "axes": [2, 3], "coordinate_transformation_mode": "tf_crop_and_resize",
                "extrapolation_value": 9.0}, name="of a computed region"),
    Case("Resize", {"x": (2, 3, 8, 9), "roi": (8,)}, ({},), {"sizes": ints(2, 3, 1, 5)},
         inputs=["x", "roi", "", "sizes"], attrs={"coordinate_transformation_mode": "tf_crop_and_resize"},
         name="of a computed region of known sizes"),
    Case("GridSample", {**IMAGE, "grid": ("n", "a", "b", 2)},
         ({"n": 1, "h": 5, "w": 4, "a": 3, "b": 2}, {"n": 2, "h": 1, "w": 6, "a": 2, "b": 5}),
         attrs={"padding_mode": "reflection", "mode": "cubic", "align_corners": 1}, name="reflected"),
    Case("Resize", IMAGE, IMAGES, {"sizes": ints(7, 12)}, {"mode": "linear", "axes": [2, 3], "antialias": 1},
         inputs=["x", "", "", "sizes"], name="antialiased to sizes"),
    Case("Resize", IMAGE, ({"n": 1, "h": 20, "w": 6}, {"n": 2, "h": 35, "w": 9}),
         {"scales": np.array([0.1, 1.5], np.float32)},
         {"mode": "cubic", "axes": [2, 3], "antialias": 1, "exclude_outside": 1}, inputs=["x", "", "scales"],
         name="antialiased by a small scale"),
    Case("Attention", {"q": ("n", 2, "t", "d"), "k": ("n", 2, "t", "d"), "v": ("n", 2, "t", "d")},
         ({"n": 2, "t": 5, "d": 8}, {"n": 1, "t": 3, "d": 6}), name="heads of any size"),
    Case("RotaryEmbedding", {"x": ("n", 2, "t", "d"), "cos": (9, "p"), "sin": (9, "p"), "at": ("n", "t")},
         ({"n": 2, "t": 5, "d": 8, "p": 4}, {"n": 1, "t": 3, "d": 6, "p": 3}), kinds={"at": "int64"},
         attrs={"interleaved": 1}, name="heads of any size"),
    Case("ConvTranspose", IMAGE, IMAGES, {"w": floats(4, 3, 3, 3)},
         {"output_shape": [10, 10], "auto_pad": "SAME_UPPER"}, name="to a shape"),
    Case("ConvTranspose", IMAGE, IMAGES, {"w": floats(4, 3, 3, 3), "b": floats(3)},
         {"output_shape": [11, 18], "strides": [2, 1]}, name="to a larger shape"),
    Case("Pad", {"x": ("n", "t"), "pads": (4,)}, ROWS, kinds={"pads": "int64"}, name="computed"),
    Case("Pad", {"x": ("n", "t"), "pads": (4,), "fill": ()}, ROWS, kinds={"pads": "int64"}, name="of a value"),
    Case("Pad", {"x": ("n", "t"), "pads": ("k",)}, ({"n": 3, "t": 5, "k": 4}, {"n": 2, "t": 4, "k": 4}),
         kinds={"pads": "int64"}, attrs={"mode": "reflect"}, name="reflected"),
    Case("Pad", {"x": ("n", "t"), "pads": (2,)}, ROWS, {"fill": np.float32(0), "axes": ints(-1)},
         kinds={"pads": "int64"}, attrs={"mode": "wrap"}, name="wrapped"),
    Case("OneHot", {"x": ("n", "t"), "depth": (1,)}, ROWS, {"values": ints(-1, 3)},
         kinds={"depth": "int64", "x": "int64"}, attrs={"axis": 1}),
    Case("Trilu", {"x": ("n", "t", "t"), "k": ()}, ROWS, kinds={"k": "int64"}, name="of a computed diagonal"),
    Case("Squeeze", {"x": ("n", 1, "t")}, ROWS),
    Case("DeformConv", {**IMAGE, "offset": ("n", 18, "a", "b")},
         ({"n": 1, "h": 8, "w": 6, "a": 4, "b": 3}, {"n": 2, "h": 5, "w": 9, "a": 3, "b": 5}),
         attrs={"auto_pad": "SAME_UPPER", "strides": [2, 2]}, passed={"w": floats(6, 4, 3, 3)},
         inputs=["x", "w", "offset"]),
    Case("LinearRegressor", {"x": ("n", "t")}, ({"n": 2, "t": 3}, {"n": 5, "t": 3}), domain="ai.onnx.ml",
         attrs={"coefficients": [1.0, -2.0, 0.5], "intercepts": [0.25]}),
    Case("DFT", {"x": ("n", "t", 1)}, SIGNALS, name="of a signal"),
    Case("DFT", {"x": ("n", "t", 1)}, SIGNALS, attrs={"onesided": 1}, name="of a signal, one half"),
    Case("DFT", {"x": ("n", "t", 2)}, SIGNALS, {"length": ints(6).reshape(()), "axis": ints(1).reshape(())},
         attrs={"inverse": 1}, name="of a spectrum, to a length"),
    Case("DFT", {"x": ("n", "t", 2)}, SIGNALS, attrs={"inverse": 1, "onesided": 1}, name="of half a spectrum"),
    Case("STFT", {"x": ("n", "t", 1), "window": ("w",)}, ({"n": 1, "t": 16, "w": 5}, {"n": 2, "t": 21, "w": 8}),
         {"step": ints(3).reshape(())}, inputs=["x", "step", "window"], name="of any window"),
    Case("TreeEnsembleRegressor", {"x": ("n", 2)}, ({"n": 2}, {"n": 5}), domain="ai.onnx.ml", attrs={
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
        "nodes_values": [0.1, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
        "target_weights": [1.5, -2.0], "n_targets": 1}),
]  # fmt: skip


def compiled(mod):
    executor = graph_executor.GraphModule(relay.build(mod)["default"](device("cpu", 0)))

    def run(arrays):
        for name in mod.attrs["input_names"]:
            executor.set_input(name, arrays[name])
        executor.run()
        return [executor.get_output(i).numpy() for i in range(executor.get_num_outputs())]

    return run


def values_of(case, sizes):
    arrays = {}
    for name, shape in case.shapes.items():
        concrete = tuple(sizes.get(d, d) for d in shape)
        integral = case.kinds.get(name) == "int64"
        arrays[name] = RNG.integers(0, 2, concrete) if integral else RNG.standard_normal(concrete, dtype=np.float32)
    return arrays


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.op} {c.name}".strip())
def test_one_model_for_all_sizes(case):
    general = compiled(from_onnx(case.model())[0])
    for sizes in case.sizes:
        arrays = values_of(case, sizes)
        deciding = {name: v for name, v in arrays.items() if name in DECIDING}
        special = compiled(from_onnx(case.model(), shape=sizes, constants=deciding)[0])
        for found, expected in zip(general(arrays), special(arrays), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


UNSUPPORTED = [
    Case("Reshape", {"x": ("n", "t"), "shape": ("r",)}, ROWS, kinds={"shape": "int64"}),
    Case("GatherND", {"x": ("n", "t"), "at": ("t", "d")}, ROWS, kinds={"at": "int64"}),
]  # fmt: skip


@pytest.mark.parametrize("case", UNSUPPORTED, ids=lambda c: c.op)
def test_what_needs_a_size_when_compiling_says_so(case):
    names = "|".join(case.shapes)
    with pytest.raises(ValueNeededError, match=rf"'case' \({case.op}\)(.|\n)*to do: fix the shapes .*'(?:{names})'"):
        from_onnx(case.model())


def test_sizes_computed_one_by_one_share_memory_that_is_large_enough():
    """Two sizes are read from one tensor: tensors of the second size must not overlap those of the first."""
    nodes = [
        helper.make_node("Split", ["counts"], ["a", "b"], num_outputs=2),
        helper.make_node("Expand", ["x", "a"], ["short"]),
        helper.make_node("Exp", ["short"], ["short_exp"]),
        helper.make_node("ReduceSum", ["short_exp"], ["first"], keepdims=0),
        helper.make_node("Expand", ["x", "b"], ["long"]),
        helper.make_node("Exp", ["long"], ["long_exp"]),
        helper.make_node("CumSum", ["long_exp", "axis"], ["sums"]),
        helper.make_node("Mul", ["sums", "first"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "two", [helper.make_tensor_value_info("counts", 7, [2]), helper.make_tensor_value_info("x", 1, [1])],
        [helper.make_tensor_value_info("y", 1, None)], [numpy_helper.from_array(np.array(0), "axis")],
    )  # fmt: skip
    run = compiled(from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))[0])
    for a, b in ((1, 3000), (2000, 5)):
        (y,) = run({"counts": ints(a, b), "x": np.zeros(1, np.float32)})
        np.testing.assert_allclose(y, np.arange(1, b + 1, dtype=np.float32) * a, rtol=1e-5)


def test_slices_that_end_at_1_broadcast():
    """As in exported graph networks: messages [m, 3] are expanded to min(n, 1) rows of a tensor of nodes [n, 3]."""
    nodes = [
        helper.make_node("Slice", ["x", "zero", "one", "zero"], ["first"]),
        helper.make_node("Shape", ["first"], ["line"]),
        helper.make_node("Expand", ["messages", "line"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "messages", [helper.make_tensor_value_info("x", 1, ["n", 3]),
                            helper.make_tensor_value_info("messages", 1, ["m", 3])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(ints(0), "zero"), numpy_helper.from_array(ints(1), "one")],
    )  # fmt: skip
    run = compiled(from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))[0])
    for n, m in ((4, 7), (1, 1), (2, 1)):
        messages = RNG.standard_normal((m, 3), dtype=np.float32)
        (y,) = run({"x": np.zeros((n, 3), np.float32), "messages": messages})
        np.testing.assert_array_equal(y, messages)


def test_lengths_that_the_model_computes_are_those_of_its_convolutions():
    """As in exported models: the output length of a strided convolution, computed by subtraction and division."""
    weight = RNG.standard_normal((4, 1, 6)).astype(np.float32)
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "two"], ["samples"], axis=0),
        helper.make_node("Div", ["samples", "two"], ["half"]),
        helper.make_node("Sub", ["half", "three"], ["less"]),
        helper.make_node("Div", ["less", "two"], ["quarter"]),
        helper.make_node("Add", ["quarter", "one"], ["length"]),
        helper.make_node("Concat", ["minus", "length"], ["wanted"], axis=0),
        helper.make_node("Conv", ["x", "weight"], ["h"], strides=[2]),
        helper.make_node("MaxPool", ["h"], ["p"], kernel_shape=[1], strides=[2]),
        helper.make_node("Reshape", ["p", "wanted"], ["y"]),
    ]
    passed = {"one": ints(1), "two": ints(2), "three": ints(3), "minus": ints(-1), "weight": weight}
    model = helper.make_model(
        helper.make_graph(
            nodes, "lengths", [helper.make_tensor_value_info("x", 1, ["batch", 1, "samples"])],
            [helper.make_tensor_value_info("y", 1, None)],
            [numpy_helper.from_array(v, name) for name, v in passed.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    mod, _ = from_onnx(model)
    assert not mod["main"].attrs.get("bound_sizes"), "nothing is left to be computed at run time"
    executor = compiled(mod)
    for batch, samples in ((1, 40), (3, 81)):
        x = RNG.standard_normal((batch, 1, samples)).astype(np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(x[:, 0], 6, axis=1)[:, ::2][:, ::2]
        expected = np.einsum("blk,ck->bcl", windows, weight[:, 0])
        (y,) = executor({"x": x})
        np.testing.assert_allclose(y, expected.reshape(y.shape), rtol=1e-4, atol=1e-5)


def test_sizes_repeated_as_often_as_a_size_says():
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Tile", ["shape", "shape"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "repeats", [helper.make_tensor_value_info("x", 1, ["n"])], [helper.make_tensor_value_info("y", 7, None)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    executor = compiled(from_onnx(model)[0])
    assert executor({"x": np.zeros(3, np.float32)})[0].tolist() == [3, 3, 3]


def test_elements_whose_conditions_are_a_matrix():
    """As Paddle exports masked_select; onnxruntime, too, reads conditions as one row."""
    nodes = [helper.make_node("Greater", ["x", "zero"], ["c"]), helper.make_node("Compress", ["x", "c"], ["y"])]
    x, y = helper.make_tensor_value_info("x", 1, ["batch", "n"]), helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph(nodes, "masked", [x], [y], [numpy_helper.from_array(np.zeros(1, np.float32), "zero")])
    executor = compiled(from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))[0])
    for shape in ((2, 5), (3, 12), (0, 4)):
        x = floats(*shape)
        np.testing.assert_array_equal(executor({"x": x})[0], x[x > 0])


def test_the_last_element_of_an_axis_broadcasts():
    """As in detectors: positions divided by the last one."""
    nodes = [
        helper.make_node("Slice", ["x", "from", "to", "axis"], ["last"]),
        helper.make_node("Div", ["x", "last"], ["y"]),
    ]
    passed = {"from": ints(-1), "to": ints(2**63 - 1), "axis": ints(1)}
    x, y = helper.make_tensor_value_info("x", 1, ["batch", "n"]), helper.make_tensor_value_info("y", 1, None)
    weights = [numpy_helper.from_array(v, name) for name, v in passed.items()]
    graph = helper.make_graph(nodes, "last", [x], [y], weights)
    executor = compiled(from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))[0])
    for shape in ((2, 5), (3, 1)):
        x = RNG.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(executor({"x": x})[0], x / x[:, -1:], rtol=1e-6)
    with pytest.raises(ArgumentError, match="the last element"):
        executor({"x": np.zeros((2, 0), np.float32)})


def test_sizes_that_do_not_fit_name_the_node():
    case = Case("Reshape", {"x": (2, 8), "shape": (2,)}, ({}, {}), kinds={"shape": "int64"})
    module, params = from_onnx(case.model())
    executor = graph_executor.GraphModule(relay.build(module, "llvm", params)["default"](device("cpu")))
    assert executor(floats(2, 8), ints(4, 4))[0].shape == (4, 4)
    with pytest.raises(ArgumentError, match=r"node 'case' \(Reshape\) needs two equal sizes and gets 16 and 15"):
        executor(floats(2, 8), ints(3, 5))


def test_a_named_size_is_not_replaced_by_what_is_left_of_another_one():
    """As in decoders: positions of all tokens minus those of the past are combined with the new tokens."""
    nodes = [
        helper.make_node("Shape", ["past"], ["before"]),
        helper.make_node("Slice", ["mask", "before", "end"], ["positions"]),
        helper.make_node("Add", ["tokens", "positions"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info(n, 1, [n.upper()]) for n in ("mask", "past", "tokens")]
    graph = helper.make_graph(
        nodes, "left", inputs, [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(ints(2**63 - 1), "end")],
    )  # fmt: skip
    mod, _ = from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert str(mod["equal_sizes"].body.ty) == "Tensor[(TOKENS,), float32]"
    executor = compiled(mod)
    mask, tokens = np.arange(7, dtype=np.float32), np.ones(3, np.float32)
    np.testing.assert_array_equal(executor({"mask": mask, "past": tokens[:0], "tokens": mask})[0], 2 * mask)
    np.testing.assert_array_equal(executor({"mask": mask, "past": mask[:4], "tokens": tokens})[0], mask[4:] + 1)
    with pytest.raises(ArgumentError, match="two equal sizes"):
        executor({"mask": mask, "past": mask[:2], "tokens": tokens})


@pytest.mark.parametrize("strides", [(2, 2), (3, 2), (2, 1, 2)], ids=str)
def test_results_of_convolutions_in_a_row_in_another_layout(strides: tuple[int, ...]):
    """As before a recurrent network: the sizes of each are quotients of those before, which are simplified alike."""
    weights = [floats(16, 16, 5) / 8 for _ in strides]
    names = ["x", *[f"c{i}" for i in range(len(strides))]]
    nodes = [
        helper.make_node("Conv", [before, f"w{i}"], [after], strides=[stride], pads=[2, 2])
        for i, (before, after, stride) in enumerate(zip(names, names[1:], strides, strict=False))
    ]
    nodes.append(helper.make_node("Transpose", names[-1:], ["y"], perm=[2, 0, 1]))
    x, y = (helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", ("n", 16, "t")), ("y", None)))
    stored = [numpy_helper.from_array(v, f"w{i}") for i, v in enumerate(weights)]
    model = helper.make_model(helper.make_graph(nodes, "convolutions", [x], [y], stored))
    module, params = from_onnx(model)
    executor = graph_executor.GraphModule(relay.build(module, "llvm", params)["default"](device("cpu", 0)))
    for n, t in ((1, 100), (2, 33), (1, 17), (3, 9)):
        data = floats(n, 16, t)
        (expected,) = ReferenceEvaluator(model).run(None, {"x": data})
        np.testing.assert_allclose(executor.infer({"x": data})[0], expected, rtol=1e-4, atol=1e-4)
