"""The cost model of the CPU schedules: register tiles, grain of parallel loops.

A matrix-like kernel keeps a tile of `rows` x `vectors` accumulators in registers and walks the reduction axis; each
step loads `vectors` vectors of the packed operand, broadcasts `rows` scalars of the other and issues rows * vectors
fused multiply-adds. The model counts the cycles of a step on a core with two multiply-add ports, two load ports and a
latency of four cycles (all x86 server cores since Haswell, and close for Neoverse; Zen 4 too, which has one port for
vectors of 64 bytes, since its tiles were measured as they are: decision 0067), and sums them over the tiles of a
problem, edges included. The packed operand streams from the L2 cache, which is counted as a part of a cycle for each of
its vectors. It is a ranking, not a prediction.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from relayc.backend.processors import processor_of
from relayc.topi.tuning import choose

if TYPE_CHECKING:
    from relayc.backend.target import Target
    from relayc.te.dtype import DType
    from relayc.te.tir import Dim

__all__ = [
    "CACHE_BYTES_PER_CYCLE",
    "CORES_OF_MEMORY",
    "FEWEST_AMX_ROWS",
    "FEW_ROWS",
    "LINE_ELEMENTS",
    "MEMORY_BYTES_PER_CYCLE",
    "SET_ELEMENTS",
    "RegisterTile",
    "Rows",
    "amx_panel",
    "at_precision_of",
    "attention_blocks",
    "best_tile",
    "cache_share",
    "direct_cycles",
    "group_columns",
    "group_panel",
    "has_amx",
    "has_bfloat16_products",
    "has_byte_products",
    "has_few_fill_buffers",
    "has_few_registers",
    "has_high_latency_llc",
    "largest_partition",
    "packed_columns",
    "parallel_worthwhile",
    "partitions_evenly",
    "product_cycles",
    "reads_in_place",
    "reads_transposed",
    "score_fill",
    "spare_registers",
    "threads_worthwhile",
    "tile_cycles",
    "tile_rows",
    "vector_lanes",
    "weights_stay",
]  # fmt: skip

CACHE_BYTES_PER_CYCLE = 16.0
MEMORY_BYTES_PER_CYCLE = 6.0
"""Bytes per cycle that a core reads, beside its arithmetic, from a shared cache and from memory."""
CORES_OF_MEMORY = 8
"""Cores that saturate the memory bandwidth: more of them get no more."""
LINE_ELEMENTS, SET_ELEMENTS = 16, 128
"""Padding against cache-set conflicts: data used together is spaced a cache line (16 floats) past a multiple of so many
floats."""
_SHARERS = 4
"""Users that share the LLC: cores, other programs, what else a kernel reads and writes."""

_FMA_PORTS = 2
_LOAD_CYCLES = 0.6
"""Cycles of one load: two ports, which broadcasts and the next tile's lines don't fill perfectly."""
_FMA_LATENCY = 4
_LOOP_OVERHEAD = 0.25
_STREAM_CYCLES = 0.2
"""Cycles that a vector of the packed operand costs beside its load: it comes from the L2 cache."""
_TILE_OVERHEAD_STEPS = 12
"""Cost of entering and leaving a tile, in steps of the reduction: clearing, epilogue, stores."""

_ADDRESS_CYCLES = 8
"""Cycles of computing the address of a window. Measured with windows of 3 x 3 and 5 x 5 over 1 to 12 channels: tiles of
4 rows, which divide lines of 56, 112 and 224, are 5 to 25 % faster than those of 6; with lines of 111 4 % slower."""
_ADDRESS_REGISTERS = 12
"""General registers for addresses of windows, beside those of the weights, the counter and the stack. 5 x 1 windows of
256 channels to 512 at 508 pixels, with a dynamic batch: tiles of 12 rows took 7.5 ms, those of 14 took 8.7 (Zen 4)."""


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """`rows` x `vectors` accumulators of `lanes` elements each."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Elements along the vectorised axis."""
        return self.vectors * self.lanes

    def cycles_per_step(self) -> float:
        """Cycles for one step of the reduction axis, operands in the L1 cache."""
        multiply_adds = self.rows * self.vectors / _FMA_PORTS
        loads = (self.rows + self.vectors) * _LOAD_CYCLES
        return max(multiply_adds, loads, _FMA_LATENCY) + self.vectors * _STREAM_CYCLES + _LOOP_OVERHEAD


def vector_lanes(target: Target, dtype_bytes: int = 4) -> int:
    """Elements in one vector register of the target."""
    return max(1, target.vector_bytes // dtype_bytes)


@lru_cache(maxsize=64)
def at_precision_of(target: Target, dtype: DType) -> Target:
    """The target for a product of `dtype`, as the model counts elements of 4 bytes: of 8 bytes, vectors hold half."""
    return target if dtype.nbytes <= 4 else target.with_attrs(vector_bytes=max(target.vector_bytes // 2, 4))


def spare_registers(target: Target, form: str) -> int:
    """Registers that a step of a product needs besides accumulators and operands, by its instructions.

    "fma": one fused multiply-add. "dot2": two instructions for two 16-bit products. "dot4": three instructions for four
    int8 products, one operand a vector of ones, or one VNNI instruction. "dot8": five instructions for two dot4, with
    two vectors and two broadcast elements live (with 16 registers, a spilled accumulator cost up to 40 %).
    """
    if form == "dot4" and has_byte_products(target):
        return 0
    return {"fma": 0, "dot2_bfloat16": 0, "dot2": 1, "dot4": 2, "dot8": 7}[form]


def has_byte_products(target: Target) -> bool:
    """Whether one instruction multiplies and adds four bytes (VNNI), whatever their values."""
    return not target.features.isdisjoint(("avx512vnni", "avxvnni"))


def has_bfloat16_products(target: Target) -> bool:
    """Whether one instruction multiplies and adds pairs of bfloat16 (vdpbf16ps)."""
    return "avx512bf16" in target.features


_AMX = {
    "dot4": frozenset({"amx-tile", "amx-int8", "avx512f"}),
    "dot2_bfloat16": frozenset({"amx-tile", "amx-bf16", "avx512f"}),
}
"""Features that products by AMX tiles need, by their form."""
_TILE_SIDE, _FEWEST_STEPS, _FEWEST_COLUMNS = 16, 6, 8
"""Rows, columns and four-byte groups of the reduction that an AMX instruction multiplies at most; and the fewest
groups and columns for it to be faster than vectors."""
FEWEST_AMX_ROWS = {"dot4": 2, "dot2_bfloat16": 1}
"""Fewest rows for which AMX tiles are faster than vectors. (Emerald Rapids, 1024 x 4096 weights from memory, times of
vectors to those of tiles: 0.96 for one row of bytes, 1.09 for two; 1.37 for one of bfloat16.)"""


def has_amx(target: Target, form: str = "dot4") -> bool:
    """Whether the processor multiplies tiles (AMX) of 8-bit integers, "dot4", or of bfloat16, "dot2_bfloat16"."""
    return form in _AMX and target.features >= _AMX[form]


def amx_panel(target: Target, rows: int, columns: int, steps: int, form: str = "dot4") -> tuple[int, int]:
    """AMX tiling of a product with `steps` words in a row: (columns of a panel, steps at a time).

    (0, 0) where vectors are better.
    """
    depth = max([n for n in range(1, _TILE_SIDE + 1) if steps % n == 0], default=0)
    if not has_amx(target, form) or rows < FEWEST_AMX_ROWS[form] or columns < _FEWEST_COLUMNS or depth < _FEWEST_STEPS:
        return 0, 0
    return _TILE_SIDE * min(-(-columns // _TILE_SIDE), 2), depth


def cache_share(target: Target) -> int:
    """Bytes that one user may expect to find in a cache again: its share of the LLC, or the L2 cache."""
    return max(target.cache_bytes.l3 // _SHARERS, target.cache_bytes.l2)


def has_high_latency_llc(target: Target) -> bool:
    """Whether the LLC is hardly faster than memory, so that what a core reads again should stay in its L2 cache."""
    return processor_of(target).has_high_latency_llc


_RESIDENT, _STREAMING = 1 / 4, 1 / 2
"""Parts of the L2 cache: the most that resident weights take, and the least that streams by."""


def weights_stay(target: Target, weights: int, passing: int) -> bool:
    """Whether weights of so many bytes stay in the L2 cache, while rows and results, which don't, pass by once.

    With a high-latency LLC this costs less than passing over rows and results anew for each panel.
    """
    cache = target.cache_bytes.l2
    return has_high_latency_llc(target) and weights <= _RESIDENT * cache and passing > _STREAMING * cache


def has_few_fill_buffers(target: Target) -> bool:
    """Whether a core has few L1 line-fill buffers, so that prefetches should go to the L2 cache.

    Its hardware prefetcher covers sequential reads. Lines of several rows, or table look-ups, need software prefetch.
    """
    return processor_of(target).has_few_fill_buffers


_FEW_REGISTERS = 16


def has_few_registers(target: Target) -> bool:
    """Whether there are as few vector registers as in AVX2, so that a register tile leaves none for anything else."""
    return target.vector_registers <= _FEW_REGISTERS


_NEON_SPARE = 2
"""Spare registers beside those of a tile where multiply-adds take no operand from memory: rows are loaded ahead of use.
With fewer LLVM copied every sum of a tile of 14 x 2 vectors to another register and back in each step."""


_X86_WAY_BYTES = 4096
"""Bytes of a way of an x86 L1 cache, a page: the set index is the part of an address that is not translated."""
_WAYS_OF_ROWS, _CROWDING = 0.75, 0.035
"""Part of a set's ways that rows may take, beside the panel that streams by, and the cost of more of them, squared.
Measured with 12 ways, rows whole pages apart, which all have one set: 9 are read at full speed, 10 take 1.05 times as
long, 11 1.14 times and 12 1.3 times."""


@lru_cache(maxsize=4096)
def _crowding(target: Target, rows: int, apart: int) -> float:
    """Slowdown factor of cache-set conflicts between `rows` cache lines, each `apart` bytes behind the one before.

    Each line is read in many steps of a reduction, from the L1 cache if it stays there. The number of sets is only
    known on x86.
    """
    if "sse2" not in target.features:
        return 1.0
    line_bytes, ways = 4 * LINE_ELEMENTS, target.cache_bytes.l1 // _X86_WAY_BYTES
    lines = {row * apart // line_bytes for row in range(rows)}
    of_a_set = Counter(line % (_X86_WAY_BYTES // line_bytes) for line in lines)
    return 1.0 + _CROWDING * max(max(of_a_set.values()) - int(_WAYS_OF_ROWS * ways), 0) ** 2


@lru_cache(maxsize=256)
def _tiles(target: Target, lanes: int, vectors: int | None, temporaries: int = 0) -> tuple[RegisterTile, ...]:
    """Tiles whose accumulators, one row of vectors, one broadcast and `temporaries` fit in the registers."""
    registers = target.vector_registers - temporaries - (_NEON_SPARE if "neon" in target.features else 0)
    widths = range(1, 5) if vectors is None else (vectors,)
    return tuple([
        RegisterTile(rows, v, lanes) for v in widths for rows in range(1, 29) if rows * v + v + 1 <= registers
    ])  # fmt: skip


def tile_cycles(tile: RegisterTile, steps: int, line: int = 0) -> float:
    """Cycles of one register tile over a reduction of `steps`, operands in the caches.

    Rows that are windows of an image with lines of `line` pixels have an address each, unless tiles divide the line.
    Addresses beyond the general registers are loaded in every step, unless tiles are whole lines, an address each.
    """
    addresses = tile.rows if line % tile.rows else 0
    spilled = max(addresses - _ADDRESS_REGISTERS, 0) if line and tile.rows % line else 0
    per_step = tile.cycles_per_step() + spilled * _LOAD_CYCLES
    return per_step * (steps + _TILE_OVERHEAD_STEPS) + addresses * _ADDRESS_CYCLES


Rows = int | tuple[int, ...]
"""The number of rows of a product, or several that are as likely: a tile's cost is then the product of those for each.
"""


def _likely(rows: Rows) -> tuple[int, ...]:
    return (rows,) if isinstance(rows, int) else rows


def _cost(
    tile: RegisterTile, rows: int, columns: int, steps: int, line: int = 0, *, widened: bool = False
) -> float:
    """Cycles of the whole problem; a last partial tile costs as much as a full one.

    `widened` weights are converted while a tile of all rows reads them, or in a panel of their own.
    """
    row_tiles, panels = math.ceil(rows / tile.rows), math.ceil(columns / tile.columns)
    partial = _PARTIAL_PANEL if columns % tile.columns else 1.0
    widening = _WIDENING_CYCLES[row_tiles > 1] * panels * tile.vectors * steps if widened else 0.0
    return row_tiles * panels * tile_cycles(tile, steps, line) * partial + widening


def direct_cycles(target: Target, rows: int, columns: int, steps: int) -> float:
    """Cycles of a product, or a convolution as one, by its cheapest tile: what another algorithm has to beat."""
    return _cost(best_tile(target, rows, columns, steps), rows, columns, steps)


def product_cycles(target: Target, rows: int, columns: int, steps: int, line: int = 0, apart: int = 0) -> float:
    """Cycles on the busiest core of a product with packed weights, whose last panel has only the vectors that it needs.

    See `best_tile` for the other parameters.
    """
    lanes = min(vector_lanes(target), 1 << (columns - 1).bit_length())
    tile = best_tile(target, rows, columns, steps, lanes=lanes, line=line, cores=target.num_cores, apart=apart)
    panels, rest = divmod(columns, tile.columns)
    cycles = panels * tile_cycles(tile, steps, line)
    if rest:
        cycles += tile_cycles(RegisterTile(tile.rows, -(-rest // lanes), lanes), steps, line)
    tiles = math.ceil(rows / tile.rows)
    share = largest_partition(tiles * math.ceil(columns / tile.columns), target.num_cores)
    return tiles * cycles * _crowding(target, tile.rows, apart) * share


@lru_cache(maxsize=1024)
def best_tile(
    target: Target, rows: Rows, columns: int, steps: int, *,
    lanes: int | None = None, vectors: int | None = None, line: int = 0, temporaries: int = 0, cores: int = 1,
    apart: int = 0, widened: bool = False,
) -> RegisterTile:  # fmt: skip
    """The cheapest tile for an output of `rows` rows by `columns` columns, whose tiles `cores` share.

    `vectors` fixes the width where the packed operand determines it already; for `line` see `tile_cycles`.
    `temporaries` are additional registers that a step needs: one where multiplying and adding are two instructions.
    `apart` are the bytes from one row of the left operand to the next, which may conflict in cache sets; for `widened`
    see `_cost`.
    """
    lanes = vector_lanes(target) if lanes is None else lanes
    best, least, likely = None, (math.inf, 0), _likely(rows)

    def uneven(tile: RegisterTile, rows: int) -> float:
        tiles = math.ceil(rows / tile.rows) * math.ceil(columns / tile.columns)
        return max(cores * largest_partition(tiles, cores) * _NEARLY_EVEN, 1.0)

    for tile in _tiles(target, lanes, vectors, temporaries):
        if tile.rows > max(*likely, 1):
            continue
        cost = math.prod([_cost(tile, n, columns, steps, line, widened=widened) for n in likely])
        if cost > least[0]:
            continue  # what follows makes no tile cheaper
        slower = math.prod([uneven(tile, n) * _crowding(target, tile.rows, apart) for n in likely])
        rank = (cost * slower, -tile.rows * tile.vectors)
        if best is None or rank < least:
            best, least = tile, rank
    assert best is not None, "a tile of one row fits in any registers"
    return best


_NEARLY_EVEN = 0.9
"""Load imbalance up to a tenth doesn't affect the width of a tile."""


def packed_columns(
    target: Target, rows: Rows, columns: int, steps: int, line: int = 0, temporaries: int = 0, apart: int = 0,
    *, widened: bool = False,
) -> int:  # fmt: skip
    """Width of the panels that a constant operand is packed into: NR of [N/NR][K][NR]. For the rest see `best_tile`."""
    if columns < vector_lanes(target):
        return 1 << (columns - 1).bit_length()
    cores = target.num_cores
    best = best_tile(
        target, rows, columns, steps, line=line, temporaries=temporaries, cores=cores, apart=apart, widened=widened
    )
    widths = dict.fromkeys(tile.columns for tile in _tiles(target, best.lanes, None, temporaries))
    of_rows = " or ".join(map(str, _likely(rows)))
    return choose(f"panel of {of_rows}x{columns}x{steps}", best.columns, widths)


def group_panel(target: Target, rows: int, group: int, steps: int) -> int:
    """Width of the panels of a group of `group` outputs: whole vectors, so that each line of a panel begins with one.

    A wide group has several panels, as wide as tiles, where these divide it; otherwise one, of which tiles take parts.
    """
    lanes = vector_lanes(target)
    if group <= lanes:
        return 1 << (group - 1).bit_length()
    columns = group_columns(target, rows, group, steps)
    return columns if group % columns == 0 else -(-group // lanes) * lanes


def group_columns(target: Target, rows: int, group: int, steps: int) -> int:
    """Columns of the register tile for groups of `group` columns, which tiles don't cross: at most the group."""
    lanes = vector_lanes(target)
    if group <= lanes:
        return group
    fitting = (best_tile(target, rows, group, steps, vectors=v) for v in range(1, min(group // lanes, 4) + 1))
    return min(fitting, key=lambda tile: _cost(tile, rows, group, steps)).columns


def tile_rows(
    target: Target, rows: Rows, panel: int, steps: int, panels: int | None = None, line: int = 0, temporaries: int = 0,
    apart: int = 0, *, widened: bool = False,
) -> int:  # fmt: skip
    """Rows of the register tile for a given panel width.

    Where cores share the product tile by tile, the number of `panels` determines the load balance. For the rest see
    `best_tile`.
    """
    lanes = min(vector_lanes(target), panel)
    vectors = -(-panel // lanes)
    shared, likely = panels or 0, _likely(rows)

    def cost(tile: RegisterTile, rows: int) -> float:
        cores = min(target.num_cores, threads_worthwhile(2.0 * rows * panel * shared * steps, lanes)) if shared else 1
        tiles = math.ceil(rows / tile.rows) * max(shared, 1)
        slower = _crowding(target, tile.rows, apart)
        cycles = _cost(tile, rows, panel, steps, line, widened=widened)
        return cycles * slower * cores * largest_partition(tiles, cores)

    tiles = [tile for tile in _tiles(target, lanes, vectors, temporaries) if tile.rows <= max(*likely, 1)]
    best = min(tiles, key=lambda tile: (math.prod([cost(tile, n) for n in likely]), -tile.rows))
    return choose("rows", best.rows, [tile.rows for tile in tiles if tile.rows <= max(likely)])


_WIDENING_CYCLES = (1.0, 3.0)
"""Cycles of converting a vector of weights to the computed type: where it is used, or with storing it in a panel and
reading it from there."""
_PARTIAL_PANEL = 1.1
"""A last panel that is not full costs a second copy of the code and a less favourable order of the loops."""

_PARALLEL_CYCLES = 20_000
"""Least work for several threads: waking them costs a few microseconds at worst."""


def largest_partition(iterations: int, cores: int) -> float:
    """The part of a parallel loop on the busiest core: 1 / cores where it divides evenly."""
    return math.ceil(iterations / cores) / iterations if iterations else 1.0


def partitions_evenly(iterations: int, cores: int) -> bool:
    """Whether the largest partition hardly exceeds the average."""
    return largest_partition(iterations, cores) * cores <= _MOST_OF_A_CORE


_MOST_OF_A_CORE = 1.1
"""Most work of a core, relative to the average, where images or blocks of rows are partitioned: as much is gained by
finding them in the caches."""


def parallel_worthwhile(operations: float, lanes: int) -> bool:
    """Whether `operations` scalar operations, done `lanes` at a time, are enough work for several threads."""
    return operations / lanes >= _PARALLEL_CYCLES


_THREAD_CYCLES = 250
"""Cycles that each thread of a parallel region costs the caller: to start it and to join it (0.12 us on Zen 3 with one
other thread). Work / threads + cost * threads is least where threads^2 = work / cost."""


def threads_worthwhile(operations: float, lanes: int) -> int:
    """Most threads that `operations` scalar operations, done `lanes` at a time, are worth."""
    return max(math.isqrt(int(operations / lanes) // _THREAD_CYCLES), 2)


def reads_in_place(target: Target, rows: Dim, columns: Dim, steps: Dim, transpose_a: bool, transpose_b: bool) -> bool:
    """Whether a product has so few rows that its right operand should be read in place, in memory order, not packed.

    Dynamic rows are taken to be many, and dynamic columns to be few; a dynamic depth is taken to be long.
    """
    long, lanes = steps if transpose_b else columns, vector_lanes(target)
    if not isinstance(rows, int) or (transpose_a and transpose_b):
        return False
    if not isinstance(long, int):
        return transpose_b and rows <= FEW_ROWS
    if rows > FEW_ROWS:
        near = transpose_b and rows <= _FEW_ROWS_ALONG and 4 * rows * long <= target.cache_bytes.l1
        return near and isinstance(columns, int) and columns >= lanes and long >= 2 * lanes
    return long >= min(rows, 2) * lanes


def reads_transposed(target: Target, rows: int, steps: int) -> bool:
    """Whether a left operand stored as (steps, rows) of float32 can be read in place at no loss.

    A few elements of each line are read at a time, so lines must stay in the L2 cache, beside panels.
    """
    return 4 * rows * steps <= target.cache_bytes.l2 // 4


FEW_ROWS, _FEW_ROWS_ALONG = 4, 8
"""Most rows of a product that cost less than packing the right operand for them, and than transposing it besides: these
are read again for some of its columns, from the L1 cache."""


def attention_blocks(
    target: Target, queries: int, keys: int, depth: int, width: int, heads: int = 1
) -> tuple[int, int]:
    """(rows of a block of queries, columns of a panel) for attention over `keys` keys of `depth`, values of `width`.

    A block's scores take about a quarter of the L2 cache, the panels streaming by; its rows are whole register tiles,
    few blocks being partial, and as many as divide evenly over the cores, of all `heads`.
    """
    lanes = vector_lanes(target)
    panel = 2 * lanes if max(width, depth) > lanes else lanes
    tile = tile_rows(target, queries, panel, depth, apart=4 * depth)
    budget = target.cache_bytes.l2 // 4
    most = max(1, min(budget // (4 * keys), _MOST_QUERIES) // tile)

    def rows_computed(tiles: int) -> int:
        """Rows of blocks of `tiles` on the busiest core."""
        blocks = heads * math.ceil(queries / (tiles * tile))
        return math.ceil(blocks / target.num_cores) * (tiles * tile + _BLOCK_OVERHEAD_ROWS)

    tiles = min(range(1, most + 1), key=rows_computed)
    return min(tiles * tile, queries), panel


def score_fill(target: Target, keys: Dim, panel: int) -> int:
    """The number of keys that rows of scores are padded to a multiple of: a panel's, or a vector's.

    The padding of a last panel need not be computed, but its tiles are narrow, and rows then have an odd number of
    vectors.
    """
    lanes = vector_lanes(target)
    if not isinstance(keys, int):
        return panel
    of_panels, of_vectors = [-(-keys // unit) * unit for unit in (panel, lanes)]
    return lanes if of_panels - of_vectors > _NOTABLE_FILL * of_panels else panel


_NOTABLE_FILL = 0.05
"""Least part of the scores to save: a 14th made 197 keys 4 % faster (AVX-512), a 26th 2 % slower (AVX2)."""
_MOST_QUERIES = 48
"""Most rows of a block of queries: each panel that is read serves all of them."""
_BLOCK_OVERHEAD_ROWS = 1
"""Rows of a block of queries whose work equals entering the block."""
