"""Every operator on GPUs: each row of the operators' table has a schedule, compiles, and matches its reference."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from relayc import te
from relayc.backend.cuda.build import Source, assemble, emit
from relayc.backend.runtime import Device, nd
from relayc.backend.target import Target
from relayc.relay.op import get_op
from relayc.topi.registry import schedule_for
from tests.relay.op.operator_rows import ROWS, Row
from tests.relay.op.test_operators import assert_close, results_of, types_of

SM_90 = Target("cuda -arch=sm_90")
_PARTS = 8
BATCHES = [range(start, len(ROWS), _PARTS) for start in range(_PARTS)]


def code_of(number: int, row: Row) -> Source:
    """The kernels of an operator under its schedule, as a function named after its index in the table."""
    inputs = [te.placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(types_of(row.inputs))]
    outputs = results_of(get_op(row.op)(**row.attrs).compute(*inputs))
    module = te.lower(schedule_for(list(outputs), SM_90), [*inputs, *outputs], name=f"row{number}")
    return emit(module, SM_90)


@lru_cache(maxsize=_PARTS)
def codes_of(numbers: range) -> list[Source]:
    return [code_of(number, ROWS[number]) for number in numbers]


@pytest.mark.parametrize("numbers", BATCHES, ids=str)
def test_every_operator_compiles_for_a_gpu(numbers: range) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    module = assemble(codes_of(numbers), SM_90)
    report = module.report.items()
    assert not {name: kernel for name, kernel in report if kernel["spill_stores"] or kernel["stack"] > 256}


@pytest.mark.parametrize("numbers", BATCHES, ids=str)
def test_every_operator_computes_on_a_gpu_what_its_reference_does(numbers: range, cuda_device: Device) -> None:
    module = assemble(codes_of(numbers), SM_90)
    for number in numbers:
        row = ROWS[number]
        expected = results_of(get_op(row.op)(**row.attrs).reference(*row.inputs))
        arrays = [nd.array(np.array(x, order="C"), cuda_device) for x in row.inputs]
        results = [nd.empty(e.shape, str(e.dtype), cuda_device) for e in expected]
        module.get_function(f"row{number}")(*arrays, *results)
        for result, wanted in zip(results, expected, strict=True):
            assert_close(result.numpy(), wanted, max(row.tolerance, 3e-6))
