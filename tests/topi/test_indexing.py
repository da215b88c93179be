"""Chains of `take`: negative positions, and code size."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.topi.registry import schedule_for

SIZE = 24


def chain(length: int) -> tuple[list[te.Tensor], te.Tensor]:
    """`x` taken at positions that are themselves taken, `length` times; gives the inputs and the result."""
    x = te.placeholder((SIZE,), "float32", "x")
    positions = [te.placeholder((SIZE,), "int64", f"positions{i}") for i in range(length)]
    taken = positions[0]
    for more in positions[1:]:
        taken = topi.take(taken, more, 0, mode="numpy")
    return [x, *positions], topi.take(x, taken, 0, mode="numpy")


def lowered(length: int, target: str) -> te.ir.IRModule:
    inputs, result = chain(length)
    return te.lower(schedule_for([result], backend.Target(target)), [*inputs, result])


@pytest.mark.parametrize("target", ["llvm", "cuda -arch=sm_90"])
def test_code_size_of_a_chain_of_takes_is_linear(target: str) -> None:
    lengths = [len(str(lowered(n, target))) for n in (2, 4, 8)]
    assert lengths[2] - lengths[1] < 3 * (lengths[1] - lengths[0])


def test_positions_count_from_the_end_and_stay_inside() -> None:
    run = backend.build(lowered(6, "llvm"), target="llvm")
    rng = np.random.default_rng(0)
    x = rng.standard_normal(SIZE, dtype=np.float32)
    positions = [rng.integers(-SIZE - 3, SIZE + 3, SIZE) for _ in range(6)]
    got = backend.nd.empty((SIZE,), "float32")
    run(*[backend.nd.array(a) for a in (x, *positions)], got)

    def inside(at: np.ndarray) -> np.ndarray:
        return np.clip(np.where(at < 0, at + SIZE, at), 0, SIZE - 1)

    at = positions[0]
    for more in positions[1:]:
        at = at[inside(more)]
    np.testing.assert_array_equal(got.numpy(), x[inside(at)])
