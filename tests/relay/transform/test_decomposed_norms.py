"""RecognizePatterns: instance and group normalisations as exporters write them."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.relay import Expr, Function, Tuple, const, op, var
from relayc.relay.interpreter import evaluate
from relayc.relay.transform import ConvertLayout, RecognizePatterns, SimplifyExpr
from relayc.te.tir import SizeVar

RNG = np.random.default_rng(4)


def parameter(*shape: int) -> Expr:
    return const(RNG.standard_normal(shape).astype("float32"))


def same(before: Function, after: Function) -> None:
    arrays = [RNG.standard_normal(p.ty.shape).astype("float32") for p in before.params]
    np.testing.assert_allclose(evaluate(after, arrays), evaluate(before, arrays), rtol=1e-5, atol=1e-5)


def decomposed_group_norm(x: Expr, groups: int) -> Expr:
    ones, zeros = const(np.ones(groups, "float32")), const(np.zeros(groups, "float32"))
    normal = op.nn.instance_norm(op.reshape(x, (x.shape[0], groups, -1)), ones, zeros, epsilon=1e-6)
    return op.reshape(normal, x.shape)


@pytest.mark.parametrize("shape", [(2, 12, 3, 5), (1, 12, 7), (3, 12)])
def test_group_norm_of_reshapes(transformed, operators, shape):
    x = var("x", shape)
    channels = (12, *[1] * (len(shape) - 2))
    y = op.add(op.multiply(decomposed_group_norm(x, 4), parameter(*channels)), parameter(*channels))
    before = Function((x,), y)
    after = transformed(before, RecognizePatterns())
    assert operators(after) == {"nn.group_norm": 1}
    assert (after.body.op.num_groups, after.body.op.epsilon) == (4, 1e-6)
    same(before, after)


def test_group_norm_of_dynamic_sides(transformed, operators):
    x = var("x", (SizeVar("n"), 12, SizeVar("h"), SizeVar("w")))
    y = op.multiply(decomposed_group_norm(x, 3), parameter(12, 1, 1))
    assert operators(transformed(Function((x,), y), RecognizePatterns())) == {"nn.group_norm": 1}


def test_group_norm_with_operators_moved_behind_it(transformed, operators):
    """Elementwise operators move in front of the reshape back."""
    x, ones, zeros = var("x", (2, 12, 3, 5)), const(np.ones(6, "float32")), const(np.zeros(6, "float32"))
    normal = op.nn.instance_norm(op.reshape(x, (2, 6, -1)), ones, zeros)
    before = Function((x,), op.reshape(op.sigmoid(normal), x.shape))
    after = transformed(before, RecognizePatterns())
    assert operators(after) == {"nn.group_norm": 1, "reshape": 2, "sigmoid": 1}
    assert operators(transformed(after, SimplifyExpr())) == {"nn.group_norm": 1, "sigmoid": 1}
    same(before, after)


def test_other_reshapes_of_instance_norms_stay(transformed):
    x, ones, zeros = var("x", (2, 12, 3, 5)), const(np.ones(6, "float32")), const(np.zeros(6, "float32"))
    nine = const(np.ones(9, "float32"))
    for shape, parameters in (((4, 6, -1), (ones, zeros)), ((2, 6, 2, 15), (ones, zeros)), ((2, 9, -1), (nine, nine))):
        before = Function((x,), op.nn.instance_norm(op.reshape(x, shape), *parameters))
        assert transformed(before, RecognizePatterns()) is before


def test_scales_and_shifts_of_channels_are_parameters(transformed, operators):
    x, y = var("x", (2, 4, 3, 5)), var("y", (2, 3, 5, 4))
    first = op.nn.instance_norm(x, parameter(4), parameter(4))
    last = op.nn.group_norm(y, parameter(4), parameter(4), 2, axis=3)
    for source, norm, shape in ((x, first, (1, 4, 1, 1)), (x, first, ()), (y, last, (4,))):
        before = Function((source,), op.add(op.multiply(norm, parameter(*shape)), parameter(*shape)))
        after = transformed(before, RecognizePatterns())
        assert operators(after) == {norm.op.name: 1}
        same(before, after)
    for other in ((5,), (2, 1, 1, 1), (1, 2, 4, 3, 5)):
        before = Function((x,), op.multiply(first, parameter(*other)))
        assert transformed(before, RecognizePatterns()) is before
    before = Function((x,), op.multiply(op.add(first, parameter(4, 1, 1)), first))
    assert transformed(before, RecognizePatterns()) is before


def test_decomposed_instance_norm(transformed, operators):
    x = var("x", (2, 4, 3, 5))
    distance = op.subtract(x, op.mean(x, axis=(2, 3), keepdims=True))
    total = op.add(op.mean(op.multiply(distance, distance), axis=(2, 3), keepdims=True), const(1e-5))
    y = op.add(op.multiply(op.divide(distance, op.sqrt(total)), parameter(4, 1, 1)), parameter(4, 1, 1))
    before = Function((x,), y)
    after = transformed(before, RecognizePatterns())
    assert operators(after) == {"nn.instance_norm": 1}
    same(before, after)


@pytest.mark.parametrize("squared", ["power", "multiply"])
def test_variance(transformed, operators, squared: str):
    x = var("x", (2, 4, 3, 5))
    distance = op.subtract(x, op.mean(x, axis=(1, -1), keepdims=True))
    square = op.power(distance, const(2.0)) if squared == "power" else op.multiply(distance, distance)
    before = Function((x,), op.sqrt(op.mean(square, axis=(-1, 1))))
    after = transformed(before, RecognizePatterns())
    assert operators(after) == {"variance": 1, "sqrt": 1}
    same(before, after)
    before = Function((x,), op.mean(square, axis=1))
    assert transformed(before, RecognizePatterns()) is before


def standardized(x: Expr, axes: tuple[int, ...], epsilon: float, form: str = "divide") -> Expr:
    distance = op.subtract(x, op.mean(x, axis=axes, keepdims=True))
    total = op.add(op.mean(op.power(distance, const(2.0)), axis=axes, keepdims=True), const(epsilon))
    if form == "rsqrt":
        return op.multiply(distance, op.rsqrt(total))
    return op.divide(distance, op.sqrt(total))


@pytest.mark.parametrize("form", ["divide", "rsqrt"])
@pytest.mark.parametrize("axes", [(1,), (0, 2, 3), (0,), (1, 2)])
def test_standardization_over_other_dimensions(transformed, operators, axes: tuple[int, ...], form: str):
    x = var("x", (2, 4, 3, 5))
    y = standardized(x, axes, 1e-6, form)
    before = Function((x,), op.add(op.multiply(y, parameter(4, 1, 1)), parameter(4, 1, 1)))
    after = transformed(before, RecognizePatterns())
    assert operators(after) == {"nn.standardize": 1, "multiply": 1, "add": 1}
    same(before, after)


def test_standardization_with_a_margin(transformed, operators):
    x = var("x", (2, 4, 3, 5))
    for axes in ((0, 2, 3), (2, 3), (1,)):
        distance = op.subtract(x, op.mean(x, axis=axes, keepdims=True))
        deviation = op.sqrt(op.mean(op.multiply(distance, distance), axis=axes, keepdims=True))
        before = Function((x,), op.divide(distance, op.add(deviation, const(1e-9))))
        after = transformed(before, RecognizePatterns())
        assert operators(after) == {"nn.standardize": 1}
        same(before, after)


def test_root_mean_square_of_channels(transformed, operators):
    x = var("x", (2, 4, 3, 5))

    def scaled(axes: tuple[int, ...]) -> Expr:
        squares = op.mean(op.multiply(x, x), axis=axes, keepdims=True)
        return op.divide(x, op.sqrt(op.add(squares, const(1e-5))))

    before = Function((x,), scaled((1,)))
    after = transformed(before, RecognizePatterns())
    assert operators(after) == {"nn.standardize": 1}
    assert not after.body.op.centred
    same(before, after)
    before = Function((x,), scaled((0, 2)))
    assert transformed(before, RecognizePatterns()) is before


def test_standardization_of_the_last_dimensions_is_a_norm_of_rows(transformed, operators):
    """Layout conversion makes channels the last dimension."""
    x = var("x", (2, 3, 5, 4))
    for centred, name in ((True, "nn.layer_norm"), (False, "nn.rms_norm")):
        y = op.multiply(op.nn.standardize(x, 3, 1e-6, centred=centred), parameter(4))
        before = Function((x,), y)
        after = transformed(before, RecognizePatterns())
        assert operators(after) == {name: 1}
        same(before, after)
    with_margin = Function((x,), op.nn.standardize(x, 3, 0.0, 1e-9))
    assert transformed(with_margin, RecognizePatterns()) is with_margin


def test_dynamic_sizes_are_standardized_over_one_dimension_only(transformed, operators):
    x = var("x", (SizeVar("n"), 4, SizeVar("h"), 5))
    function = Function((x,), standardized(x, (1,), 1e-6))
    assert operators(transformed(function, RecognizePatterns())) == {"nn.standardize": 1}
    function = Function((x,), standardized(x, (0, 2, 3), 1e-6))
    assert "nn.standardize" not in operators(transformed(function, RecognizePatterns()))


def transposed_norm(x: Expr, there: tuple[int, ...], back: tuple[int, ...], channels: int, beta: bool = True) -> Expr:
    rows = op.transpose(x, there)
    parameters = [parameter(channels) for _ in range(1 + beta)]
    norm = op.nn.layer_norm(rows, *parameters) if beta else op.nn.rms_norm(rows, *parameters)
    return op.transpose(norm, back)


@pytest.mark.parametrize(
    ("there", "back", "channels"),
    [((0, 2, 3, 1), (0, 3, 1, 2), 4), ((2, 0, 3, 1), (1, 3, 0, 2), 4), ((0, 2, 1, 3), (0, 2, 1, 3), 5)],
)
def test_norms_between_transpositions_are_in_place(transformed, operators, there, back, channels):
    x = var("x", (2, 4, 3, 5))
    for beta in (True, False):
        before = Function((x,), transposed_norm(x, there, back, channels, beta))
        after = transformed(before, RecognizePatterns())
        assert "transpose" not in operators(after)
        assert after.body.ty is before.body.ty
        same(before, after)


def test_norms_between_other_transpositions_stay(transformed):
    x, square = var("x", (2, 4, 3, 5)), var("x", (2, 4, 4, 4))
    rows = op.nn.layer_norm(op.transpose(x, (0, 2, 3, 1)), parameter(4), parameter(4))
    planes = op.nn.layer_norm(op.transpose(x, (0, 2, 3, 1)), parameter(5, 4), parameter(5, 4), axis=2)
    for before in (
        Function((square,), transposed_norm(square, (0, 2, 3, 1), (0, 2, 3, 1), 4)),  # not transposed back
        Function((x,), op.transpose(planes, (0, 3, 1, 2))),
        Function((x,), Tuple((rows, op.transpose(rows, (0, 3, 1, 2))))),
    ):
        assert transformed(before, RecognizePatterns()) is before


def test_norms_between_transpositions_are_rows_where_channels_are_last(transformed, operators):
    x, kernel = var("x", (1, 8, 6, 6)), parameter(8, 8, 1, 1)
    normal = transposed_norm(op.nn.conv2d(x, kernel), (0, 2, 3, 1), (0, 3, 1, 2), 8)
    before = Function((x,), op.nn.conv2d(normal, kernel))
    after = transformed(before, RecognizePatterns(), ConvertLayout(), RecognizePatterns())
    assert operators(after) == {"nn.conv2d": 2, "nn.layer_norm": 1, "transpose": 2}


@pytest.mark.parametrize("shape", [(2, 12, 3, 5), (1, 12, 7)])
def test_decomposed_group_norm_of_rows(transformed, operators, shape):
    x = var("x", shape)
    channels = (12, *[1] * (len(shape) - 2))
    normal = op.reshape(standardized(op.reshape(x, (shape[0], 4, -1)), (2,), 1e-6), shape)
    before = Function((x,), op.add(op.multiply(normal, parameter(*channels)), parameter(*channels)))
    after = transformed(before, RecognizePatterns())
    assert operators(after) == {"nn.group_norm": 1}
    assert after.body.op.num_groups == 4 and after.body.op.epsilon == pytest.approx(1e-6)


def test_group_norm_of_rows_of_dynamic_sides(transformed, operators):
    x = var("x", (SizeVar("n"), 12, SizeVar("h"), SizeVar("w")))
    normal = op.reshape(standardized(op.reshape(x, (x.shape[0], 4, -1)), (2,), 1e-6), x.shape)
    before = Function((x,), op.multiply(normal, parameter(12, 1, 1)))
    assert operators(transformed(before, RecognizePatterns())) == {"nn.group_norm": 1}


@pytest.mark.parametrize("view", [(2, 12, 15), (4, 6, -1), (2, 60, -1), (2, 3, 5, -1), (2, 9, -1)])
def test_norms_of_other_rows_are_no_group_norms(transformed, operators, view):
    x = var("x", (2, 12, 3, 5) if 9 not in view else (2, 6, 3, 5))
    rows = op.reshape(x, view)
    before = Function((x,), op.reshape(standardized(rows, (len(rows.shape) - 1,), 1e-6), x.shape))
    assert "nn.group_norm" not in operators(transformed(before, RecognizePatterns()))


def split_norm(x: Expr, groups: int, axes: tuple[int, ...], size: int) -> Expr:
    """Group norm of Keras: channels, the last dimension, are split into groups, and scaled and shifted in that shape.
    """
    normal = standardized(op.reshape(x, (*x.shape[:-1], groups, -1)), axes, 1e-6)
    scaled = op.add(op.multiply(normal, parameter(1, 1, 1, groups, size)), parameter(groups, 1))
    return op.reshape(scaled, x.shape)


def test_group_norm_of_split_channels(transformed, operators):
    x = var("x", (2, 3, 5, 12))
    after = transformed(Function((x,), split_norm(x, 4, (1, 2, 4), 3)), RecognizePatterns())
    assert operators(after) == {"nn.group_norm": 1}
    assert (after.body.op.num_groups, after.body.op.axis) == (4, -1)


def test_other_norms_of_split_channels_stay(transformed, operators):
    x = var("x", (2, 3, 5, 12))
    for axes in ((1, 2), (1, 2, 3), (0, 1, 2, 4), (2, 4)):
        after = transformed(Function((x,), split_norm(x, 4, axes, 3)), RecognizePatterns())
        assert "nn.group_norm" not in operators(after)
    normal = standardized(op.reshape(x, (2, 3, 5, 4, 3)), (1, 2, 4), 1e-6)
    before = Function((x,), op.multiply(normal, parameter(5, 1, 1)))
    assert operators(transformed(before, RecognizePatterns())) == {"nn.group_norm": 1, "reshape": 1, "multiply": 1}
