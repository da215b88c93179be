"""Every operator against its numpy reference: its type, its compute definition interpreted, and compiled by LLVM.

A registered operator without a row (`tests/relay/op/operator_rows.py`) fails a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from relayc import relay, te
from relayc.backend.runtime import device, graph_executor
from relayc.relay.expr import numpy_dtype_name
from relayc.relay.op import get_op, list_op_names
from relayc.relay.type import TensorType, TupleType
from relayc.te.tir.interpreter import interpret
from tests.relay.op.operator_rows import ROWS, Array, Row


def types_of(arrays: Sequence[Array]) -> list[TensorType]:
    return [TensorType(x.shape, numpy_dtype_name(x.dtype)) for x in arrays]


def results_of(value: Any) -> tuple[Array, ...]:
    return value if isinstance(value, tuple) else (value,)


def fields_of(ty: Any) -> tuple[TensorType, ...]:
    return ty.fields if isinstance(ty, TupleType) else (ty,)


def interpreted(row: Row, types: Sequence[TensorType]) -> tuple[Array, ...]:
    """The results of the compute definition for inputs of `types`, lowered by the default schedule and interpreted."""
    op = get_op(row.op)(**row.attrs)
    inputs = [te.placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(types)]
    outputs = results_of(op.compute(*inputs))
    expected = fields_of(op.result_type(types))
    assert [TensorType(t.shape, t.dtype) for t in outputs] == list(expected)
    schedule = te.create_schedule([t.op for t in outputs])
    function = te.lower(schedule, [*inputs, *outputs])["main"]
    results = [np.zeros(r.shape, r.dtype) for r in results_of(op.reference(*row.inputs))]
    interpret(function, *[np.array(x, order="C") for x in row.inputs], *results)
    return tuple(results)


def assert_close(actual: Array, expected: Array, tolerance: float) -> None:
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, expected)
        return
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(b[np.isfinite(b)])
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * float(finite.max(initial=1e-30)))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_inferred_type_is_that_of_the_reference(row: Row) -> None:
    op = get_op(row.op)(**row.attrs)
    expected = types_of(results_of(op.reference(*row.inputs)))
    assert list(fields_of(op.result_type(types_of(row.inputs)))) == expected


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_compute_definition_agrees_with_the_reference(row: Row) -> None:
    expected = results_of(get_op(row.op)(**row.attrs).reference(*row.inputs))
    for actual, wanted in zip(interpreted(row, types_of(row.inputs)), expected, strict=True):
        assert_close(actual, wanted, row.tolerance)


def symbolic_types(row: Row) -> list[TensorType]:
    """The types of the inputs with their first dimension symbolic, if it is that of the first input."""
    n, first = te.size_var("n"), row.inputs[0]
    return [
        t.with_shape((n, *t.shape[1:])) if t.ndim == first.ndim and t.shape[0] == first.shape[0] else t
        for t in types_of(row.inputs)
    ]


def takes_symbolic(row: Row) -> bool:
    """Is the operator defined for a symbolic first dimension?"""
    if not row.inputs or row.inputs[0].ndim == 0:
        return False
    if row.op == "squeeze" and "axis" not in row.attrs:
        return False  # removes the dimensions of static size 1
    try:
        get_op(row.op)(**row.attrs).result_type(symbolic_types(row))
    except relay.TypeInferenceError:
        return False
    return True


SYMBOLIC = [r for r in ROWS if takes_symbolic(r)]


@pytest.mark.parametrize("row", SYMBOLIC, ids=str)
def test_the_compute_definition_supports_dynamic_shapes(row: Row) -> None:
    expected = results_of(get_op(row.op)(**row.attrs).reference(*row.inputs))
    for actual, wanted in zip(interpreted(row, symbolic_types(row)), expected, strict=True):
        assert_close(actual, wanted, row.tolerance)


def test_most_operators_support_dynamic_shapes() -> None:
    static = {"arange", "broadcast_to", "full", "reshape", "unpack_bits", "sizes", "nn.take_bits"}
    static |= {"nn.routed_dense"}  # inputs of several ranks have the size: tests of experts make it dynamic
    static |= {"random.key", "random.uniform", "random.normal"}
    assert {r.op for r in ROWS} - {r.op for r in SYMBOLIC} == static


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_compiled_operator_agrees_with_the_reference(row: Row) -> None:
    op = get_op(row.op)(**row.attrs)
    params = [relay.var(f"x{k}", ty=ty) for k, ty in enumerate(types_of(row.inputs))]
    model = relay.build(relay.Function(tuple(params), op(*params)), "llvm")
    module = graph_executor.GraphModule(model["default"](device("cpu", 0)))
    for k, x in enumerate(row.inputs):
        module.set_input(f"x{k}", np.array(x, order="C"))
    module.run()
    for k, expected in enumerate(results_of(op.reference(*row.inputs))):
        assert_close(module.get_output(k).numpy(), expected, max(row.tolerance, 3e-6))


def arranged(x: Array, perm: tuple[int, ...]) -> Array:
    return np.array(x.transpose(perm), order="C")


@pytest.mark.parametrize("row", [r for r in ROWS if r.inputs and r.inputs[0].ndim > 1], ids=str)
def test_the_transposed_form_gives_the_transposed_result(row: Row) -> None:
    op, rank = get_op(row.op)(**row.attrs), row.inputs[0].ndim
    count = len(row.inputs) if op.num_data_inputs is None else op.num_data_inputs
    expected = results_of(op.reference(*row.inputs))
    for perm in {(0, *range(2, rank), 1), tuple(range(rank))[::-1], (*range(1, rank), 0)}:
        moves = [k < count and x.ndim == rank for k, x in enumerate(row.inputs)]
        inputs = [arranged(x, perm) if m else x for x, m in zip(row.inputs, moves, strict=True)]
        form = op.transposed(perm, types_of(inputs))
        if form is not None:
            for actual, wanted in zip(results_of(form.reference(*inputs)), expected, strict=True):
                assert_close(actual, arranged(wanted, perm), row.tolerance)


def test_every_operator_has_a_row() -> None:
    """Operators that the executor runs have tests in this folder, or where they are made."""
    elsewhere = ("test.", "page.", "control.", "sequence.", "optional.", "strings.", "cache.", "image.", "indices.")
    others = {n for n in list_op_names() if n.startswith(elsewhere)} | {"on_host"}
    missing = set(list_op_names()) - {r.op for r in ROWS} - others
    assert not missing, f"add a row for {sorted(missing)}"


def test_gathering_from_an_empty_axis_does_not_fault_if_unused() -> None:
    """A decoder's KV cache may be empty."""
    x, at, used = relay.var("x", (2, 0, 3)), relay.var("at", (4,), "int64"), relay.var("used", (4, 1), "bool")
    body = relay.where(used, relay.take(x, at, axis=1), relay.const(np.float32(7)))
    values = [np.zeros((2, 0, 3), np.float32), np.array([-1, 0, 1, 5]), np.zeros((4, 1), bool)]
    executor = graph_executor.GraphModule(relay.build(relay.Function((x, at, used), body))["default"](device("cpu", 0)))
    expected = relay.interpreter.evaluate(relay.Function((x, at, used), body), values)
    for result in (expected, executor(*values)[0].numpy()):
        np.testing.assert_array_equal(result, np.full((2, 4, 3), 7, np.float32))


def test_integers_without_dimensions_are_divided_as_others() -> None:
    a, b = relay.var("a", (), "int32"), relay.var("b", (), "int32")
    function = relay.Function((a, b), relay.Tuple((relay.op.floor_divide(a, b), relay.op.floor_mod(a, b))))
    executor = graph_executor.GraphModule(relay.build(function)["default"](device("cpu", 0)))
    for x in (-6, -5, 5, 6):
        for y in (-3, -1, 2):
            assert [int(r.numpy()) for r in executor(np.int32(x), np.int32(y))] == [x // y, x % y]


def test_the_sign_of_negative_zero_is_zero() -> None:
    """As in ONNX's reference, and where it is folded: 1 / Sign(-0.0) is infinity."""
    x = relay.var("x", shape=(2,), dtype="float32")
    model = relay.build(relay.Function((x,), relay.op.sign(x)))
    module = graph_executor.GraphModule(model["default"](device("cpu", 0)))
    signs = module(np.array([-0.0, 0.0], np.float32))[0].numpy()
    assert (signs == 0).all() and not np.signbit(signs).any()
