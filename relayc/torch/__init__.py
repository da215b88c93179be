"""relayc for PyTorch: the backend of `torch.compile`, and torch's modules as models."""

from __future__ import annotations

from relayc.torch.dynamo import relayc_backend
from relayc.torch.errors import TorchExportError
from relayc.torch.modules import compile_torch, from_torch

__all__ = ["TorchExportError", "compile_torch", "from_torch", "relayc_backend"]
