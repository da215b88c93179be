"""FoldScaleAxis, FoldPad, SimplifyInference: operators folded into weights and padding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from relayc.relay import Expr, Function, IRModule, Tuple, const, op, var
from relayc.relay.analysis import free_vars
from relayc.relay.interpreter import evaluate
from relayc.relay.op import nn
from relayc.relay.transform import FoldPad, FoldScaleAxis, SimplifyInference
from relayc.relay.transform.builders import array_of


def weights(*shape: int) -> Expr:
    return const(np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32"))


def positive(n: int) -> Expr:
    return const(np.random.default_rng(n).uniform(0.5, 2.0, n).astype("float32"))


def batch_norm(x: Expr, channels: int) -> Expr:
    return nn.batch_norm(x, positive(channels), weights(channels), weights(channels), positive(channels))[0]


def test_batch_norm_behind_a_convolution_leaves_a_bias(transformed, operators):
    x = var("x", (1, 4, 6, 6))
    y = batch_norm(nn.conv2d(x, weights(8, 4, 3, 3), padding=1), 8)
    found = operators(transformed(Function((x,), y), SimplifyInference(), FoldScaleAxis()))
    assert found == {"nn.conv2d": 1, "add": 1}


def test_a_bias_in_between_is_scaled_too(transformed, operators):
    x = var("x", (1, 4, 6, 6))
    y = op.add(nn.conv2d(x, weights(8, 2, 3, 3), groups=2), weights(8, 1, 1))
    found = operators(transformed(Function((x,), batch_norm(y, 8)), SimplifyInference(), FoldScaleAxis()))
    assert found == {"nn.conv2d": 1, "add": 1}


def test_a_batch_norm_in_small_operators_leaves_a_bias(transformed, operators):
    x, middle, deviation = var("x", (1, 4, 6, 6)), weights(8, 1, 1), const(array_of(positive(8)).reshape(8, 1, 1))
    for layer in (nn.conv2d(x, weights(8, 4, 3, 3)), op.add(nn.conv2d(x, weights(8, 4, 3, 3)), weights(8, 1, 1))):
        y = op.divide(op.subtract(layer, middle), deviation)
        y = op.add(op.multiply(y, weights(1, 8, 1, 1)), weights(8, 1, 1))
        assert operators(transformed(Function((x,), y), FoldScaleAxis())) == {"nn.conv2d": 1, "add": 1}


def test_divisions_without_a_factor_stay(transformed):
    x, zero = var("x", (1, 4, 6, 6)), np.ones((8, 1, 1), "float32")
    zero[3] = 0
    layer = nn.conv2d(x, weights(8, 4, 3, 3))
    for y in (op.divide(layer, const(zero)), op.divide(layer, weights(4, 4)), op.subtract(const(zero), layer)):
        before = Function((x,), y)
        with np.errstate(all="ignore"):
            assert transformed(before, FoldScaleAxis()) is before


def test_dense_layers_fold_along_their_units(transformed, operators):
    x = var("x", (3, 4))
    y = op.multiply(nn.dense(op.multiply(x, weights(4)), weights(5, 4)), weights(5))
    assert operators(transformed(Function((x,), y), FoldScaleAxis())) == {"nn.dense": 1}


def test_factors_that_vary_along_other_axes_stay(transformed):
    x = var("x", (1, 4, 6, 6))
    before = Function((x,), op.multiply(nn.conv2d(x, weights(6, 4, 1, 1)), weights(6, 6)))
    assert transformed(before, FoldScaleAxis()) is before


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("operator", [op.multiply, op.add, op.divide, op.subtract])
def test_constants_that_change_the_number_of_channels_stay(transformed, operator, count):
    x = var("x", (3, 4))
    layer = nn.dense(x, weights(1, 4))
    for y in (operator(layer, weights(count)), operator(op.add(layer, weights(1)), weights(count)),
              nn.dense(operator(var("x", (3, 1)), weights(count)), weights(5, count))):  # fmt: skip
        before = Function(tuple(free_vars(y)), y)
        assert "nn.dense" in str(transformed(before, FoldScaleAxis()))


def test_a_shared_convolution_is_not_scaled(transformed):
    x = var("x", (1, 4, 6, 6))
    y = nn.conv2d(x, weights(8, 4, 1, 1))
    before = Function((x,), Tuple((y, op.multiply(y, weights(8, 1, 1)))))
    assert transformed(before, FoldScaleAxis()) is before


def test_a_factor_before_a_convolution(transformed, operators):
    x = var("x", (1, 4, 6, 6))
    y = nn.conv2d(op.multiply(x, weights(4, 1, 1)), weights(8, 4, 3, 3), padding=1)
    assert operators(transformed(Function((x,), y), FoldScaleAxis())) == {"nn.conv2d": 1}


def test_pads_become_padding(transformed, operators):
    x = var("x", (1, 4, 6, 6))
    border = ((0, 0), (0, 0), (1, 0), (2, 1))
    y = nn.conv2d(nn.pad(x, border), weights(8, 4, 3, 3), padding=(0, 1, 1, 0))
    after = transformed(Function((x,), y), FoldPad())
    assert operators(after) == {"nn.conv2d": 1} and after.body.op.padding == (1, 3, 1, 1)
    z = nn.avg_pool2d(nn.pad(x, border), 2)
    assert operators(transformed(Function((x,), z), FoldPad())) == {"nn.avg_pool": 1}


def test_pads_of_channels_or_with_other_values_stay(transformed):
    x = var("x", (1, 4, 6, 6))
    for pad in (nn.pad(x, ((0, 0), (1, 0), (0, 0), (0, 0))), nn.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), 1.0)):
        before = Function((x,), nn.conv2d(pad, weights(8, int(pad.shape[1]), 3, 3)))
        assert transformed(before, FoldPad()) is before


def test_average_pooling_that_counts_its_padding_absorbs_pads(transformed, operators):
    x, border = var("x", (1, 4, 6, 6)), ((0, 0), (0, 0), (1, 0), (2, 1))
    counted = nn.avg_pool2d(nn.pad(x, border), 3, padding=1, count_include_pad=True)
    after = transformed(Function((x,), counted), FoldPad())
    assert operators(after) == {"nn.avg_pool": 1} and after.body.op.padding == (2, 3, 1, 2)
    uncounted = Function((x,), nn.avg_pool2d(nn.pad(x, border), 3, padding=1, count_include_pad=False))
    assert transformed(uncounted, FoldPad()) is uncounted


LOWEST = float("-inf")
AROUND = ((0, 0), (0, 0), (1, 0), (2, 1))

MAX_POOLS: dict[str, Callable[[Expr], Expr]] = {
    "the least number": lambda x: nn.max_pool2d(nn.pad(x, AROUND, LOWEST), 3, strides=2),
    "windows of the least number alone": lambda x: nn.max_pool2d(nn.pad(x, AROUND, LOWEST), 1),
    "rounded up": lambda x: nn.max_pool2d(nn.pad(x, AROUND, LOWEST), 3, strides=2, padding=1, ceil_mode=True),
    "zeros around a relu": lambda x: nn.max_pool2d(nn.pad(nn.relu(x), AROUND), 3, strides=2),
    "zeros around a relu, padded": lambda x: nn.max_pool2d(nn.pad(nn.relu(x), AROUND), 4, padding=1),
    "zeros around a clip": lambda x: nn.max_pool2d(nn.pad(op.clip(x, 0.0, 6.0), AROUND), 3),
    "zeros around a sum": lambda x: nn.max_pool2d(nn.pad(op.add(nn.relu(x), op.exp(x)), AROUND), 3, dilation=2),
    "zeros around what is concatenated": lambda x: nn.max_pool2d(
        nn.pad(op.concatenate([op.abs(x), nn.relu(x)], 1), AROUND), 3
    ),
    "channels last": lambda x: nn.max_pool2d(
        nn.pad(nn.relu(x), ((0, 0), (1, 1), (1, 1), (0, 0))), 3, strides=2, layout="NHWC"
    ),
}


@pytest.mark.parametrize("name", MAX_POOLS)
def test_pads_below_all_values_become_padding_of_max_pooling(transformed, operators, name: str):
    x = var("x", (1, 4, 6, 6))
    found = operators(transformed(Function((x,), MAX_POOLS[name](x)), FoldPad()))
    assert found["nn.max_pool"] == 1 and "nn.pad" not in found


def test_pads_that_may_be_the_maximum_stay(transformed):
    x, channels = var("x", (1, 4, 6, 6)), ((0, 0), (1, 1), (0, 0), (0, 0))
    for y in (
        nn.max_pool2d(nn.pad(x, AROUND), 3),  # a maximum below zero
        nn.max_pool2d(nn.pad(x, AROUND, -1e30), 3),
        nn.max_pool2d(nn.pad(nn.relu(x), AROUND, 1.0), 3),
        nn.max_pool2d(nn.pad(op.add(nn.relu(x), x), AROUND), 3),
        nn.max_pool2d(nn.pad(op.clip(x, -1.0, 6.0), AROUND), 3),
        nn.max_pool2d(nn.pad(nn.relu(x), channels), 3),
        nn.max_pool2d(nn.pad(nn.relu(x), ((0, 0), (0, 0), (-1, 1), (1, 1))), 3),
        nn.max_pool2d(nn.pad(nn.relu(x), AROUND), 2),  # windows of zeros only, of two rows
        nn.max_pool2d(nn.pad(nn.relu(x), AROUND, pad_mode="reflect"), 3),
        nn.max_pool2d(nn.pad(nn.relu(x), ((0, 0), (0, 0), (0, 2), (0, 2))), 3, strides=3, ceil_mode=True),
    ):
        before = Function((x,), y)
        assert transformed(before, FoldPad()) is before
    narrow = var("x", (1, 1, 2, 6))
    dilated = nn.max_pool2d(nn.pad(nn.relu(narrow), ((0, 0), (0, 0), (2, 2), (0, 0))), (2, 2), dilation=3)
    before = Function((narrow,), dilated)
    assert transformed(before, FoldPad()) is before, "taps on both sides of all lines"


@pytest.mark.parametrize(("kind", "value"), [("int8", -128), ("uint8", 0)])
def test_pads_of_integers(transformed, operators, kind: str, value: int):
    x = var("x", (1, 4, 6, 6), kind)
    padded = Function((x,), nn.max_pool2d(nn.pad(x, AROUND, value), 3))
    after = FoldPad()(IRModule({"main": padded}))["main"]
    assert operators(after) == {"nn.max_pool": 1}
    array = np.random.default_rng(0).integers(-128 if value else 0, 127, (1, 4, 6, 6)).astype(kind)
    np.testing.assert_array_equal(evaluate(after, [array]), evaluate(padded, [array]))


def test_nan_stays_next_to_pads():
    x = var("x", (1, 1, 4, 4))
    before = Function((x,), nn.max_pool2d(nn.pad(nn.relu(x), ((0, 0), (0, 0), (1, 1), (1, 1))), 3))
    after = FoldPad()(IRModule({"main": before}))["main"]
    assert after is not before
    array = np.zeros((1, 1, 4, 4), "float32")
    array[0, 0, 0, 0] = np.nan
    np.testing.assert_array_equal(evaluate(after, [array]), evaluate(before, [array]))
