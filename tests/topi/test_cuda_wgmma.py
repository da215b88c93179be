"""Matrix products by warp groups (sm_90a), against numpy: every tile, both orders of each operand, borders."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.cuda.build import emit
from relayc.backend.cuda.disassemble import instruction_counts
from relayc.backend.runtime.errors import ModuleError
from relayc.backend.target import Target
from relayc.te.tir.values import numpy_dtype
from relayc.topi.cuda.contraction import contraction_of
from relayc.topi.cuda.epilogue import start_schedule
from relayc.topi.cuda.product_tiles import Choice, WgmmaTile
from relayc.topi.cuda.products import plans_of, schedule_tile
from tests.cuda_proof.proof import check_kernels

RNG = np.random.default_rng(9)
ARCH = "sm_90a"
TARGET = Target(f"cuda -arch={ARCH}")
TILES = [WgmmaTile(warps, (1, columns // 8), 64, 3) for warps in ((4, 1), (8, 1), (4, 2)) for columns in (64, 128)]
TILES += [WgmmaTile((4, 1), (1, 24), 64, 4), WgmmaTile((8, 1), (1, 32), 64, 3)]


@pytest.fixture
def hopper(cuda_device):
    """A device that runs code for sm_90a, real or emulated."""
    if cuda_device.compute_version != "9.0":
        pytest.skip("groups of warps multiply on GPUs of compute capability 9.0 alone")
    return cuda_device


def product(sizes, transposed="nt", dtype="float16", batch=1):
    """The placeholders of a product and its float32 result, with operands stored as `transposed` says, and its
    contraction."""
    m, n, k = sizes
    x = te.placeholder((batch, *((k, m) if transposed[0] == "t" else (m, k))), dtype, "x")
    y = te.placeholder((batch, *((n, k) if transposed[1] == "t" else (k, n))), dtype, "y")
    out = topi.nn.batch_matmul(x, y, transposed[0] == "t", transposed[1] == "t", out_dtype="float32")
    return [x, y, out]


def scheduled(args, tile, parts=1):
    """The loops of a product scheduled by a given tile; the last of `args` is the contraction."""
    out = args[-1]
    contraction = contraction_of(out.op)
    assert contraction is not None
    s, result = start_schedule([out], out.op, TARGET)
    schedule_tile(s, result, contraction, Choice(tile, parts, 0.0), TARGET)
    return te.lower(s, args)


def check(device, args, transposed, loops):
    library = backend.build(loops, target=TARGET)
    a, b = (RNG.standard_normal(t.shape).astype(numpy_dtype(t.dtype)) for t in args[:2])
    result = backend.nd.array(np.full(args[-1].shape, np.nan, "float32"), device)
    library(backend.nd.array(a, device), backend.nd.array(b, device), result)
    a, b = a.astype("float32"), b.astype("float32")
    expected = (a.swapaxes(1, 2) if transposed[0] == "t" else a) @ (b.swapaxes(1, 2) if transposed[1] == "t" else b)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles(hopper, tile):
    args = product((tile.rows + 7, tile.columns + 8, 200))
    check(hopper, args, "nt", scheduled(args, tile))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("transposed", ["nn", "nt"])
def test_operands_in_either_order(hopper, transposed, dtype):
    args = product((72, 136, 144), transposed, dtype, batch=2)
    check(hopper, args, transposed, scheduled(args, WgmmaTile((4, 2), (1, 8), 64, 3)))


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_with_zero_borders_and_transposed_weights(hopper, stride):
    x = te.placeholder((2, 7, 6, 64), "float16", "x")
    w = te.placeholder((3, 3, 64, 72), "float16", "w")
    out = topi.nn.conv(x, w, (stride, stride), (1, 1, 1, 1), (1, 1), 1, "NHWC", "HWIO", out_dtype="float32")
    library = backend.build(scheduled([x, w, out], WgmmaTile((4, 1), (1, 8), 64, 3)), target=TARGET)
    a, b = (RNG.standard_normal(t.shape).astype("float16") for t in (x, w))
    result = backend.nd.array(np.full(out.shape, np.nan, "float32"), hopper)
    library(backend.nd.array(a, hopper), backend.nd.array(b, hopper), result)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(a, [(0, 0), (1, 1), (1, 1), (0, 0)]), (3, 3), (1, 2))
    windows = windows[:, ::stride, ::stride].astype("float32")
    expected = np.einsum("nhwcij,ijco->nhwo", windows, b.astype("float32"))
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=2e-3)


def test_split_k(hopper):
    args = product((64, 64, 1000))
    check(hopper, args, "nt", scheduled(args, WgmmaTile((4, 1), (1, 8), 64, 3), parts=3))


@pytest.mark.parametrize("transposed", ["nn", "nt"])
def test_no_races_and_no_uninitialised_reads(transposed):
    loops = scheduled(product((72, 136, 328), transposed), WgmmaTile((4, 2), (1, 8), 64, 3))
    assert check_kernels([loops["main"]], ARCH) == 1


@pytest.mark.parametrize("depth", [64, 192])
def test_shared_memory_writes_are_fenced_before_wgmma(depth):
    """A product of one slice is copied by ordinary stores, without a wait for asynchronous copies."""
    loops = scheduled(product((72, 136, depth)), WgmmaTile((4, 2), (1, 8), 64, 3))
    text = emit(loops, TARGET).text
    assert text.count("(rc_wgmma_settle(), __syncthreads())") == text.count("__syncthreads()") >= 2


def best(args, arch):
    contraction = contraction_of(args[-1].op)
    assert contraction is not None
    return plans_of(contraction, Target(f"cuda -arch={arch}"))[0].tile


def test_large_16_bit_products_use_wgmma():
    large = product((4096, 4096, 4096))
    assert isinstance(best(large, "sm_90a"), WgmmaTile)
    assert not isinstance(best(large, "sm_90"), WgmmaTile)
    assert not isinstance(best(product((4096, 4096, 4096), "tn"), "sm_90a"), WgmmaTile), "rows lie along the depth"
    assert not isinstance(best(product((4096, 4096, 4095)), "sm_90a"), WgmmaTile), "copies of 16 bytes need alignment"
    assert not isinstance(best(product((4096, 4096, 4096), dtype="float32"), "sm_90a"), WgmmaTile)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_machine_code_has_wgmma_without_spills(tile):
    library = backend.build(scheduled(product((1024, 1024, 1024)), tile), target=TARGET).imported_modules[0]
    (report,) = library.report.values()
    assert report["spill_stores"] == report["spill_loads"] == report["stack"] == 0
    try:
        (counts,) = instruction_counts(library.get_source("sass")).values()
    except ModuleError as missing:
        pytest.skip(str(missing))
    multiplied = sum([n for name, n in counts.items() if name.startswith("HGMMA")])
    assert multiplied > 0 and multiplied % (tile.depth // 16) == 0
