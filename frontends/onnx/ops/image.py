"""Image files."""

from __future__ import annotations

from relayc.backend.runtime.image_actions import PIXEL_FORMATS
from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import require_rank
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Expr
from relayc.relay.type import TensorType


@converter("ImageDecoder", since=20)
def image_decoder(node: OnnxNode) -> Expr:
    """Decoded on the host by Pillow (`pip install 'relayc[images]'`), at most 2^26 pixels; the first frame."""
    require_rank(node, 0, 1)
    pixel_format = node.attr_choice("pixel_format", tuple(PIXEL_FORMATS), "RGB")
    unknown = TensorType((0, 0, PIXEL_FORMATS[pixel_format]), "uint8")
    return op.image.decode(node[0], node.fresh_sizes(unknown, [0, 1], "#result_pixels"), pixel_format)
