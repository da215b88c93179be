"""The ONNX frontend: imports models to the graph IR."""

from __future__ import annotations

from relayc.frontends.model_parts import ModelParts
from relayc.frontends.onnx.errors import OnnxImportError, UnsupportedOperatorError, ValueNeededError
from relayc.frontends.onnx.importer import from_onnx

__all__ = ["ModelParts", "OnnxImportError", "UnsupportedOperatorError", "ValueNeededError", "from_onnx"]
