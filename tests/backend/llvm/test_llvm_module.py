"""Modules of the llvm target: loading, saving, sources, reuse of compiled code."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from relayc import te
from relayc.backend.cache import default_cache
from relayc.backend.llvm.build import Builder, build
from relayc.backend.llvm.code_cache import CodeCache
from relayc.backend.llvm.codegen import PassSelection
from relayc.backend.llvm.compiler import Compiler, PendingCode
from relayc.backend.llvm.pool_code import pool_object
from relayc.backend.llvm.runtime import LLVMModule, ObjectCode, check_machine, load_from_bytes
from relayc.backend.runtime import nd
from relayc.backend.runtime.errors import ArtifactError, ModuleError
from relayc.backend.target import Target
from relayc.te.dtype import HANDLE
from relayc.te.ir import IRModule
from relayc.te.tir import (
    BufferLoad,
    BufferStore,
    Call,
    Evaluate,
    For,
    ForKind,
    PrimFunc,
    Ramp,
    SizeVar,
    StringImm,
    Var,
    call_intrin,
    const,
    decl_buffer,
    seq,
)  # fmt: skip
from tests.resident_memory import resident_mib


def scale(name: str, factor: float) -> PrimFunc:
    a, c, i = decl_buffer((8,), name="A"), decl_buffer((8,), name="C"), Var("i")
    body = For(i, const(0), const(8), ForKind.SERIAL, BufferStore(c, BufferLoad(a, (i,)) * factor, (i,)))
    return PrimFunc((a.data, c.data), body, {a.data: a, c.data: c}, {"global_symbol": name})


def test_code_that_no_worker_began_is_made_by_who_asks_for_it():
    began, may_end = threading.Event(), threading.Event()

    def make() -> ObjectCode:
        return ObjectCode(threading.current_thread().name.encode(), (), ())

    def wait() -> ObjectCode:
        began.set()
        assert may_end.wait(60)
        return make()

    with ThreadPoolExecutor(1, "worker") as workers:
        first, second = PendingCode(wait, workers.submit(wait)), PendingCode(make, workers.submit(make))
        assert began.wait(60)
        assert second.result() == make()
        may_end.set()
        assert first.result().code.startswith(b"worker")


def run(module: LLVMModule, name: str) -> np.ndarray:
    out = nd.array(np.zeros(8, "f4"))
    module[name](nd.array(np.arange(8, dtype="f4")), out)
    return out.numpy()


@pytest.fixture
def module(host) -> LLVMModule:
    return build(IRModule({"double": scale("double", 2.0), "triple": scale("triple", 3.0)}), host)


def test_functions_survive_saving_and_loading(module):
    data = module.save_to_bytes()
    loaded = load_from_bytes(data)
    assert loaded.function_names() == ["double", "triple"]
    np.testing.assert_array_equal(run(loaded, "triple"), np.arange(8) * 3)
    assert loaded.save_to_bytes() == data
    assert load_from_bytes(memoryview(data)).function_names() == ["double", "triple"]


def test_equal_functions_give_equal_bytes(module, host):
    again = build(IRModule({"double": scale("double", 2.0), "triple": scale("triple", 3.0)}), host)
    assert again.save_to_bytes() == module.save_to_bytes()


def test_sequences_of_calls_are_compiled_without_optimisation(host):
    """A graph may have thousands of nodes, and each call runs once in a run of its entry; loops are optimised."""
    compiler, table = Compiler(host), Var("tensors", HANDLE)
    address = call_intrin("handle", "load_at", table, const(8, "int64"))
    calls = seq([Evaluate(call_intrin("int32", "call_kernel", StringImm("kernel"), address)) for _ in range(3)])
    entry = PrimFunc((table,), calls, {}, {"global_symbol": "entry", "packed_api": False})
    as_emitted = compiler.optimized_text(compiler.emit([entry]))
    assert as_emitted.count("call void @kernel(") == 3
    assert "tail call" not in as_emitted
    assert " x float>" in compiler.optimized_text(compiler.emit([scale("loop", 2.0)]))


def tile(is_unrolled: bool) -> PrimFunc:
    """A product with its sums in a local buffer, which is read at constant places or in a loop; of one operand, what
    is past column 60 counts as zero."""
    a, b = te.placeholder((8, 60), name="a"), te.placeholder((64, 16), name="b")
    k = te.reduce_axis((0, 64), "k")
    c = te.compute((8, 16), lambda i, j: te.sum(te.if_then_else(k < 60, a[i, k], 0.0) * b[k, j], k), name="c")
    s = te.create_schedule([c.op])
    sums = s.cache_write(c, "local")
    rows, columns = s[sums].op.axis
    s[sums].reorder(k, rows, columns)
    s[sums].unroll(rows)
    s[sums].vectorize(columns)
    if is_unrolled:
        s[c].unroll(s[c].op.axis[0])
    s[c].vectorize(s[c].op.axis[1])
    return te.lower(s, [a, b, c])["main"]


@pytest.mark.parametrize("is_unrolled", [True, False])
def test_scheduled_loops_are_compiled_with_few_passes(is_unrolled: bool):
    """Only if these make registers of their local buffers; equal conditions become one branch all the same."""
    compiler = Compiler(Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell"))
    emitted = compiler.emit([tile(is_unrolled)])
    text = compiler.optimized_text(emitted)
    assert ("tail call" not in text) == is_unrolled, "LLVM's whole pipeline marks tail calls"
    assert "alloca" not in text
    assert emitted.text.count("br i1") > 32 and text.count("br i1") <= 8


@pytest.mark.parametrize(("dtype", "is_local", "expected"), [
    ("float32", True, True), ("float32", False, False), ("int32", True, False), ("int32", False, False),
])  # fmt: skip
def test_loops_that_llvm_would_vectorize_take_all_passes(dtype: str, is_local: bool, expected: bool):
    """Sums of integers, in whatever place, but not of floats, whose order is kept."""
    a, k = te.placeholder((8, 64), dtype, "a"), te.reduce_axis((0, 64), "k")
    c = te.compute((8,), lambda i: te.sum(a[i, k], k), name="c")
    s = te.create_schedule([c.op])
    if is_local:
        s[s.cache_write(c, "local")].compute_at(s[c], c.op.axis[0])
    compiler = Compiler(Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell"))
    passes = compiler.emit([te.lower(s, [a, c])["main"]]).passes
    assert passes is (PassSelection.FEW if expected else PassSelection.ALL)


@pytest.mark.parametrize("vectorized", [True, False])
def test_elements_among_vectors_leave_nothing_to_vectorize(vectorized: bool):
    """The sum of each row, of several vectors or of one element after the other, stored as an element."""
    a, k = te.placeholder((8, 64), name="a"), te.reduce_axis((0, 64), "k")
    c = te.compute((8,), lambda i: te.sum(a[i, k], k), name="c")
    s = te.create_schedule([c.op])
    if vectorized:
        partial = s.rfactor(c, s[c].split(k, factor=16)[1])
        s[partial].set_scope("local")
        s[partial].compute_at(s[c], s[c].op.axis[0])
        s[partial].reorder(s[partial].op.reduce_axis[0], s[partial].op.axis[0])
        s[partial].vectorize(s[partial].op.axis[0])
        s[partial].unroll(s[partial].op.reduce_axis[0])
    else:
        s[c].unroll(k)
    compiler = Compiler(Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell"))
    passes = compiler.emit([te.lower(s, [a, c])["main"]]).passes
    assert passes is (PassSelection.FEW if vectorized else PassSelection.ALL)


@pytest.mark.parametrize(("lines", "width", "height", "expected"), [
    (te.size_var("lines"), te.size_var("width"), 12, PassSelection.ALL),
    (te.size_var("lines"), te.size_var("width"), 2, PassSelection.FEW),
    (te.size_var("lines"), 7, 12, PassSelection.FEW),  # divisions have been hoisted; there are no other products
    (96, 7, 12, PassSelection.FEW),
])  # fmt: skip
def test_addresses_of_many_pixels_are_computed_outside_of_the_sum(
    lines: te.Dim, width: te.Dim, height: int, expected: PassSelection
):
    """Every second pixel of an image: each in a tile has an address; with few passes, computed in all iterations."""
    k = te.reduce_axis((0, 64), "k")
    a, b = te.placeholder((lines * 2, width * 2 + 1, 64), name="a"), te.placeholder((64, 16), name="b")
    c = te.compute((lines * width, 16), lambda i, j: te.sum(a[i // width * 2, i % width * 2, k] * b[k, j], k), name="c")
    s = te.create_schedule([c.op])
    sums = s.cache_write(c, "local")
    tile, row = s[c].split(s[c].op.axis[0], factor=height, tail="shift")
    s[c].unroll(row)
    s[c].vectorize(s[c].op.axis[1])
    s[sums].compute_at(s[c], tile)
    rows, columns = s[sums].op.axis
    s[sums].reorder(k, rows, columns)
    s[sums].unroll(rows)
    s[sums].vectorize(columns)
    compiler = Compiler(Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512"))
    sizes = [v for v in (lines, width) if isinstance(v, SizeVar)]
    assert compiler.emit([te.lower(s, [*sizes, a, b, c])["main"]]).passes is expected


def test_corrupt_bytes_are_rejected(module):
    data = module.save_to_bytes()
    for bad in (b"", data[:7], data[:40], data[:-1], data + b"x", b"ELF" + data[3:]):
        with pytest.raises(ArtifactError):
            load_from_bytes(bad)
    with pytest.raises(ArtifactError, match="llvm module of format 1; expected 3: compile the model again"):
        load_from_bytes(data[:7] + b"\x01" + data[8:])
    flipped = bytearray(data)
    flipped[-20] ^= 1
    with pytest.raises(ArtifactError, match="differs from what was saved"):
        load_from_bytes(bytes(flipped))


def test_code_for_another_machine_is_rejected_before_it_runs(host):
    other = "aarch64" if "x86" in host.get("mtriple") else "x86_64"
    module = build(IRModule({"f": scale("f", 2.0)}), Target(f"llvm -mtriple={other}-unknown-linux-gnu"))
    with pytest.raises(ArtifactError, match=rf"compiled for {other}.*this machine is"):
        load_from_bytes(module.save_to_bytes())["f"]
    with pytest.raises(ArtifactError, match=r"needs the instructions (amx-avx512|sve)"):
        check_machine(host.get("mtriple"), ["amx-avx512" if "x86" in host.get("mtriple") else "sve"])


def test_a_missing_c_function_is_an_error_and_a_present_one_is_called(host):
    def calling(name: str) -> PrimFunc:
        c = decl_buffer((1,), "int32", name="C")
        value = Call(c.dtype, "call_extern", (StringImm(name), const(-7)))
        return PrimFunc((c.data,), BufferStore(c, value, (const(0),)), {c.data: c}, {"global_symbol": "f"})

    with pytest.raises(ModuleError, match="calls no_such_function, which neither the module nor the process has"):
        build(IRModule({"f": calling("no_such_function")}), host)["f"]
    out = nd.array(np.zeros(1, "i4"))
    build(IRModule({"f": calling("abs")}), host)["f"](out)
    assert out.numpy()[0] == 7


def test_functions_of_the_c_library_are_found_in_a_fresh_process(tmp_path, host):
    c = decl_buffer((1,), "float64", name="C")
    body = BufferStore(c, Call(c.dtype, "erf", (const(0.5, "float64"),)), (const(0),))
    f = PrimFunc((c.data,), body, {c.data: c}, {"global_symbol": "f"})
    path = tmp_path / "module"
    path.write_bytes(build(IRModule({"f": f}), host).save_to_bytes())
    program = (
        "import sys, numpy as np\n"
        "from relayc.backend.llvm.runtime import load_from_bytes\n"
        "from relayc.backend.runtime import nd\n"
        "out = nd.array(np.zeros(1))\n"
        "load_from_bytes(open(sys.argv[1], 'rb').read()).address_of('f')\n"
        "load_from_bytes(open(sys.argv[1], 'rb').read())['f'](out)\n"
        "print(out.numpy()[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(math.erf(0.5))


def test_unknown_names_and_sources(module):
    with pytest.raises(ModuleError, match="no function 'half'; it has: double, triple"):
        module["half"]
    assert "define void @double" in module.get_source()
    assert "double:" in module.get_source("asm")
    with pytest.raises(ModuleError, match="no source in format 'c'"):
        module.get_source("c")
    with pytest.raises(ModuleError, match="machine code only"):
        load_from_bytes(module.save_to_bytes()).get_source("ll")


def test_a_builder_reuses_compiled_code(tmp_path, monkeypatch, host):
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path))
    first = Builder(host)
    assert first.reuse("scale by 2") is None
    first.add([scale("double", 2.0)], "scale by 2", note="seven")
    first.finish()
    second = Builder(host)
    assert second.reuse("scale by 2") == "seven"
    second.add([scale("triple", 3.0)])
    module = second.finish()
    np.testing.assert_array_equal(run(module, "double"), np.arange(8) * 2)
    np.testing.assert_array_equal(run(module, "triple"), np.arange(8) * 3)
    with pytest.raises(ModuleError, match="RELAYC_CACHE_DIR=off"):
        module.get_source()
    assert Builder(host.with_attrs(opt_level=1)).reuse("scale by 2") is None


@pytest.mark.parametrize(
    "value", [b"", b"short", struct.pack("<Q", 1 << 63) + b"{}", struct.pack("<Q", 2) + b"{}",
              struct.pack("<Q", 2) + b"[]",
              struct.pack("<Q", 40_000) + b"[" * 40_000],
)  # fmt: skip
def test_cached_nonsense_is_compiled_anew(tmp_path, monkeypatch, host, value):
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path))
    default_cache().put(CodeCache(host).key_of("key"), value)
    builder = Builder(host)
    assert builder.reuse("key") is None
    builder.add([scale("double", 2.0)], "key", "note")
    np.testing.assert_array_equal(run(builder.finish(), "double"), np.arange(8) * 2)
    assert Builder(host).reuse("key") == "note"


def test_cached_code_that_is_no_object_file_is_compiled_anew(tmp_path, monkeypatch, host):
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path))
    cache = CodeCache(host)
    cache.put(cache.key_of("key"), ObjectCode(b"nonsense", ()), "note")
    assert Builder(host).reuse("key") is None
    code = pool_object.__wrapped__("x86_64-unknown-linux-gnu")
    (key,) = [key for key in map(_key_of, tmp_path.glob("??/*")) if key.startswith("llvm pool")]
    default_cache().put(key, b"nonsense")
    assert pool_object.__wrapped__("x86_64-unknown-linux-gnu") == code and code.startswith(b"\x7fELF")


def _key_of(path):
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data, 40)
    return data[56 : 56 + size].decode()


def test_code_added_under_a_reused_key_replaces_it(tmp_path, monkeypatch, host):
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path))
    first = Builder(host)
    first.add([scale("double", 2.0)], "key", note="nonsense")
    first.finish()
    for note in ("nonsense", "note"):
        again = Builder(host)
        assert again.reuse("key") == note
        again.add([scale("double", 2.0)], "key", note="note")
        np.testing.assert_array_equal(run(again.finish(), "double"), np.arange(8) * 2)


def test_what_was_compiled_and_loaded_is_freed(host):
    def compile_and_run(times: int) -> float:
        for i in range(times):
            run(build(IRModule({"scale": scale("scale", 1.0 + i)}), host), "scale")
        return resident_mib() or 0.0

    if resident_mib() is None:
        pytest.skip("this system does not tell how much memory a process holds")
    before = compile_and_run(20)
    assert compile_and_run(100) - before < 4.0  # 100 pass managers alone are 6 MiB


@pytest.mark.parametrize(("is_written", "loads"), [(False, 1), (True, 2)])
def test_what_a_function_does_not_write_is_loaded_once(is_written: bool, loads: int):
    """Between loads of one input two results are stored, which do not alias it."""
    a, b, c = [decl_buffer((16,), "float32", name=name) for name in "abc"]
    here = Ramp(const(0), const(1), 16)
    first = BufferStore(a if is_written else b, BufferLoad(a, (here,)) * 2.0, (here,))
    body = seq([first, BufferStore(c, BufferLoad(a, (here,)) * 3.0, (here,))])
    function = PrimFunc((a.data, b.data, c.data), body, {x.data: x for x in (a, b, c)}, {"global_symbol": "f"})
    text = Compiler(Target("llvm")).emit([function]).text
    assert text.count("load <16 x float>") == loads
