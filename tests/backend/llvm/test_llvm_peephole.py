"""Patterns of the loop IR that become one operation of the LLVM code generator."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.backend.llvm.codegen import Machine
from relayc.backend.llvm.codegen.intrinsics import INTRINSICS
from relayc.backend.llvm.peephole import PEEPHOLES, select_instructions
from relayc.te import dot2_bfloat16, dot4, dot8
from relayc.te.ir import collect
from relayc.te.tir import Call, Cast, Select, call_intrin, cast, const, likely
from relayc.te.tir.interpreter import interpret
from relayc.te.tir.intrinsics import INTRINSICS as DECLARED
from tests.backend.llvm.programs import elementwise, sample

LANES = 8
FMA = Machine(fma=True, features=frozenset({"sse2", "avx2"}))
BFLOAT16 = Machine(fma=True, features=frozenset({"sse2", "avx2", "avx512f", "avx512vl", "avx512bf16"}))


def vector(compute, inputs, result="float32", lanes=LANES):
    return elementwise(compute, inputs, result, lanes, 2 * lanes)


def calls(function):
    return [call.op for call in collect(function.body, Call)]


def assert_same_meaning(function, selected, inputs, result="float32", lanes=LANES):
    arrays = [sample(dtype, 2 * lanes) for dtype in inputs]
    before, after = (np.zeros(2 * lanes, result) for _ in range(2))
    interpret(function, *arrays, before)
    interpret(selected, *arrays, after)
    np.testing.assert_allclose(after, before, rtol=1e-5)


@pytest.mark.parametrize(
    ("compute", "op"),
    [
        (lambda x, y, z: x + y * z, "add_product"),
        (lambda x, y, z: x - y * z, "subtract_product"),
        (lambda x, y, z: y * z + x, "product_add"),
        (lambda x, y, z: y * z - x, "product_subtract"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_are_contracted(compute, op, dtype):
    inputs = (dtype,) * 3
    function = vector(compute, inputs, dtype)
    selected = select_instructions(function, FMA)
    assert calls(selected) == [op]
    assert_same_meaning(function, selected, inputs, dtype)


def test_a_chain_of_products_is_contracted_at_each_sum():
    function = vector(lambda x, y, z: (x * y + y) * z + x * x, ("float32",) * 3)
    selected = select_instructions(function, FMA)
    assert sorted(calls(selected)) == ["add_product", "product_add"]
    assert_same_meaning(function, selected, ("float32",) * 3)


@pytest.mark.parametrize(
    ("compute", "dtype", "machine"),
    [
        (lambda x, y, z: x + y * z, "float32", Machine()),
        (lambda x, y, z: x + y * z, "float16", FMA),
        (lambda x, y, z: x + y * z, "int32", FMA),
        (lambda x, y, z: x + y + z, "float32", FMA),
    ],
    ids=["no instruction", "rounded product", "integers", "no product"],
)
def test_other_sums_stay(compute, dtype, machine):
    function = vector(compute, (dtype,) * 3, dtype)
    assert select_instructions(function, machine) is function


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("op", ["dot4", "dot8"])
def test_dot_products_of_bytes_are_added_at_once(op, swapped):
    def compute(x, y, z):
        product = dot4(y, z) if op == "dot4" else dot8(y, z, z, y)
        return product + x if swapped else x + product

    inputs = ("int32",) * 3
    function = vector(compute, inputs, "int32")
    selected = select_instructions(function, FMA)
    assert calls(selected) == [f"add_{op}"]
    assert_same_meaning(function, selected, inputs, "int32")


def test_dot_products_of_bfloat16_use_an_instruction_or_are_expanded():
    function = vector(lambda x, y, z: x + dot2_bfloat16(y, z), ("float32", "int32", "int32"))
    assert calls(select_instructions(function, BFLOAT16)) == ["add_dot2_bfloat16"]
    expanded = calls(select_instructions(function, FMA))
    assert expanded.count("add_product") == 2 and "dot2_bfloat16" not in expanded
    alone = vector(dot2_bfloat16, ("int32", "int32"))
    assert select_instructions(alone, BFLOAT16) is alone
    assert calls(select_instructions(alone, FMA)).count("add_product") == 1


def test_rounding_and_converting_is_one_operation():
    function = vector(lambda x: cast("int32", call_intrin(x.dtype, "round", x)), ("float32",), "int32")
    selected = select_instructions(function, FMA)
    assert calls(selected) == ["round_to_int32"] and not collect(selected.body, Cast)
    assert_same_meaning(function, selected, ("float32",), "int32")
    wide = vector(lambda x: cast("int64", call_intrin(x.dtype, "round", x)), ("float32",), "int64")
    assert select_instructions(wide, FMA) is wide


def guarded(dtype):
    """The first lane where all lanes are likely below 50, else 0."""

    def compute(x):
        highest = call_intrin(x.dtype.element, "vector_reduce_max", x)
        test = likely(highest < const(50, x.dtype.element))
        return Select(test, const(1, "int32"), const(0, "int32"))

    return vector(compute, (dtype,), "int32")


def test_all_lanes_are_compared_without_a_full_maximum():
    selected = select_instructions(guarded("int32"), FMA)
    assert calls(selected) == ["all_below"]
    assert_same_meaning(guarded("int32"), selected, ("int32",), "int32")
    for function, machine in ((guarded("float32"), FMA), (guarded("int32"), Machine())):
        assert "all_below" not in calls(select_instructions(function, machine))


def test_vectors_are_blended_by_data():
    def compute(x, y):
        return Select(call_intrin("float32", "vector_reduce_max", x) < const(0.0, "float32"), x, y)

    function = vector(compute, ("float32", "float32"))
    selected = select_instructions(function, FMA)
    assert "blend" in calls(selected) and not collect(selected.body, Select)
    assert_same_meaning(function, selected, ("float32", "float32"))
    by_lane = vector(lambda x, y: Select(x < y, x, y), ("float32", "float32"))
    assert select_instructions(by_lane, FMA) is by_lane


def test_every_peephole_has_a_name_and_its_reason():
    peepholes = {peephole for several in PEEPHOLES.values() for peephole in several}
    assert all(peephole.__doc__ for peephole in peepholes)


def test_operations_are_declared_and_emitted():
    new = {"add_product", "subtract_product", "product_add", "product_subtract", "round_to_int32", "all_below", "blend",
           "add_dot4", "add_dot8", "add_dot2_bfloat16"}  # fmt: skip
    assert new <= DECLARED.keys() & INTRINSICS.keys()
