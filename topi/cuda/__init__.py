"""Schedules for NVIDIA GPUs. Importing the package registers them."""

from relayc.topi.cuda import attention, depthwise, pooling, products, reduction, rowwise, scan, sort, stagewise

__all__ = ["attention", "depthwise", "pooling", "products", "reduction", "rowwise", "scan", "sort", "stagewise"]
