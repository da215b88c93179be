"""Schedules for NVIDIA GPUs. Importing the package registers them."""

from relayc.topi.cuda import (
    attention,
    block_weights,
    depthwise,
    pooling,
    products,
    reduction,
    rowwise,
    scan,
    sort,
    stagewise,
)

__all__ = [
    "attention", "block_weights", "depthwise", "pooling", "products", "reduction", "rowwise", "scan", "sort",
    "stagewise",
]  # fmt: skip
