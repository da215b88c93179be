"""Random programs under random GPU schedules, after all device passes.

Each seed draws a chain of computations, the tensors in shared memory and where they are computed, the threads, and
double buffers. The kernels must have no races, no divergent barriers and no reads of uninitialised memory, and agree
with numpy with the threads of a block in either order.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from relayc import te
from relayc.backend.cuda.build import prepare
from relayc.backend.target import Target
from relayc.te.errors import ScheduleError
from relayc.te.ir import IRModule
from relayc.te.tir.block_interpreter import BlockInterpreter
from relayc.te.tir.simt_checker import KernelChecker

TARGET = Target("cuda -arch=sm_80")
SEEDS = 60


class Draw:
    """A random program and its schedule."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        n, m = self.random.choice([(4, 6), (5, 7), (8, 8), (3, 16), (9, 4)])
        self.source = te.placeholder((n, m), name="a")
        self.value = np.random.default_rng(seed).integers(-4, 5, (n, m)).astype("float32")
        self.tensors = [self.source]
        self.values = [self.value]
        for _ in range(self.random.randint(1, 3)):
            self.extend()
        self.schedule = te.create_schedule(self.tensors[-1].op)
        self.threads = {
            "x": te.thread_axis((0, self.random.choice([2, 4, 5])), "threadIdx.x"),
            "y": te.thread_axis((0, self.random.choice([1, 2, 3])), "threadIdx.y"),
        }
        self.arrange()

    # -- the program

    def extend(self) -> None:
        """One more computation, from the last tensor."""
        t, v = self.tensors[-1], self.values[-1]
        rows, columns = (int(d) for d in t.shape)
        name = f"t{len(self.tensors)}"
        kind = self.random.choice(["flip", "transpose", "sum", "gram", "neighbours"])
        if kind == "flip":
            self.add(te.compute((rows, columns), lambda i, j: t[i, columns - 1 - j] + 1.0, name=name), v[:, ::-1] + 1)
        elif kind == "transpose":
            self.add(te.compute((columns, rows), lambda i, j: t[j, i] * 2.0, name=name), v.T * 2)
        elif kind == "sum":
            k = te.reduce_axis((0, columns), name="k")
            total = te.compute((rows,), lambda i: te.sum(t[i, k], axis=k), name=name + "_sum")
            self.tensors.append(total)
            self.values.append(v.sum(1))
            out = te.compute((rows, columns), lambda i, j: t[i, j] - total[i], name=name)
            self.add(out, v - v.sum(1, keepdims=True))
        elif kind == "gram":
            k = te.reduce_axis((0, columns), name="k")
            self.add(te.compute((rows, rows), lambda i, j: te.sum(t[i, k] * t[j, k], axis=k), name=name), v @ v.T)
        else:
            def near(i, j):
                return t[i, te.tir.maximum(j - 1, 0)] + t[i, te.tir.minimum(j + 1, columns - 1)]

            padded = np.pad(v, ((0, 0), (1, 1)), mode="edge")
            self.add(te.compute((rows, columns), near, name=name), padded[:, :-2] + padded[:, 2:])

    def add(self, tensor: te.Tensor, value: np.ndarray) -> None:
        self.tensors.append(tensor)
        self.values.append(value)

    # -- the schedule

    def arrange(self) -> None:
        s, out = self.schedule, self.tensors[-1]
        row, column = out.op.axis
        block, row = s[out].split(row, factor=self.random.choice([1, 2, 3]))
        s[out].bind(block, te.thread_axis("blockIdx.x"))
        places = [block]
        reduces = bool(s[out].op.reduce_axis) and self.random.random() < 0.7
        local = s.cache_write(out, "local") if reduces else None
        ty, row = s[out].split(row, nparts=int(self.threads["y"].dom.extent))
        serial, tx = s[out].split(column, factor=int(self.threads["x"].dom.extent))
        s[out].reorder(ty, tx, row, serial)
        s[out].bind(ty, self.threads["y"])
        s[out].bind(tx, self.threads["x"])
        consumer, at = out, places
        if local is not None:
            s[local].compute_at(s[out], serial)
            k_outer, k_inner = s[local].split(s[local].op.reduce_axis[0], factor=self.random.choice([2, 3]))
            s[local].reorder(k_outer, k_inner, *s[local].op.axis)
            if self.random.random() < 0.6:
                consumer, at = local, [k_outer]
        for tensor in reversed(self.tensors[1:-1]):
            self.place(tensor, out, places, consumer, at)

    def place(self, tensor: te.Tensor, out: te.Tensor, places: list, consumer: te.Tensor, at: list) -> None:
        """Place a temporary: inline, in shared memory for the block or one step of it, or in a kernel of its own."""
        stage = self.schedule[tensor]
        choice = self.random.choice(["inline", "shared", "shared", "step", "kernel"])
        if choice == "inline" and not tensor.op.reduce_axis:
            stage.compute_inline()
            return
        if choice == "kernel":
            stage.bind(stage.split(tensor.op.axis[0], factor=4)[0], te.thread_axis("blockIdx.x"))
            self.share(stage, tensor, self.random.random() < 0.5, kernel=True)
            return
        stage.set_scope("shared")
        direct = consumer is not out and tensor is self.tensors[-2] and choice == "step"
        stage.compute_at(self.schedule[consumer if direct else out], (at if direct else places)[0])
        self.share(stage, tensor, together=False, kernel=False)
        if direct and self.random.random() < 0.7:
            stage.double_buffer()

    def share(self, stage: te.Stage, tensor: te.Tensor, together: bool, kernel: bool) -> None:
        """Partition a stage among the threads; `together`: threads compute a reduction cooperatively."""
        if tensor.op.reduce_axis and together:
            _, inner = stage.split(tensor.op.reduce_axis[0], factor=int(self.threads["x"].dom.extent))
            stage.bind(inner, self.threads["x"])
            return
        if kernel:
            stage.bind(stage.leaf_iter_vars[1], te.thread_axis((0, 4), "threadIdx.x"))
            return
        fused = stage.fuse(*tensor.op.axis)
        fused, x = stage.split(fused, factor=int(self.threads["x"].dom.extent))
        fused, y = stage.split(fused, factor=int(self.threads["y"].dom.extent))
        stage.bind(x, self.threads["x"])
        stage.bind(y, self.threads["y"])


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_schedule(seed):
    drawn = Draw(seed)
    try:
        lowered = te.lower(drawn.schedule, [drawn.source, drawn.tensors[-1]], name="f")
    except ScheduleError as error:
        assert "outside that loop" in str(error)
        pytest.skip("a temporary would be computed inside a loop and read outside")
    (device,) = prepare(lowered, TARGET)
    checker = KernelChecker(device.function.buffer_map.values(), device.workspaces)
    for i, kernel in enumerate(device.kernels):
        checker.check(kernel.name, kernel.body, followed_by=[k.body for k in device.kernels[i + 1 :]])
    for backwards in (False, True):
        result = np.full(drawn.values[-1].shape, np.nan, "float32")
        module = IRModule({"f": device.function})
        BlockInterpreter(module, check_uninitialized=True, backwards=backwards)("f", drawn.value, result)
        np.testing.assert_array_equal(result, drawn.values[-1], err_msg=str(device.function))
