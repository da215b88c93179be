"""Gradient rules of all operators, compared with central differences in float64, and the function that applies them."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay, te
from relayc.relay.errors import GradientError, TypeInferenceError
from relayc.relay.expr import Call, Constant, Expr, Function, If, TupleGetItem, Var
from relayc.relay.interpreter import evaluate
from relayc.relay.op.base import get_op
from relayc.relay.transform import gradient
from relayc.relay.type import TensorType, TupleType
from relayc.runtime import device, graph_executor
from tests.relay.op.operator_rows import ROWS, Row

Array = np.ndarray

_PACKED = "made by passes, for weights that are packed"
_FUSED = "one call stands for many operators"
_FORM = "one form of the operator"
WITHOUT_RULE = {
    "cumprod": "the product of the other elements is no running product",
    "dft": "complex numbers as pairs",
    "layout_transform": _PACKED,
    "ml.pairwise_coupling": "classical models",
    "ml.tree_ensemble": "classical models",
    "nn.adaptive_avg_pool": _FORM,
    "nn.adaptive_max_pool": _FORM,
    "nn.attention": _FUSED,
    "nn.avg_pool": _FORM,
    "nn.batch_matmul_packed": _PACKED,
    "nn.blocked_attention": _FUSED,
    "nn.col2im": _FUSED,
    "nn.conv1d_nwc_packed": _PACKED,
    "nn.conv2d_nhwc_packed": _PACKED,
    "nn.conv3d_ndhwc_packed": _PACKED,
    "nn.conv2d_nhwc_winograd": _PACKED,
    "nn.conv3d_ndhwc_winograd": _PACKED,
    "nn.dense_packed": _PACKED,
    "nn.embedding_bag": _FUSED,
    "nn.gru": _FUSED,
    "nn.linear_attention": _FUSED,
    "nn.lstm": _FUSED,
    "nn.max_pool_with_argmax": _FORM,
    "nn.overlap_add": _PACKED,
    "nn.pack_panels": _PACKED,
    "nn.rnn": _FUSED,
    "nn.rotary_embedding": _FUSED,
    "nn.routed_dense": _PACKED,
    "nn.take_from_panels": _PACKED,
    "qnn.lookup": "a table of quantised values",
    "gather_nd": _FORM,
    "one_hot": "its values are scalars",
    "scatter_elements": _FORM,
    "slice_at": "positions known at run time only",
    "take": _FORM,
    "vision.roi_align": _FUSED,
    "vision.weighted_pixels": _FUSED,
}
"""Operators, or forms of them, that raise GradientError, with the reason."""


def _differentiable(row: Row) -> bool:
    floats = [x for x in row.inputs if x.dtype == np.float32]
    return bool(floats) and all(np.isfinite(x).all() and x.size for x in floats)


def _off_kinks(x: Array, rng: np.random.Generator) -> Array:
    """`x` in float64, moved off ties and integers, where functions such as round have no derivative."""
    return x.astype(np.float64) + rng.uniform(0.01, 0.02, x.shape)


def _float_result(call: Expr) -> Expr | None:
    """The result, or its first field, if it is a float tensor."""
    found = TupleGetItem(call, 0) if isinstance(call.ty, TupleType) else call
    return found if isinstance(found.ty, TensorType) and str(found.ty.dtype) == "float64" else None


def _program(row: Row) -> tuple[Function, list[Array]] | None:
    """A scalar function of the float inputs of a row, widened to float64: the result times random weights, summed."""
    rng = np.random.default_rng(3)
    arrays = [_off_kinks(x, rng) if x.dtype == np.float32 else x for x in row.inputs]
    params = [Var(f"x{i}", TensorType(x.shape, str(x.dtype))) for i, x in enumerate(arrays)]
    attrs = {k: "float64" if v == "float32" else v for k, v in row.attrs.items()}
    try:
        result = _float_result(Call(get_op(row.op)(**attrs), tuple(params)))
    except TypeInferenceError:  # takes no float64, or not beside its other inputs
        return None
    if result is None:
        return None
    weights = Constant(rng.uniform(0.5, 1.5, result.tensor_type.static_shape))
    return Function(params, relay.sum(result * weights)), arrays


def _directional(function: Function, arrays: list[Array], direction: dict[int, Array], step: float) -> float:
    ends = [[x + s * step * direction.get(i, 0) for i, x in enumerate(arrays)] for s in (1, -1)]
    ends = [[e.astype(x.dtype) for e, x in zip(end, arrays, strict=True)] for end in ends]
    up, down = (float(evaluate(function, end)) for end in ends)  # type: ignore[arg-type]
    return (up - down) / (2 * step)


PROGRAMS = [(row, made) for row in ROWS if _differentiable(row) and (made := _program(row)) is not None]


@pytest.mark.parametrize(("row", "program"), PROGRAMS, ids=[str(row) for row, _ in PROGRAMS])
def test_rule_agrees_with_central_differences(row: Row, program: tuple[Function, list[Array]]) -> None:
    function, arrays = program
    try:
        differentiated = gradient(function)
    except GradientError:
        assert row.op in WITHOUT_RULE, f"{row} has no rule"
        return
    value, gradients = evaluate(differentiated, arrays)  # type: ignore[misc]
    floats = [i for i, x in enumerate(arrays) if x.dtype == np.float64]
    rng = np.random.default_rng(5)
    direction = {i: rng.uniform(-1, 1, arrays[i].shape) for i in floats}
    expected = _directional(function, arrays, direction, 1e-6)
    found = sum(float((g * direction[i]).sum()) for g, i in zip(gradients, floats, strict=True))  # type: ignore[arg-type]
    scale = max(1.0, abs(expected), abs(float(value)))  # type: ignore[arg-type]
    assert abs(found - expected) <= 2e-5 * scale, (found, expected)


def test_each_operator_without_a_rule_says_so() -> None:
    refused = set[str]()
    for row, (function, _) in PROGRAMS:
        try:
            gradient(function)
        except GradientError as error:
            assert row.op in str(error)
            refused.add(row.op)
    assert refused == set(WITHOUT_RULE)


def _network() -> Function:
    """Convolution, batch norm, pooling, a dense layer and a cross entropy: a loss of images and weights."""
    image, kernel = relay.var("image", (2, 3, 8, 8)), relay.var("kernel", (4, 3, 3, 3))
    gamma, beta, weight = relay.var("gamma", (4,)), relay.var("beta", (4,)), relay.var("weight", (5, 4))
    labels = relay.var("labels", (2, 1), "int64")
    mean, variance = relay.const(np.zeros(4, np.float32)), relay.const(np.ones(4, np.float32))
    features = relay.nn.conv2d(image, kernel, strides=2, padding=1)
    normal, _, _ = relay.nn.batch_norm(features, gamma, beta, mean, variance)
    pooled = relay.nn.max_pool2d(relay.nn.relu(normal), 2, 2)
    logits = relay.nn.dense(relay.mean(pooled, (2, 3)), weight)
    chosen = relay.gather(relay.nn.log_softmax(logits), 1, labels)
    return Function([image, kernel, gamma, beta, weight, labels], -relay.mean(chosen))


def test_gradients_of_a_network_compile() -> None:
    rng = np.random.default_rng(0)
    function = _network()
    differentiated = gradient(function)
    arrays = [rng.normal(size=p.ty.static_shape).astype(np.float32) for p in function.params[:-1]]
    arrays.append(np.array([[1], [4]]))
    executor = graph_executor.GraphModule(relay.build(differentiated)["default"](device("cpu")))
    loss, *gradients = executor(*arrays)
    expected_loss, expected = evaluate(differentiated, arrays)  # type: ignore[misc]
    assert len(gradients) == len(expected) == 5
    np.testing.assert_allclose(loss.numpy(), expected_loss, rtol=1e-5)
    for found, exact in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(found.numpy(), exact, rtol=1e-4, atol=1e-6)
    moved = [a - np.float32(1e-3) * g.numpy() for a, g in zip(arrays[:-1], gradients, strict=True)]
    assert evaluate(function, [*moved, arrays[-1]]) < expected_loss  # type: ignore[operator]


def test_second_derivative() -> None:
    x = relay.var("x", (3,), "float64")
    first = gradient(Function([x], x * x * x)).body
    slope = Function([x], first.fields[1].fields[0])  # type: ignore[attr-defined]
    value = np.array([1.0, -2.0, 0.5])
    found, (curvature,) = evaluate(gradient(slope), [value])  # type: ignore[misc]
    np.testing.assert_allclose(found, 3 * value**2)  # type: ignore[arg-type]
    np.testing.assert_allclose(curvature, 6 * value)


def test_dynamic_sizes_and_shared_operands() -> None:
    n = te.var("n")
    x, bias = relay.var("x", (n, 4)), relay.var("bias", (4,))
    differentiated = gradient(Function([x, bias], relay.mean((x + bias) * (x + bias))))
    values, shift = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones(4, np.float32)
    _, (by_x, by_bias) = evaluate(differentiated, [values, shift])  # type: ignore[misc]
    np.testing.assert_allclose(by_x, 2 * (values + shift) / 12, rtol=1e-6)
    np.testing.assert_allclose(by_bias, (2 * (values + shift) / 12).sum(0), rtol=1e-6)


def test_parameters_without_influence_have_zero_gradients() -> None:
    x, y = relay.var("x", (2,)), relay.var("y", (3,))
    _, (by_y, by_x) = evaluate(  # type: ignore[misc]
        gradient(Function([x, y], relay.floor(x) + 1.0), wrt=[y, x]), [np.ones(2, np.float32), np.ones(3, np.float32)]
    )
    assert by_y.shape == (3,) and by_x.shape == (2,) and not by_y.any() and not by_x.any()


def test_a_long_chain_is_differentiated() -> None:
    x = relay.var("x", ())
    y: Expr = x
    for _ in range(5000):
        y = y * 1.0
    _, (found,) = evaluate(gradient(Function([x], y)), [np.float32(2)])  # type: ignore[misc]
    assert found == 1


def test_errors() -> None:
    x, k, flag = relay.var("x", (2,)), relay.var("k", (2,), "int32"), relay.var("flag", (), "bool")
    with pytest.raises(GradientError, match=r"k of type .*int32.* is no parameter of the function that holds floats"):
        gradient(Function([x, k], x + 1.0), wrt=[k])
    with pytest.raises(GradientError, match="has no gradient: it must be a float tensor"):
        gradient(Function([k], k))
    with pytest.raises(GradientError, match="kind If has no gradient rule"):
        gradient(Function([x, flag], If(flag, x, x + 1.0)))
    with pytest.raises(GradientError, match="the call of a function has no gradient rule"):
        gradient(Function([x], Function([k2 := relay.var("k2", (2,))], k2)(x)))
    a, b = te.var("a"), te.var("b")
    rows, columns = relay.var("r", (a, 1)), relay.var("c", (1, b))
    assert gradient(Function([rows, columns], rows * columns))
