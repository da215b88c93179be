"""Planted faults that the checker must find, and correct kernels that it must accept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relayc import te
from relayc.te.tir import StringImm, ir_builder
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.ops import call_intrin, if_then_else
from relayc.te.tir.simt_checker import ExternAccess, KernelChecker, SimtFault, check_kernel, sample_blocks

N = 64


class Program:
    """A kernel under construction: `threads` per block, `blocks` blocks, parameters by name."""

    def __init__(self, threads: int = N, blocks: int = 2, **shapes: int) -> None:
        self.ib = ir_builder.create()
        self.b = self.axis("blockIdx.x", blocks)
        self.t = self.axis("threadIdx.x", threads)
        self.buffers = {name: Buffer(name, (size,), "float32") for name, size in shapes.items()}
        self.views = {name: self.ib.buffer(b) for name, b in self.buffers.items()}

    def axis(self, tag: str, extent: int) -> Any:
        axis = te.thread_axis((0, extent), tag)
        self.ib.scope_attr(axis, "thread_extent", extent)
        return axis.var

    def __getitem__(self, name: str) -> Any:
        return self.views[name]

    def sync(self, scope: str = "shared") -> None:
        self.ib.emit(call_intrin("int32", "storage_sync", StringImm(scope)))

    def address(self, view: Any, index: Any) -> Any:
        return call_intrin("handle", "address_of", view[index])

    def check(self, **options: Any) -> None:
        check_kernel("f", self.ib.get(), self.buffers.values(), **options)


def fault(program: Program, kind: str, *words: str, **options: Any) -> str:
    with pytest.raises(SimtFault) as caught:
        program.check(**options)
    message = str(caught.value)
    assert caught.value.kind == kind, message
    for word in ("kernel f, block (", *words):
        assert word in message, message
    return message


def reverse(sync: bool = True, last: int = N - 1) -> Program:
    p = Program(x=2 * N, y=2 * N)
    s = p.ib.allocate("float32", N, "s", scope="shared")
    s[p.t] = p["x"][p.b * N + p.t]
    if sync:
        p.sync()
    p["y"][p.b * N + p.t] = s[last - p.t]
    return p


def test_correct_kernels_pass() -> None:
    reverse().check()
    reverse().check(blocks=[(1, 0, 0)])


def test_a_missing_barrier() -> None:
    fault(reverse(sync=False), "race", "race on s[", "(shared memory)", "reads what thread", "wrote", "no barrier",
          "y[", "s[threadIdx.x] = x[")  # fmt: skip


def tiles(first: bool = True, second: bool = True, trips: int = 4) -> Program:
    """Steps through x in tiles of shared memory, with a barrier after filling a tile and one after using it."""
    p = Program(blocks=1, x=trips * N, y=N)
    s = p.ib.allocate("float32", N, "s", scope="shared")
    total = p.ib.allocate("float32", 1, "total")
    total[0] = 0.0
    with p.ib.for_range(0, trips, "k") as k:
        s[p.t] = p["x"][k * N + p.t]
        if first:
            p.sync()
        with p.ib.for_range(0, N, "i") as i:
            total[0] = total[0] + s[i]
        if second:
            p.sync()
    p["y"][p.t] = total[0]
    return p


def test_loops_with_barriers() -> None:
    tiles().check()
    tiles(trips=100).check()


@pytest.mark.parametrize("trips", [2, 100])
def test_a_barrier_missing_between_iterations(trips: int) -> None:
    fault(tiles(second=False, trips=trips), "race", "race on s[", "writes what other threads read")


def test_a_barrier_missing_within_an_iteration() -> None:
    fault(tiles(first=False), "race", "race on s[", "reads what thread")


def test_a_misplaced_barrier() -> None:
    p = Program(x=2 * N, y=2 * N)
    s = p.ib.allocate("float32", N, "s", scope="shared")
    p.sync()
    s[p.t] = p["x"][p.b * N + p.t]
    p["y"][p.b * N + p.t] = s[N - 1 - p.t]
    fault(p, "race", "race on s[")


def test_a_divergent_barrier() -> None:
    p = Program(x=2 * N, y=2 * N)
    with p.ib.if_scope(p.t < 32):
        p.sync()
    fault(p, "divergence", "32 of 64 threads reach it, thread (32, 0, 0) does not")


def test_a_barrier_in_a_loop_of_uneven_length() -> None:
    p = Program()
    with p.ib.for_range(0, p.t + 1, "i"):
        p.sync()
    fault(p, "divergence", "63 of 64 threads")


def test_a_barrier_in_a_branch_that_all_threads_of_a_block_take() -> None:
    p = Program()
    with p.ib.if_scope(p.b < 1):
        p.sync()
    p.check()


@pytest.mark.parametrize(("last", "element"), [(N, 64), (N - 2, -1)])
def test_an_index_off_by_one_in_shared_memory(last: int, element: int) -> None:
    fault(reverse(last=last), "bounds", f"s[{element}] lies outside its 64 elements (shared memory)", "thread (")


def test_an_index_off_by_one_in_global_memory() -> None:
    p = Program(x=2 * N, y=2 * N)
    p["y"][p.b * N + p.t] = p["x"][p.b * N + p.t + 1]
    fault(p, "bounds", "block (1, 0, 0)", "x[128] lies outside its 128 elements", "thread (63, 0, 0)")


def test_an_index_off_by_one_in_local_memory() -> None:
    p = Program(x=2 * N, y=2 * N)
    r = p.ib.allocate("float32", 4, "r")
    with p.ib.for_range(0, 5, "i") as i:
        r[i] = 0.0
    fault(p, "bounds", "r[4] lies outside its 4 elements (local memory)")


def test_guarded_accesses_are_not_reported() -> None:
    p = Program(blocks=3, x=150, y=150)
    i = p.b * N + p.t
    with p.ib.if_scope(i < 150):
        p["y"][i] = if_then_else(i > 0, p["x"][i - 1], te.const(0.0, "float32"))
    p.check()


@pytest.mark.parametrize("guard", [150, 151])
def test_guards_that_are_too_wide(guard: int) -> None:
    p = Program(blocks=3, x=150, y=150)
    i = p.b * N + p.t
    p["y"][te.min(i, 149)] = if_then_else(te.all(i < guard, i > 0), p["x"][te.min(i, 200)], te.const(1.0, "float32"))
    fault(p, "bounds" if guard == 151 else "race", "x[150]" if guard == 151 else "y[149]")


def test_a_missing_initialisation_of_a_register() -> None:
    p = Program(x=2 * N, y=2 * N)
    total = p.ib.allocate("float32", 1, "total")
    with p.ib.for_range(0, 4, "k"):
        total[0] = total[0] + p["x"][p.t]
    p["y"][p.b * N + p.t] = total[0]
    fault(p, "uninitialized", "total[0] (local memory) is read by thread (0, 0, 0)", "total[0] = total[0] + x[")


def test_partly_initialised_shared_memory() -> None:
    p = Program(x=2 * N, y=2 * N)
    s = p.ib.allocate("float32", N, "s", scope="shared")
    with p.ib.if_scope(p.t < N - 1):
        s[p.t] = p["x"][p.t]
    p.sync()
    p["y"][p.b * N + p.t] = s[N - 1 - p.t]
    fault(p, "uninitialized", "s[63] (shared memory) is read by thread (0, 0, 0)")


def test_reads_of_later_iterations_are_reported() -> None:
    """An iteration may read what an earlier one wrote, not what a later one will."""
    for ahead in (False, True):
        p = Program(x=2 * N, y=2 * N)
        r = p.ib.allocate("float32", 9, "r")
        r[8 if ahead else 0] = 0.0
        with p.ib.for_range(0, 8, "i") as i:
            r[i + (0 if ahead else 1)] = r[i + (1 if ahead else 0)] + 1.0
        p["y"][p.b * N + p.t] = r[8]
        if ahead:
            fault(p, "uninitialized", "r[1] (local memory)")
        else:
            p.check()


def test_two_blocks_that_write_one_element() -> None:
    p = Program(x=2 * N, y=N)
    p["y"][p.t] = p["x"][p.b * N + p.t]
    fault(p, "race", "race on y[0] (global memory)", "writes what block (0, 0, 0) wrote", "with another value")


def test_two_threads_that_write_one_element() -> None:
    p = Program(x=2 * N, y=2 * N)
    p["y"][p.b * N + p.t // 2] = p["x"][p.t]
    fault(p, "race", "race on y[", "with another value")


def test_writing_an_element_twice_with_the_same_value() -> None:
    """What `tail="shift"` does: the last tile moves back over the one before it."""
    p = Program(x=100, y=100)
    i = te.min(p.b * N, 100 - N) + p.t
    p["y"][i] = p["x"][i] * 2.0
    p.check()
    a = te.placeholder((100,), name="A")
    c = te.compute((100,), lambda i: a[i] + 1.0, name="C")
    s = te.create_schedule(c.op)
    block, thread = s[c].split(c.op.axis[0], factor=64, tail="shift")
    s[c].bind(block, te.thread_axis("blockIdx.x"))
    s[c].bind(thread, te.thread_axis("threadIdx.x"))
    function = te.lower(s, [a, c], name="f")["f"]
    check_kernel("f", function.body, function.buffer_map.values())


def test_a_block_that_reads_what_another_writes() -> None:
    p = Program(x=2 * N, y=2 * N)
    p["x"][p.b * N + p.t] = 1.0
    p["y"][p.b * N + p.t] = p["x"][p.t]
    fault(p, "race", "reads what block (0, 0, 0) wrote", "blocks run in any order", initialized=["x"])


def test_barriers_order_global_memory_within_a_block_only() -> None:
    p = Program(blocks=1, x=N, y=N)
    p["x"][p.t] = 1.0
    p.sync()
    p["y"][p.t] = p["x"][N - 1 - p.t]
    p.check()


def test_atomic_additions_do_not_race_with_each_other_but_with_plain_accesses() -> None:
    for plain in (False, True):
        p = Program(x=2 * N, y=1)
        p.ib.emit(call_intrin("float32", "atomic_add", p.address(p["y"], 0), p["x"][p.b * N + p.t]))
        if plain:
            p["x"][p.b * N + p.t] = p["y"][0]
            fault(p, "race", "y[0]", initialized=["y", "x"])
        else:
            p.check(initialized=["y"])


def test_a_barrier_of_the_warp_orders_the_warp_only() -> None:
    for distance in (1, 32):
        p = Program(x=2 * N, y=2 * N)
        s = p.ib.allocate("float32", N, "s", scope="shared")
        s[p.t] = p["x"][p.t]
        p.sync("warp")
        p["y"][p.b * N + p.t] = s[p.t ^ distance]
        if distance == 1:
            p.check()
        else:
            fault(p, "race", "s[")


def pipeline(wait: int = 1, sync: bool = True, trips: int = 5) -> Program:
    """A ring of two slots, filled one iteration ahead by asynchronous copies."""
    p = Program(blocks=1, x=(trips + 1) * N, y=N)
    s = p.ib.allocate("float32", 2 * N, "s", scope="shared")
    total = p.ib.allocate("float32", 1, "total")
    total[0] = 0.0

    def fill(k: Any) -> None:
        copy = (p.address(s, k % 2 * N + p.t), p.address(p["x"], k * N + p.t), 4, te.const(True))
        p.ib.emit(call_intrin("int32", "async_copy", *copy))
        p.ib.emit(call_intrin("int32", "async_commit"))

    fill(te.const(0))
    with p.ib.for_range(0, trips, "k") as k:
        if sync:
            p.sync()  # the slot to fill is no longer read
        fill(k + 1)
        p.ib.emit(call_intrin("int32", "async_wait", wait))
        p.sync()
        total[0] = total[0] + s[k % 2 * N + N - 1 - p.t]
    p["y"][p.t] = total[0]
    return p


@pytest.mark.parametrize("trips", [5, 50])
def test_asynchronous_copies(trips: int) -> None:
    pipeline(trips=trips).check()
    pipeline(trips=trips, wait=0).check()


def test_an_asynchronous_copy_without_wait() -> None:
    fault(pipeline(wait=2), "uninitialized", "s[", "(shared memory)")


def test_an_asynchronous_copy_into_memory_still_being_read() -> None:
    fault(pipeline(sync=False), "race", "s[", "async_copy")


def test_indices_that_are_loaded() -> None:
    """A gather: its addresses are values of the passed array."""
    p = Program(blocks=1, x=N, y=N)
    where = Buffer("where", (N,), "int32")
    p["y"][p.t] = p["x"][p.ib.buffer(where)[p.t]]
    body = p.ib.get()
    check_kernel("f", body, [*p.buffers.values(), where], arrays={"where": np.arange(N)[::-1]})
    with pytest.raises(SimtFault, match=r"x\[64\] lies outside"):
        check_kernel("f", body, [*p.buffers.values(), where], arrays={"where": np.arange(N) + 1})


def test_indices_that_are_computed_in_registers() -> None:
    p = Program(blocks=1, x=N, y=N)
    best = p.ib.allocate("int32", 1, "best")
    best[0] = 0
    with p.ib.for_range(0, N, "i") as i, p.ib.if_scope(p["x"][i] > p["x"][best[0]]):
        best[0] = i
    p["y"][best[0]] = 1.0
    p.check(arrays={"x": np.ones(N)})


def test_indices_that_another_kernel_computed() -> None:
    """Values are kept between the kernels of a function; its workspaces are undefined before the first kernel."""
    n, where = 2 * N, Buffer("where", (2 * N,), "int32")
    p, q = Program(x=n, y=n), Program(x=n, y=n)
    p.ib.buffer(where)[p.b * N + p.t] = n - 1 - (p.b * N + p.t)
    q["y"][q.b * N + q.t] = q["x"][q.ib.buffer(where)[q.b * N + q.t]]
    first, second = p.ib.get(), q.ib.get()
    checker = KernelChecker(q.buffers.values(), [where])
    checker.check("first", first, followed_by=[second])
    checker.check("second", second)
    with pytest.raises(SimtFault, match=r"where\[0\] \(global memory\) is read by thread"):
        KernelChecker(q.buffers.values(), [where]).check("second", second)


EXTERN = {"warp_sum": [ExternAccess(0, 4, writes=True)]}


def test_warp_operations_need_the_whole_warp() -> None:
    def program(limit: int) -> Program:
        p = Program(x=2 * N, y=2 * N)
        r = p.ib.allocate("float32", 1, "r")
        r[0] = p["x"][p.t]
        with p.ib.if_scope(p.t < limit):
            p.ib.emit(call_intrin("int32", "call_extern", StringImm("warp_sum"), p.address(r, 0)))
        p["y"][p.b * N + p.t] = r[0]
        return p

    program(32).check(externs=EXTERN)
    fault(program(16), "divergence", "not all threads of the warp of thread (0, 0, 0)", "warp_sum", externs=EXTERN)


def test_what_a_function_of_values_reads_is_checked() -> None:
    """It needs no description, and its arguments may be variables."""
    def program(size: int) -> Program:
        p = Program(x=size, y=2 * N)
        value = p.ib.let("value", p["x"][p.b * N + p.t])
        p["y"][p.b * N + p.t] = call_intrin("float32", "call_extern", StringImm("function"), value * 2.0)
        return p

    program(2 * N).check()
    fault(program(N), "bounds", "x[")


def shuffled(threads: int, flip: int, mask: int = 0xFFFFFFFF) -> Program:
    p = Program(threads=threads, x=2 * N, y=2 * N)
    r = p.ib.allocate("float32", 1, "r")
    r[0] = p["x"][p.t]
    with p.ib.if_scope(p.t < 32):
        r[0] = call_intrin("float32", "warp_shuffle_xor", te.const(mask, "uint32"), r[0], flip, 32)
    p["y"][p.b * threads + p.t] = r[0]
    return p


def test_shuffles() -> None:
    shuffled(64, 16).check()
    shuffled(16, 8, mask=0xFFFF).check()
    fault(shuffled(24, 8), "divergence", "shuffle: thread (16, 0, 0) reads a lane that does not take part")
    fault(shuffled(64, 16, mask=0xFFFF), "divergence", "thread (0, 0, 0) reads a lane")


def test_the_values_of_shuffles_are_tracked() -> None:
    """Every thread gets its neighbour's value and writes it to that one's element: the same value twice."""
    for same in (True, False):
        p = Program(blocks=1, x=N, y=N)
        other = call_intrin("float32", "warp_shuffle_xor", te.const(0xFFFFFFFF, "uint32"), p["x"][p.t], 1, 32)
        p["y"][p.t // 2] = p["x"][p.t] + other if same else p["x"][p.t] - other
        if same:
            p.check()
        else:
            fault(p, "race", "with another value")


def test_sizes_are_passed_by_name() -> None:
    n = te.var("n")
    p = Program(x=1, y=1)
    x = Buffer("x", (n,), "float32")
    p.ib.buffer(x)[p.b * N + p.t] = 1.0
    body = p.ib.get()
    check_kernel("f", body, [x], sizes={"n": 128})
    with pytest.raises(SimtFault, match=r"block \(1, 0, 0\): x\[100\] lies outside its 100 elements"):
        check_kernel("f", body, [x], sizes={"n": 100})


def test_sampled_blocks_include_the_corners() -> None:
    assert sample_blocks((3, 2, 1)) == [(x, y, 0) for y in range(2) for x in range(3)]
    many = sample_blocks((1000, 1, 1))
    assert many == [(0, 0, 0), (1, 0, 0), (500, 0, 0), (999, 0, 0)]
    cube = sample_blocks((9, 9, 9))
    assert len(cube) <= 8 and {(0, 0, 0), (1, 0, 0), (8, 8, 8)} <= set(cube)
