"""The loops that measure a machine's ceilings."""

from __future__ import annotations

import platform

import llvmlite.binding as llvm
import pytest

from relayc.backend.llvm.ceilings import _MULTIPLIES, _SUMS, CeilingMeter, MultiplyLoop

on_x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the loops are x86-64 assembly")


@on_x86
@pytest.mark.parametrize("multiply", [each for found in _MULTIPLIES.values() for each in found], ids=str)
def test_loops_assemble_for_processors_that_have_the_instruction(multiply):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        cpu="sapphirerapids", features="+avxvnni"
    )
    text = machine.emit_assembly(llvm.parse_assembly(multiply.assembly()))
    assert text.count(multiply.name.split()[-1]) == _SUMS


@on_x86
def test_loops_run():
    floats, codes = MultiplyLoop.find("float32"), MultiplyLoop.find("int8")
    assert floats is None or floats.gflops(1 << 20) > 0
    assert codes is None or codes.gflops(1 << 20) > 0
    assert MultiplyLoop.find("int32") is None


def test_a_meter_measures_the_types_that_are_asked_for():
    meter = CeilingMeter(2, ["", "float32", "uint8", "int8", "int64"])
    meter.sample(1)
    measured = {} if MultiplyLoop.find("int8") is None else {"int8"}
    assert set(meter.ceilings.by_type) == set(measured) and meter.ceilings.peak("uint8") > 0
    assert meter.ceilings.peak("int64") == meter.ceilings.peak("float32") == meter.ceilings.gflops > 0
