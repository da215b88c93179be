"""The importer and the operators' numpy references as one ONNX backend: the oracle that compiles nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from relayc.frontends.onnx.backend import RelayBackend
from relayc.relay.interpreter import create_executor
from relayc.te.ir import IRModule

__all__ = ["ReferenceBackend"]

Array = np.ndarray[Any, Any]


class ReferenceBackend(RelayBackend):
    """The backend with the graph evaluated by the operators' numpy references."""

    @classmethod
    def compile_module(cls, mod: IRModule, device: str) -> Callable[[Mapping[str, Array]], list[Array]]:
        evaluate = create_executor("debug", mod).evaluate()

        def execute(arrays: Mapping[str, Array]) -> list[Array]:
            result = evaluate(*[arrays[name] for name in mod.attrs["input_names"]])
            return list(result) if isinstance(result, tuple) else [result]

        return execute
