"""relayc for PyTorch: the backend of `torch.compile`, and torch's modules as models."""

from __future__ import annotations

from relayc.torch.dynamo import relayc_backend
from relayc.torch.errors import TorchExportError

__all__ = ["TorchExportError", "relayc_backend"]
