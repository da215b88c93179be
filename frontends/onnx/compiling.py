"""Import and build of an ONNX model, and the files that it is read from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from onnx import TensorProto

from relayc.backend.runtime.artifact import CompiledModel
from relayc.frontends.onnx.importer import from_onnx
from relayc.frontends.onnx.model import ModelSource
from relayc.frontends.onnx.model_file import read_model
from relayc.relay import build
from relayc.relay.transform import KeepLastPosition, find_kv_caches, find_logits
from relayc.relay.user_arguments import check_text, named_values
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext

__all__ = ["compiled", "external_locations"]


def compiled(
    model: ModelSource,
    target: Any,
    shape: Mapping[str, Any] | None,
    opt_level: int,
    config: Mapping[str, Any] | None,
    mod_name: str,
    progress: Callable[[str, int, int], None] | None,
    caches: Mapping[str, str] | str | None,
    last_position: str | None,
) -> CompiledModel:
    """The compiled model; the arguments are those of `compile_onnx`."""
    if isinstance(caches, str) and caches != "auto":
        raise CompileError(f'caches={caches!r}; expected "auto", or outputs by input')
    options = named_values(config, "config", '{"relay.winograd": "off"}')
    pairs = caches if isinstance(caches, str) else named_values(caches, "caches", '{"past": "present"}')
    if last_position is not None:
        check_text(last_position, "last_position")
    module, params = from_onnx(model, shape=shape, whole_caches=caches is not None)
    pairs = find_kv_caches(module) if isinstance(pairs, str) else pairs
    logits = find_logits(module) if last_position == "auto" else last_position
    module = KeepLastPosition(() if logits is None else (logits,))(module)
    with PassContext(opt_level=opt_level, config=options):
        return build(module, target, params, mod_name=mod_name, progress=progress, caches=pairs or None)


def external_locations(path: str | os.PathLike[str]) -> list[str]:
    """The files beside the model that hold its external data, as the model names them, sorted."""
    proto, _ = read_model(Path(path))
    return sorted(set(_locations(proto)))


def _locations(message: Message) -> Iterator[str]:
    for _, value in message.ListFields():
        for part in [value] if isinstance(value, Message) else value if _holds_messages(value) else ():
            if isinstance(part, TensorProto) and part.data_location == TensorProto.EXTERNAL:
                yield from (entry.value for entry in part.external_data if entry.key == "location")
            else:
                yield from _locations(part)


def _holds_messages(value: Any) -> bool:
    return not isinstance(value, str | bytes | int | float) and bool(value) and isinstance(value[0], Message)
