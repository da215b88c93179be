"""`compile_onnx`: from an ONNX model to a compiled model in one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextvars import Context
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.log import logger
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
    caches: Mapping[str, str] | Literal["auto"] | None = None,
    last_position: str | None = None,
    before: Callable[[], object] | None = None,
    huge_pages: bool = False,
) -> CompiledModel:
    """Import and build a model; a model compiled before comes from the cache, without the compiler being imported.

    `model` and `shape` are those of `from_onnx`, `target`, `mod_name` and `progress` those of `relay.build`, and
    `opt_level` and `config` those of `PassContext`: surrounding contexts do not apply. `caches` are those of
    `relay.build`; "auto": those that `relay.transform.find_kv_caches` finds; with any, or {}, caches of a window of
    positions are whole ones (`whole_caches` of `from_onnx`). `last_position` names an output of logits,
    (batch, positions, vocabulary), of which only the last position is computed; "auto": the one that
    `relay.transform.find_logits` finds. `before` is called when a model is about to be compiled; it may raise an error.
    A model from the cache is loaded with or without `huge_pages`, as by `load_model`; it has no `build_report`, and
    neither `before` nor `progress` is called for it; with the option "relay.explain" it is compiled anew. Raises what
    `from_onnx` and `relay.build` raise.
    """
    model = model_parts(model) or model  # a program's weights are taken out of it once
    asked = (shape, config, None if isinstance(caches, str) else caches)
    entry = None
    if all(values is None or isinstance(values, Mapping) for values in asked):  # others are errors of the compiler
        kept = tuple(sorted(caches.items(), key=repr)) if isinstance(caches, Mapping) else caches
        explains = (config or {}).get("relay.explain")  # what the cache holds doesn't say why
        of_cache = (model, target, shape, opt_level, config, mod_name, (kept, last_position))
        entry = None if explains else model_entry(*of_cache)
    found = None if entry is None else entry.find(huge_pages)
    if found is not None:
        logger().info("model %r is in the cache, for %s", mod_name, found.graph.target)
        return found
    if before is not None:
        before()
    compiler = import_module("relayc.frontends.onnx.compiling")
    # a new context: none that the caller has entered is part of the key
    compiled = Context().run(
        compiler.compiled, model, target, shape, opt_level, config, mod_name, progress, caches,
        last_position,
    )  # fmt: skip
    logger().info("model %r was compiled for %s", mod_name, compiled.graph.target)
    if entry is not None:
        entry.keep(compiled, compiler.external_locations(model) if isinstance(model, str | os.PathLike) else ())
    return compiled
