"""Schedules for CPUs. Importing the package registers them."""

from topi.cpu import (
    attention,
    bits,
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
    "attention", "bits", "conv2d", "depthwise", "injective", "matmul", "normalization", "pooling", "reduction",
    "stagewise", "winograd",
]  # fmt: skip
