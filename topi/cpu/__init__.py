"""Schedules for CPUs. Importing the package registers them."""

from topi.cpu import conv2d, injective, matmul, pooling, reduction, stagewise

__all__ = ["conv2d", "injective", "matmul", "pooling", "reduction", "stagewise"]
