"""The error of quantisation."""

from relayc.te.errors import CompileError

__all__ = ["QuantizationError"]


class QuantizationError(CompileError):
    """A model or its calibration data can't be quantised."""
