"""Wrong arguments at the outermost functions: each is an error of the package that names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, save

import relayc
import relayc.onnxruntime as ort
from relayc import relay, te
from relayc.runtime import ArgumentError, DeviceError, GraphModule, device, load_model, nd
from relayc.te.errors import CompileError

X = np.ones((2, 3), np.float32)


def builders() -> Iterator[Any]:
    """The functions that build calls, and operators by name."""
    op = relay.op
    for module in (op, op.cache, op.image, op.nn, op.qnn, op.random, op.sequence, op.strings, op.vision):
        for name in getattr(module, "__all__", dir(module)):
            function = getattr(module, name)
            if isinstance(function, FunctionType) and name not in ("aligning", "register_op", "op_of", "expect_op"):
                yield pytest.param(function, id=f"{module.__name__}.{name}")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file beside which the compiled model lies, with the suffix ".relayc"."""
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "g", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    relayc.compile_onnx(path).save(path.with_suffix(".relayc"))
    return path


@pytest.mark.parametrize("wrong", [0, "x", b"x", [1, 2], np.zeros(3), {1: 2}], ids=repr)
@pytest.mark.parametrize("argument", ["shape", "config", "caches"])
def test_values_by_name(path, argument, wrong):
    with pytest.raises(CompileError, match=r"expected|unknown"):
        relayc.compile_onnx(path, **{argument: wrong})


@pytest.mark.parametrize("wrong", [0, b"x", [1], "a\udc80"], ids=ascii)
@pytest.mark.parametrize("argument", ["mod_name", "last_position"])
def test_texts(path, argument, wrong):
    with pytest.raises(CompileError, match="expected"):
        relayc.compile_onnx(path, **{argument: wrong})


@pytest.mark.parametrize("wrong", [0, "x", b"\xff", np.zeros(3)], ids=repr)
def test_parameters_to_bind(wrong):
    x = relay.var("x", shape=(2,))
    for function in (relay.optimize, relay.build):
        with pytest.raises(CompileError, match=r"params= is .*expected a dictionary"):
            function(relay.Function((x,), relay.tanh(x)), params=wrong)


@pytest.mark.parametrize("wrong", [None, 2**70, -1, 0.5, ["x"], "\0"], ids=repr)
def test_paths(path, wrong):
    model = load_model(path.with_suffix(".relayc"))
    for function in (load_model, model.save, relayc.map_batches):
        with pytest.raises(ArgumentError, match="expected a path"):
            function(wrong)


def test_a_file_descriptor_is_no_path_and_stays_open(path):
    with open(path.with_suffix(".relayc"), "rb") as file:
        with pytest.raises(ArgumentError, match=r"a compiled model is .*; expected a path"):
            load_model(file.fileno())  # type: ignore[arg-type]
        assert file.read(1)


@pytest.mark.parametrize("arguments", [{"inputs": 0}, {"inputs": "x"}, {"outputs": 0}, {"outputs": "y"}, {"keep": None},
                                       {"keep": "id"}], ids=repr)  # fmt: skip
def test_columns_of_batches(path, arguments):
    with pytest.raises(ArgumentError, match=r"(inputs|outputs|keep)= is .*; expected a (list|dictionary)"):
        relayc.map_batches(path.with_suffix(".relayc"), **arguments)


@pytest.mark.parametrize("wrong", ["0", "", 0.5, True, np.zeros(3)], ids=repr)
def test_numbers_of_devices(wrong):
    with pytest.raises(DeviceError, match="expected 0 or more"):
        device("cpu", wrong)


@pytest.mark.parametrize("wrong", [None, 0, [], np.float32, "float"], ids=repr)
def test_element_types(wrong):
    for error, function in ((ArgumentError, lambda: nd.empty((2,), wrong)), (CompileError, lambda: te.var("n", wrong)),
                            (CompileError, lambda: relay.var("x", (2,), wrong))):  # fmt: skip
        with pytest.raises(error, match="dtype"):
            function()


def test_arrays():
    with pytest.raises(ArgumentError, match="no array"):
        nd.array([[1], [2, 3]])
    with pytest.raises(ArgumentError, match="expected integers"):
        nd.empty(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, 0, "x", [X]], ids=repr)
def test_executors(path, wrong):
    with pytest.raises(ArgumentError, match="expected a compiled model"):
        GraphModule.of(wrong)
    with pytest.raises(ArgumentError, match="expected a dictionary of arrays by name"):
        GraphModule.of(load_model(path.with_suffix(".relayc"))).infer(wrong)


def test_options_of_sessions(path):
    session = ort.InferenceSession(path)
    wrong: Any
    for wrong in (0, "x", {}):
        with pytest.raises(ort.InvalidArgument, match=r"sess_options is a .*; expected SessionOptions\(\)"):
            ort.InferenceSession(path, wrong)
        with pytest.raises(ort.InvalidArgument, match=r"run_options is a .*; expected RunOptions\(\)"):
            session.run(None, {"x": X}, wrong)
    for wrong in ("1", b"1", [1], -1, float("nan"), True):
        with pytest.raises(ort.InvalidArgument, match=r"timeout is .*; expected seconds"):
            session.run(None, {"x": X}, timeout=wrong)
    for forever in (2**70, float("inf"), np.float32(9)):
        np.testing.assert_allclose(session.run(None, {"x": X}, timeout=forever)[0], np.tanh(X), rtol=1e-6)


IMAGE = relay.var("x", (2, 3, 4, 4))
WRONG: list[Any] = [
    IMAGE, relay.Tuple([IMAGE, IMAGE]), relay.var("i", (2,), "int64"), relay.var("b", (2,), "bool"),
    relay.var("s", (), "string"), relay.const(1.0), IMAGE.ty, (IMAGE, IMAGE), relay.nn.relu, relay.op.Add, object(),
    int, None, True, 0, 1, -1, 2, 2**70, 0.5, float("nan"), 1j, np.float32(1), np.int64(1), np.zeros(2), np.zeros(()),
    "", "x", "float32", "NCHW", b"x", (), [1], range(2), (1, 1, 1, 1), ((1, 2), (3, 4)), (0.5,), ["x"], (None,), {1: 2},
]  # fmt: skip
RIGHT = {"Expr": IMAGE, "Sequence[Expr]": (IMAGE, IMAGE), "int": 1, "float": 0.5, "str": "float32"}
"""Annotation -> an argument for a parameter without a default."""


@pytest.mark.parametrize("function", list(builders()))
def test_builders(function):
    parameters = inspect.signature(function).parameters.values()
    required = {p.name: RIGHT.get(str(p.annotation), (1, 1)) for p in parameters if p.default is p.empty}
    for parameter in parameters:
        for wrong in WRONG:
            with suppress(CompileError):
                function(**{**required, parameter.name: wrong})


def test_arguments_of_builders_are_named():
    x = relay.var("x", (1, 3, 8, 8))
    for call, message in (
        (lambda: relay.add("x", 3), r"^add\(\): lhs is 'x'; expected an expression"),
        (lambda: relay.nn.conv2d(x, x, "ab"), r"^nn.conv2d\(\): strides is 'ab'; expected an integer or a sequence"),
        (lambda: relay.nn.conv2d(x), r"^nn.conv2d\(\): missing a required argument: 'weight'; expected data, weight"),
        (lambda: relay.sum(x, keepdims="no"), r"^sum\(\): keepdims is 'no'; expected a bool"),
        (lambda: relay.op.make_call("nn.softmax", [x], axis="x"), r"^nn.softmax\(\): axis is 'x'; expected an integer"),
        (lambda: relay.op.make_call("nn.softmax", [x], axes=1), r"^nn.softmax\(\): got an unexpected keyword argument"),
        (lambda: relay.op.get_op("squeeze")(axis=1.5)(x), r"^squeeze\(\): axis is 1.5; expected"),
        (lambda: relay.nn.dense(x, x, units=5), r"^nn.dense\(Tensor.*: units=5, but the weights are"),
    ):
        with pytest.raises(relay.TypeInferenceError, match=message):
            call()


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: type(value).__name__)
def test_nodes_and_types(wrong):
    x, condition, add = relay.var("x", (2,)), relay.var("c", (), "bool"), relay.op.Add()
    for make in (
        lambda: relay.TensorType(wrong), lambda: relay.TensorType((wrong,)), lambda: relay.TensorType((), wrong),
        lambda: relay.TupleType(wrong), lambda: relay.TupleType([wrong]), lambda: relay.FuncType([wrong], x.ty),
        lambda: relay.FuncType([], wrong), lambda: relay.scalar_type(wrong), lambda: relay.Any(wrong),
        lambda: relay.const(wrong), lambda: relay.const(0, wrong), lambda: relay.Constant(wrong),
        lambda: relay.var(wrong), lambda: relay.var("x", wrong), lambda: relay.var("x", (), wrong),
        lambda: relay.var("x", ty=wrong), lambda: relay.Var("x", wrong), lambda: relay.GlobalVar("f", wrong),
        lambda: relay.Tuple(wrong), lambda: relay.TupleGetItem(wrong, 0),
        lambda: relay.TupleGetItem(relay.Tuple([x]), wrong), lambda: relay.Function(wrong, x),
        lambda: relay.Function([wrong], x), lambda: relay.Function([x], wrong), lambda: relay.Function([x], x, wrong),
        lambda: relay.Let(wrong, x, x), lambda: relay.Let(x, wrong, x), lambda: relay.Let(x, x, wrong),
        lambda: relay.If(wrong, x, x), lambda: relay.If(condition, wrong, x), lambda: relay.If(condition, x, wrong),
        lambda: relay.Call(wrong, [x]), lambda: relay.Call(wrong, [wrong]),
        lambda: relay.Call(add, wrong), lambda: relay.Call(add, [wrong, x]),
        lambda: relay.IRModule(wrong), lambda: relay.astext(wrong), lambda: relay.parse(wrong),
        lambda: relay.create_executor(wrong), lambda: relay.bind_params_by_name(wrong, {}),
    ):  # fmt: skip
        with suppress(CompileError):
            make()
