"""Object detection: regions of interest."""

from __future__ import annotations

from frontends.onnx.node import OnnxNode
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Expr


@converter("RoiAlign", since=10)
def roi_align_10(node: OnnxNode) -> Expr:
    """Before opset 16 there is no shift by half a pixel."""
    return _roi_align(node, half_pixel=False)


@converter("RoiAlign", since=16)
def roi_align(node: OnnxNode) -> Expr:
    modes = ("half_pixel", "output_half_pixel")
    mode = node.attr_choice("coordinate_transformation_mode", modes, "half_pixel")
    return _roi_align(node, half_pixel=mode == "half_pixel")


def _roi_align(node: OnnxNode, half_pixel: bool) -> Expr:
    size = (node.attr_int("output_height", 1), node.attr_int("output_width", 1))
    return op.vision.roi_align(
        node[0],
        node[1],
        node[2],
        pooled_size=size,
        spatial_scale=node.attr_float("spatial_scale", 1.0),
        sample_ratio=node.attr_int("sampling_ratio", 0),
        half_pixel=half_pixel,
        mode=node.attr_choice("mode", ("avg", "max"), "avg"),
    )
