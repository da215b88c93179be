"""Fixtures of the topi tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from relayc import te
from relayc.backend.cuda.build import device_passes
from relayc.backend.target import Target
from relayc.te.ir import IRModule, Sequential
from relayc.te.tir.block_interpreter import BlockInterpreter
from relayc.topi.registry import schedule_for


@pytest.fixture(scope="session")
def small_gpu() -> Target:
    """A GPU target with few multiprocessors and small blocks, which is fast to interpret."""
    return Target("cuda -arch=sm_90 -multi-processor-count=8 -max-threads-per-block=64")


@pytest.fixture
def lower_cuda(small_gpu: Target) -> Callable[..., IRModule]:
    """Lowers outputs with their GPU schedule."""

    def lower(inputs: Sequence[te.Tensor], outputs: Sequence[te.Tensor]) -> IRModule:
        return te.lower(schedule_for(list(outputs), small_gpu), [*inputs, *outputs])

    return lower


@pytest.fixture
def run_cuda(lower_cuda: Callable[..., IRModule], small_gpu: Target) -> Callable[..., list[np.ndarray]]:
    """Lowers outputs for a GPU and interprets the threads of each block on arrays; gives the results."""

    def run(inputs: Sequence[te.Tensor], outputs: Sequence[te.Tensor], *arrays: np.ndarray) -> list[np.ndarray]:
        module = Sequential(device_passes(small_gpu), "cuda")(lower_cuda(inputs, outputs))
        sizes = {d: n for t, a in zip(inputs, arrays, strict=True) for d, n in zip(t.shape, a.shape, strict=True)}
        results = [np.zeros([sizes.get(d, d) for d in t.shape], str(t.dtype)) for t in outputs]
        BlockInterpreter(module, check_uninitialized=True)("main", *arrays, *results)
        return results

    return run
