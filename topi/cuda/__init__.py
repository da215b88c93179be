"""Schedules for NVIDIA GPUs. Importing the package registers them."""

from topi.cuda import pooling, products, reduction, rowwise, stagewise

__all__ = ["pooling", "products", "reduction", "rowwise", "stagewise"]
