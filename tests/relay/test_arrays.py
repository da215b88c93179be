"""Memory and copies of large arrays."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.relay.arrays import Arena, Jobs, concatenated

F32 = np.dtype("float32")


def test_arrays_of_an_arena_are_aligned_and_apart() -> None:
    arena = Arena()
    made = [arena.empty(shape, F32) for shape in ((3, 5), (), (0, 4), (1 << 22,), (7,), (1 << 20,))]
    for i, array in enumerate(made):
        array[...] = i
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
    assert all((array == i).all() for i, array in enumerate(made))
    assert [array.shape for array in made] == [(3, 5), (), (0, 4), (1 << 22,), (7,), (1 << 20,)]


def test_small_arrays_share_a_block_and_large_ones_do_not() -> None:
    arena = Arena()
    small, other, large = (arena.empty((n,), np.dtype("uint8")) for n in (100, 100, 40 << 20))
    assert other.ctypes.data - small.ctypes.data == 128
    assert small.base is other.base
    assert large.base is not small.base


@pytest.mark.parametrize("rows", [1, 5, 3000])
def test_copies_happen_when_the_jobs_run(rows: int) -> None:
    source = np.arange(rows * 1024, dtype="float32").reshape(1024, rows)
    into = np.zeros((rows, 1024), "float32")
    jobs = Jobs()
    jobs.copy(into, source.T)
    assert not into.any()
    jobs.run()
    np.testing.assert_array_equal(into, source.T)
    into[...] = 0
    jobs.run()  # nothing is left to do
    assert not into.any()


def test_what_a_job_raises_is_raised() -> None:
    jobs = Jobs()
    for _ in range(3):
        jobs.add(lambda: np.copyto(np.zeros(2), np.zeros(3)), 1 << 22)
    with pytest.raises(ValueError, match="broadcast"):
        jobs.run()


@pytest.mark.parametrize("rest", [(3,), (5, 3, 2)])
def test_arrays_are_concatenated_along_the_first_axis(rest: tuple[int, ...]) -> None:
    parts = [np.full((n, *rest), n, "float32") for n in (2, 1, 4)]
    for given in (parts, [np.asfortranarray(part) for part in parts]):
        jobs = Jobs()
        whole = concatenated(given, Arena(), jobs)
        jobs.run()
        np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert whole.T.flags.c_contiguous
