"""Verifies that a kernel can be launched on a target, before any code is generated."""

from __future__ import annotations

from relayc.backend.cuda.target import STATIC_SHARED_BYTES, CudaLimits
from relayc.backend.kernels import AXES, Kernel
from relayc.backend.target import Target
from relayc.te.ir import collect
from relayc.te.tir import Allocate, as_int, product

__all__ = ["shared_bytes", "verify_launch"]


def shared_bytes(kernel: Kernel) -> tuple[int, int]:
    """Bytes of static ("shared") and dynamic ("shared.dyn") shared memory that a kernel allocates."""
    totals = {"shared": 0, "shared.dyn": 0}
    for node in collect(kernel.body, Allocate):
        scope, count = node.buffer.scope, as_int(product(node.buffer.shape))
        if scope in totals and count is not None:
            totals[scope] += count * node.buffer.dtype.element.nbytes * node.buffer.dtype.lanes
    return totals["shared"], totals["shared.dyn"]


def verify_launch(kernel: Kernel, target: Target) -> list[str]:
    """The reasons why a kernel can't be launched on a target; empty if it can. (TVM: `VerifyGPUCode`.)"""
    limits = CudaLimits.of(target)
    wrong: list[str] = []
    if kernel.threads > limits.threads_per_block:
        wrong.append(f"{kernel.threads} threads in a block, at most {limits.threads_per_block}")
    for kind, extents, most in (("threadIdx", kernel.block, limits.block), ("blockIdx", kernel.grid, limits.grid)):
        for axis, extent, limit in zip(AXES, extents, most, strict=True):
            size = as_int(extent)
            if size is not None and size > limit:
                wrong.append(f"{kind}.{axis} has {size} values, at most {limit}")
    static, dynamic = shared_bytes(kernel)
    if static > STATIC_SHARED_BYTES:
        wrong.append(f"{static} bytes of static shared memory, at most {STATIC_SHARED_BYTES}")
    if static + dynamic > limits.shared_per_block:
        wrong.append(f"{static + dynamic} bytes of shared memory, at most {limits.shared_per_block}")
    return [f"{kernel.name}: {reason}" for reason in wrong]
