"""Elementwise functions of float16, by vectors."""

from __future__ import annotations

import numpy as np
import pytest

import backend
import te
import topi
from topi.registry import schedule_for


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
@pytest.mark.parametrize(
    ("target", "instruction"),
    [("-mtriple=x86_64-unknown-linux-gnu -mcpu=haswell", "vroundps"),
     ("-mtriple=x86_64-unknown-linux-gnu -mcpu=znver4", "vrndscaleps"),
     ("-mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-n1", ".8h")],
)  # fmt: skip
def test_float16_is_rounded_by_vectors(name, target, instruction):
    x = te.placeholder((256,), "float16", "x")
    y = getattr(topi, name)(x)
    target = backend.Target(f"llvm {target}")
    text = backend.build(te.lower(schedule_for([y], target), [x, y]), target=target).get_source("asm")
    rounding = [line for line in text.splitlines() if instruction in line and ("frint" in line or "vr" in line)]
    assert rounding and f"{name}f" not in text and "roundevenf" not in text


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
def test_every_float16_is_rounded_as_numpy_does(name):
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = te.placeholder(halves.shape, "float16", "x")
    y = getattr(topi, name)(x)
    target = backend.Target("llvm")
    found = backend.nd.empty(halves.shape, "float16")
    backend.build(te.lower(schedule_for([y], target), [x, y]), target=target)(backend.nd.array(halves), found)
    with np.errstate(invalid="ignore"):
        expected = (np.rint if name == "round" else getattr(np, name))(halves)
    np.testing.assert_array_equal(found.numpy(), expected)
