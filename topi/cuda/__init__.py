"""Schedules for NVIDIA GPUs. Importing the package registers them."""

from topi.cuda import products, stagewise

__all__ = ["products", "stagewise"]
