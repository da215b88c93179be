"""Permutations of patches: pieces are copied in the order of the result, and their matrices transposed."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.target import Target
from relayc.te.arith import Analyzer
from relayc.te.dtype import dtype
from relayc.te.ir import collect
from relayc.te.tir import BufferStore, Call, Ramp, Shuffle, as_int, const
from relayc.topi.cpu.transposes.permuted_tiles import PermutedTiles
from relayc.topi.registry import schedule_for

PROCESSORS = ["x86-64-v2", "haswell"] if platform.machine() == "x86_64" else ["generic"]
PROCESSORS += ["x86-64-v4"] if "avx512vl" in Target("llvm").features else []
PATCHES = {
    "planes of patches": ((5, 8, 12, 2, 2, 16), (0, 5, 1, 3, 2, 4)),
    "planes of patches, few channels": ((17, 8, 16, 2, 2, 4), (0, 5, 1, 3, 2, 4)),
    "patches of planes": ((5, 16, 8, 2, 16, 2), (0, 2, 4, 3, 5, 1)),
    "patches of planes, cut": ((3, 16, 12, 2, 28, 2), (0, 2, 4, 3, 5, 1)),
    "patches of few planes": ((5, 3, 8, 14, 16, 14), (0, 2, 4, 3, 5, 1)),
    "channels of patches to planes": ((7, 8, 14, 24, 2, 2), (0, 3, 1, 4, 2, 5)),
    "channels of patches": ((90, 2, 12, 2, 16), (0, 2, 4, 1, 3)),
    "few channels of patches": ((350, 2, 16, 2, 4), (0, 2, 4, 1, 3)),
}  # fmt: skip
OTHERS = {"lines of patches": ((40, 12, 16, 2, 2), (0, 3, 1, 4, 2)), "odd lines": ((90, 3, 14, 7, 10), (0, 2, 4, 1, 3))}


def small_target(processor: str) -> Target:
    cpu = f"-mcpu={processor}" if processor != "generic" else ""
    return Target(f"llvm {cpu} -l2-bytes=1048576 -l3-bytes=65536 -num-cores=1")


@pytest.mark.parametrize("kind", ["uint8", "float16", "float32", "int64"])
@pytest.mark.parametrize("name", [*PATCHES, *OTHERS])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_patches(name: str, kind: str, processor: str) -> None:
    shape, axes = {**PATCHES, **OTHERS}[name]
    shape = (shape[0] * 4 // dtype(kind).nbytes + 1, *shape[1:])
    a = (np.arange(np.prod(shape)) * 7919 % 251).reshape(shape).astype(kind)
    x = te.placeholder(shape, kind, "x")
    out = topi.add(topi.transpose(x, axes), te.compute((1,), lambda i: te.const(1, kind), tag="elemwise"))
    module = te.lower(schedule_for([out], small_target(processor)), [x, out])
    result = backend.nd.empty(np.transpose(a, axes).shape, kind)
    backend.build(module, target=small_target(processor))(backend.nd.array(a), result)
    assert np.array_equal(result.numpy(), np.transpose(a, axes) + np.array(1, kind))


@pytest.mark.parametrize("name", PATCHES)
def test_patches_are_copied_by_vectors_with_prefetches(name: str) -> None:
    """Nothing is gathered from the input; results are stored by whole vectors."""
    shape, axes = PATCHES[name]
    x = te.placeholder(shape, "float32", "x")
    out = topi.transpose(x, axes)
    found = PermutedTiles.of(out, small_target(PROCESSORS[-1]))
    assert found
    module = te.lower(schedule_for([out], small_target(PROCESSORS[-1])), [x, out])
    stores = [store for store in collect(module["main"].body, BufferStore) if store.buffer.name == out.name]
    assert stores and all(isinstance(store.indices[-1], Ramp) for store in stores)
    assert any(call.op == "prefetch" for call in collect(module["main"].body, Call))
    assert bool(collect(module["main"].body, Shuffle)) == (found.transposed > 0)


def test_each_cache_line_of_the_next_piece_is_prefetched_once() -> None:
    """Each line of the next piece, in memory order: here the next kilobyte of each of 16 planes."""
    x = te.placeholder((2, 16, 32, 2, 32, 2), "float32", "x")
    found = PermutedTiles.of(topi.transpose(x, (0, 2, 4, 3, 5, 1)), small_target(PROCESSORS[-1]))
    assert found and not found.parts.are_in_order
    prefetched, rows = [], found.parts.size(found.rows)
    for first in range(0, 16 * 256, found.vector):
        place = [*[const(0)] * len(found.parts.outside), const(first // rows), const(first % rows)]
        (at,) = found._in_later_piece(*place)
        prefetched.append((as_int(Analyzer().simplify(at)) or 0) // 16)
    lines = [(plane * 4096 + 256 + first) // 16 for plane in range(16) for first in range(0, 256, 16)]
    assert list(dict.fromkeys(prefetched)) == lines


def test_short_pieces_prefetch_a_later_one() -> None:
    """Three planes, a cache line of each: 8 KB further on, not the next 192 bytes."""
    x = te.placeholder((1 << 16, 3), "float32", "x")
    found = PermutedTiles.of(topi.transpose(x, (1, 0)), small_target(PROCESSORS[-1]))
    assert found and found.parts.are_in_order
    (at,) = found._in_later_piece(*[const(0)] * (len(found.parts.outside) + 2))
    piece = found.parts.size(found.parts.inside)
    assert as_int(Analyzer().simplify(at)) == -(-2048 // piece) * piece


@pytest.mark.parametrize("kind", ["float16", "float32"])
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize(("shape", "axes", "scattered"), [
    ((64, 64, 2, 2, 32), (4, 0, 2, 1, 3), True), ((3, 48, 64, 2, 3, 16), (0, 5, 1, 3, 2, 4), True),
    ((1, 2, 2, 64, 64, 64), (0, 3, 4, 1, 5, 2), False), ((64, 64, 64, 2, 2), (2, 0, 3, 1, 4), False),
])  # fmt: skip
def test_phases_to_planes_that_only_the_llc_holds(shape, axes, scattered, processor: str, kind: str) -> None:
    """Pieces unless vectors of planes are two rows interleaved, or are contiguous."""
    cpu = f"-mcpu={processor}" if processor != "generic" else ""
    target = Target(f"llvm {cpu} -l2-bytes=1048576 -l3-bytes=67108864 -num-cores=1")
    shape = (*shape[:1], shape[1] * 4 // dtype(kind).nbytes, *shape[2:])
    x = te.placeholder(shape, kind, "x")
    out = topi.transpose(x, axes)
    assert bool(PermutedTiles.of(out, target)) == scattered
    a = (np.arange(np.prod(shape)) * 7919 % 251).reshape(shape).astype(kind)
    result = backend.nd.empty(np.transpose(a, axes).shape, kind)
    backend.build(te.lower(schedule_for([out], target), [x, out]), target=target)(backend.nd.array(a), result)
    assert np.array_equal(result.numpy(), np.transpose(a, axes))


def test_other_transposes_have_no_permuted_tiles() -> None:
    """What fits in the caches, and what is contiguous or sliced."""
    target = small_target(PROCESSORS[-1])
    shape, axes = PATCHES["patches of planes"]
    assert not PermutedTiles.of(topi.transpose(te.placeholder((1, 2, *shape[2:]), "float32", "x"), axes), target)
    x = te.placeholder((9, *shape[1:]), "float32", "x")
    shifted = topi.strided_slice(x, [1, *[0] * 5], x.shape, [1] * 6)
    assert not PermutedTiles.of(topi.transpose(shifted, axes), target)
    assert not PermutedTiles.of(topi.nn.relu(te.placeholder((64, 64, 16), "float32", "x")), target)
