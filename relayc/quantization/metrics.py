"""The error measure of quantisation, which adds up over runs."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["relative_error", "squared_error"]

Array = np.ndarray[Any, Any]


def squared_error(exact: Array, value: Array) -> tuple[float, float]:
    """Sums of squares, of the difference of two arrays and of the exact one; infinite where the shapes differ.

    Of types other than floats each element counts as one, and differs or not.
    """
    if exact.shape != value.shape:
        return float("inf"), 1.0
    if exact.dtype.kind != "f":
        return float((exact != value).sum()), float(exact.size)
    wide = exact.astype(np.float64)
    return float(np.square(value - wide).sum()), float(np.square(wide).sum())


def relative_error(difference: float, exact: float) -> float:
    """The relative L2 error of sums of squares; the absolute one where all exact values are zero."""
    return float(np.sqrt(difference / exact if exact else difference))
