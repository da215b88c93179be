"""Schedules for CPUs. Importing the package registers them."""

from topi.cpu import (
    attention,
    conv2d,
    depthwise,
    injective,
    matmul,
    normalization,
    pooling,
    reduction,
    stagewise,
    winograd,
)

__all__ = [
    "attention", "conv2d", "depthwise", "injective", "matmul", "normalization", "pooling", "reduction", "stagewise",
    "winograd",
]  # fmt: skip
