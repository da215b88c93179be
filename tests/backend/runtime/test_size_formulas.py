"""Sizes as artifacts hold them: formulas written once, in terms of earlier ones."""

from __future__ import annotations

import pytest

from relayc.backend.runtime.errors import ArtifactError
from relayc.backend.runtime.sizes import Size, SizeReader, SizeWriter, evaluate

HALF: Size = ("//", ("+", "n", -1), 2)


def test_equal_formulas_are_written_once_and_read_back():
    writer, shape = SizeWriter(), (3, "n", HALF, ("*", HALF, HALF), ("max", HALF, 1))
    written = writer.shape(shape)
    assert written == [3, "n", [1], [2], [3]]
    assert writer.formulas == [["+", "n", -1], ["//", [0], 2], ["*", [1], [1]], ["max", [1], 1]]
    read = SizeReader(["n"], writer.formulas).shape(written, "shape")
    assert read == shape and [evaluate(size, {"n": 9}) for size in read] == [3, 9, 4, 16, 4]


def test_formulas_in_place_as_older_artifacts_have_them():
    assert SizeReader(["n"]).size(["//", ["+", "n", -1], 2], "size") == HALF


@pytest.mark.parametrize(
    ("formulas", "text"),
    [
        ([["*", "n", 2], ["+", [1], 1]], r"formulas\[1\]"),  # not an earlier one
        ([["*", "n"]], r"formulas\[0\].*expected \[operator, size, size\]"),
        ([["^", "n", 2]], r"expected \[operator, size, size\]"),
        ([[["*"], "n", 2]], r"expected \[operator, size, size\]"),
        (["n"], r"expected \[operator, size, size\]"),
        ([["*", ["+", "n", 1], 2]], r"expected \[operator, size, size\]"),
        ([["*", "m", 2]], r"expected a size"),
        ([["*", [True], 2]], r"expected a size"),
        ([["+", "n", 1], *[["+", [i], [i]] for i in range(30)]], "at most 1048576 operators"),  # 2^30 when evaluated
        ([["+", "n", 1], *[["+", [i], 1] for i in range(300)]], "200 deep"),
    ],
)
def test_damaged_formulas_are_refused(formulas, text):
    with pytest.raises(ArtifactError, match=text):
        SizeReader(["n"], formulas, "graph.formulas")
