"""RepeatElements: a gather along the last dimension in even steps is a repeat; other gathers stay."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.relay.expr import Expr, Function, Var
from relayc.relay.interpreter import evaluate
from relayc.relay.transform import PassContext, RepeatElements

EXTENT = 6


def names(e: Expr) -> list[str]:
    """The operators of a chain of calls, outermost first."""
    return [e.op.name, *names(e.args[0])] if isinstance(e, relay.Call) else []  # type: ignore[union-attr]


def changed(indices: np.ndarray, axis: int = 1) -> list[str]:
    x = Var("x", relay.TensorType((5, EXTENT), "float32"))
    before = Function((x,), relay.take(x, relay.const(indices), axis=axis, mode="fast"))
    after = RepeatElements().transform(before, PassContext())
    a = np.random.default_rng(0).standard_normal((5, EXTENT)).astype("float32")
    np.testing.assert_array_equal(evaluate(after, [a]), evaluate(before, [a]))
    return names(after.body)


@pytest.mark.parametrize("times", [2, 3, 5])
def test_elements_are_repeated(times) -> None:
    assert changed(np.arange(times * EXTENT) // times) == ["repeat"]


@pytest.mark.parametrize("times", [2, 3, 4])
def test_adjacent_elements_of_linear_resizes_are_repeated_with_padding(times) -> None:
    low = np.floor((np.arange(times * EXTENT) + 0.5) / times - 0.5).astype(np.int64)
    assert changed(np.clip(low, 0, EXTENT - 1)) == ["strided_slice", "repeat", "nn.pad"]
    assert changed(np.clip(low + 1, 0, EXTENT - 1)) == ["strided_slice", "repeat", "nn.pad"]


@pytest.mark.parametrize("indices", [[0, 2, 4], [1, 3, 5], [1, 4], [0, 5]], ids=str)
def test_even_strides_are_a_slice(indices) -> None:
    assert changed(np.array(indices)) == ["strided_slice"]


def test_wider_filters_repeat_with_wider_padding() -> None:
    low = np.floor((np.arange(2 * EXTENT) + 0.5) / 2 - 0.5).astype(np.int64)
    for offset in (-1, 2):
        assert changed(np.clip(low + offset, 0, EXTENT - 1)) == ["strided_slice", "repeat", "nn.pad"]


@pytest.mark.parametrize(
    "indices",
    [[0, 0, 1, 1, 2, 2], [5, 4, 3, 2, 1, 0], [0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 5, 5], [0] * 12, [0, 2, 5], [1]],
    ids=str,
)
def test_other_positions_stay(indices) -> None:
    assert changed(np.array(indices)) == ["take"]


def test_other_dimensions_stay() -> None:
    assert changed(np.arange(10) // 2, axis=0) == ["take"]
