"""Schedules for processors whose caches are smaller than a test's tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc import backend, te
from relayc.te.ir import IRModule, collect
from relayc.te.tir import BufferStore, FloorMod, PrimFunc
from relayc.topi.registry import schedule_for
from tests.processors import of_no_trait

PROCESSORS = {"own": "llvm", "haswell": "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell",
              "neoverse": "llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-n1"}  # fmt: skip


def lowered(out: te.Tensor, arguments: Sequence[te.Tensor], target: str = "llvm", *, caches: str) -> IRModule:
    """The loops of `out` for a target with `caches`."""
    return te.lower(schedule_for([out], of_no_trait(f"{target} {caches}")), [*arguments, out])


def result(
    out: te.Tensor, arguments: Sequence[te.Tensor], arrays: Sequence[np.ndarray], target: str = "llvm", *, caches: str
) -> np.ndarray:
    """The result of these loops on the host."""
    function = backend.build(lowered(out, arguments, target, caches=caches), target=of_no_trait(f"{target} {caches}"))
    found = backend.nd.empty(tuple(out.shape), str(out.dtype))
    function(*[backend.nd.array(a) for a in arrays], found)
    return found.numpy()


def stored_by_lines(func: PrimFunc) -> bool:
    """Do addresses of stores depend on the alignment to cache lines?"""
    stores = [node for node in collect(func.body, BufferStore) if node.buffer.data in func.params]
    return any(collect(store.indices[-1], FloorMod) for store in stores)
