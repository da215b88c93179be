"""Invalid programs and their error messages."""

from __future__ import annotations

import pytest

from relayc.te.dtype import HANDLE, dtype
from relayc.te.errors import VerifyError
from relayc.te.ir import IRModule, PassContext
from relayc.te.tir import (
    Add,
    Allocate,
    AttrStmt,
    BufferLoad,
    BufferStore,
    Call,
    Cast,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterVar,
    Let,
    PrimFunc,
    Range,
    Select,
    Var,
    const,
    decl_buffer,
    seq,
)  # fmt: skip
from relayc.te.tir.passes.simplify import Simplify
from relayc.te.tir.verifier import Verify, VerifyInstrument, verify, verify_memory

A = decl_buffer((4, 4), name="A")
PARAM = Var("A", HANDLE)
i = Var("i")


def function(body) -> PrimFunc:
    return PrimFunc((PARAM,), body, {PARAM: A}, {"global_symbol": "f"})


def store(value=None, indices=None, predicate=None):
    return BufferStore(A, const(0.0) if value is None else value, indices or (const(0), const(0)), predicate)


LOCAL = decl_buffer((4,), name="local")
TWICE = Cast(dtype("float32"), Add(i, i))
BROKEN = [
    (store(indices=(i, const(0))), "variable i is used where it is not defined"),
    (seq(For(i, const(0), const(4), ForKind.SERIAL, store(indices=(i, i))), store(indices=(i, i))), "variable i is"),
    (store(value=const(1)), "a value of type int32, expected float32"),
    (store(indices=(const(0),)), "1 indices for 2 axes"),
    (store(indices=(const(0), const(0.0))), "index of type float32"),
    (store(value=Add(const(1.0), const(1))), "operands have types float32 and int32"),
    (store(value=Select(const(1), const(1.0), const(2.0))), "the condition has type int32"),
    (store(value=BufferLoad(LOCAL, (const(0),))), "buffer local is used outside its allocation"),
    (IfThenElse(const(1), store()), "a condition of type int32, expected bool"),
    (Evaluate(Call(dtype("int32"), "no_such_call", ())), "unknown intrinsic 'no_such_call'"),
    (Evaluate(Call(dtype("float32"), "exp", ())), "exp takes 1 arguments"),
    (For(i, const(0), const(4, "int64"), ForKind.SERIAL, store()), r"loop bounds of types"),
    (store(value=Add(Let(i, const(1), TWICE), Let(i, const(2), TWICE))), "variable i stands for 1, too"),
    (store(predicate=const(1)), "predicate of type int32 for 1 lanes"),
]


@pytest.mark.parametrize(("body", "message"), BROKEN)
def test_invalid_programs_raise(body, message):
    with pytest.raises(VerifyError, match=message):
        verify(function(body))


def test_well_formed_program():
    inner = seq(BufferStore(LOCAL, const(1.0), (i,)), store(BufferLoad(LOCAL, (i,)), (i, i)))
    func = function(Allocate(LOCAL, For(i, const(0), const(4), ForKind.SERIAL, inner)))
    assert Verify()(IRModule({"f": func}))["f"] is func
    with pytest.raises(VerifyError, match="A is not flat"):
        verify(func, flat=True)


def test_the_error_names_the_pass_that_breaks_a_program():
    with pytest.raises(VerifyError, match="variable i") as caught, PassContext(instruments=[VerifyInstrument()]):
        Simplify()(IRModule({"f": function(store(indices=(i, const(0))))}))
    assert caught.value.__notes__ == ["after pass Simplify"]


def test_device_memory_needs_thread_axes():
    with pytest.raises(VerifyError, match="forget to bind"):
        verify_memory(function(store()), "cuda")
    axis = IterVar(Range(0, 4), Var("tx"), "thread", "threadIdx.x")
    verify_memory(function(AttrStmt("thread_extent", axis, const(4), store(indices=(axis.var, const(0))))), "cuda")
