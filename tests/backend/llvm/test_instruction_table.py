"""The tables of the LLVM code generator: every node and intrinsic has a function, every instruction a row."""

from __future__ import annotations

import pytest

from relayc.backend.llvm import peephole  # noqa: F401 (declares its intrinsics)
from relayc.backend.llvm.codegen import Machine, instruction_table
from relayc.backend.llvm.codegen.instructions import available
from relayc.backend.llvm.codegen.intrinsics import INTRINSICS
from relayc.backend.llvm.codegen.math import C_FUNCTIONS, LLVM_FUNCTIONS
from relayc.backend.llvm.codegen.table import INSTRUCTIONS
from relayc.backend.llvm.codegen.visitor import RULES
from relayc.backend.target import Target
from relayc.te import tir
from relayc.te.tir.intrinsics import INTRINSICS as DECLARED

NOT_EMITTED = {
    tir.ProducerLoad: "replaced by loads of buffers when a schedule is lowered",
    tir.Reduce: "replaced by loops when a schedule is lowered",
    tir.StringImm: "an argument of calls, which read it",
}


ABSTRACT = (tir.PrimExpr, tir.Stmt, tir.Binary, tir.Compare, tir.Logical)
NODES = [
    node for name, node in sorted(vars(tir).items())
    if isinstance(node, type) and issubclass(node, tir.PrimExpr | tir.Stmt) and node not in ABSTRACT
]  # fmt: skip


@pytest.mark.parametrize("node", NODES)
def test_every_node_of_the_loop_ir_has_a_rule(node):
    rules = RULES.statements if issubclass(node, tir.Stmt) else RULES.expressions
    assert (node in rules) != (node in NOT_EMITTED)


def test_intrinsics_are_declared():
    assert INTRINSICS.keys() <= DECLARED.keys()


def test_rows_name_llvm_intrinsics_once():
    names = [(row.operator, row.element, row.lanes, row.features) for row in INSTRUCTIONS]
    assert len(names) == len(set(names))


def test_the_table_prints_every_row():
    lines = instruction_table().splitlines()
    assert len(lines) == 1 + len(INSTRUCTIONS) + len(LLVM_FUNCTIONS) + len(C_FUNCTIONS)
    assert lines[0].split() == ["operator", "type", "needs", "LLVM", "intrinsic", "or", "method"]
    assert any(line.split() == ["round", "float", "roundeven"] for line in lines)
    assert any(line.split() == ["dot4", "int32x16", "avx512vnni", "x86.avx512.vpdpbusd.512"] for line in lines)


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [("znver3", "x86.avx2.pmadd.ub.sw + x86.avx2.pmadd.wd"), ("znver4", "x86.avx512.vpdpbusd.256")],
)
def test_a_machine_uses_the_first_row_whose_features_it_has(cpu, expected):
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}")
    lines = instruction_table(Machine(features=frozenset(target.features))).splitlines()
    (line,) = [line for line in lines if line.startswith("dot4 ") and "int32x8" in line]
    assert line.endswith(expected)


def test_a_row_without_features_serves_any_machine():
    rows = tuple([row for row in INSTRUCTIONS if row.operator == "float32 of float16"])
    assert available(rows, Machine())[0].form == "widen half by integers"
    assert available(rows, Machine(features=frozenset({"f16c"})))[0].form == "extend float"
