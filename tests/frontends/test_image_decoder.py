"""ImageDecoder: image files as inputs of a model. ONNX's own cases, of all formats, are in the conformance suite."""

from __future__ import annotations

import builtins
import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from relayc.backend.runtime.errors import ArgumentError
from relayc.frontends.onnx import OnnxImportError, UnsupportedOperatorError, from_onnx
from relayc.relay import build
from relayc.runtime import device, graph_executor

Image = pytest.importorskip("PIL.Image")

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


def _model(pixel_format: str | None = None, rank: int = 1) -> ModelProto:
    attributes = {} if pixel_format is None else {"pixel_format": pixel_format}
    nodes = [
        helper.make_node("ImageDecoder", ["file"], ["pixels"], name="decoder", **attributes),
        helper.make_node("Cast", ["pixels"], ["floats"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("file", TensorProto.UINT8, ["n"] * rank)],
        [helper.make_tensor_value_info("floats", TensorProto.FLOAT, ["h", "w", "c"])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def _decoded(file: bytes, pixel_format: str | None = None) -> np.ndarray:
    module, _ = from_onnx(_model(pixel_format))
    executor = graph_executor.GraphModule(build(module)["default"](device("cpu")))
    (found,) = executor(np.frombuffer(file, np.uint8))
    return found.numpy()


def _file(pixels: np.ndarray, kind: str = "PNG", mode: str | None = None) -> bytes:
    stream = io.BytesIO()
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(stream, kind)
    return stream.getvalue()


def _announcing(width: int, height: int) -> bytes:
    """A PNG file whose header announces a size that its data does not have."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0" * 64)
    chunks = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (header, data, b"IEND")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_pixels_in_each_order() -> None:
    np.testing.assert_array_equal(_decoded(_file(PIXELS)), PIXELS)
    np.testing.assert_array_equal(_decoded(_file(PIXELS), "BGR"), PIXELS[:, :, ::-1])
    gray = np.asarray(Image.fromarray(PIXELS).convert("L"))[:, :, None]
    np.testing.assert_array_equal(_decoded(_file(PIXELS), "Grayscale"), gray)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "LA", "I;16"])
def test_every_kind_of_pixel_becomes_what_the_model_asks(mode: str) -> None:
    assert _decoded(_file(PIXELS, mode=mode)).shape == (5, 7, 3)
    assert _decoded(_file(PIXELS, mode=mode), "Grayscale").shape == (5, 7, 1)


@pytest.mark.parametrize("file", [b"", b"no image", _file(PIXELS)[:40], _file(PIXELS)[:-30], _announcing(64, 64)])
def test_a_file_that_is_no_image_gives_no_pixels(file: bytes) -> None:
    assert _decoded(file).shape == (0, 0, 3)


def test_formats_that_onnx_does_not_list_are_not_tried() -> None:
    assert _decoded(_file(PIXELS, "GIF")).shape == (0, 0, 3)


@pytest.mark.parametrize("side", [9_000, 60_000])
def test_a_size_beyond_the_limit_is_refused_before_decoding(side: int) -> None:
    with pytest.raises(ArgumentError, match=r"decoder.*pixels.*; expected at most"):
        _decoded(_announcing(side, side))


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without_pillow(name: str, *rest: Any, **more: Any) -> Any:
        if name == "PIL":
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(ArgumentError, match=r"pip install 'relayc\[images\]'"):
        _decoded(_file(PIXELS))


def test_errors_name_the_node() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"'decoder'.*pixel_format is 'CMYK'"):
        from_onnx(_model("CMYK"))
    with pytest.raises(OnnxImportError, match="'decoder'"):
        from_onnx(_model(rank=2))
