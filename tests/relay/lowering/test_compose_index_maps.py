"""Kernels of several transposes and reshapes become one transposition with equal results."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.relay.interpreter import evaluate
from relayc.relay.lowering.compose_index_maps import ComposeIndexMaps
from relayc.relay.op.transform import Reshape, Transpose
from relayc.te.ir import PassContext


def composed(body: relay.Expr, x: relay.Var) -> list[str]:
    """The remaining operators, producers first; results are compared."""
    function = relay.Function((x,), body)
    changed = ComposeIndexMaps().transform(function, PassContext.current())
    data = np.arange(np.prod(x.tensor_type.static_shape), dtype=np.float32)
    shapes = [p.tensor_type.static_shape for p in (x, changed.params[0])]
    results = [evaluate(f, [data.reshape(s)]) for f, s in zip((function, changed), shapes, strict=True)]
    expected, found = [np.ravel(r) for r in results]
    np.testing.assert_array_equal(found, expected)
    return [e.operator.name for e in relay.analysis.evaluation_order(changed.body) if isinstance(e, relay.Call)]


def var(*shape: int) -> relay.Var:
    return relay.var("x", shape=shape, dtype="float32")


def test_depth_to_space_between_layouts_is_one_transposition() -> None:
    x = var(2, 2, 3, 4, 5, 7)
    inside = relay.reshape(relay.transpose(x, (0, 4, 1, 5, 2, 3)), (2, 10, 21, 4))
    y = relay.transpose(inside, (0, 3, 1, 2))
    assert composed(y, x) == ["transpose"]
    changed = ComposeIndexMaps().transform(relay.Function((x,), y), PassContext.current())
    assert isinstance(changed.body, relay.Call) and isinstance(changed.body.op, Transpose)
    assert changed.body.op.axes == (0, 3, 4, 1, 5, 2)


@pytest.mark.parametrize(
    ("shape", "newshape", "axes"),
    [((6, 4, 1, 8), (2, 3, 2, 2, 2, 4), (5, 0, 4, 2, 1, 3)), ((24, 10), (4, 60), (1, 0)), ((4, 9), (6, 6), (1, 0)),
     ((2, 3, 5), (6, 1, 5), (2, 1, 0)), ((1, 1), (1,), (0,))],
)  # fmt: skip
def test_dimensions_are_factored_by_divisors(shape, newshape, axes) -> None:
    x = var(*shape)
    transposed = relay.transpose(x, tuple(range(len(shape)))[::-1])
    y = relay.transpose(relay.reshape(transposed, newshape), axes)
    composed(y, x)
    first = relay.transpose(relay.reshape(x, newshape), axes)
    composed(first, x)


def test_elementwise_operators_stay_before_and_after() -> None:
    x = var(4, 6)
    y = relay.nn.relu(relay.transpose(relay.reshape(relay.transpose(relay.exp(x)), (2, 3, 4)), (1, 0, 2)))
    assert composed(relay.multiply(y, relay.const(np.float32(2))), x) == ["exp", "transpose", "nn.relu", "multiply"]


def test_other_functions_are_unchanged() -> None:
    x = var(4, 9)
    uneven = relay.transpose(relay.reshape(relay.transpose(x), (6, 6)))  # 9 rows of 4 become 6 of 6: no common factors
    function = relay.Function((x,), uneven)
    assert ComposeIndexMaps().transform(function, PassContext.current()) is function
    twice = relay.Function((x,), relay.add(relay.reshape(relay.transpose(x), (4, 9)), x))
    assert ComposeIndexMaps().transform(twice, PassContext.current()) is twice
    plain = relay.Function((x,), relay.transpose(x))
    assert ComposeIndexMaps().transform(plain, PassContext.current()) is plain
    strided = relay.Function((x,), relay.reshape(relay.transpose(x), (36,)), {"strides": ((18, 1), None)})
    assert ComposeIndexMaps().transform(strided, PassContext.current()) is strided
    assert any(isinstance(e, relay.Call) and isinstance(e.op, Reshape) for e in relay.analysis.evaluation_order(uneven))
