"""Unsupported operators of ONNX and onnxruntime, with the reason and what to do instead."""

from __future__ import annotations

__all__ = ["UNSUPPORTED"]

_MAPS = "its input or output is a map, which is no tensor; leave it out of the exported model"
_SEARCH = "it searches with the decoder that it holds; export the decoder itself, and generate with relayc.generation"

UNSUPPORTED: dict[tuple[str, str], str] = {
    ("ai.onnx.ml", "CastMap"): _MAPS,
    ("ai.onnx.ml", "DictVectorizer"): _MAPS,
    ("com.microsoft", "BeamSearch"): _SEARCH,
    ("com.microsoft", "GreedySearch"): _SEARCH,
    ("com.microsoft", "Sampling"): _SEARCH,
    ("com.microsoft", "WhisperBeamSearch"): _SEARCH,
}
"""Reason by domain ("" is ai.onnx) and name."""
