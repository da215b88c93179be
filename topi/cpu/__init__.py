"""Schedules for CPUs. Importing the package registers them."""

from topi.cpu import (
    across_groups,
    attention,
    bits,
    channelwise,
    conv2d,
    depthwise,
    extremum,
    injective,
    log_sum_exp,
    lrn,
    matmul,
    moments,
    pooling,
    reduction,
    rows,
    stagewise,
    standardize,
    winograd,
)

__all__ = [
    "across_groups", "attention", "bits", "channelwise", "conv2d", "depthwise", "extremum", "injective",
    "log_sum_exp", "lrn", "matmul", "moments", "pooling", "reduction", "rows", "stagewise", "standardize", "winograd",
]  # fmt: skip
