"""The run half of the "cuda" target: nothing here knows the compiler."""

from __future__ import annotations

from backend.cuda.module import CUDAModule

__all__ = ["CUDAModule"]
