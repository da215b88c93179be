"""Schedules for NVIDIA GPUs. Importing the package registers them."""

from topi.cuda import stagewise

__all__ = ["stagewise"]
