"""Schedules for NVIDIA GPUs. Importing the package registers them."""

from topi.cuda import depthwise, pooling, products, reduction, rowwise, stagewise

__all__ = ["depthwise", "pooling", "products", "reduction", "rowwise", "stagewise"]
