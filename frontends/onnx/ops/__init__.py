"""Converters of ONNX operators, one module per family. Importing a module registers its converters."""

from __future__ import annotations

from importlib import import_module

__all__ = ["load_converters"]

_FAMILIES = (
    "attention",
    "cast",
    "constant",
    "control",
    "convolution",
    "deform",
    "einsum",
    "elementwise",
    "fourier",
    "gather",
    "grid",
    "linear",
    "loss",
    "ml",
    "ml_labels",
    "ml_svm",
    "ml_trees",
    "microsoft_attention",
    "microsoft_convolution",
    "microsoft_decoding",
    "microsoft_elementwise",
    "microsoft_experts",
    "microsoft_forerunners",
    "microsoft_gather",
    "microsoft_grouped_attention",
    "microsoft_normalization",
    "microsoft_positions",
    "microsoft_products",
    "microsoft_quantization",
    "microsoft_recurrent",
    "microsoft_sparse_attention",
    "microsoft_text",
    "normalization",
    "optimizer",
    "optional",
    "padding",
    "pooling",
    "quantization",
    "random",
    "recurrent",
    "reduction",
    "resize",
    "scan",
    "sequence",
    "shape",
    "signal",
    "softmax",
    "strings",
    "text",
    "selection",
    "vision",
)


def load_converters() -> None:
    """Register all converters; again is free."""
    for family in _FAMILIES:
        import_module(f"frontends.onnx.ops.{family}")
