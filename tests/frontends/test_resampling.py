"""Resampling taps against the interpolation of the onnx package's reference, over modes and sizes."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from relayc import relay
from relayc.backend.runtime import ArgumentError, device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.frontends.onnx.ops.resample import Resampling, known_taps, output_extent
from relayc.relay.interpreter import evaluate
from relayc.relay.versions import versions_of
from tests.frontends.node_cases import check

COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def reference(x: np.ndarray, out: int, **attrs: object) -> np.ndarray:
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attrs)
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    sizes = helper.make_tensor("sizes", TensorProto.INT64, [1], [out])
    graph = helper.make_graph(
        [node], "g", infos, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [sizes]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    return ReferenceEvaluator(model).run(None, {"x": x})[0]


def apply(x: np.ndarray, how: Resampling, out: int) -> np.ndarray:
    taps = known_taps(how, len(x), out, out / len(x))
    return (taps.weights * x[taps.indices]).sum(axis=0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize(("extent", "out"), [(4, 7), (7, 4), (5, 10), (6, 3), (3, 1), (1, 4), (5, 5)])
def test_interpolation(coordinates: str, extent: int, out: int) -> None:
    if coordinates == "pytorch_half_pixel" and out == 1:
        pytest.skip("the reference takes -0.5 where the operator's page says 0")
    x = np.random.default_rng(extent * out).random(extent, np.float32)
    for mode, exclude, antialias in itertools.product(("linear", "cubic"), (False, True), (False, True)):
        how = Resampling(mode, coordinates, exclude_outside=exclude, antialias=antialias)
        expected = reference(
            x,
            out,
            mode=mode,
            coordinate_transformation_mode=coordinates,
            exclude_outside=int(exclude),
            antialias=int(antialias),
        )
        np.testing.assert_allclose(apply(x, how, out), expected, rtol=1e-5, atol=1e-6, err_msg=str(how))


@pytest.mark.parametrize(("coordinates", "nearest"), list(itertools.product(COORDINATES, NEAREST)))
def test_nearest(coordinates: str, nearest: str) -> None:
    for extent, out in [(4, 7), (8, 4), (5, 10), (6, 3)]:
        x = np.arange(extent, dtype=np.float32)
        expected = reference(x, out, mode="nearest", coordinate_transformation_mode=coordinates, nearest_mode=nearest)
        np.testing.assert_array_equal(apply(x, Resampling("nearest", coordinates, nearest), out), expected)


@pytest.mark.parametrize(
    ("mode", "coordinates", "nearest", "scale"),
    [
        ("nearest", "asymmetric", "floor", 2),
        ("nearest", "asymmetric", "round_prefer_ceil", 3),
        ("nearest", "half_pixel", "round_prefer_floor", 2),
        ("nearest", "pytorch_half_pixel", "ceil", 4),
        ("linear", "half_pixel", "floor", 2),
        ("linear", "asymmetric", "floor", 4),
        ("linear", "pytorch_half_pixel", "floor", 3),
        ("cubic", "half_pixel", "floor", 2),
        ("nearest", "asymmetric", "floor", 0.5),
        ("linear", "half_pixel", "floor", 0.5),
    ],
)
def test_whole_scales_of_dynamic_images_become_repeats_or_strides(
    mode: str, coordinates: str, nearest: str, scale: float
) -> None:
    def model(sides: list[object]) -> onnx.ModelProto:
        attrs = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
        scales = numpy_helper.from_array(np.array([1, 1, scale, scale], np.float32), "scales")
        graph = helper.make_graph(
            [helper.make_node("Resize", ["x", "", "scales"], ["y"], **attrs)],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, *sides])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [scales],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])

    module, params = from_onnx(model(["height", "width"]))
    fastest = next(iter(versions_of(module).values()), module)
    assert "take(" not in str(fastest["main"])
    lib = relay.build(module, target="llvm", params=params)
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    for sides in ((1, 2) if scale > 1 else (2, 3), (5, 7), (9, 40)):
        x = np.random.default_rng(0).random((1, 3, *sides), np.float32)
        (y,) = executor(x)
        expected = evaluate(from_onnx(model(list(sides)))[0]["main"], [x])
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6)


def by_scales(opset: int, side: int | str, scale: float | None, **attrs: object) -> onnx.ModelProto:
    """Upsample or Resize of [1, side] by [1, scale], which is an input of the model if it is None."""
    names = ["x", "scales"] if opset < 11 else ["x", "roi" if opset == 11 else "", "scales"]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, side])]
    fixed = [helper.make_tensor("roi", TensorProto.FLOAT, [0], [])] if opset == 11 else []
    if scale is None:
        inputs.append(helper.make_tensor_value_info("scales", TensorProto.FLOAT, [2]))
    else:
        fixed.append(helper.make_tensor("scales", TensorProto.FLOAT, [2], [1, scale]))
    node = helper.make_node("Upsample" if opset < 10 else "Resize", names, ["y"], **attrs)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", inputs, [y], fixed)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def executor_of(model: onnx.ModelProto) -> graph_executor.GraphModule:
    module, params = from_onnx(model)
    return graph_executor.GraphModule(relay.build(module, target="llvm", params=params)["default"](device("cpu", 0)))


def test_the_extent_is_that_of_float32() -> None:
    for extent, out in itertools.product(range(1, 65), range(1, 257)):
        scale = np.float32(out) / np.float32(extent)
        assert output_extent(extent, float(scale)) == int(np.float32(extent) * scale)


@pytest.mark.parametrize("opset", [9, 10, 11, 13, 18, 19])
def test_a_scale_computed_in_float32_gives_the_target(opset: int) -> None:
    for extent, out in ((13, 25), (3, 7)):
        scale = float(np.float32(out / extent))
        module, _ = from_onnx(by_scales(opset, extent, scale))
        assert evaluate(module["main"], [np.zeros((1, extent), np.float32)]).shape == (1, out)
    x = np.arange(13, dtype=np.float32)[None]
    (y,) = executor_of(by_scales(opset, "n", float(np.float32(25 / 13)), mode="linear"))(x)
    assert y.numpy().shape == (1, 25)
    (y,) = executor_of(by_scales(opset, "n", None))(x, np.array([1, 25 / 13], np.float32))
    assert y.numpy().shape == (1, 25)


TARGETS = [
    ("asymmetric", "floor", 6, 8, [0, 0, 1, 2, 3, 3, 4, 5]),
    ("asymmetric", "round_prefer_ceil", 7, 4, [0, 2, 4, 5]),
    ("half_pixel", "round_prefer_floor", 14, 19, [0, 1, 1, 2, 3, 4, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12, 12, 13]),
    ("half_pixel", "floor", 7, 9, [0, 0, 1, 2, 3, 3, 4, 5, 6]),
    ("align_corners", "floor", 3, 4, [0, 0, 1, 2]),
    ("half_pixel_symmetric", "floor", 3, 1, [0]),
]  # fmt: skip
"""Mode, extent, target, and the positions that onnxruntime 1.32 takes."""


@pytest.mark.parametrize(("coordinates", "nearest", "extent", "out", "expected"), TARGETS)
def test_nearest_positions_by_computed_scales(
    coordinates: str, nearest: str, extent: int, out: int, expected: list[int]
) -> None:
    attrs = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
    x, scale = np.arange(extent, dtype=np.float32)[None], np.float32(out / extent)
    assert evaluate(from_onnx(by_scales(19, extent, float(scale), **attrs))[0]["main"], [x]).tolist() == [expected]
    (y,) = executor_of(by_scales(19, "n", None, **attrs))(x, np.array([1, scale], np.float32))
    assert y.numpy().tolist() == [expected]


FLOORED = [(7, 31), (23, 56), (25, 53)]
"""Extents and targets of which target / extent, times extent, is less than the target in float32."""


def aligned(opset: int, side: int | str, scale: float | None, mode: str) -> onnx.ModelProto:
    attrs = {"mode": mode, "coordinate_transformation_mode": "align_corners", "nearest_mode": "floor"}
    return by_scales(opset, side, scale, **attrs)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_corners_are_aligned_where_the_target_is_rounded_down(mode: str) -> None:
    """As in onnxruntime, the last output is the last input, though the size is one less than the target."""
    for opset, (extent, target) in itertools.product((11, 13, 18, 19), FLOORED):
        x, scale = np.arange(extent, dtype=np.float32)[None], float(np.float32(target / extent))
        y = evaluate(from_onnx(aligned(opset, extent, scale, mode))[0]["main"], [x])
        assert y.shape == (1, target - 1)
        np.testing.assert_allclose(y[0, [0, -1]], [0, extent - 1], atol=1e-5)


def test_corners_are_aligned_at_run_time() -> None:
    for mode, scale in (("linear", float(np.float32(56 / 23))), ("nearest", None)):
        x = np.arange(23, dtype=np.float32)[None]
        scales = [] if scale is not None else [np.array([1, np.float32(56 / 23)], np.float32)]
        (y,) = executor_of(aligned(19, "n", scale, mode))(x, *scales)
        assert y.numpy().shape == (1, 55)
        np.testing.assert_allclose(y.numpy()[0, [0, -1]], [0, 22], atol=1e-5)


@pytest.mark.parametrize("of", [np.float16, ml_dtypes.bfloat16, np.uint8, np.int32])
@pytest.mark.parametrize(("mode", "antialias"), [("linear", 0), ("cubic", 0), ("linear", 1), ("cubic", 1)])
def test_results_are_rounded_once_not_per_axis(mode: str, antialias: int, of: type) -> None:
    """Sums of float32, rounded to a type, are off by at most a unit, and where they are close to a tie only."""
    scale = 0.5 if antialias else 2.0
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode, antialias=antialias)
    scales = helper.make_tensor("scales", TensorProto.FLOAT, [3], [1, scale, scale])

    def model(kind: int) -> onnx.ModelProto:
        x, y = helper.make_tensor_value_info("x", kind, [2, 12, 20]), helper.make_tensor_value_info("y", kind, None)
        graph = helper.make_graph([node], "g", [x], [y], [scales])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])

    x = np.random.default_rng(3).uniform(32, 192, (2, 12, 20)).astype(of)
    expected = ReferenceEvaluator(model(TensorProto.FLOAT)).run(None, {"x": x.astype(np.float32)})[0]
    (y,) = executor_of(model(helper.np_dtype_to_tensor_dtype(np.dtype(of))))(x)
    got, rounded = y.numpy().astype(np.float64), expected.astype(of).astype(np.float64)
    off = got != rounded
    spacing = 1 if np.issubdtype(of, np.integer) else 2.0 ** (-3 if of is np.float16 else 0)
    assert np.all(np.abs(got - rounded)[off] <= spacing) and np.mean(off) < 0.02


@pytest.mark.parametrize("version", [16, 20])
def test_cubic_samples_outside_of_a_border_keep_their_weights(version: int) -> None:
    """Each of the four pixels is moved onto the border, as in torch and onnxruntime, not the position between them."""
    x = np.random.default_rng(0).normal(size=(1, 2, 1, 5)).astype(np.float32)
    at = np.array([-7, -1.3, -0.4, 0.5, 3.7, 4.3, 4.9, 6.2])
    grid = np.stack([(2 * at + 1) / 5 - 1, 0 * at], -1).reshape(1, 1, len(at), 2).astype(np.float32)
    base, a = np.floor(at).astype(int), -0.75
    expected = np.zeros((1, 2, 1, len(at)), np.float32)
    for tap in range(-1, 3):
        d = np.abs(at - base - tap)
        near, far = ((a + 2) * d - (a + 3)) * d**2 + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        expected += x[..., np.clip(base + tap, 0, 4)] * np.where(d <= 1, near, far).astype(np.float32)
    mode = "bicubic" if version < 20 else "cubic"
    check("GridSample", [x, grid], expected, domain="", version=version, mode=mode, padding_mode="border")


@pytest.mark.parametrize(
    ("mode", "antialias"), [("nearest", 0), ("linear", 0), ("cubic", 0), ("linear", 1), ("cubic", 1)]
)
def test_an_empty_batch_is_resized_to_an_empty_one(mode, antialias):
    """As onnxruntime does: crops of boxes where none was found. To a batch that is not, it can't be."""
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode, antialias=antialias)
    inputs = [helper.make_tensor_value_info("x", 1, ["n", 2, "h", "w"]), helper.make_tensor_value_info("sizes", 7, [4])]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    module, params = from_onnx(model)
    executor = graph_executor.GraphModule(relay.build(module, params=params)["default"](device("cpu")))

    def resized(shape: tuple[int, ...], *sizes: int) -> np.ndarray:
        return executor.infer({"x": np.ones(shape, np.float32), "sizes": np.array(sizes, np.int64)})[0]

    np.testing.assert_allclose(resized((2, 2, 4, 3), 2, 2, 7, 8), np.ones((2, 2, 7, 8)), rtol=1e-5)
    assert resized((0, 2, 4, 3), 0, 2, 7, 8).shape == (0, 2, 7, 8)
    with pytest.raises(ArgumentError, match="resizing an empty tensor"):
        resized((0, 2, 4, 3), 1, 2, 7, 8)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_half_of_a_pixel_is_no_pixel(mode):
    """The extents are rounded down, as onnxruntime does."""
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode)
    inputs = [helper.make_tensor_value_info("x", 1, [1, 2, "h", "w"])]
    scales = [numpy_helper.from_array(np.array([1, 1, 0.5, 0.25], np.float32), "scales")]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, None)], scales)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    module, params = from_onnx(model)
    executor = graph_executor.GraphModule(relay.build(module, params=params)["default"](device("cpu")))
    for shape, expected in (((5, 8), (2, 2)), ((1, 8), (0, 2)), ((5, 3), (2, 0)), ((1, 1), (0, 0))):
        y = executor.infer({"x": np.ones((1, 2, *shape), np.float32)})[0]
        np.testing.assert_allclose(y, np.ones((1, 2, *expected)), rtol=1e-5)
