"""The emulated instructions against their definitions, and the places where they are called."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relayc import relay
from relayc.backend.llvm.codegen import EmittedModule, PassSelection
from relayc.backend.llvm.compiler import Compiler
from relayc.backend.llvm.linking import link
from relayc.backend.target import Target
from relayc.relay import Function, IRModule, const, nn, var
from tests.processor_emulation import emulation

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.usefixtures("emulated_processors")

TINY = np.float32(2.0**-130)
"""A denormal."""


def vectors(call: str, result: str, *operands: tuple[str, Array]) -> Array:
    """The result, 64 bytes, of a call of an LLVM intrinsic on vectors, in code for a Sapphire Rapids."""
    kinds = ", ".join([kind for kind, _ in operands])
    loads = [f"  %v{i} = load {kind}, ptr %p{i}, align 1" for i, (kind, _) in enumerate(operands)]
    values = ", ".join([f"{kind} %v{i}" for i, (kind, _) in enumerate(operands)])
    pointers = ", ".join([f"ptr %p{i}" for i in range(len(operands))])
    text = [
        f"declare {result} @llvm.{call}({kinds})", f"define void @f(ptr %result, {pointers}) {{", *loads,
        f"  %result1 = call {result} @llvm.{call}({values})", f"  store {result} %result1, ptr %result, align 1",
        "  ret void", "}",
    ]  # fmt: skip
    emitted = EmittedModule("\n".join([*text, ""]), PassSelection.FEW, ("f",))
    image = link([Compiler(Target("llvm -mcpu=sapphirerapids")).object_code(emitted, ()).code])
    found = np.zeros(16, np.uint32)
    addresses = [a.ctypes.data for a in (found, *[value for _, value in operands])]
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(addresses))(image.address("f"))(*addresses)
    return found


FLOATS, PAIRS = "<16 x float>", "<32 x bfloat>"


def dot(sums: Array, x: Array, y: Array) -> Array:
    operands = [(FLOATS, sums.astype(np.float32)), (PAIRS, x.astype(ml_dtypes.bfloat16)),
                (PAIRS, y.astype(ml_dtypes.bfloat16))]  # fmt: skip
    return vectors("x86.avx512bf16.dpbf16ps.512", FLOATS, *operands).view(np.float32)


def test_dot_products_add_the_upper_products_first():
    """Each is rounded to float32: 2^24 + 1 is 2^24, and 1 + 1 + 2^24 is not."""
    x, y = np.tile([2.0**24, 1.0], 16), np.ones(32)
    np.testing.assert_array_equal(dot(np.ones(16), x, y), np.full(16, 2.0**24 + 2))
    np.testing.assert_array_equal(dot(np.ones(16), x[::-1], y), np.full(16, 2.0**24))


def test_dot_products_take_and_give_no_denormals():
    ones = np.ones(32)
    np.testing.assert_array_equal(dot(np.full(16, TINY), np.full(32, TINY), ones), np.zeros(16))
    np.testing.assert_array_equal(dot(np.zeros(16), np.full(32, 2.0**-70), np.full(32, 2.0**-70)), np.zeros(16))
    assert np.float32(2.0**-70) * np.float32(2.0**-70) != 0, "the process's own arithmetic has them"


def test_rounding_is_to_nearest_even_without_denormals():
    lower = np.array([1 + 2**-8, 1 + 3 * 2**-8, TINY, -TINY, np.inf, np.nan, 3.4e38, -1.1] * 2, np.float32)
    upper = np.arange(16, dtype=np.float32) / 3
    found = vectors("x86.avx512bf16.cvtne2ps2bf16.512", PAIRS, (FLOATS, upper), (FLOATS, lower))
    expected = np.concatenate([np.where(np.abs(lower) < 2.0**-126, np.copysign(0, lower), lower), upper])
    rounded = expected.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(found.view(ml_dtypes.bfloat16).astype(np.float32), rounded)


@pytest.mark.parametrize("form", ["bfloat16", "bytes"])
@pytest.mark.parametrize("shape", [(16, 16, 16), (3, 5, 7), (1, 16, 2)], ids=str)
def test_products_of_tiles(shape: tuple[int, int, int], form: str):
    """Rows, words of a row, columns; memory beyond the tiles is neither read nor written."""
    (rows, words, columns), random, library = shape, np.random.default_rng(1), emulation.library()
    part = 2 if form == "bfloat16" else 4
    left = random.integers(0, 9, (rows, part * words + 3))
    right = random.integers(-9, 9, (words, part * columns))
    of_left, of_right = (ml_dtypes.bfloat16,) * 2 if part == 2 else (np.uint8, np.int8)
    x, y = left.astype(of_left), right.astype(of_right)
    sums = np.full((rows + 1, columns + 2), 7, np.float32 if part == 2 else np.int32)
    configuration = np.zeros(64, np.uint8)
    configuration[0], configuration[[48, 49, 50]] = 1, [rows, rows, words]
    configuration[[16, 18, 20]] = [4 * columns, 4 * words, 4 * columns]

    def address(array: Array) -> ctypes.c_void_p:
        return ctypes.c_void_p(array.ctypes.data)

    library.emulated_x86_ldtilecfg(address(configuration))
    for tile, array in enumerate((sums, x, y)):
        library.emulated_x86_tileloadd64(tile, address(array), ctypes.c_int64(array.strides[0]))
    (library.emulated_x86_tdpbf16ps if part == 2 else library.emulated_x86_tdpbusd)(0, 1, 2)
    library.emulated_x86_tilestored64(0, address(sums), ctypes.c_int64(sums.strides[0]))
    library.emulated_x86_tilerelease()
    by_column = right.reshape(words, columns, part).transpose(0, 2, 1).reshape(-1, columns)
    expected = np.full(sums.shape, 7)
    expected[:rows, :columns] += left[:, : part * words] @ by_column
    np.testing.assert_array_equal(sums, expected)
    assert not library.emulated_tiles_in_use()


@pytest.mark.parametrize(("cpu", "called"), [
    ("sapphirerapids", {"ldtilecfg", "tilezero", "tileloadd64", "tdpbf16ps", "tilestored64", "tilerelease"}),
    ("znver4", {"avx512bf16_dpbf16ps_512"}), ("neoverse-v1", set[str]()),
])  # fmt: skip
def test_missing_instructions_are_called(cpu: str, called: set[str]):
    x = var("x", (64, 128), "bfloat16")
    product = nn.dense(x, const(np.ones((64, 128), ml_dtypes.bfloat16)), out_dtype="float32")
    source = relay.build(IRModule({"main": Function((x,), product)}), f"llvm -mcpu={cpu}").module.get_source("raw-ll")
    if {"amx-bf16", "avx512bf16"} & Target("llvm").features:
        pytest.skip("this machine has the instructions")
    text = emulation.with_calls(source)
    assert not re.search(r"@llvm\.x86\.(tile|tdp|ldtile|avx512bf16)", text)
    assert called <= set(re.findall(r"@emulated_x86_(\w+)\(", text))
