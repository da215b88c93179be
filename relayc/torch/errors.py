"""Errors of the interface for PyTorch."""

from __future__ import annotations

from relayc.te.errors import CompileError

__all__ = ["TorchExportError"]


class TorchExportError(CompileError):
    """Torch can't express the graph in ONNX; the text is torch's reason."""
