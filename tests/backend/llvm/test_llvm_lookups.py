"""Gathers from 256 bytes at uint8 indices, and from 16 floats at four bits, compile to lookups in registers; those of
other narrow elements gather words."""

from __future__ import annotations

import ctypes
import mmap
import platform

import ml_dtypes
import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.target import Target
from relayc.topi.registry import schedule_for

RANDOM = np.random.default_rng(3)
X86 = "llvm -mtriple=x86_64-unknown-linux-gnu"
INSTRUCTIONS = [
    (f"{X86} -mcpu=icelake-server", r"vpermt2b", 4), (f"{X86} -mcpu=skylake-avx512", "vpshufb", 16),
    (f"{X86} -mcpu=haswell", "vpshufb", 16), (f"{X86} -mcpu=x86-64-v2", "pshufb", 16),
    ("llvm -mtriple=aarch64-unknown-linux-gnu", "tbx", 4),
]  # fmt: skip


def lookup(length: int, dtype: str = "uint8") -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    codes, table = te.placeholder((length,), "uint8", "codes"), te.placeholder((256,), dtype, "table")
    return codes, table, topi.lookup(codes, table)


def built(tensors: tuple[te.Tensor, te.Tensor, te.Tensor], target: str) -> backend.runtime.Module:
    kind = Target(target)
    return backend.build(te.lower(schedule_for([tensors[-1]], kind), list(tensors)), target=kind)


@pytest.mark.parametrize(("target", "instruction", "least"), INSTRUCTIONS, ids=str)
def test_byte_gathers_use_lookup_instructions(target, instruction, least):
    code = built(lookup(4096), target).get_source("asm")
    assert code.count(f"\t{instruction}") >= least


@pytest.mark.skipif(platform.machine() != "x86_64", reason="for processors of this kind")
@pytest.mark.parametrize("length", [1, 15, 16, 33, 63, 64, 100, 127, 129, 1000])
@pytest.mark.parametrize(
    "target", ["llvm", "llvm -mattr=-avx512vbmi", "llvm -mattr=-avx512f", "llvm -mcpu=x86-64-v2", "llvm -mcpu=x86-64"]
)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "float32"])
def test_looked_up_entries_are_correct(dtype, target, length):
    codes, table = RANDOM.integers(0, 256, length).astype("uint8"), RANDOM.integers(-99, 99, 256).astype(dtype)
    result = backend.nd.empty((length,), dtype)
    built(lookup(length, dtype), target)(backend.nd.array(codes), backend.nd.array(table), result)
    np.testing.assert_array_equal(result.numpy(), table[codes])


def floats(length: int, bits: int = 15) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    codes, table = te.placeholder((length,), "int32", "codes"), te.placeholder((16,), "float32", "table")
    return codes, table, te.compute((length,), lambda i: table(codes(i) & bits), name="found", tag=topi.tag.ELEMWISE)


@pytest.mark.parametrize(("cpu", "bits", "is_lookup"), [
    ("icelake-server", 15, True), ("haswell", 15, True), ("haswell", 7, False), ("x86-64-v2", 15, False),
])  # fmt: skip
def test_gathers_from_16_floats_use_permutations(cpu, bits, is_lookup):
    code = built(floats(4096, bits), f"{X86} -mcpu={cpu}").get_source("asm")
    assert ("\tvpermps" in code or "\tvpermd" in code) == is_lookup
    assert "gather" not in code or not is_lookup


@pytest.mark.skipif(platform.machine() != "x86_64", reason="for processors of this kind")
@pytest.mark.parametrize("length", [1, 7, 8, 16, 33, 1000])
@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f", "llvm -mcpu=x86-64-v2"])
def test_floats_looked_up_are_correct(target, length):
    codes, table = RANDOM.integers(-(2**31), 2**31, length).astype("int32"), RANDOM.normal(size=16).astype("float32")
    result = backend.nd.empty((length,), "float32")
    built(floats(length), target)(backend.nd.array(codes), backend.nd.array(table), result)
    np.testing.assert_array_equal(result.numpy(), table[codes & 15])


def gathered(length: int, count: int, dtype: str, index: str) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    codes, table = te.placeholder((length,), index, "codes"), te.placeholder((count,), dtype, "table")
    return codes, table, te.compute((length,), lambda i: table(codes(i)), name="found", tag=topi.tag.ELEMWISE)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="for processors of this kind")
@pytest.mark.parametrize(
    ("dtype", "of"),
    [("int8", np.int8), ("bool", np.bool_), ("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)],
)
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f"])
@pytest.mark.parametrize("count", [36, 37, 38, 39])
def test_narrow_elements_up_to_the_end_of_a_page(count, target, index, dtype, of):
    """Words of narrow elements are read whole: none of them may be on the next page, which cannot be read."""
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    size = np.dtype(of).itemsize
    table = np.frombuffer(memory, of, count, mmap.PAGESIZE - count * size)
    table[:] = RANDOM.integers(0, 100, count).astype(of)
    codes = RANDOM.integers(0, count, 101).astype(index)
    codes[-3:] = count - 1
    result = np.zeros(len(codes), of)
    built(gathered(len(codes), count, dtype, index), target)(codes, table, result)
    np.testing.assert_array_equal(result, table[codes])


@pytest.mark.parametrize(("dtype", "words"), [("float16", True), ("int8", True), ("float32", True), ("int64", False)])
def test_narrow_elements_are_gathered_as_words(dtype, words):
    text = built(gathered(4096, 5000, dtype, "int32"), f"{X86} -mcpu=skylake-avx512").get_source("asm")
    assert ("gatherd" in text) and ("vpgatherdd" in text or "vgatherdps" in text) == words
    assert "pinsr" not in text
