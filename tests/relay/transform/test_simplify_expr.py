"""SimplifyExpr: one test for each identity, by structure and by results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from relayc.relay import Expr, Function, const, op, var
from relayc.relay.op import nn
from relayc.relay.transform import SimplifyExpr
from relayc.te.ir import first_difference


def vector(*values: float) -> Expr:
    return const(np.array(values, "float32"))


def bias() -> Expr:
    return const(np.arange(6, dtype="float32"))


CHOICE = np.array([[0, 2], [1, -1], [2, 2], [0, 1]])
SEVERAL = np.random.default_rng(0).standard_normal((3, 4, 7)).astype("float32")

Build = Callable[[Expr], Expr]

IDENTITIES: dict[str, tuple[tuple[int, ...], Build, Build]] = {
    "view of a view": (
        (2, 6),
        lambda x: op.reshape(op.reshape(x, (3, 4)), (12,)),
        lambda x: op.reshape(x, (12,)),
    ),
    "view as itself": ((2, 6), lambda x: nn.relu(op.reshape(op.reshape(x, (3, 4)), (2, 6))), nn.relu),
    "transposes merge": (
        (2, 3, 4),
        lambda x: op.transpose(op.transpose(x, (1, 2, 0)), (0, 2, 1)),
        lambda x: op.transpose(x, (1, 0, 2)),
    ),
    "transposes cancel": ((2, 3), lambda x: nn.relu(op.transpose(op.transpose(x, (1, 0)), (1, 0))), nn.relu),
    "a transpose that moves nothing": (
        (1, 3, 4),
        lambda x: op.transpose(x, (1, 0, 2)),
        lambda x: op.reshape(x, (3, 1, 4)),
    ),
    "casts up and back": ((4,), lambda x: nn.relu(op.cast(op.cast(x, "float64"), "float32")), nn.relu),
    "casts up twice": (
        (4,),
        lambda x: op.cast(op.cast(op.cast(x, "float16"), "float32"), "float64"),
        lambda x: op.cast(op.cast(x, "float16"), "float64"),
    ),
    "a cast down and up stays": (
        (4,),
        lambda x: op.cast(op.cast(x, "float16"), "float32"),
        lambda x: op.cast(op.cast(x, "float16"), "float32"),
    ),
    "plus zero": ((4,), lambda x: nn.relu(op.add(x, const(0.0))), nn.relu),
    "times one": ((4,), lambda x: nn.relu(op.multiply(const(1.0), x)), nn.relu),
    "minus zero": ((4,), lambda x: nn.relu(op.subtract(x, const(0.0))), nn.relu),
    "a choice that is known": (
        (2, 2),
        lambda x: nn.relu(op.where(const(np.zeros((2, 1), bool)), const(1.0), op.where(const(True), x, const(2.0)))),
        nn.relu,
    ),
    "a known choice that broadcasts stays": (
        (1,),
        lambda x: op.where(const(np.ones(2, bool)), x, const(0.0)),
        lambda x: op.where(const(np.ones(2, bool)), x, const(0.0)),
    ),
    "a neutral constant that broadcasts stays": (
        (1,),
        lambda x: op.add(x, vector(0, 0)),
        lambda x: op.add(x, vector(0, 0)),
    ),
    "division by a power of two": (
        (4,),
        lambda x: op.divide(x, const(8.0)),
        lambda x: op.multiply(x, const(0.125)),
    ),
    "division by three stays": ((4,), lambda x: op.divide(x, const(3.0)), lambda x: op.divide(x, const(3.0))),
    "constants in a chain": (
        (2, 2),
        lambda x: op.add(op.add(x, vector(1, 2)), vector(3, 4)),
        lambda x: op.add(x, vector(4, 6)),
    ),
    "constants whose product is out of range stay apart": (
        (2, 2),
        lambda x: op.multiply(op.multiply(x, const(1e-30)), const(1e-30)),
        lambda x: op.multiply(op.multiply(x, const(1e-30)), const(1e-30)),
    ),
    "an affine chain": (
        (2, 2),
        lambda x: op.add(op.multiply(op.add(op.multiply(x, vector(1, 2)), vector(3, 4)), vector(2, 3)), vector(1, 1)),
        lambda x: op.add(op.multiply(x, vector(2, 6)), vector(7, 13)),
    ),
    "relu of relu": ((4,), lambda x: nn.relu(nn.relu(x)), nn.relu),
    "clip of clip": (
        (4,),
        lambda x: op.clip(op.clip(x, -1.0, 0.5), -0.5, 2.0),
        lambda x: op.clip(x, -0.5, 0.5),
    ),
    "broadcast_to inside a sum": (
        (4, 3),
        lambda x: op.add(x, op.broadcast_to(vector(1, 2, 3), (4, 3))),
        lambda x: op.add(x, vector(1, 2, 3)),
    ),
    "broadcast_to of indices": (
        (2, 4, 3),
        lambda x: op.gather(x, 2, op.broadcast_to(const(CHOICE), (2, 4, 2))),
        lambda x: op.gather(x, 2, const(CHOICE[None]), broadcasts=True),
    ),
    "a product with tiles": (
        (6, 5, 4),
        lambda x: nn.batch_matmul(x, op.transpose(op.tile(op.tanh(const(SEVERAL)), (2, 1, 1)), (0, 2, 1))),
        lambda x: op.reshape(
            nn.batch_matmul(op.reshape(x, (2, 3, 5, 4)), op.transpose(op.tanh(const(SEVERAL)), (0, 2, 1))), (6, 5, 7)
        ),
    ),
    "a slice of everything": ((4, 3), lambda x: nn.relu(op.strided_slice(x, (0, 0), (4, 3))), nn.relu),
    "a slice of a slice": (
        (8, 6),
        lambda x: op.strided_slice(op.strided_slice(x, (2,), (8,)), (1, 1), (3, -1)),
        lambda x: op.strided_slice(x, (3, 1), (5, 5)),
    ),
    "a pad of a pad": (
        (2, 3),
        lambda x: nn.pad(nn.pad(x, ((0, 1), (1, 0))), ((2, 0), (0, 0))),
        lambda x: nn.pad(x, ((2, 1), (1, 0))),
    ),
    "one concatenated": ((4,), lambda x: nn.relu(op.concatenate([x], axis=0)), nn.relu),
    "concatenated in steps": (
        (4,),
        lambda x: op.concatenate([x, op.concatenate([nn.relu(x), x])]),
        lambda x: op.concatenate([x, nn.relu(x), x]),
    ),
    "a view behind an elementwise operator": (
        (2, 6),
        lambda x: nn.relu(op.reshape(op.tanh(x), (3, 4))),
        lambda x: op.reshape(nn.relu(op.tanh(x)), (3, 4)),
    ),
    "a view behind a bias": (
        (4, 6),
        lambda x: op.add(op.reshape(x, (2, 2, 6)), bias()),
        lambda x: op.reshape(op.add(x, bias()), (2, 2, 6)),
    ),
    "a view that changes the last dimension stays before a bias": (
        (3, 4),
        lambda x: op.add(op.reshape(x, (2, 6)), bias()),
        lambda x: op.add(op.reshape(x, (2, 6)), bias()),
    ),
    "an inverse root": (
        (4,),
        lambda x: op.divide(const(1.0), op.sqrt(op.add(nn.relu(x), const(1.0)))),
        lambda x: op.rsqrt(op.add(nn.relu(x), const(1.0))),
    ),
    "copies": ((4,), lambda x: nn.relu(op.copy(x)), nn.relu),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_identity(transformed, name: str):
    shape, before, after = IDENTITIES[name]
    x, y = var("x", shape), var("x", shape)
    found = transformed(Function((x,), before(x)), SimplifyExpr())
    assert first_difference(found, Function((y,), after(y))) is None, str(found)


def test_a_residual_of_another_view_fuses_with_the_heavy_operator(transformed):
    x, y = var("x", (4, 6)), var("y", (2, 2, 3))
    w = const(np.ones((3, 6), "float32"))
    found = transformed(Function((x, y), op.add(y, op.reshape(nn.dense(x, w), (2, 2, 3)))), SimplifyExpr())
    assert found.body.op.name == "reshape" and found.body.args[0].op.name == "add"


def test_a_diamond_behind_a_view_moves_before_it(transformed, operators):
    x = var("x", (2, 6))
    view = op.reshape(nn.dense(x, const(np.ones((6, 6), "float32"))), (3, 4))
    found = transformed(Function((x,), op.multiply(nn.relu(view), op.tanh(view))), SimplifyExpr())
    assert found.body.op.name == "reshape" and operators(found)["reshape"] == 1


def test_repeating_single_elements_is_a_broadcast(transformed, operators):
    x = var("x", (2, 1, 3))
    for y in (op.tile(x, (1, 4, 1)), op.tile(x, (5, 1, 4, 1)), op.concatenate([x, x, x], axis=1)):
        assert operators(transformed(Function((x,), y), SimplifyExpr())) == {"broadcast_to": 1}
    other = var("y", (2, 1, 3))
    for y in (op.tile(x, (2, 1, 1)), op.concatenate([x, x], axis=2), op.concatenate([x, other], axis=1)):
        before = Function((x, other), y)
        assert transformed(before, SimplifyExpr()) is before
