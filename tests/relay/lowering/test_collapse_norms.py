"""Softmax and norms have as few dimensions as possible, and equal results."""

from __future__ import annotations

from relayc import relay
from relayc.relay.expr import Expr, Function, Var
from relayc.relay.lowering.collapse_dimensions import CollapseDimensions
from relayc.te.ir import PassContext
from relayc.te.tir import SizeVar
from tests.relay.lowering.collapsed import collapsed

nn = relay.nn


def _var(name: str, *shape: int, dtype: str = "float32") -> Var:
    return Var(name, relay.TensorType(shape, dtype))


def _same(function: Function, shapes: list[tuple[int, ...]]) -> None:
    assert collapsed(CollapseDimensions(), function, rtol=1e-6)[1] == shapes


def test_outer_dimensions_collapse() -> None:
    x, y, scale = _var("x", 2, 3, 4, 5), _var("y", 2, 3, 4, 5), _var("s", 5)
    _same(Function((x,), nn.softmax(x, axis=3)), [(24, 5)])
    _same(Function((x, scale), nn.rms_norm(x, scale)), [(24, 5), (5,)])
    _same(Function((x, y, scale), nn.layer_norm(relay.add(x, y), scale, scale)), [(24, 5), (24, 5), (5,)])
    shared = _var("b", 1, 1, 1, 5)
    _same(Function((x, shared), nn.relu(nn.log_softmax(relay.multiply(x, shared)))), [(24, 5), (1, 5)])
    single = _var("r", 1, 1, 5)
    _same(Function((single, scale), nn.layer_norm(single, scale, scale)), [(1, 5), (5,)])


def test_dimensions_beside_a_row_collapse() -> None:
    x, bias, row = _var("x", 2, 3, 4, 5), _var("b", 3, 1, 1), _var("r", 4, 5)
    _same(Function((x,), nn.softmax(x, axis=1)), [(2, 3, 20)])
    _same(Function((x, bias), relay.add(nn.standardize(x, 1), bias)), [(2, 3, 20), (3, 1)])
    _same(Function((x,), nn.lrn(x, 3, 2)), [(6, 4, 5)])
    _same(Function((x,), nn.softmax(relay.transpose(x, (0, 2, 3, 1)))), [(2, 3, 20)])
    image = _var("i", 1, 3, 1, 5)
    _same(Function((image,), nn.softmax(image, axis=1)), [(3, 5)])
    _same(Function((x, row), nn.layer_norm(x, row, row, axis=2)), [(6, 20), (20,)])
    _same(Function((x,), nn.l2_normalize(x, axis=(1, 2))), [(2, 12, 5)])
    _same(Function((x,), nn.standardize(x, (0, 2, 3))), [(2, 3, 20)])


def test_other_kernels_stay() -> None:
    x, mask, two = _var("x", 2, 3, 4, 5), _var("m", 3, 1, 5), _var("t", 6, 5)
    one, known = _var("o", 2, 1, 5, 5), _var("s", 2, 3, 4, 5)
    sized = Var("n", relay.TensorType((SizeVar("n"), 3, 5), "float32"))
    others: list[tuple[tuple[Var, ...], Expr]] = [
        ((one,), nn.softmax(one, axis=1)),
        ((x, mask), nn.softmax(relay.add(x, mask))),
        ((two,), nn.softmax(two)),
        ((sized,), nn.softmax(sized)),
        ((x, known), nn.softmax(relay.add(nn.softmax(x), known))),
        ((x,), relay.exp(x)),
    ]
    for params, body in others:
        function = Function(params, body)
        assert CollapseDimensions().transform(function, PassContext.current()) is function
