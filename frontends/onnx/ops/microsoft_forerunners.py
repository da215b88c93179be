"""Operators of the domain com.microsoft that ONNX took over as they are."""

from __future__ import annotations

from frontends.onnx.ops.common import MICROSOFT
from frontends.onnx.ops.gather import gather_nd
from frontends.onnx.ops.shape import trilu
from frontends.onnx.registry import convert_with

convert_with(gather_nd, "GatherND", domain=MICROSOFT)
convert_with(trilu, "Trilu", domain=MICROSOFT)
