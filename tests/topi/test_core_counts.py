"""Load balance of parallel loops on machines with more cores than the host.

Nothing runs here. The loops for a target with many cores are walked: a store counts as one, and of a parallel loop only
the iterations of the busiest thread count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from relayc import relay, te
from relayc.backend.target import Target
from relayc.relay.lowering.lower import lower
from relayc.te.ir import PassContext, collect
from relayc.te.tir import BufferStore, For, ForKind, IfThenElse, SeqStmt, Stmt, as_int
from relayc.topi.cpu.products.plan import plan_product
from relayc.topi.cpu.tiling import best_tile, largest_partition, tile_rows
from relayc.topi.groups import likely_rows
from relayc.topi.nn.conv import conv_packed
from relayc.topi.registry import operations_behind, schedules_for
from tests.processors import avx2_target
from tests.topi.model_kernels import attentions, bert_base, convolution, dense, mobilenet_v2, resnet50, workloads
from tests.topi.written_lines import written_lines

WORTH_SHARING = 5_000
"""The least vector operations per core for which balance matters, in a kernel that has four times as many."""
LANES = 8


def stored_by_rows() -> PassContext:
    """A context in which a product's own tiles are counted rather than transposed blocks of channels-first results."""
    return PassContext(disabled_pass=["FoldTransposeIntoStore"])


@dataclass(frozen=True)
class Stores:
    """The number of stores in all, sequentially by the busiest thread, and by each thread if perfectly balanced."""

    every: float
    busiest: float
    fair: float

    def __add__(self, other: Stores) -> Stores:
        return Stores(self.every + other.every, self.busiest + other.busiest, self.fair + other.fair)

    def shared(self, iterations: int, threads: int) -> Stores:
        """The counts of a parallel loop whose iteration has these."""
        every = self.every * iterations
        return Stores(every, self.every * math.ceil(iterations / threads), every / threads)

    @property
    def imbalance(self) -> float:
        return self.busiest / self.fair


def stores(stmt: Stmt, cores: int, inside: bool = False) -> Stores:
    """Counts with `cores` cores, of which small loops use a part, as each costs the caller time."""
    match stmt:
        case SeqStmt():
            return sum([stores(part, cores, inside) for part in stmt.stmts], NONE)
        case For():
            shared = stmt.kind is ForKind.PARALLEL and not inside
            each, extent = stores(stmt.body, cores, inside or shared), as_int(stmt.extent) or 1
            if shared:
                return each.shared(extent, min(cores, stmt.most_threads))
            return Stores(each.every * extent, each.busiest * extent, each.fair * extent)
        case IfThenElse():
            cases = [stores(c, cores, inside) for c in (stmt.then_case, stmt.else_case) if c is not None]
            return max(cases, key=lambda case: case.every)
        case BufferStore():
            return Stores(1, 1, 1 / cores)
        case _:
            body = getattr(stmt, "body", None)
            return NONE if body is None else stores(body, cores, inside)


NONE = Stores(0, 0, 0)


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize("cores", [2, 8, 16, 64])
def test_attention_is_balanced_between_cores(cores: int, cpu: str) -> None:
    """Also with few heads and positions, where all cores wait for packed keys and values: packing is parallel."""
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu} -num-cores={cores}")
    imbalance = {
        str(workload.function.body.ty): stores(lower(workload, target).function.body, cores).imbalance
        for workload in workloads(attentions(), target)
        if "attention" in workload.name
    }
    assert len(imbalance) == 7 and max(imbalance.values()) <= 1.15, imbalance


@pytest.mark.parametrize("cores", [2, 8, 16, 64])
@pytest.mark.parametrize("model", [resnet50, mobilenet_v2, bert_base], ids=lambda model: model.__name__)
def test_the_busiest_core_has_little_more_than_average_work(
    model: Callable[[], Iterator[relay.Expr]], cores: int
) -> None:
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores={cores}")
    ideal = taken = 0.0
    for workload in workloads(model(), target):
        counted = stores(lower(workload, target).function.body, cores)
        operations = max(workload.flops, workload.nbytes / 4) / LANES
        if operations >= WORTH_SHARING * max(cores, 4):
            assert counted.imbalance <= 1.35, (workload.name, str(workload.function.body.ty))
        elif counted.busiest == counted.every:  # too little work for two threads
            continue
        ideal += operations * counted.fair / counted.every
        taken += operations * counted.busiest / counted.every
    assert ideal / taken >= 0.9, f"{ideal / taken:.2f} of {cores} cores are busy"


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize(("cores", "most"), [(2, 0.01), (16, 0.03), (64, 0.08)])
@pytest.mark.parametrize("model", [resnet50, mobilenet_v2, bert_base, attentions], ids=lambda model: model.__name__)
def test_threads_write_to_cache_lines_of_their_own(
    model: Callable[[], Iterator[relay.Expr]], cores: int, most: float, cpu: str
) -> None:
    """Except for lines at the border between two threads' iterations."""
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu} -num-cores={cores}")
    counts = [written_lines(lower(workload, target).function, cores) for workload in workloads(model(), target)]
    lines, shared = [sum(count) for count in zip(*counts, strict=True)]
    assert lines > 50_000 and shared <= most * lines, f"{shared} of {lines} lines"


@pytest.mark.parametrize(("by_columns", "shared"), [(False, 0), (True, 48)], ids=["rows", "columns"])
def test_cache_lines_written_by_several_threads_are_counted(by_columns: bool, shared: int):
    """48 rows of two cache lines each; two threads get 24 rows each, or three get 8, 8 and 16 columns."""
    x = te.placeholder((48, 32))
    y = te.compute((48, 32), lambda i, j: x(i, j) + 1.0, name="y")
    s = te.create_schedule(y.op)
    rows, columns = y.op.axis
    if by_columns:
        outer, _ = s[y].split(columns, 8)
        s[y].reorder(outer, rows)
        s[y].parallel(outer)
    else:
        s[y].parallel(rows)
    function = te.lower(s, [x, y], name="f")["f"]
    assert written_lines(function, 3 if by_columns else 2) == (96, shared)


def test_stores_of_the_busiest_core_are_counted():
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=8")
    (workload,) = [w for w in workloads(iter([dense(1, 160, 4096)]), target) if "dense" in w.name]
    counted = stores(lower(workload, target).function.body, 8)
    assert counted.busiest * 10 == counted.every * 2  # ten panels of 16 units on eight cores: some get two
    assert largest_partition(10, 8) == 0.2 and largest_partition(16, 8) == 1 / 8


def test_work_is_partitioned_by_rows_where_data_exceeds_weights():
    target = avx2_target(4)
    for size, blocks in ((56, 4), (7, 0)):
        with stored_by_rows():
            nodes = [w for w in workloads(iter([convolution(size, 256, 128, 1)]), target) if "conv" in w.name]
        (extent,) = parallel_extents(lower(nodes[0], target).function.body)
        panels = nodes[0].function.params[1].tensor_type.static_shape[0]
        tiles = extent // panels
        assert extent == panels * tiles
        assert (tiles % blocks == 0) if blocks else tiles < 16


@pytest.mark.parametrize("channels", [136, 272, 384])
def test_work_is_partitioned_by_channels_where_rows_are_too_few(channels: int):
    """Also for numbers of vectors without a suitable divisor."""
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=16")
    nodes = workloads(iter([convolution(28, channels, channels, 3, groups=channels)]), target)
    (workload,) = [w for w in nodes if "conv" in w.name]
    assert stores(lower(workload, target).function.body, 16).imbalance <= 1.15


def test_small_kernels_use_only_some_of_many_cores():
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=64")
    shared: list[int] = []
    for size in (7, 14, 56, 112):
        nodes = workloads(iter([convolution(size, 64, 64, 3, groups=64)]), target)
        (workload,) = [w for w in nodes if "conv" in w.name]
        loops = [e for e in collect(lower(workload, target).function.body, For) if e.kind is ForKind.PARALLEL]
        shared += [min(loop.most_threads, 64) for loop in loops] or [1]
    assert shared == sorted(shared)
    assert shared[0] == 1 and 2 <= shared[1] <= 16 and shared[-1] >= 32


def test_tile_sizes_balance_the_load_of_many_cores():
    shares: list[float] = []
    for cores in (1, 64):
        target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores={cores}")
        with stored_by_rows():
            nodes = [w for w in workloads(iter([convolution(14, 1024, 256, 1)]), target) if "conv" in w.name]
        shares.append(stores(lower(nodes[0], target).function.body, 64).imbalance)
    assert shares[1] < shares[0] < 1.2


def test_short_window_sums_have_tiles_that_divide_the_row():
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=2")
    assert 112 % tile_rows(target, 112 * 112, 16, 27, line=112) == 0
    assert tile_rows(target, 111 * 111, 16, 27, line=111) == tile_rows(target, 112 * 112, 16, 27) == 6
    assert tile_rows(target, 112 * 112, 16, 27 * 64, line=112) == 6


def parallel_extents(stmt: Stmt) -> list[int]:
    return [as_int(e.extent) or 0 for e in collect(stmt, For) if e.kind is ForKind.PARALLEL]


def test_skinny_products_are_partitioned_by_panels():
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=2")
    (workload,) = list(workloads(iter([dense(1, 1000, 2048)]), target))
    counted = stores(lower(workload, target).function.body, 2)
    assert counted.busiest / counted.every < 0.52


@pytest.mark.parametrize(("cpu", "loops_over_taps"), [("haswell", 1), ("skylake-avx512", 2)])
def test_taps_of_a_row_are_unrolled_where_their_pixels_fit_into_registers(cpu: str, loops_over_taps: int):
    """Six rows of 7 x 3 values fit, fourteen don't: the compiler would spill them."""
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu} -num-cores=2")
    (workload,) = [w for w in workloads(iter([convolution(224, 3, 64, 7, 2)]), target) if "conv" in w.name]
    loops = collect(lower(workload, target).function.body, For)
    assert len([loop for loop in loops if loop.loop_var.name in ("kh", "kw")]) == loops_over_taps


def test_tiles_leave_registers_for_operands_that_are_not_memory_operands():
    for cpu, spare in (("neoverse-n1", 2), ("skylake-avx512", 0)):
        triple = "aarch64" if cpu.startswith("neoverse") else "x86_64"
        target = Target(f"llvm -mtriple={triple}-unknown-linux-gnu -mcpu={cpu} -num-cores=2")
        tiles = [best_tile(target, rows, columns, 512) for rows in (28, 64, 196) for columns in (64, 96, 128)]
        most = max(tile.rows * tile.vectors + tile.vectors + 1 for tile in tiles)
        assert 24 < most <= target.vector_registers - spare


SERVER = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=icelake-server -num-cores=2 -l1-bytes=49152")


@pytest.mark.parametrize(("apart", "most"), [(3072, 13), (4096, 9), (4100, 9), (12288, 9), (6144, 13), (64, 13)])
def test_rows_of_a_tile_with_cache_set_conflicts_are_limited(apart: int, most: int):
    """A set keeps twelve lines; without conflicts 128 rows are tiles of 13."""
    assert tile_rows(SERVER, 128, 32, 768, apart=apart) <= most
    if most > 9:
        assert tile_rows(SERVER, 128, 32, 768, apart=apart) == tile_rows(SERVER, 128, 32, 768) == most
    assert best_tile(SERVER, 128, 768, 768, apart=apart).rows <= most


def test_few_rows_with_minor_set_conflicts_are_one_tile():
    assert [tile_rows(SERVER, rows, 32, 4096, apart=16384) for rows in (9, 10, 12, 20)] == [9, 10, 6, 10]


def test_tiles_for_any_batch_suit_one_image_and_several():
    """Tiles of 13 or 14 would compute seven of 49 rows twice, a seventh; eight images are as many whole tiles."""
    n = te.size_var("n")
    assert likely_rows((n, 7, 7), 1) == likely_rows((49 * n,), 1) == (49, 392)
    assert likely_rows((n,), 1) == likely_rows((n, 4), 1) == likely_rows((n, te.size_var("h"), 7), 1) == (1,)
    rows = tile_rows(SERVER, (49, 392), 32, 320)
    assert -(-49 // rows) * rows <= 50 and tile_rows(SERVER, 1 << 16, 32, 320) > rows
    assert tile_rows(SERVER, (49,), 32, 320) == tile_rows(SERVER, 49, 32, 320)
    assert best_tile(SERVER, (49, 392), 960, 160).rows <= 10


@pytest.mark.parametrize(("side", "prefetched"), [(112, True), (14, True), (7, False)])
def test_results_of_any_batch_are_prefetched_if_several_images_exceed_the_caches(side: int, prefetched: bool):
    data = te.placeholder((te.size_var("n"), side, side, 16), name="data")
    weight = te.placeholder((3, 1, 1, 16, 32), name="weight")
    out = conv_packed(data, weight, 96, (1, 1), (0, 0, 0, 0), (1, 1))
    schedule = next(schedules_for([out], SERVER))
    assert ("address_of(image" in str(te.lower(schedule, [data, weight, out]))) is prefetched


def test_rows_within_one_cache_line_have_no_set_conflicts():
    assert tile_rows(SERVER, 128, 32, 768, apart=4) == 13


def test_skinny_tiles_and_other_processors_are_not_limited():
    haswell = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=2")
    neoverse = Target("llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-n1 -num-cores=2")
    for target in (haswell, neoverse):
        assert best_tile(target, 192, 768, 1024, apart=4096) == best_tile(target, 192, 768, 1024)


@pytest.mark.parametrize(("depth", "stride", "most"), [(768, 1, 14), (1024, 1, 9), (512, 2, 9), (512, 1, 14)])
def test_row_stride_of_products_and_convolutions(depth: int, stride: int, most: int):
    data, panels = te.placeholder((1, 28, 28, depth)), te.placeholder((8, 1, 1, depth, 32))
    out = conv_packed(data, panels, 256, (stride, stride), (0, 0, 0, 0), (1, 1))
    anchor = next(op for op in operations_behind([out]) if op.tag == "conv2d_nhwc_packed")
    height = plan_product(out, anchor, SERVER).height
    assert height <= 9 if most == 9 else 9 < height <= most
