"""`compile_onnx`: from an ONNX model to a compiled model in one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextvars import Context
from importlib import import_module
from typing import TYPE_CHECKING, Any

from relayc.backend.runtime.artifact import CompiledModel
from relayc.frontends.model_cache import model_entry
from relayc.frontends.model_parts import model_parts

if TYPE_CHECKING:
    from relayc.frontends.onnx.model import ModelSource

__all__ = ["compile_onnx"]


def compile_onnx(
    model: ModelSource,
    target: Any = "llvm",
    *,
    shape: Mapping[str, Any] | None = None,
    opt_level: int = 3,
    config: Mapping[str, Any] | None = None,
    mod_name: str = "default",
    progress: Callable[[str, int, int], None] | None = None,
) -> CompiledModel:
    """Import and build a model; a model compiled before comes from the cache, without the compiler being imported.

    `model` and `shape` are those of `from_onnx`, `target`, `mod_name` and `progress` those of `relay.build`, and
    `opt_level` and `config` those of `PassContext`: surrounding contexts do not apply. A model from the cache has no
    `build_report`, and `progress` is not called for it. Raises what `from_onnx` and `relay.build` raise.
    """
    model = model_parts(model) or model  # a program's weights are taken out of it once
    entry = model_entry(model, target, shape, opt_level, config, mod_name)
    found = None if entry is None else entry.find()
    if found is not None:
        return found
    compiler = import_module("relayc.frontends.onnx.compiling")
    # a new context: none that the caller has entered is part of the key
    compiled = Context().run(compiler.compiled, model, target, shape, opt_level, dict(config or {}), mod_name, progress)
    if entry is not None:
        entry.keep(compiled, compiler.external_locations(model) if isinstance(model, str | os.PathLike) else ())
    return compiled
