"""CommutePointwiseConv: 1 x 1 convolutions move to where images are small."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.relay import Call, Constant, Expr, Function, analysis, const, op, var
from relayc.relay.op import nn
from relayc.relay.transform import CommutePointwiseConv

RNG = np.random.default_rng(0)


def weights(*shape: int) -> Expr:
    return const(RNG.uniform(-1, 1, shape).astype("float32"))


def doubled(x: Expr, axis: int) -> Expr:
    """Twice as many rows or columns, each a weighted mean of two adjacent ones, as a linear resize computes them."""
    size = int(x.shape[axis])
    shape = [2 * size if i == axis else 1 for i in range(4)]
    low = const(np.repeat(np.arange(size), 2))
    high = const(np.minimum(np.repeat(np.arange(size), 2) + 1, size - 1))
    first = op.multiply(op.take(x, low, axis=axis, mode="fast"), weights(*shape))
    return op.add(first, op.multiply(weights(*shape), op.take(x, high, axis=axis, mode="fast")))


def enlarged(x: Expr) -> Expr:
    return doubled(doubled(x, 2), 3)


def convolved_shapes(function: Function) -> list[tuple[int, ...]]:
    calls = [e for e in analysis.evaluation_order(function) if isinstance(e, Call) and e.op is not None]
    return [c.args[0].tensor_type.static_shape for c in calls if getattr(c.op, "name", "") == "nn.conv2d"]


def test_convolution_moves_before_a_resize(transformed):
    x = var("x", (1, 4, 3, 5))
    after = transformed(Function((x,), nn.relu(nn.conv2d(enlarged(x), weights(6, 4, 1, 1)))), CommutePointwiseConv())
    assert convolved_shapes(after) == [(1, 4, 3, 5)]


def test_nearest_neighbours(transformed):
    x = var("x", (2, 4, 3, 3))
    near = op.take(op.take(x, const(np.arange(6) // 2), axis=2, mode="fast"), const(np.arange(6) // 2), axis=3)
    after = transformed(Function((x,), nn.conv2d(near, weights(2, 4, 1, 1))), CommutePointwiseConv())
    assert convolved_shapes(after) == [(2, 4, 3, 3)]


def test_convolution_distributes_over_a_concatenation_of_resized_images(transformed, operators):
    x, y, z = var("x", (1, 4, 2, 2)), var("y", (1, 3, 4, 4)), var("z", (1, 2, 8, 8))
    concatenated = op.concatenate([enlarged(enlarged(x)), enlarged(y), z], axis=1)
    after = transformed(Function((x, y, z), nn.conv2d(concatenated, weights(5, 9, 1, 1))), CommutePointwiseConv())
    assert sorted(convolved_shapes(after)) == [(1, 2, 8, 8), (1, 3, 4, 4), (1, 4, 2, 2)]
    assert "concatenate" not in operators(after)


@pytest.mark.parametrize("bias", [None, (16,), (1, 1, 16)])
def test_convolution_merges_with_a_dense_layer(transformed, operators, bias: tuple[int, ...] | None):
    x = var("x", (1, 12, 4))
    layer: Expr = nn.dense(x, weights(16, 4))
    layer = layer if bias is None else op.add(layer, weights(*bias))
    image = op.reshape(op.transpose(layer, (0, 2, 1)), (1, 16, 3, 4))
    after = transformed(Function((x,), nn.conv2d(image, weights(8, 16, 1, 1))), CommutePointwiseConv())
    assert "nn.conv2d" not in operators(after) and operators(after)["nn.dense"] == 1


def test_resized_projections_become_one_layer_each(transformed, operators):
    x = var("x", (1, 6, 4))
    image = op.reshape(op.transpose(nn.dense(x, weights(16, 4)), (0, 2, 1)), (1, 16, 2, 3))
    after = transformed(Function((x,), nn.conv2d(enlarged(image), weights(8, 16, 1, 1))), CommutePointwiseConv())
    assert "nn.conv2d" not in operators(after) and operators(after)["nn.dense"] == 1


def unchanged() -> dict[str, Function]:
    x = var("x", (1, 4, 4, 4))
    per_channel = op.multiply(enlarged(x), weights(4, 1, 1))
    big, twice = enlarged(x), op.concatenate([x, x], axis=1)
    return {
        "3 x 3": Function((x,), nn.conv2d(enlarged(x), weights(4, 4, 3, 3))),
        "in steps": Function((x,), nn.conv2d(enlarged(x), weights(4, 4, 1, 1), strides=2)),
        "bordered": Function((x,), nn.conv2d(enlarged(x), weights(4, 4, 1, 1), padding=1)),
        "in groups": Function((x,), nn.conv2d(enlarged(x), weights(4, 1, 1, 1), groups=4)),
        "channels weighed": Function((x,), nn.conv2d(per_channel, weights(4, 4, 1, 1))),
        "shrunk": Function((x,), nn.conv2d(op.take(x, const(np.arange(2)), axis=2), weights(4, 4, 1, 1))),
        "used elsewhere": Function((x,), op.add(nn.conv2d(big, weights(4, 4, 1, 1)), big)),
        "concatenated only": Function((x,), nn.conv2d(twice, weights(4, 8, 1, 1))),
        "two images": Function((x,), nn.conv2d(op.add(enlarged(x), enlarged(nn.relu(x))), weights(4, 4, 1, 1))),
    }


@pytest.mark.parametrize("case", unchanged())
def test_other_convolutions_stay(transformed, case: str):
    before = unchanged()[case]
    assert transformed(before, CommutePointwiseConv()) is before


def test_narrow_layers_are_not_merged(transformed):
    x = var("x", (1, 12, 16))
    image = op.reshape(op.transpose(nn.dense(x, weights(2, 16)), (0, 2, 1)), (1, 2, 3, 4))
    before = Function((x,), nn.conv2d(image, weights(16, 2, 1, 1)))
    assert transformed(before, CommutePointwiseConv()) is before
    assert isinstance(before.body.args[1], Constant)
