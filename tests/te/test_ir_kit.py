"""Infrastructure of the IRs: construction, rebuilding, dispatch, equality."""

from __future__ import annotations

import pytest

from relayc.te.errors import CompileError
from relayc.te.ir import Mutator, PassContext, first_difference, structural_equal
from relayc.te.tir import Add, BufferLoad, BufferStore, For, ForKind, IntImm, PrimFunc, Var, const, decl_buffer


def make_loop(var: Var, value: float) -> PrimFunc:
    a = decl_buffer((4,), name="a")
    body = BufferStore(a, BufferLoad(a, (var,)) + value, (var,))
    return PrimFunc((a.data,), For(var, const(0), const(4), ForKind.SERIAL, body), {a.data: a})


def test_structural_equality_ignores_names_of_bound_variables():
    assert structural_equal(make_loop(Var("i"), 1.0), make_loop(Var("j"), 1.0))


def test_first_difference_names_the_path():
    assert first_difference(make_loop(Var("i"), 1.0), make_loop(Var("i"), 2.0)) == ".body.body.value.b.value"


def test_parts_of_different_kinds_differ():
    """A node, a number, text, nothing: comparing them never makes an expression of the two."""
    a, i, mask = decl_buffer((4,), name="a"), Var("i"), Var("mask", "bool")
    plain, masked = BufferLoad(a, (i,)), BufferLoad(a, (i,), mask)
    assert first_difference(plain, masked) == first_difference(masked, plain) == ".predicate"
    for one in (i, 4, "4", None):
        for other in (i, 4, "4", None):
            assert structural_equal([one], [other]) == (one is other)


def test_rebuild_returns_the_same_object_when_nothing_changed():
    function = make_loop(Var("i"), 1.0)
    assert Mutator().visit(function) is function


def test_dispatch_falls_back_along_the_bases():
    class CountBinaries(Mutator):
        count = 0

        def visit_Binary(self, node: Add) -> Add:
            self.count += 1
            return self.visit_default(node)

    counter = CountBinaries()
    i = Var("i")
    counter.visit(i * 3 + i // 2)
    assert counter.count == 3


def test_constants_fold_and_symbolic_conditions_have_no_truth_value():
    i = Var("i")
    assert isinstance(const(3) + 4, IntImm)
    assert (i + 0) is i
    with pytest.raises(TypeError, match="no truth value"):
        bool(i < 3)


def test_unknown_pass_option_raises():
    with pytest.raises(CompileError, match="unknown pass option"):
        PassContext(config={"no.such.option": 1})
