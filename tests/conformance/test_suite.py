"""What the comparison with ONNX's recorded results refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conformance.suite import Suite, WrongTypeError

ONES = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("have", "want"),
    [
        ([], [ONES]), ([None], [ONES]), ([ONES], [None]), ([ONES], [[ONES]]), ([[ONES]], [[ONES, ONES]]),
        ([ONES[:2]], [ONES]), ([ONES.astype(np.float64)], [ONES]), ([ONES], [np.array(["a", "b", "c"], object)]),
    ],
)  # fmt: skip
def test_other_types_are_refused(have: list[Any], want: list[Any]):
    with pytest.raises(WrongTypeError):
        Suite.assert_similar_outputs(want, have, 1e-3, 1e-7)


@pytest.mark.parametrize(
    ("have", "want"),
    [(ONES, ONES * 1.01), (ONES.astype(np.int32), np.array([1, 1, 2], np.int32)), (ONES > 0, ONES > 1)],
)
def test_other_values_differ(have: np.ndarray, want: np.ndarray):
    Suite.assert_similar_outputs([want], [want], 1e-3, 1e-7)
    with pytest.raises(AssertionError):
        Suite.assert_similar_outputs([want], [have], 1e-3, 1e-7)


@pytest.mark.parametrize(
    ("listed", "outcome", "agrees"),
    [
        ("random", "passed", True), ("random", "differs", True), ("random", "fails", False),
        ("differs", "passed", False), ("differs", "differs", True), ("unsupported", "differs", False),
        (None, "passed", True), (None, "differs", False),
    ],
)  # fmt: skip
def test_an_outcome_agrees_with_the_list(listed, outcome, agrees, monkeypatch):
    class Fixed(Suite):
        def __init__(self) -> None:  # no cases
            pass

        def run(self, name: str) -> tuple[str, str]:
            return outcome, "text"

    monkeypatch.setattr("tests.conformance.suite.not_passed", lambda: {"case": listed} if listed else {})
    assert bool(Fixed().problem("case")) != agrees
