"""LLVM compiles kernels while others are being lowered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relayc import relay
from relayc.backend.llvm.compiler import Compiler
from relayc.relay.lowering import compile_kernels


def test_the_first_kernel_is_compiled_while_the_second_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, in_time = threading.Event(), list[bool]()
    compile_one: Callable[..., Any] = Compiler.object_code
    lower_one: Callable[..., Any] = compile_kernels.lower

    def object_code(*arguments: Any) -> Any:
        begun.set()
        return compile_one(*arguments)

    def lower(*arguments: Any) -> Any:
        if in_time:
            in_time.append(begun.wait(timeout=10))
        else:
            in_time.append(not begun.is_set())
        return lower_one(*arguments)

    monkeypatch.setattr(Compiler, "object_code", object_code)
    monkeypatch.setattr(compile_kernels, "lower", lower)
    x = relay.var("x", (4, 8))
    y = relay.nn.dense(x, relay.const(np.ones((6, 8), np.float32)))
    relay.build(relay.Function((x,), relay.nn.dense(relay.nn.softmax(y), relay.const(np.ones((3, 6), np.float32)))))
    assert len(in_time) >= 2 and all(in_time)
