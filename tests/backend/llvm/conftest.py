"""Fixtures that run one program through the interpreter of the loop IR and through LLVM."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from relayc.backend.llvm.build import build
from relayc.backend.runtime import nd
from relayc.backend.target import Target
from relayc.te.ir import IRModule
from relayc.te.tir import PrimFunc
from relayc.te.tir.interpreter import interpret

RunBoth = Callable[..., list[tuple[np.ndarray, np.ndarray]]]


@pytest.fixture(scope="session")
def host() -> Target:
    return Target("llvm")


@pytest.fixture
def run_llvm(host: Target) -> Callable[..., list[np.ndarray]]:
    """A function that runs a kernel on copies of arrays and returns the arrays."""

    def run(func: PrimFunc, *args: np.ndarray | int | float, target: Target = host) -> list[np.ndarray]:
        placed = [nd.array(a) if isinstance(a, np.ndarray) else a for a in args]
        build(IRModule({func.name: func}), target)[func.name](*placed)
        return [a.numpy() if isinstance(a, nd.NDArray) else np.asarray(a) for a in placed]

    return run


@pytest.fixture
def run_both(run_llvm: Callable[..., list[np.ndarray]]) -> RunBoth:
    """A function that returns pairs (LLVM's, the interpreter's) of every array after the run."""

    def run(func: PrimFunc, *args: np.ndarray | int | float) -> list[tuple[np.ndarray, np.ndarray]]:
        expected = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        interpret(func, *expected)
        return list(zip(run_llvm(func, *args), [np.asarray(e) for e in expected], strict=True))

    return run
