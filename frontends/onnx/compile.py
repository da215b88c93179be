"""From an ONNX model to a compiled one in a single call."""

from __future__ import annotations

import os
from collections.abc import Sequence

from onnx import ModelProto

from relayc import relay
from relayc.backend.runtime.artifact import CompiledModel
from relayc.frontends.onnx.importer import from_onnx
from relayc.frontends.onnx.inputs import ShapeOverride
from relayc.te.ir import PassContext

__all__ = ["compile_onnx"]


def compile_onnx(
    model: ModelProto | bytes | str | os.PathLike[str],
    *,
    target: str = "llvm",
    shape: ShapeOverride | None = None,
    opt_level: int = 3,
    disabled_pass: Sequence[str] = (),
) -> CompiledModel:
    """Import and compile a model: `from_onnx`, then `relay.build` with a `PassContext`. Raises what they raise."""
    module, params = from_onnx(model, shape=shape)
    with PassContext(opt_level=opt_level, disabled_pass=disabled_pass):
        return relay.build(module, target, params)
