"""Operators on sequences and optional values: run by the executor, and by the references, which agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.runtime.errors import ArgumentError
from relayc.relay.container_type import NOTHING, ElementType, OptionalType, SequenceType, join
from relayc.relay.expr import Expr, Function, Tuple, Var
from relayc.relay.interpreter import evaluate
from relayc.relay.op import list_op_names, sequence
from relayc.relay.type import TensorType
from relayc.te.dtype import dtype
from relayc.te.errors import CompileError
from relayc.te.ir import post_order
from relayc.te.tir import SizeVar

F32 = dtype("float32")
N, POSITION = SizeVar("n"), relay.var("at", (), "int64")
X, Y = relay.var("x", (N, 3)), relay.var("y", (2, 3))
ELEMENT = ElementType((None, 3), F32)
PAIR = sequence.make(SequenceType(ELEMENT), X, Y)


def result(*shape: Any) -> TensorType:
    dims = [SizeVar(f"#result{d}") if isinstance(d, str) else d for d in shape]
    return TensorType(dims, "float32")


CASES: dict[str, Expr] = {
    "make": PAIR,
    "insert at the end": sequence.insert(PAIR, X),
    "insert": sequence.insert(PAIR, Y, POSITION),
    "erase the last": sequence.erase(PAIR),
    "erase": sequence.erase(PAIR, POSITION),
    "item": sequence.item(PAIR, POSITION, result("a", 3)),
    "length": sequence.length(PAIR),
    "join": sequence.join_items(PAIR, 0, False, result("b", 3)),
    "join anew": sequence.join_items(sequence.make(SequenceType(ELEMENT), Y, Y), 1, True, result(2, "c", 3)),
    "cut": sequence.cut(X, None, 0, False, SequenceType(ElementType((3,), F32))),
    "cut along an inner axis": sequence.cut(X, None, 1, True, SequenceType(ElementType((N, 1), F32))),
    "cut into parts of one size": sequence.cut(X, relay.const(np.array(2)), 0, True, SequenceType(ELEMENT)),
    "cut into parts": sequence.cut(X, relay.const(np.array([1, 4])), 0, True, SequenceType(ELEMENT)),
    "an optional value": sequence.make(OptionalType(ELEMENT), X),
    "none": sequence.make(OptionalType(ELEMENT)),
    "an optional sequence": sequence.make(OptionalType(SequenceType(ELEMENT)), PAIR),
    "get": sequence.get(sequence.make(OptionalType(ELEMENT), X), result("d", 3)),
    "get a sequence": sequence.get(sequence.make(OptionalType(PAIR.ty), PAIR), PAIR.ty),  # type: ignore[arg-type]
}


def run(body: Expr, *inputs: np.ndarray) -> Any:
    free = [v for v in (X, Y, POSITION) if v in list(post_order(body))]
    lib = relay.build(Function(tuple(free), body))
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    return plain(module(*inputs)[0])


def plain(value: Any) -> Any:
    return [plain(item) for item in value] if isinstance(value, list) else value.numpy()


def assert_same(a: Any, b: Any) -> None:
    if isinstance(b, list):
        assert isinstance(a, list) and len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", CASES)
def test_the_executor_agrees_with_the_reference(name):
    body = CASES[name]
    values = {"x": np.arange(15, dtype=np.float32).reshape(5, 3), "y": -np.ones((2, 3), np.float32)}
    free = [v for v in (X, Y, POSITION) if v in list(post_order(body))]
    for at in (0, 1, -1):
        inputs = [np.array(at) if v is POSITION else values[v.name] for v in free]
        assert_same(run(body, *inputs), evaluate(Function(tuple(free), body), inputs))


def test_every_operator_on_sequences_has_a_case():
    calls = [call for body in CASES.values() for call in post_order(body) if isinstance(call, relay.Call)]
    tested = {call.operator.name for call in calls}
    assert {name for name in list_op_names() if name.startswith(("sequence.", "optional."))} <= tested


def test_a_sequence_of_computed_tensors_is_not_overwritten_by_later_kernels():
    """Each element is computed, and must not share memory with tensors computed after it."""
    items: list[Expr] = []
    value: Expr = X
    for _ in range(4):
        value = relay.cumsum(relay.exp(relay.negative(value)), axis=0)
        items.append(value)
    body = Tuple((sequence.make(SequenceType(ElementType((N, 3), F32)), *items), relay.cumsum(value, axis=1)))
    x = np.random.default_rng(0).standard_normal((4, 3), dtype=np.float32)
    lib = relay.build(Function((X,), body))
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    given = [plain(value) for value in module(x)]
    expected = evaluate(Function((X,), body), [x])
    for a, b in zip([*given[0], given[1]], [*expected[0], expected[1]], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


# types --------------------------------------------------------------------------------------------------------------


def test_the_join_of_types_holds_the_values_of_both():
    a, b = ElementType((2, 3), F32), ElementType((N, 3), F32)
    assert join(a, b) is ElementType((None, 3), F32)
    assert join(a, ElementType((2,), F32)) is ElementType(None, F32)
    assert join(a, NOTHING) is a and join(NOTHING, b) is b
    assert join(SequenceType(a), SequenceType(b)) is SequenceType(ELEMENT)
    assert join(OptionalType(NOTHING), OptionalType(SequenceType(a))) is OptionalType(SequenceType(a))
    with pytest.raises(relay.TypeInferenceError, match="float32 and of int64 in one container"):
        join(a, ElementType((2, 3), dtype("int64")))
    with pytest.raises(relay.TypeInferenceError, match="nothing holds both"):
        join(SequenceType(a), OptionalType(a))


def test_types_say_what_they_hold():
    assert str(SequenceType(ELEMENT)) == "Sequence[(?, 3), float32]"
    assert str(OptionalType(SequenceType(ElementType(None, F32)))) == "Optional[Sequence[?, float32]]"
    assert str(SequenceType(NOTHING)) == "Sequence[?]"


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: sequence.make(SequenceType(ElementType((2, 3), F32)), X), r"\(C1\) Tensor\[\(n, 3\), float32\] in"),
        (lambda: sequence.make(OptionalType(ELEMENT), X, X), r"\(C2\) 2 values"),
        (lambda: sequence.insert(X, Y), r"\(C1\) input 0 must be a sequence"),
        (lambda: sequence.insert(PAIR, Y, X), r"\(C3\) the position must be one integer"),
        (lambda: sequence.insert(PAIR, relay.var("i", (2, 3), "int64")), "float32 and of int64"),
        (lambda: sequence.erase(Y), r"\(C1\) input 0"),
        (lambda: sequence.item(PAIR, POSITION, result(2)), r"\(C3\) a Tensor\[\(2,\), float32\] in a value"),
        (lambda: sequence.join_items(PAIR, 3, False, result(2, 2)), r"\(C2\) axis 3"),
        (lambda: sequence.cut(PAIR, None, 0, True, PAIR.ty), r"\(C1\) input 0 must be a tensor"),  # type: ignore[arg-type]
    ],
)
def test_invalid_arguments_are_errors(make, message):
    with pytest.raises(relay.TypeInferenceError, match=message):
        make()


def test_a_shape_that_the_type_does_not_allow_is_an_error():
    body = sequence.item(PAIR, POSITION, result(2, 3))
    inputs = [np.zeros((5, 3), np.float32), np.zeros((2, 3), np.float32), np.array(0)]
    with pytest.raises(ArgumentError, match="gives shape"):
        run(body, *inputs)
    with pytest.raises(CompileError, match="gives float32"):
        evaluate(Function((X, Y, POSITION), body), inputs)


def test_sizes_are_bound_in_sequence_types():
    element = SequenceType(ElementType((N, 3), F32))
    function = Function((X,), sequence.make(element, X))
    assert relay.bind_sizes.bind_sizes(function, {"n": 7}).body.ty is SequenceType(ElementType((7, 3), F32))


def test_variables_of_a_sequence_type_are_parameters():
    xs = Var("xs", SequenceType(ELEMENT))
    assert evaluate(Function((xs,), sequence.length(xs)), [[np.zeros((1, 3)), np.zeros((2, 3))]]) == 2


def test_operators_on_tensors_take_no_containers():
    several = Var("xs", SequenceType(ElementType.of(X.ty)))
    for wrong in (lambda: relay.op.sin(several), lambda: relay.op.add(X, several)):
        with pytest.raises(CompileError, match=r"input [01] is Sequence\[.*\], not a tensor"):
            wrong()
