"""Kernels that can't be launched are rejected before code generation."""

from __future__ import annotations

import pytest

from relayc import te
from relayc.backend.cuda.build import prepare, verify
from relayc.backend.cuda.verify import shared_bytes, verify_launch
from relayc.backend.kernels import Kernel
from relayc.backend.target import Target
from relayc.te.tir import no_op


def kernel(grid=(1, 1, 1), block=(32, 1, 1)) -> Kernel:
    return Kernel("k", no_op(), grid, block, ())


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"block": (33, 32, 1)}, ["1056 threads in a block, at most 1024"]),
        ({"block": (1, 1, 65)}, ["threadIdx.z has 65 values, at most 64"]),
        ({"grid": (1, 65536, 1)}, ["blockIdx.y has 65536 values, at most 65535"]),
        ({"grid": (1, 1, 1 << 20)}, ["blockIdx.z has 1048576"]),
        ({"grid": (1 << 31, 1, 1)}, ["blockIdx.x has 2147483648"]),
    ],
)
def test_limits_of_a_launch(shape, words):
    (reason,) = verify_launch(kernel(**shape), Target("cuda -arch=sm_90"))
    assert reason.startswith("k: ") and all(word in reason for word in words)


def test_launches_within_the_limits_are_accepted():
    assert verify_launch(kernel((1 << 30, 65535, 1), (32, 32, 1)), Target("cuda -arch=sm_90")) == []
    assert verify_launch(kernel((te.var("n"), 1, 1)), Target("cuda -arch=sm_90")) == []


@pytest.mark.parametrize(("arch", "fits"), [("sm_75", False), ("sm_80", True), ("sm_90", True)])
def test_shared_memory_of_the_architecture(arch, fits):
    n = 20000  # floats: 80 kB
    a = te.placeholder((n,), name="a")
    staged = te.compute((n,), lambda i: a[i] + 1.0, name="staged")
    out = te.compute((n,), lambda i: staged[n - 1 - i], name="out")
    s = te.create_schedule(out.op)
    thread = te.thread_axis((0, 50), "threadIdx.x")
    one, rest = s[out].split(out.op.axis[0], nparts=1)
    s[out].bind(one, te.thread_axis("blockIdx.x"))
    s[out].bind(s[out].split(rest, nparts=50)[0], thread)
    s[staged].set_scope("shared")
    s[staged].compute_at(s[out], one)
    s[staged].bind(s[staged].split(staged.op.axis[0], nparts=50)[0], thread)
    target = Target(f"cuda -arch={arch}")
    (device,) = functions = prepare(te.lower(s, [a, out], name="f"), target)
    assert shared_bytes(device.kernels[0]) == (0, 4 * n)
    problems = verify(functions, target)
    assert problems == ([] if fits else ["f_kernel0: 80000 bytes of shared memory, at most 65536"])
