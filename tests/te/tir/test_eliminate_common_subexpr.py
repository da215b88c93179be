"""Common-subexpression elimination in large formulas."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te
from relayc.te.dtype import HANDLE
from relayc.te.ir.visitor import collect, post_order
from relayc.te.tir import (
    BufferLoad,
    BufferStore,
    Call,
    For,
    ForKind,
    Let,
    PrimExpr,
    PrimFunc,
    Var,
    const,
    decl_buffer,
    if_then_else,
    select,
)
from relayc.te.tir.interpreter import Interpreter, interpret
from relayc.te.tir.numbering import ValueNumbers
from relayc.te.tir.passes.eliminate_common_subexpr import eliminate_common_subexpr
from relayc.te.tir.passes.rewrite_unsafe_select import rewrite_unsafe_select

A, B = decl_buffer((8,), name="A"), decl_buffer((8,), name="B")
i = Var("i")


def function(value: PrimExpr) -> PrimFunc:
    handles = {Var(buffer.name, HANDLE): buffer for buffer in (A, B)}
    loop = For(i, const(0), const(8), ForKind.SERIAL, BufferStore(B, value, (i,)))
    return PrimFunc(tuple(handles), loop, handles)


def leaky(value: PrimExpr) -> PrimExpr:
    return select(value > 0.0, value, value * 0.5)


def chain(value: PrimExpr, length: int) -> PrimExpr:
    for _ in range(length):
        value = leaky(value - 1.0)
    return value


def written_out(root) -> int:
    sizes: dict[int, int] = {}
    for n in post_order(root):
        sizes[id(n)] = 1 + sum(sizes[id(child)] for child in n.node_children())
    return sizes[id(root)]


def expected(x: np.ndarray, length: int) -> np.ndarray:
    for _ in range(length):
        x = np.where(x - 1 > 0, x - 1, (x - 1) * np.float32(0.5))
    return x


@pytest.mark.parametrize("length", [8, 40])
def test_a_chain_is_bound_link_by_link(length: int):
    func = function(chain(BufferLoad(A, (i,)), length))
    bound = eliminate_common_subexpr(func)
    assert written_out(func.body) > 3**length > 12 * length > written_out(bound.body) / 2
    assert len(collect(bound.body, Let)) == length - 1  # the first names no more than one element
    x, result = np.linspace(-3, 30, 8, dtype=np.float32), np.empty(8, np.float32)
    interpret(bound, x, result)
    np.testing.assert_array_equal(result, expected(x, length))


def test_small_formulas_are_unchanged():
    func = function(chain(BufferLoad(A, (i,)), 3))
    assert eliminate_common_subexpr(func) is func


def test_guarded_expressions_are_not_hoisted_above_their_condition():
    """The chain reads past the end: it is bound inside the guard, not around one whose branches both use it."""
    beyond = chain(BufferLoad(A, (i + 1,)), 8)
    guarded = if_then_else(i < 7, leaky(beyond), const(0.0))
    twice = if_then_else(i < 3, if_then_else(i > 1, beyond, const(1.0)), if_then_else(i < 7, beyond, const(2.0)))
    x, result = np.arange(8, dtype=np.float32), np.empty(8, np.float32)
    shifted = expected(np.append(x[1:], np.float32(0)), 8)
    interpret(eliminate_common_subexpr(function(guarded)), x, result)
    np.testing.assert_array_equal(result, np.where(np.arange(8) < 7, expected(shifted + 1, 1), 0))
    interpret(eliminate_common_subexpr(function(twice)), x, result)
    np.testing.assert_array_equal(result, [1, 1, *shifted[2:7], 2])


def test_shared_elements_of_inlined_formulas_are_one_expression():
    """Each link reads the previous one three times, in separate tensors: a comparison, a product and a select."""
    links = 12
    a = te.placeholder((64,), name="a")
    value = a
    for _ in range(links):
        less = te.compute((64,), lambda i, v=value: v(i) < 0.0, name="less")
        product = te.compute((64,), lambda i, v=value: v(i) * 0.5, name="product")
        value = te.compute((64,), lambda i, c=less, p=product, v=value: te.select(c(i), p(i), v(i)), name="choice")
    schedule = te.create_schedule(value.op)
    te.AutoInlineInjective(schedule)
    loops = te.lower(schedule, [a, value], simple_mode=True)["main"]
    assert written_out(loops.body) > 3**links
    assert len(list(post_order(loops.body))) < 20 * links
    x, result = np.linspace(-3, 3, 64, dtype=np.float32), np.empty(64, np.float32)
    Interpreter(te.lower(schedule, [a, value]))("main", x, result)
    np.testing.assert_array_equal(result, np.where(x < 0, x * np.float32(0.5**links), x))


def test_selects_between_values_that_the_condition_evaluates_stay():
    """A guarded element that the condition reads anyway needs no guard of its own."""
    padded = if_then_else(i < 7, BufferLoad(A, (i + 1,)), const(0.0))
    chosen = collect(rewrite_unsafe_select(function(leaky(padded))).body, Call)
    assert [call.op for call in chosen] == ["if_then_else"]  # the guard itself, not the select


def test_value_numbers_distinguish_values():
    numbers, j = ValueNumbers(), Var("i")
    assert numbers(BufferLoad(A, (i + 1,)) * 2.0) == numbers(BufferLoad(A, (i + 1,)) * 2.0)
    values = [i, j, i + 1, j + 1, BufferLoad(A, (i,)), BufferLoad(B, (i,)), const(0.0), const(-0.0), const(0),
              const(True), i - j, j - i]  # fmt: skip
    assert len({numbers(v) for v in values}) == len(values)
