"""Fixtures of the topi tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import te
from backend.target import Target
from te.ir import IRModule
from te.tir.block_interpreter import BlockInterpreter
from topi.registry import schedule_for


@pytest.fixture(scope="session")
def sm_90() -> Target:
    return Target("cuda -arch=sm_90")


@pytest.fixture
def lower_cuda(sm_90: Target) -> Callable[..., IRModule]:
    """Lowers outputs with the schedule that they get on a GPU."""

    def lower(inputs: Sequence[te.Tensor], outputs: Sequence[te.Tensor]) -> IRModule:
        return te.lower(schedule_for(list(outputs), sm_90), [*inputs, *outputs])

    return lower


@pytest.fixture
def run_cuda(lower_cuda: Callable[..., IRModule]) -> Callable[..., list[np.ndarray]]:
    """Lowers outputs for a GPU and interprets the threads of each block on arrays; gives the results."""

    def run(inputs: Sequence[te.Tensor], outputs: Sequence[te.Tensor], *arrays: np.ndarray) -> list[np.ndarray]:
        module = lower_cuda(inputs, outputs)
        sizes = {d: n for t, a in zip(inputs, arrays, strict=True) for d, n in zip(t.shape, a.shape, strict=True)}
        results = [np.zeros([sizes.get(d, d) for d in t.shape], str(t.dtype)) for t in outputs]
        BlockInterpreter(module, check_uninitialized=True)("main", *arrays, *results)
        return results

    return run
