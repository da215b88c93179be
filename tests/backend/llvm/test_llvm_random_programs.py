"""Random small programs through LLVM and through the interpreter."""

from __future__ import annotations

import random

import numpy as np
import pytest

from relayc.backend.llvm.build import build
from relayc.backend.runtime import nd
from relayc.te.dtype import DType, dtype
from relayc.te.ir import IRModule
from relayc.te.tir import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    Cast,
    Div,
    FloorDiv,
    FloorMod,
    For,
    ForKind,
    IfThenElse,
    Let,
    Max,
    Min,
    Mod,
    Mul,
    Not,
    Or,
    PrimExpr,
    PrimFunc,
    Select,
    SizeVar,
    Sub,
    Var,
    cast,
    const,
    decl_buffer,
    make_const,
    ramp,
)  # fmt: skip
from relayc.te.tir.interpreter import interpret

TYPES = ("int32", "int64", "uint8", "float32")
PROGRAMS = 40


class Generator:
    """Random expressions over two loop variables, a size and a buffer of every type, with all loads in bounds."""

    def __init__(self, seed: int, lanes: int) -> None:
        self.random = random.Random(seed)
        self.lanes = lanes
        self.buffers = {of: decl_buffer((64,), of, name=f"B_{of}") for of in (*TYPES, "bool")}
        self.i, self.j, self.size = Var("i"), Var("j"), SizeVar("s")
        i, j = self.i, self.j
        self.positions = [i, j, self.size, i * 4 + j, i - j, (i + 3) // 2]

    def value(self, of: str, depth: int, lanes: int | None = None) -> PrimExpr:
        kind = dtype(of).with_lanes(self.lanes if lanes is None else lanes)
        if depth == 0 or self.random.random() < 0.1:
            return self.leaf(kind)
        return self.condition(depth - 1, kind.lanes) if kind.is_bool else self.number(kind, depth - 1)

    def leaf(self, kind: DType) -> PrimExpr:
        choose, of = self.random.choice, str(kind.element)
        shape = choose(["constant", "load", "position"])
        if shape == "constant":
            return make_const(kind, self.random.randint(-5, 9))
        if shape == "position" and kind.is_int:
            position = choose(self.positions)
            return cast(of, ramp(position, self.random.randint(-2, 3), kind.lanes))
        start = choose(self.positions) % 8 + self.random.randint(0, 8)
        return BufferLoad(self.buffers[of], (ramp(start, choose([0, 1, 1, 1, 2]), kind.lanes),))

    def condition(self, depth: int, lanes: int) -> PrimExpr:
        choose = self.random.choice
        shape = choose(["compare", "logic", "not"])
        if shape == "compare":
            of = choose(TYPES)
            return choose([LT, LE, GT, GE, EQ, NE])(self.value(of, depth, lanes), self.value(of, depth, lanes))
        if shape == "not":
            return Not(self.value("bool", depth, lanes))
        return choose([And, Or])(self.value("bool", depth, lanes), self.value("bool", depth, lanes))

    def number(self, kind: DType, depth: int) -> PrimExpr:
        choose, of, lanes = self.random.choice, str(kind.element), kind.lanes
        shape = choose(["arithmetic"] * 4 + ["extreme", "quotient", "select", "lazy", "cast", "let"])
        a = self.value(of, depth, lanes)
        if shape == "quotient":
            return self.quotient(kind, a)
        if shape == "cast":
            return Cast(kind, self.value(choose([t for t in TYPES[:3] if t != of]), depth, lanes))
        b = self.value(of, depth, lanes)
        if shape == "select":
            return Select(self.value("bool", depth, lanes), a, b)
        if shape == "lazy":
            return Call(kind, "if_then_else", (self.value("bool", depth, lanes), a, b))
        if shape == "let":
            var = Var("v", kind)
            return Let(var, a, choose([Add, Sub])(b, var))
        return choose([Min, Max] if shape == "extreme" else [Add, Sub, Mul])(a, b)

    def quotient(self, kind: DType, a: PrimExpr) -> PrimExpr:
        choose = self.random.choice
        if kind.is_float:
            return Div(a, make_const(kind, choose([2.0, -4.0, 0.5])))
        divisors = [1, 2, 3, 4, 7, 8] if kind.is_uint else [1, 2, 3, 4, 7, 8, -2, -3, -8]
        return choose([Div, Mod, FloorDiv, FloorMod])(a, make_const(kind, choose(divisors)))

    def program(self, name: str) -> tuple[PrimFunc, str]:
        choose, of = self.random.choice, self.random.choice(TYPES)
        out = decl_buffer((256,), of, name="C")
        at = (ramp((self.i * 5 + self.j) * self.lanes, 1, self.lanes),)
        body = BufferStore(out, self.value(of, self.random.randint(1, 4)), at)
        if self.random.random() < 0.3:
            other = BufferStore(out, make_const(body.value.dtype, 1), at)
            body = IfThenElse(self.value("bool", 2, 1), body, other)
        body = For(self.j, const(0), const(5), choose([ForKind.SERIAL, ForKind.UNROLLED]), body)
        kind = choose([ForKind.SERIAL, ForKind.PARALLEL, ForKind.UNROLLED])
        params: list[Buffer] = [*self.buffers.values(), out]
        buffers = {b.data: b for b in params}
        loops = For(self.i, const(0), const(4), kind, body)
        return PrimFunc((*buffers, self.size), loops, buffers, {"global_symbol": name}), of


@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_random_programs_agree_with_the_interpreter(host, lanes):
    programs = [Generator(1000 * lanes + k, lanes).program(f"f{k}") for k in range(PROGRAMS)]
    module = build(IRModule({f.name: f for f, _ in programs}), host)
    rng = np.random.default_rng(lanes)
    inputs = [rng.integers(-20, 20, 64).astype("i4"), rng.integers(-20, 20, 64), rng.integers(0, 30, 64).astype("u1"),
              rng.uniform(-4, 4, 64).astype("f4"), rng.integers(0, 2, 64).astype(bool)]  # fmt: skip
    for f, of in programs:
        expected, got = np.zeros(256, of), nd.array(np.zeros(256, of))
        with np.errstate(all="ignore"):
            interpret(f, *[x.copy() for x in inputs], expected, 5)
        module[f.name](*[nd.array(x) for x in inputs], got, 5)
        if of == "float32":
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-3, err_msg=str(f))
        else:
            np.testing.assert_array_equal(got.numpy(), expected, str(f))
