"""Generators for resizing, sampling and detection."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, helper

from tests.fuzz.builder import GraphBuilder, Value, operator
from tests.fuzz.dims import is_symbolic
from tests.fuzz.products import image

__all__: list[str] = []


@operator("Resize", weight=4)
def resize(g: GraphBuilder) -> Value:
    x = g.pick(("float32",), 4, 4, smallest=2, where=lambda v: v.is_static)
    if g.opset < 11:
        scales = [1.0, 1.0, 2.0, 2.0]
        shape = [int(d * s) for d, s in zip(x.shape, scales, strict=True)]
        mode = g.choice(["nearest", "linear"])
        inputs: list[Value | str | None] = [x, g.constant(scales, "float32")]
        return g.node("Resize", inputs, "float32", shape, x.exact and mode == "nearest", x.low, x.high, mode=mode)
    mode = g.choice(["nearest", "linear", "cubic"])
    sizes = [*x.shape[:2], g.integer(1, 8), g.integer(1, 8)]
    transforms = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    transform = g.choice(transforms)
    attributes: dict[str, object] = {"nearest_mode": g.choice(["floor", "ceil"])} if mode == "nearest" else {}
    if mode == "nearest":  # by other factors positions fall between two elements, and rounding decides
        transform = "asymmetric"
        sizes[2:] = [d // 2 if d % 2 == 0 and g.chance(0.3) else d * g.integer(1, 3) for d in x.shape[2:]]
    if mode == "cubic" and g.chance(0.3):
        attributes["cubic_coeff_a"] = -0.5
    roi = g.constant(np.zeros(0, np.float32)) if g.opset < 13 else None
    scales = g.constant(np.zeros(0, np.float32)) if g.opset < 13 else None
    inputs = [x, roi, scales, g.constant(sizes, "int64")]
    return g.node("Resize", inputs, "float32", sizes, x.exact and mode == "nearest", -2 * x.largest, 2 * x.largest,
                  mode=mode, coordinate_transformation_mode=transform, **attributes)  # fmt: skip


@operator("Upsample", weight=2)
def upsample(g: GraphBuilder) -> Value:
    x = image(g, 2)
    mode = g.choice(["nearest", "linear"])
    scales = [1.0, 1.0, 2.0, float(g.integer(1, 3))]
    shape = [*x.shape[:2], x.shape[2] * 2, x.shape[3] * int(scales[3])]
    exact = x.exact and mode == "nearest"
    if g.has("Upsample", "height_scale"):
        def modern(names: list[str], out: list[str]) -> list[NodeProto]:
            return [
                helper.make_node("Constant", [], ["scales"], value_floats=scales),
                helper.make_node("Resize", [names[0], "", "scales"], out, mode=mode, nearest_mode="floor",
                                 coordinate_transformation_mode="asymmetric"),
            ]  # fmt: skip

        old = mode if mode == "nearest" else "bilinear"
        return g.node("Upsample", [x], "float32", shape, exact, x.low, x.high, modern=modern, mode=old,
                      height_scale=scales[2], width_scale=scales[3])  # fmt: skip
    if g.has("Upsample", "scales"):
        return g.node("Upsample", [x], "float32", shape, exact, x.low, x.high, mode=mode, scales=scales)
    return g.node("Upsample", [x, g.constant(scales, "float32")], "float32", shape, exact, x.low, x.high, mode=mode)


@operator("GridSample")
def grid_sample(g: GraphBuilder) -> Value:
    x = image(g, 2)
    if is_symbolic(x.shape):
        raise LookupError("kept to fixed sizes")
    grid = g.input("float32", (x.shape[0], g.integer(1, 4), g.integer(1, 4), 2), -1.1, 1.1)
    mode = g.choice(["linear", "cubic"]) if g.opset >= 20 else g.choice(["bilinear", "bicubic"])
    padding = g.choice(["zeros", "border", "reflection"])
    shape = (*x.shape[:2], *grid.shape[1:3])
    return g.node("GridSample", [x, grid], "float32", shape, False, 2 * x.low - 1, 2 * x.high + 1, mode=mode,
                  padding_mode=padding, align_corners=g.integer(0, 1))  # fmt: skip


@operator("AffineGrid")
def affine_grid(g: GraphBuilder) -> Value:
    n, h, w = g.integer(1, 2), g.integer(2, 5), g.integer(2, 5)
    theta = g.input("float32", (n, 2, 3), -1, 1)
    size = g.constant([n, 1, h, w], "int64")
    return g.node("AffineGrid", [theta, size], "float32", (n, h, w, 2), False, -3, 3, align_corners=g.integer(0, 1))


@operator("RoiAlign")
def roi_align(g: GraphBuilder) -> Value:
    x = g.input("float32", (g.integer(1, 2), g.integer(1, 3), 8, 9))
    count = g.integer(1, 3)
    corner = g.numbers.uniform(0, 3, (count, 2))
    rois = g.constant(np.concatenate([corner, corner + g.numbers.uniform(1, 4, (count, 2))], 1), "float32")
    batch = g.constant(g.numbers.integers(0, x.shape[0], count), "int64")
    mode = "avg" if g.opset < 16 or g.chance(0.7) else "max"
    ratio = g.integer(1, 2) if mode == "avg" else 1  # onnxruntime says itself that it is wrong for others
    return g.node("RoiAlign", [x, rois, batch], "float32", (count, x.shape[1], 2, 3), False, -2, 2, output_height=2,
                  output_width=3, sampling_ratio=ratio, spatial_scale=1.0, mode=mode)  # fmt: skip


@operator("MaxRoiPool")
def max_roi_pool(g: GraphBuilder) -> Value:
    x = g.input("float32", (g.integer(1, 2), g.integer(1, 3), 8, 9))
    count = g.integer(1, 3)
    corner = g.numbers.integers(0, 4, (count, 2))
    batch = g.numbers.integers(0, x.shape[0], (count, 1))
    rois = np.concatenate([batch, corner, corner + g.numbers.integers(1, 4, (count, 2))], 1)
    inputs = [x, g.constant(rois, "float32")]
    return g.node("MaxRoiPool", inputs, "float32", (count, x.shape[1], 2, 2), True, -2, 2, pooled_shape=[2, 2])


@operator("DeformConv")
def deform_conv(g: GraphBuilder) -> Value:
    n, c, h, w, m = g.integer(1, 2), g.integer(1, 3), g.integer(4, 6), g.integer(4, 6), g.integer(1, 4)
    x = g.input("float32", (n, c, h, w))
    weight = g.operand("float32", (m, c, 2, 2))
    offset = g.input("float32", (n, 8, h - 1, w - 1), -1, 1)
    return g.node("DeformConv", [x, weight, offset], "float32", (n, m, h - 1, w - 1), False, -40, 40,
                  kernel_shape=[2, 2])  # fmt: skip


@operator("NonMaxSuppression")
def non_max_suppression(g: GraphBuilder) -> Value:
    boxes, classes = g.integer(1, 8), g.integer(1, 2)
    corner = g.numbers.uniform(0, 1, (1, boxes, 2))
    place = g.constant(np.concatenate([corner, corner + g.numbers.uniform(0.1, 1, corner.shape)], 2), "float32")
    scores = g.input("float32", (1, classes, boxes), 0, 1)
    limits = [g.constant([3], "int64"), g.constant([0.5], "float32"), g.constant([0.2], "float32")]
    found = g.node("NonMaxSuppression", [place, scores, *limits], "int64", (1, 3), True, 0, 8)
    g.values.remove(found)
    axes = {"axes": [0]} if g.opset < 13 else {}
    inputs = [found] if g.opset < 13 else [found, g.constant([0], "int64")]
    return g.node("ReduceSum", inputs, "int64", (3,), True, 0, 100, keepdims=0, **axes)
