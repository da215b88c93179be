"""Concatenating and padding kernels have as few dimensions as possible, and equal results."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.relay.interpreter import evaluate
from relayc.relay.lowering.collapse_index_maps import CollapseIndexMaps
from relayc.te.ir import PassContext


def merged(body: relay.Expr, *params: relay.Var) -> tuple[list[tuple[int, ...]], relay.Call]:
    """Shapes of the parameters, and the remaining concatenation or padding; results are compared."""
    function = relay.Function(params, body)
    changed = CollapseIndexMaps().transform(function, PassContext.current())
    random = np.random.default_rng(0)
    feeds = [random.integers(0, 2, p.tensor_type.static_shape).astype(str(p.tensor_type.dtype)) for p in params]
    shaped = [
        a.reshape(p.tensor_type.static_shape).astype(str(p.tensor_type.dtype))
        for a, p in zip(feeds, changed.params, strict=True)
    ]
    assert np.array_equal(np.ravel(evaluate(changed, shaped)), np.ravel(evaluate(function, feeds)))
    exprs = relay.analysis.evaluation_order(changed.body)
    moves = [e for e in exprs if isinstance(e, relay.Call) and e.operator.name in ("nn.pad", "concatenate")]
    return [p.tensor_type.static_shape for p in changed.params], moves[0]


def var(name: str, *shape: int, dtype: str = "float32") -> relay.Var:
    return relay.var(name, shape=shape, dtype=dtype)


@pytest.mark.parametrize(
    ("shape", "widths", "small", "kept"),
    [
        ((2, 3, 4, 5), ((0, 0), (0, 0), (1, 1), (2, 0)), (6, 4, 5), ((0, 0), (1, 1), (2, 0))),
        ((2, 4, 5, 3), ((0, 0), (1, 1), (1, 2), (0, 0)), (2, 4, 15), ((0, 0), (1, 1), (3, 6))),
        ((2, 3, 4, 5), ((0, 0), (0, 0), (0, 0), (0, 1)), (24, 5), ((0, 0), (0, 1))),
        ((2, 3, 4, 5), ((0, 1), (0, 0), (0, 0), (0, 0)), (120,), ((0, 60),)),
        ((3, 1024), ((1, 1), (0, 0)), (3, 1024), ((1, 1), (0, 0))),  # padding by whole rows, pages of them
        ((2, 3, 8, 128), ((0, 0), (2, 0), (0, 0), (0, 0)), (2, 3, 1024), ((0, 0), (2, 0), (0, 0))),
        ((2, 4, 5, 3), ((0, 0), (-1, 1), (0, -2), (0, 0)), (2, 4, 15), ((0, 0), (-1, 1), (0, -6))),
    ],
    ids=str,
)
def test_dimensions_after_a_padded_one_become_part_of_its_elements(shape, widths, small, kept) -> None:
    x = var("x", *shape)
    shapes, move = merged(relay.nn.pad(x, widths, 3.0), x)
    assert shapes == [small] and move.op.pad_width == kept


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
def test_reflect_padding_copies_single_elements(mode) -> None:
    x = var("x", 2, 3, 5, 4, 2)
    widths = ((0, 0), (0, 0), (1, 1), (0, 0), (0, 0))
    shapes, move = merged(relay.nn.pad(x, widths, pad_mode=mode), x)
    assert shapes == [(6, 5, 8)] and move.op.pad_width == ((0, 0), (1, 1), (0, 0))


@pytest.mark.parametrize(
    ("shape", "axis", "small", "kept"),
    [
        ((2, 3, 4, 2), 2, (6, 8), 1),  # two elements behind are part of the concatenated dimension
        ((2, 3, 4, 5), -1, (24, 5), 1),
        ((2, 3, 7, 9), 1, (2, 3, 63), 1),  # whole planes are rows
        ((4, 5), 0, (20,), 0),
    ],
    ids=str,
)
def test_concatenated_tensors(shape, axis, small, kept) -> None:
    x, y = var("x", *shape), var("y", *shape)
    shapes, move = merged(relay.concatenate([x, y], axis), x, y)
    assert shapes == [small, small] and move.op.axis == kept


def test_elementwise_operators_follow() -> None:
    x, y = var("x", 2, 3, 4, 5), var("y", 2, 3, 4, 5)
    padded = relay.nn.pad(relay.add(x, y), ((0, 0), (0, 0), (0, 0), (1, 1)))
    shapes, _ = merged(relay.nn.relu(padded), x, y)
    assert shapes == [(24, 5), (24, 5)]


def test_broadcasts_are_unchanged() -> None:
    x, scale = var("x", 2, 3, 4, 5), var("scale", 3, 1, 1)
    padded = relay.nn.pad(relay.multiply(x, scale), ((0, 0), (0, 0), (0, 0), (1, 1)))
    assert merged(padded, x, scale)[0] == [(2, 3, 4, 5), (3, 1, 1)]


def test_bools_move_as_bytes() -> None:
    x, y = var("x", 6, 5, dtype="bool"), var("y", 6, 3, dtype="bool")
    _, move = merged(relay.concatenate([x, y], 1), x, y)
    assert str(move.tensor_type.dtype) == "uint8"
