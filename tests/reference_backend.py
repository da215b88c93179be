"""The importer and the operators' numpy references as one ONNX backend: the oracle that compiles nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from relayc.frontends.onnx.backend import RelayBackend
from relayc.relay.interpreter import create_executor
from relayc.relay.versions import versions_of, without_versions
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule

__all__ = ["ReferenceBackend"]

Array = np.ndarray[Any, Any]


class ReferenceBackend(RelayBackend):
    """The backend with the graph evaluated by the operators' numpy references."""

    @classmethod
    def compile_module(cls, mod: IRModule, device: str) -> Callable[[Mapping[str, Array]], list[Array]]:
        *versions, main = [
            create_executor("debug", version).evaluate()
            for version in (*versions_of(mod).values(), without_versions(mod))
        ]

        def execute(arrays: Mapping[str, Array]) -> list[Array]:
            inputs = [arrays[name] for name in mod.attrs["input_names"]]
            for version in versions:  # as the executor does: the first that takes the inputs
                with contextlib.suppress(CompileError):
                    return _as_list(version(*inputs))
            return _as_list(main(*inputs))

        return execute


def _as_list(result: Any) -> list[Array]:
    return list(result) if isinstance(result, tuple) else [result]
