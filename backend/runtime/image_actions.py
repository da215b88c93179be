"""Decoding of image files, by Pillow, an optional package (ONNX: ImageDecoder)."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from relayc.backend.runtime.errors import ArgumentError
from relayc.backend.runtime.host_action import HostAction, Prepared, Settings

__all__ = ["IMAGE_ACTIONS", "MAX_PIXELS", "PIXEL_FORMATS"]

PIXEL_FORMATS = {"RGB": 3, "BGR": 3, "Grayscale": 1}
"""Channels of a pixel."""

MAX_PIXELS = 1 << 26
"""Most pixels of an image, 8192 x 8192: a file of a few kilobytes may announce any number of them."""

_FORMATS = ("BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")
"""The formats that ONNX lists, by Pillow's names; it knows many more, which are not tried."""


def _decode(settings: Settings) -> Prepared:
    pixel_format: str = settings["pixel_format"]
    channels = PIXEL_FORMATS[pixel_format]

    def decode(encoded: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        try:
            from PIL import Image, UnidentifiedImageError
        except ImportError as error:
            raise ArgumentError("decoding images needs Pillow; to do: pip install 'relayc[images]'") from error
        empty = np.zeros((0, 0, channels), np.uint8)
        unreadable = (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError)
        try:
            image = Image.open(io.BytesIO(encoded.tobytes()), formats=_FORMATS)  # reads the header only
        except Image.DecompressionBombError as error:
            raise ArgumentError(f"{error}; expected at most {MAX_PIXELS} pixels") from error
        except unreadable:
            return (empty,)  # what ONNX specifies for a stream that can't be decoded
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ArgumentError(f"an image of {width} x {height} pixels; expected at most {MAX_PIXELS}")
        try:
            pixels = np.array(image.convert("L" if channels == 1 else "RGB"))
        except unreadable:
            return (empty,)
        pixels = pixels.reshape(height, width, channels)
        return (np.ascontiguousarray(pixels[:, :, ::-1] if pixel_format == "BGR" else pixels),)

    return decode


IMAGE_ACTIONS = {"decode_image": HostAction(_decode, "n", "n", {"pixel_format": str})}
