"""Tags of compute definitions: properties of an operation that schedules rely on without reading its formula."""

from __future__ import annotations

__all__ = [
    "BROADCAST", "COMM_REDUCE", "COMM_REDUCE_IDX", "ELEMWISE", "INJECTIVE", "LOG_SUM_EXP", "PACK", "PAD", "VARIANCE",
    "is_broadcast", "is_injective",
]  # fmt: skip

ELEMWISE = "elemwise"
"""Output element i reads input elements i."""
BROADCAST = "broadcast"
"""Output axes map in order onto input axes, some of them repeated."""
INJECTIVE = "injective"
"""Each element is computed from few elements at computed indices; cheap enough to inline."""
PAD = "pad"
"""An injective border around a tensor."""
PACK = "pack"
"""Packing of matrix rows into panels: injective, with strided reads."""
COMM_REDUCE = "comm_reduce"
"""A commutative reduction over axes."""
COMM_REDUCE_IDX = "comm_reduce_idx"
"""A commutative reduction of (index, value) pairs."""
LOG_SUM_EXP = "log_sum_exp"
"""A sum of exponentials of differences from the maximum, which is another reduction."""
VARIANCE = "variance"
"""A sum of squared differences from a mean, which is another reduction."""


def is_broadcast(tag: str) -> bool:
    """Is an operation with this tag elementwise, or broadcasting?"""
    return tag in (ELEMWISE, BROADCAST)


def is_injective(tag: str) -> bool:
    """May an operation with this tag be inlined into its consumers?"""
    return tag in (ELEMWISE, BROADCAST, INJECTIVE, PAD, PACK)
