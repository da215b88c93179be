"""Text of the loop IR: precedence, unique names, whole functions."""

from __future__ import annotations

import pytest

from relayc.te.tir import (
    Allocate,
    BufferLoad,
    BufferStore,
    Div,
    For,
    ForKind,
    IfThenElse,
    PrimFunc,
    Var,
    cast,
    const,
    decl_buffer,
    if_then_else,
    likely,
    ramp,
    select,
    seq,
)  # fmt: skip
from relayc.te.tir.ops import all as all_of, logical_not, truncmod

i, j, n = Var("i"), Var("j"), Var("n")


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ((i + j) * 4, "(i + j) * 4"),
        (i + j * 4, "i + j * 4"),
        (i - (j - n), "i - (j - n)"),
        (i + (j + n), "i + (j + n)"),
        (i + -3, "i - 3"),
        ((i * 4) // 2 % 3, "i * 4 // 2 % 3"),
        (i // (j * 2), "i // (j * 2)"),
        (i % (j % 2), "i % (j % 2)"),
        (-3 - i, "-3 - i"),
        (i * const(-3), "i * (-3)"),
        (Div(i, j), "truncdiv(i, j)"),
        (truncmod(i, j), "truncmod(i, j)"),
        (all_of(i < 4, logical_not(j >= n)), "i < 4 and not j >= n"),
        (logical_not(all_of(i < 4, j < 4)), "not (i < 4 and j < 4)"),
        ((i < j).astype("int32") + 1, "int32(i < j) + 1"),
        (select(i < 4, i, const(0)), "select(i < 4, i, 0)"),
        (if_then_else(i < 4, const(0.1), 1.0), "if_then_else(i < 4, 0.1, 1.0)"),
        (likely(i < n), "likely(i < n)"),
        (ramp(i * 8, 1, 8), "ramp(i * 8, 1, 8)"),
        (i << 2, "i << 2"),
        ((i & 3) + 1, "(i & 3) + 1"),
        (cast("int64", i) + 5, "int64(i) + int64(5)"),
        (const(1.5, "float16"), "float16(1.5)"),
        (const(float("inf")), 'float32("inf")'),
        (const(True), "True"),
    ],
)
def test_expression(expr, expected):
    assert str(expr) == expected


def test_equal_names_get_suffixes():
    assert str(Var("x") + Var("x")) == "x + x_1"


def test_function():
    size = Var("n")
    a, b = decl_buffer((size, 4), name="A"), decl_buffer((size, 4), name="B")
    acc = decl_buffer((4,), name="acc", scope="local")
    p, q, x, y = Var("A", "handle"), Var("B", "handle"), Var("x"), Var("y")
    body = Allocate(
        acc,
        seq(
            BufferStore(acc, BufferLoad(a, (x, y)) * 2.0, (y,)),
            IfThenElse(likely(x < size), BufferStore(b, BufferLoad(acc, (y,)) + 1.0, (x, y))),
        ),
    )
    loop = For(x, const(0), size, ForKind.PARALLEL, For(y, const(1), const(3), ForKind.SERIAL, body, {"pragma": 1}))
    func = PrimFunc((p, q, size), loop, {p: a, q: b}, {"global_symbol": "f", "noalias": True})
    expected = """\
# noalias: True
def f(A: Buffer([n, 4], "float32"), B: Buffer([n, 4], "float32"), n: int32):
    for x in parallel(n):
        for y in range(1, extent=3):  # pragma: 1
            acc = allocate([4], "float32", scope="local")
            acc[y] = A[x, y] * 2.0
            if likely(x < n):
                B[x, y] = acc[y] + 1.0"""
    assert str(func) == expected
