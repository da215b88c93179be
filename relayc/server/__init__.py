"""A server of models by HTTP, with the Open Inference Protocol, version 2 (KServe, Triton).

`relayc serve` starts it. In Python: models go into a `Repository`, `serve` listens, `create_app` makes an ASGI
application for another server. A `ModelRunner` of your own is served like a compiled model. It needs
``pip install 'relayc[serve]'``.
"""

from __future__ import annotations

from relayc.server.app import create_app
from relayc.server.bodies import Limits
from relayc.server.errors import ServerError
from relayc.server.repository import ModelFile, Repository, ServedModel, find_models
from relayc.server.runners import CompiledRunner, ModelRunner, Stop
from relayc.server.scheduler import ModelOptions
from relayc.server.serving import serve
from relayc.server.tensors import TensorSpec

__all__ = [
    "CompiledRunner", "Limits", "ModelFile", "ModelOptions", "ModelRunner", "Repository", "ServedModel", "ServerError",
    "Stop", "TensorSpec", "create_app", "find_models", "serve",
]  # fmt: skip
