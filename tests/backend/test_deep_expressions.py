"""Expressions nested deeper than Python's recursion limit: polynomials and networks written out by hand."""

from __future__ import annotations

import sys

import numpy as np

from relayc import te
from relayc.backend.driver import build
from relayc.backend.runtime import ndarray

DEPTH = 1500


def test_a_deep_expression_is_lowered_compiled_and_run():
    a = te.placeholder((16,), name="a")

    def horner(i):
        value = a[i]
        for _ in range(DEPTH):
            value = value * 0.5 + a[i]
        return value

    b = te.compute((16,), horner, name="b")
    limit = sys.getrecursionlimit()
    run = build(te.lower(te.create_schedule(b.op), [a, b]), target="llvm")
    assert sys.getrecursionlimit() == limit < DEPTH
    x = ndarray.array(np.arange(16, dtype="float32"))
    y = ndarray.empty((16,), "float32")
    run(x, y)
    np.testing.assert_allclose(y.numpy(), 2 * x.numpy(), rtol=1e-6)
