"""Random programs, lowered and compiled by LLVM, compute what the interpreter computes."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.backend.driver import build
from relayc.backend.runtime import nd
from relayc.te.ir import IRModule
from relayc.te.lower import lowering_passes
from tests.te.tir.random_loops import random_program

BATCH = 12


@pytest.mark.parametrize("start", range(0, 3 * BATCH, BATCH))
def test_compiled_programs(start):
    programs = [random_program(seed) for seed in range(1000 + start, 1000 + start + BATCH)]
    module = IRModule({p.func.name: p.func for p in programs})
    for step in lowering_passes():
        module = step(module)
    compiled = build(module, target="llvm")
    for program in programs:
        arrays = [nd.array(a) for a in program.arrays]
        compiled[program.func.name](*arrays)
        np.testing.assert_array_equal(arrays[-1].numpy(), program.run(), str(program.func))
