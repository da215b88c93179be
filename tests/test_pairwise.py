"""The part of a product of parametrisations that is run has every pair of values."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import pytest

from tests.pairwise import covering, pairwise


@pytest.mark.parametrize("sizes", [(2, 2, 2), (9, 4, 3), (2, 3, 4, 5), (6, 1, 2, 2)], ids=str)
def test_every_pair_of_values_is_covered(sizes: tuple[int, ...]) -> None:
    rows = list(product(*map(range, sizes)))
    chosen = covering(rows)
    assert chosen == sorted(set(chosen))
    for first, second in combinations(range(len(sizes)), 2):
        wanted = set(product(range(sizes[first]), range(sizes[second])))
        assert {(rows[i][first], rows[i][second]) for i in chosen} == wanted


def test_few_rows_are_needed() -> None:
    assert len(covering(list(product(range(2), repeat=3)))) == 4
    assert len(covering(list(product(range(9), range(4), range(3))))) <= 40


PRODUCT = """
import pytest

@pytest.mark.parametrize("a", [0, 1])
@pytest.mark.parametrize(("b", "c"), [(0, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("d", [0, 1])
def test_product(a, b, c, d):
    pass
"""


def test_names_that_are_parametrised_together_are_one(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Three values by two by two: six of the twelve combinations."""
    (tmp_path / "test_product.py").write_text(PRODUCT)
    file = pytest.Module.from_parent(request.session, path=tmp_path / "test_product.py")
    kept, left_out = pairwise([item for item in file.collect() if isinstance(item, pytest.Item)])
    assert (len(kept), len(left_out)) == (6, 6)
    assert pairwise(kept[:1]) == (kept[:1], [])
