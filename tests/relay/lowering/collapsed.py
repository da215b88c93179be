"""Functions whose dimensions a pass has collapsed compute the same."""

from __future__ import annotations

import numpy as np

from relayc.relay.expr import Function
from relayc.relay.interpreter import evaluate
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext
from relayc.te.tir import Dim


def collapsed(
    collapse: FunctionPass, function: Function, rtol: float = 0.0, atol: float = 0.0
) -> tuple[Function, list[tuple[Dim, ...]]]:
    """The function as a pass changes it, and the shapes of its parameters; results are compared."""
    changed = collapse.transform(function, PassContext.current())
    random = np.random.default_rng(0)
    types = [p.tensor_type for p in function.params]
    arrays = [random.standard_normal(ty.static_shape).astype(str(ty.dtype)) for ty in types]
    reshaped = [a.reshape(p.tensor_type.static_shape) for a, p in zip(arrays, changed.params, strict=True)]
    found, wanted = evaluate(changed, reshaped), evaluate(function, arrays)
    np.testing.assert_allclose(np.ravel(found), np.ravel(wanted), rtol=rtol, atol=atol)
    return changed, [p.tensor_type.shape for p in changed.params]
