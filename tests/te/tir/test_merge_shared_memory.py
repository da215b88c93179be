"""All dynamic shared memory of a kernel in one buffer."""

from __future__ import annotations

import numpy as np

import te
from te.ir import collect
from te.tir import Allocate
from te.tir.block_interpreter import BlockInterpreter
from te.tir.passes.merge_shared_memory import merge_shared_memory
from te.tir.passes.thread_sync import ThreadSync


def test_buffers_of_different_types_lie_side_by_side() -> None:
    a, b = te.placeholder((8,), "float32", "a"), te.placeholder((8,), "float16", "b")
    left = te.compute((8,), lambda i: a(i) * 2.0, name="left")
    right = te.compute((8,), lambda i: b(i) + te.const(1, "float16"), name="right")
    out = te.compute((8,), lambda i: left(7 - i) + te.cast("float32", right(7 - i)), name="out")
    s = te.create_schedule(out.op)
    for stage in (left, right):
        s[stage].set_scope("shared.dyn")
        s[stage].compute_at(s[out], s[out].leaf_iter_vars[0])
        s[stage].bind(s[stage].op.axis[0], te.thread_axis((0, 8), "threadIdx.x"))
    s[out].bind(out.op.axis[0], te.thread_axis((0, 8), "threadIdx.x"))
    func = merge_shared_memory(ThreadSync().function(te.lower(s, [a, b, out])["main"]))
    (shared,) = [n.buffer for n in collect(func.body, Allocate) if n.buffer.scope == "shared.dyn"]
    assert shared.shape == (256,) and str(shared.dtype) == "uint8"
    x, y, z = np.arange(8, dtype="float32"), np.arange(8, dtype="float16"), np.zeros(8, "float32")
    BlockInterpreter({"main": func}).call(func, (x, y, z))
    np.testing.assert_array_equal(z, (x * 2 + y + 1)[::-1])
