"""Resampling taps against the interpolation of the onnx package's reference, over modes and sizes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from frontends.onnx.ops.resample import Resampling, resample

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
    taps = resample(how, len(x), out, out / len(x))
    return (taps.weights * x[taps.indices]).sum(axis=0)


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
