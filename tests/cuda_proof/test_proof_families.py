"""Every family of schedules at odd sizes: machine code without spills, no races, correct results."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from relayc.relay.interpreter import evaluate
from relayc.te.tir import PrimFunc
from tests.cuda_proof import proof
from tests.cuda_proof.families import FAMILIES

pytestmark = pytest.mark.slow
TOLERANCE = {
    "attention in float16": 2e-3, "block weights in float16": 4e-2, "dense in float16": 2e-2,
    "dense in bfloat16": 6e-2,
}  # fmt: skip


@functools.cache
def kernels(family: str, arch: str) -> list[PrimFunc]:
    return proof.kernels_of(FAMILIES[family](), arch)


@pytest.mark.parametrize("arch", proof.ARCHES)
@pytest.mark.parametrize("family", FAMILIES)
def test_machine_code_keeps_the_spill_budget(family, arch):
    module = proof.compile_for(kernels(family, arch), arch)
    assert module.image[:4] == b"\x7fELF"
    assert not proof.over_budget(module)


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_have_no_faults(family):
    assert proof.check_kernels(kernels(family, "sm_90"), "sm_90") > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_results(cuda_device, family):
    function = FAMILIES[family]()
    random = np.random.default_rng(3)
    inputs = {p.name: random.standard_normal(p.tensor_type.static_shape).astype("float32") for p in function.params}
    expected = evaluate(function, list(inputs.values()))
    tolerance = TOLERANCE.get(family, 1e-4)
    results = proof.run(cuda_device, function, inputs)
    for result, exact in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(result, exact, rtol=tolerance, atol=tolerance)
