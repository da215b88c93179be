"""Which cache lines a kernel prefetches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from relayc.te.ir import collect
from relayc.te.tir import BufferLoad, Call, PrimFunc
from relayc.te.tir.interpreter import Interpreter

__all__ = ["Prefetched"]


class Prefetched(Interpreter):
    """Counts how often each cache line of a buffer is prefetched."""

    def __init__(self, function: PrimFunc, buffer: str, arguments: tuple[np.ndarray, ...]) -> None:
        super().__init__({function.name: function})
        self.buffer, self.lines = buffer, Counter[int]()
        self.call(function, arguments)

    def visit_Call(self, node: Call) -> Any:
        if node.op != "prefetch":
            return super().visit_Call(node)
        (load,) = collect(node, BufferLoad)
        if load.buffer.name == self.buffer:
            self.lines[self.visit(load.indices[0]) * load.buffer.dtype.nbytes // 64] += 1
        return 0
