"""Schedules that several tests of the CUDA code generator share."""

from __future__ import annotations

from relayc import te

ARCHES = ("sm_80", "sm_90")


def vector_add(n, dtype: str = "float32", vector: int = 1):
    """The tutorial's program: (schedule, arguments)."""
    a, b = te.placeholder((n,), dtype, name="A"), te.placeholder((n,), dtype, name="B")
    c = te.compute(a.shape, lambda i: a[i] + b[i], name="C")
    s = te.create_schedule(c.op)
    block, thread = s[c].split(c.op.axis[0], factor=64 * vector)
    if vector > 1:
        thread, lanes = s[c].split(thread, factor=vector)
        s[c].vectorize(lanes)
    s[c].bind(block, te.thread_axis("blockIdx.x"))
    s[c].bind(thread, te.thread_axis("threadIdx.x"))
    return s, [a, b, c]
