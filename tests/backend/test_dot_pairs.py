"""te.dot_pairs: the same on every target, whatever the vectors, also where a sum wraps around."""

from __future__ import annotations

import platform
import shutil

import numpy as np
import pytest

import te
from backend import build, nd
from backend.runtime import device
from te.errors import CompileError

RNG = np.random.default_rng(5)
EXTREMES = np.array([-(1 << 15), (1 << 15) - 1, -1, 0, 1], np.int64)
TARGETS = ["llvm", "interp"]
if platform.machine() == "x86_64":
    TARGETS.append("llvm -mcpu=x86-64-v2")
if shutil.which("cc"):
    TARGETS.append("c")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [1, 4, 8, 24, 32])
def test_halves_are_multiplied_with_their_signs(target, lanes):
    n = 48 * lanes
    halves = RNG.choice(np.concatenate([EXTREMES, RNG.integers(-(1 << 15), 1 << 15, 20)]), (2, 2, n))
    x, y = (((h[1] << 16) | (h[0] & 0xFFFF)).astype(np.uint32).view(np.int32) for h in halves)
    products = halves[0] * halves[1]
    expected = (products[0] + products[1]).astype(np.uint32).view(np.int32)
    a, b = (te.placeholder((n,), dtype="int32", name=name) for name in "ab")
    c = te.compute((n,), lambda i: te.dot_pairs(a[i], b[i]), name="c")
    s = te.create_schedule(c)
    if lanes > 1:
        _, inner = s[c].split(c.op.axis[0], factor=lanes)
        s[c].vectorize(inner)
    function = build(s, [a, b, c], target)
    kind = device("interp" if target == "interp" else "cpu")
    arrays = [nd.array(v, kind) for v in (x, y, np.zeros_like(x))]
    function(*arrays)
    np.testing.assert_array_equal(arrays[2].numpy(), expected)


def test_other_types_are_refused():
    with pytest.raises(CompileError, match="int32"):
        te.dot_pairs(te.const(1, "int16"), te.const(1, "int16"))
