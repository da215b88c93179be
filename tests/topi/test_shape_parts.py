"""Which dimensions of two shapes of one size hold the same elements."""

from __future__ import annotations

import pytest

from relayc.te.tir import Dim, SizeVar, as_dim
from relayc.topi.utils import matching_parts

N, M = SizeVar("n"), SizeVar("m")


@pytest.mark.parametrize(
    ("a", "b", "lengths"),
    [
        ((2, 3, N), (6, N), [(2, 1), (1, 1)]),
        ((as_dim(N * 8), M, 16), (as_dim(N * 2), 4, M, 16), [(1, 2), (1, 1), (1, 1)]),
        ((as_dim(N * M), 16), (N, M, 4, 4), [(1, 2), (1, 2)]),
        ((as_dim(N * M * 4), 3), (M, as_dim(N * 4), 3), [(1, 2), (1, 1)]),
        ((as_dim(N + 1), 6), (as_dim((N + 1) * 2), 3), [(2, 2)]),
    ],
)  # fmt: skip
def test_parts_end_where_the_products_of_sizes_are_equal(
    a: tuple[Dim, ...], b: tuple[Dim, ...], lengths: list[tuple[int, int]]
) -> None:
    assert [(x.stop - x.start, y.stop - y.start) for x, y in matching_parts(a, b)] == lengths
