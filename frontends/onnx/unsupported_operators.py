"""Unsupported operators of ONNX, with the reason and what to do instead."""

from __future__ import annotations

__all__ = ["UNSUPPORTED"]

_MAPS = "its input or output is a map, which is no tensor; leave it out of the exported model"

UNSUPPORTED: dict[tuple[str, str], str] = {
    ("ai.onnx.ml", "CastMap"): _MAPS,
    ("ai.onnx.ml", "DictVectorizer"): _MAPS,
}
"""Reason by domain ("" is ai.onnx) and name."""
