"""JoinSlices: a concatenation of strided slices of a tensor is a transposition; other concatenations stay."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.relay.expr import Call, Expr, Function, Var
from relayc.relay.interpreter import evaluate
from relayc.relay.transform import JoinSlices, PassContext, SimplifyExpr


def names(e: Expr) -> list[str]:
    """The operators of a chain of calls, outermost first."""
    return [e.operator.name, *names(e.args[0])] if isinstance(e, Call) else []


def changed(shape: Sequence[int], firsts: Sequence[Sequence[int]], steps: Sequence[int], axis: int) -> list[str]:
    x = Var("x", relay.TensorType(tuple(shape), "float32"))
    parts = [relay.strided_slice(x, list(first), list(shape), list(steps)) for first in firsts]
    before = Function((x,), relay.concatenate(parts, axis=axis))
    after = JoinSlices().transform(before, PassContext())
    a = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(evaluate(after, [a]), evaluate(before, [a]))
    return names(after.body)


MOVED = ["reshape", "transpose", "reshape"]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("rows_first", [True, False])
def test_blocks_of_planes(axis, rows_first) -> None:
    places = list(itertools.product(range(2), range(3)))
    order = places if rows_first else sorted(places, key=lambda p: p[::-1])
    assert changed((2, 3, 8, 9), [(0, 0, *p) for p in order], (1, 1, 2, 3), axis) == MOVED


def test_slices_along_the_concatenated_dimension() -> None:
    assert changed((5, 12), [(0, i) for i in range(4)], (1, 4), 1) == MOVED


@pytest.mark.parametrize(
    ("shape", "firsts", "steps"),
    [((5, 13), [(0, 0), (0, 1)], (1, 2)), ((5, 12), [(0, 1), (0, 0)], (1, 2)), ((5, 12), [(0, 0), (0, 0)], (1, 2)),
     ((5, 12), [(0, 0), (0, 1)], (1, 3)), ((4, 4), [(0, 0), (1, 0), (1, 1), (0, 1)], (2, 2)),
     ((5, 12), [(0, 0), (0, 6)], (1, 1))],
)  # fmt: skip
def test_other_concatenations_stay(shape, firsts, steps) -> None:
    assert changed(shape, firsts, steps, 1)[0] == "concatenate"


@pytest.mark.parametrize(("axis", "first", "second", "expected"), [
    (0, (3, 4), (0, 3), "roll"), (1, (2, 5), (0, 2), "roll"), (-2, (2, 5), (0, 2), "roll"),
    (2, (2, 6), (0, 2), "roll"),
    (1, (2, 5), (0, 1), "concatenate"), (1, (0, 3), (3, 5), "concatenate"), (1, (2, 5), (1, 3), "concatenate"),
])  # fmt: skip
def test_swapped_ends_are_a_roll(axis: int, first, second, expected: str) -> None:
    x = Var("x", relay.TensorType((4, 5, 6), "float32"))
    parts = [relay.strided_slice(x, [b], [e], axes=[axis]) for b, e in (first, second)]
    before = Function((x,), relay.concatenate(parts, axis=axis))
    after = JoinSlices().transform(before, PassContext())
    a = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
    np.testing.assert_array_equal(evaluate(after, [a]), evaluate(before, [a]))
    assert names(after.body)[0] == expected


@pytest.mark.parametrize("shape", [(100,), (2, 20000)])
def test_the_ends_of_long_rows_are_copied(shape: tuple[int, ...]) -> None:
    x = Var("x", relay.TensorType(shape, "float32"))
    parts = [relay.strided_slice(x, [b], [e], axes=[-1]) for b, e in ((7, shape[-1]), (0, 7))]
    after = JoinSlices().transform(Function((x,), relay.concatenate(parts, -1)), PassContext())
    assert names(after.body)[0] == "concatenate"


def test_two_rolls_are_one_kernel() -> None:
    x = Var("x", relay.TensorType((2, 8, 8, 32), "float32"))
    y: Expr = x
    for axis in (1, 2):
        parts = [relay.strided_slice(y, [b], [e], axes=[axis]) for b, e in ((3, 8), (0, 3))]
        y = relay.concatenate(parts, axis)
    lib = relay.build(Function((x,), y), "llvm")
    assert lib.build_report.nodes == 1
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)), 1)
    a = np.random.default_rng(0).standard_normal((2, 8, 8, 32), dtype=np.float32)
    module.set_input("x", a)
    module.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), np.roll(a, (-3, -3), (1, 2)))


def test_slices_of_different_tensors_stay_concatenated() -> None:
    x, y = [Var(name, relay.TensorType((4, 6), "float32")) for name in "xy"]
    parts = [relay.strided_slice(v, [0, i], [4, 6], [1, 2]) for i, v in enumerate((x, y))]
    function = Function((x, y), relay.concatenate(parts, axis=1))
    assert names(JoinSlices().transform(function, PassContext()).body)[0] == "concatenate"


@pytest.mark.parametrize(
    ("inner", "outer"),
    [(([0, 1], [9, 20], [2, 3]), ([1, 0], [4, 6], [1, 2])), (([1, 2], [9, 19], [1, 1]), ([0, 1], [8, 17], [3, 4])),
     (([1, 2], [9, 19], [3, 5]), ([0, 1], [3, 4], [1, 1]))],
)  # fmt: skip
def test_a_slice_of_a_slice_is_one(inner, outer) -> None:
    x = Var("x", relay.TensorType((9, 20), "float32"))
    before = Function((x,), relay.strided_slice(relay.strided_slice(x, *inner), *outer))
    after = SimplifyExpr().transform(before, PassContext())
    a = np.arange(180, dtype=np.float32).reshape(9, 20)
    np.testing.assert_array_equal(evaluate(after, [a]), evaluate(before, [a]))
    assert names(after.body) == ["strided_slice"]
