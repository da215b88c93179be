"""Every pass, alone and in the order of lowering, preserves the results of random programs under the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.te.tir import For
from relayc.te.tir.passes.flatten import flatten
from relayc.te.tir.passes.loop_partition import loop_partition
from relayc.te.tir.passes.remove_no_op import remove_no_op
from relayc.te.tir.passes.simplify import simplify
from relayc.te.tir.passes.unroll import unroll
from relayc.te.tir.passes.vectorize import vectorize
from relayc.te.tir.verifier import verify
from tests.te.tir.random_loops import random_program

PIPELINE = [flatten, simplify, remove_no_op, loop_partition, vectorize, simplify, unroll, simplify]


def hinted(stmt):
    """Every loop with a partition hint."""
    if isinstance(stmt, For):
        return stmt.replace(body=hinted(stmt.body), annotations={"pragma_loop_partition_hint": 1})
    return stmt


@pytest.mark.parametrize("seed", range(120))
def test_lowering_keeps_the_meaning(seed):
    program = random_program(seed)
    if seed % 2:  # padding is partitioned too
        program.func = program.func.with_body(hinted(program.func.body))
    expected = program.run()
    func = program.func
    for step in PIPELINE:
        before, func = func, step(func)
        verify(func, flat=True)
        np.testing.assert_array_equal(program.run(func), expected, f"{step.__name__}:\n{before}\n->\n{func}")
        if step in (flatten, remove_no_op):
            assert step(func) is func, f"{step.__name__} is not idempotent:\n{func}"
