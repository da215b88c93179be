"""Permuted loads of float16: a vector is widened to float32 first, and then shuffled."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import backend, te
from relayc.backend.target import Target

PICKS = {
    "pairs swapped": lambda i: i // 2 * 2 + (1 - i % 2),
    "each twice": lambda i: i // 2,
    "each four times": lambda i: i // 4,
    "four reversed": lambda i: i // 4 * 4 + (3 - i % 4),
    "halves of 32": lambda i: i // 32 * 32 + i % 2 * 16 + i % 32 // 2,
}


def program(pick, lanes: int, count: int = 960):
    x = te.placeholder((count,), "float16", "x")
    y = te.compute((count,), lambda i: te.cast("float32", x[pick(i)]) * 2 - te.cast("float32", x[i]), name="y")
    s = te.create_schedule(y.op)
    s[y].vectorize(s[y].split(y.op.axis[0], factor=lanes)[1])
    return te.lower(s, [x, y])


@pytest.mark.parametrize("lanes", [4, 8, 16, 24, 32, 64])
@pytest.mark.parametrize("cpu", ["", " -mcpu=x86-64-v2", " -mcpu=haswell"])
@pytest.mark.parametrize("name", PICKS)
def test_values(name: str, cpu: str, lanes: int) -> None:
    target, values = Target("llvm" + cpu), np.arange(-480, 480).astype("f2") / 4
    found = backend.nd.empty(values.shape, "float32")
    backend.build(program(PICKS[name], lanes), target=target)(backend.nd.array(values), found)
    order = PICKS[name](np.arange(960))
    np.testing.assert_array_equal(found.numpy(), values[order].astype("f4") * 2 - values.astype("f4"))


@pytest.mark.parametrize("name", PICKS)
def test_each_element_is_widened_once(name: str) -> None:
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v4")
    text = backend.build(program(PICKS[name], 32, 32), target=target).get_source("asm")
    widened = [16 if "zmm" in line else 8 for line in text.splitlines() if "vcvtph2ps" in line]
    assert sum(widened) == (40 if name == "each four times" else 32)  # of 8 that are no vector of those in order
