"""Operators on image files."""

from __future__ import annotations

from relayc.backend.runtime.image_actions import PIXEL_FORMATS
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import OpPattern, register_op
from relayc.relay.op.common import require
from relayc.relay.op.host import ActionOperator, OnHost
from relayc.relay.type import TensorType
from relayc.te.dtype import dtype

__all__ = ["Decode", "decode"]


@register_op("image.decode", pattern=OpPattern.OPAQUE)
class Decode(ActionOperator):
    """The pixels (height, width, channels) of an image file, a vector of bytes (ONNX: ImageDecoder).

    BMP, JPEG, JPEG 2000, PNG, PNM, TIFF and WebP; a file that can't be decoded gives no pixels. (C2) the file is a
    vector of uint8; (C3) `pixel_format` is RGB, BGR or Grayscale; (C4) `result` is an image of as many channels.
    """

    action = "decode_image"

    pixel_format: str = "RGB"
    result: TensorType

    def infer(self, x: TensorType) -> TensorType:
        self.check(x)
        require(x.ndim == 1 and x.dtype == dtype("uint8"), f"(C2) a file must be a vector of uint8; got {x}")
        known = ", ".join(PIXEL_FORMATS)
        require(self.pixel_format in PIXEL_FORMATS, f"(C3) pixel_format {self.pixel_format!r} is not one of {known}")
        channels = PIXEL_FORMATS[self.pixel_format]
        fits = self.result.ndim == 3 and self.result.shape[2] == channels and self.result.dtype == x.dtype
        require(fits, f"(C4) pixels as {self.result}; expected {channels} channels of uint8")
        return self.result


def decode(data: Expr, result: TensorType, pixel_format: str = "RGB") -> Call:
    """The pixels of an image file, decoded by the executor; `result` is their type."""
    operator = Decode(pixel_format=pixel_format, result=result)
    return OnHost(operator=operator, results=(operator.infer(data.tensor_type),))(data)
