"""What tests of passes share: run a pass, check that the meaning stays, give back the new function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from relay import Call, Function, IRModule, analysis
from relay.interpreter import evaluate
from relay.op.base import OpDef
from te.ir import Pass, Sequential


def apply_and_compare(function: Function, *passes: Pass) -> Function:
    """The function after `passes`, checked: well-formed, of the same type, with the same results on random inputs."""
    module = Sequential(passes)(IRModule({"main": function}))
    after: Function = module["main"]
    analysis.well_formed(module)
    assert after.ty is function.ty
    rng = np.random.default_rng(7)
    inputs = [rng.standard_normal(p.tensor_type.static_shape).astype(str(p.dtype)) for p in function.params]
    expected, found = evaluate(function, inputs), evaluate(after, inputs)
    pairs = zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
    for a, b in pairs:
        np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-5)
    return after


def count_operators(function: Function) -> Counter[str]:
    """Calls of each operator, those inside fused functions included."""
    calls = [e for e in analysis.evaluation_order(function) if isinstance(e, Call)]
    return Counter(c.op.name for c in calls if isinstance(c.op, OpDef))


@pytest.fixture
def transformed() -> Callable[..., Function]:
    """`transformed(function, *passes)`: see `apply_and_compare`."""
    return apply_and_compare


@pytest.fixture
def operators() -> Callable[[Function], Counter[str]]:
    """`operators(function)`: see `count_operators`."""
    return count_operators
