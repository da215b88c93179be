"""Types, expressions and calls: typed at birth, equal by structure, rejected with the reason."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay, te
from relayc.relay.op.base import OpDef, OpPattern, attributes_of_operator, register_op
from relayc.relay.type import broadcast_shapes
from relayc.te import tir
from relayc.te.errors import CompileError
from relayc.te.ir import Span, first_difference, structural_equal


def test_equal_types_are_the_same_object():
    assert relay.TensorType((1, 2), "float32") is relay.TensorType([np.int64(1), 2])
    assert relay.TupleType([relay.scalar_type()]) is relay.TupleType([relay.TensorType((), "float32")])


def test_symbolic_dimensions_are_told_apart_by_variable():
    n, m = tir.Var("n"), tir.Var("n")
    assert relay.TensorType((n, 4)) is relay.TensorType((n, 4))
    assert relay.TensorType((n + 1,)) is relay.TensorType((n + 1,))
    assert relay.TensorType((n,)) is not relay.TensorType((m,))
    assert str(relay.TensorType((n, 4))) == "Tensor[(n, 4), float32]"


def test_broadcasting():
    n = tir.Var("n")
    assert broadcast_shapes((3, 1), (n, 1, 5), ()) == (n, 3, 5)
    with pytest.raises(relay.TypeInferenceError, match=r"4 against 3 on axis 1"):
        broadcast_shapes((2, 4), (3,))


def test_a_call_is_typed_at_birth():
    x = relay.var("x", (2, 3))
    y = relay.nn.relu(relay.op.add(x, relay.const(np.ones((3,), "float32"))))
    assert y.ty is relay.TensorType((2, 3)) and y.op.name == "nn.relu"
    assert relay.Function((x,), y).ty is relay.FuncType([x.ty], y.ty)


def test_an_ill_typed_call_names_operator_types_constraint_and_place():
    x, y = relay.var("x", (2, 3)), relay.var("y", (2, 3), "int32")
    with pytest.raises(relay.TypeInferenceError) as caught:
        relay.op.make_call("add", (x, y), Span("model.onnx", "Add_7", "Add"))
    assert str(caught.value) == (
        "add(Tensor[(2, 3), float32], Tensor[(2, 3), int32]): (C2) inputs must have one element type; "
        "got float32 and int32: cast one\n  at model.onnx Add_7 (Add)"
    )
    with pytest.raises(relay.TypeInferenceError, match=r"takes 2 inputs, got 1"):
        relay.op.make_call("add", (x,))


def test_an_unknown_operator_names_the_close_ones():
    with pytest.raises(relay.UnknownOperatorError, match=r"unknown operator 'nn\.rellu'; close are: nn\.relu"):
        relay.op.get_op("nn.rellu")


def test_an_operator_name_is_taken_once():
    with pytest.raises(CompileError, match=r"registered already, by relayc\.relay\.op"):

        @register_op("nn.relu", pattern=OpPattern.ELEMWISE)
        class Other(OpDef):
            def infer(self, x):
                return x


def test_a_class_without_attributes_of_its_own_has_those_of_its_base():
    @attributes_of_operator
    class Base(OpDef):
        axis: int = -1

        def infer(self, x):
            return x

    @attributes_of_operator
    class Plain(Base):
        num_data_inputs = 1

    @attributes_of_operator
    class Further(Plain):
        keep: bool = False

    Plain.name = Further.name = "test.plain"
    assert Plain(axis=2).attributes() == {"axis": 2} and Further(keep=True).attributes() == {"axis": -1, "keep": True}
    assert Plain(axis=2) == Plain(axis=2) != Plain(axis=1) and Plain() != Further()
    assert Plain(axis=2).replace(axis=3) == Plain(axis=3)
    with pytest.raises(TypeError):
        Plain(keep=True)


def chain(length: int) -> relay.Function:
    x = relay.var("x", (4,))
    y: relay.Expr = x
    for _ in range(length):
        y = relay.nn.relu(y)
    return relay.Function((x,), y)


def test_structural_equality_of_deep_graphs():
    assert structural_equal(chain(10_000), chain(10_000))
    assert not structural_equal(chain(100), chain(101))


def test_structural_equality_sees_sharing():
    def twice(shared: bool) -> relay.Function:
        x = relay.var("x", (4,))
        a = relay.nn.relu(x)
        return relay.Function((x,), relay.op.add(a, a if shared else relay.nn.relu(x)))

    assert structural_equal(twice(True), twice(True))
    assert first_difference(twice(True), twice(False)) == ".body.args[1]"
    assert first_difference(twice(False), twice(True)) == ".body.args[1]"


def test_let_if_and_tuples_check_their_parts():
    x, flag = relay.var("x", (4,)), relay.var("flag", (), "bool")
    pair = relay.Tuple((x, flag))
    assert relay.TupleGetItem(pair, 1).ty is flag.ty
    with pytest.raises(relay.TypeInferenceError, match=r"no field 2"):
        relay.TupleGetItem(pair, 2)
    with pytest.raises(relay.TypeInferenceError, match=r"both branches"):
        relay.If(flag, x, flag)
    with pytest.raises(relay.TypeInferenceError, match=r"scalar bool"):
        relay.If(x, x, x)
    with pytest.raises(relay.TypeInferenceError, match=r"variable v has type"):
        relay.Let(relay.var("v", (5,)), x, x)


def test_a_variable_takes_a_type_where_tvm_does():
    ty = relay.TensorType((2, 3), "int64")
    assert relay.var("x", ty).ty is ty
    pair = relay.TupleType((ty, ty))
    assert relay.var("x", pair).ty is pair and relay.var("x", ty=pair).ty is pair


def test_rebuilding_infers_again_only_when_a_type_changes():
    x, y = relay.var("x", (4,)), relay.var("y", (4,), "float64")
    call = relay.nn.relu(x)
    assert call.rebuild(lambda e: e) is call
    assert call.rebuild(lambda e: y).ty is y.ty


def test_lists_are_accepted_for_tuples_of_expressions():
    def made(kind: type) -> relay.Function:
        x, y = relay.var("x", (4,)), relay.var("y", (4,))
        pair = relay.Tuple(kind([relay.Call(relay.op.get_op("add")(), kind([x, y])), x]))
        return relay.Function(kind([x, y]), pair)

    assert structural_equal(made(list), made(tuple))
    assert isinstance(made(list).params, tuple) and made(list).ty is made(tuple).ty


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x: relay.add(x, 1.0), r"add\(\): rhs is 1\.0; expected an expression"),
        (lambda x: relay.nn.relu(np.ones(3)), r"nn\.relu\(\): data is array\(.*relay\.const"),
        (lambda x: relay.Tuple([x, "x"]), "a tuple: value 1 is a str"),
        (lambda x: relay.Function([x + x], x), "parameter 0 of a function"),
        (lambda x: relay.Function([x], None), "a function's body: value 0 is a NoneType"),
        (lambda x: relay.Function([x], x)(3), "a function: value 0 is a int"),
        (lambda x: relay.var("y", 3), r"variable y: shape is 3; expected sizes, such as \(1, 8\)"),
        (lambda x: relay.var("y", "3"), "variable y"),
        (lambda x: relay.var("y", ("n", 3)), r"a size is 'n'; expected .* \(of a dynamic size: te\.size_var\('n'\)\)"),
    ],
)
def test_arguments_that_are_no_expressions_are_named(make, text):
    with pytest.raises(relay.TypeInferenceError, match=text):
        make(relay.var("x", (4,)))


def test_numbers_and_arrays_on_both_sides_of_python_operators():
    x, row = relay.var("x", (3,)), np.arange(3, dtype="float32")
    for mixed in (row + x, x + row, 2 * x, x - [1.0, 2.0, 3.0]):
        assert isinstance(mixed, relay.Call) and mixed.shape == (3,)
    for other in ("2", None, object()):
        with pytest.raises(TypeError, match="unsupported operand"):
            x - other


def test_only_modules_and_functions_are_compiled():
    x = relay.var("x", (3,))
    assert relay.IRModule.from_expr(relay.Function([x], -x))["main"].params == (x,)
    with pytest.raises(CompileError, match=r"not a Call: wrap it, relay\.Function"):
        relay.build(-x)
    with pytest.raises(CompileError, match="not a tuple"):
        relay.build((relay.IRModule.from_expr(relay.Function([x], -x)), {}))


def test_ambiguous_parameter_names_are_rejected():
    x, other = relay.var("x", (2,)), relay.var("x", (3,))
    with pytest.raises(CompileError, match="several parameters are named x;"):
        relay.build(relay.Function([x, other], relay.Tuple([x, other])))


def test_specialisation_needs_sizes_of_the_model():
    x = relay.var("x", (te.var("batch"), 3))
    with pytest.raises(CompileError, match=r"names q; the dynamic sizes .* are: batch"):
        relay.build(relay.Function([x], -x), specialize={"q": [1]})


def test_settings_and_modules_have_a_repr():
    with pytest.raises(CompileError, match="opt_level is '3'; expected a number"):
        relay.transform.PassContext(opt_level="3")
    assert repr(relay.IRModule({"main": 1, "other": 2})) == "<IRModule of main, other>"


def test_products_of_constants_without_dimensions_are_arrays() -> None:
    two = np.array(2, np.float32)
    product = relay.Constant(two * two)  # type: ignore[arg-type]
    assert isinstance(product.data, np.ndarray) and product.shape == () and product.data == 4


def test_a_constant_that_can_t_be_made_is_named_in_short() -> None:
    with pytest.raises(CompileError, match=r"a constant of .* expected numbers or strings") as caught:
        relay.const([*range(100_000), object()], "float32")
    assert len(str(caught.value)) < 300
