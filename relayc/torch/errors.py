"""Errors of the interface for PyTorch."""

from __future__ import annotations

from relayc.runtime import RelaycError

__all__ = ["TorchExportError"]


class TorchExportError(RelaycError):
    """Torch can't express the graph in ONNX; the text is torch's reason."""
