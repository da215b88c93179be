"""Lowered functions to kernels, their text, and machine code for GPUs that are not present."""

from __future__ import annotations

import pytest

from relayc import backend, te
from relayc.backend.cache import default_cache
from relayc.backend.cuda import nvrtc
from relayc.backend.cuda.build import generate_source, prepare
from relayc.backend.cuda.disassemble import instruction_counts
from relayc.backend.cuda.nvrtc import _bytes, compile_flags, compile_source
from relayc.backend.cuda.report import parse_log
from relayc.backend.kernels import split_kernels
from relayc.backend.runtime.sizes import SizeReader, evaluate
from relayc.backend.target import Target
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext
from tests.backend.cuda import cuda_programs as programs


def built(schedule, args, arch="sm_90", name="f"):
    return backend.build(schedule, args, Target(f"cuda -arch={arch}"), name=name).imported_modules[0]


def text_of(schedule, args):
    """The kernels' text, without the prelude."""
    module = te.lower(schedule, args, name="f")
    return generate_source(prepare(module, Target("cuda -arch=sm_90"))).text + "\n"


@pytest.mark.parametrize("arch", programs.ARCHES)
@pytest.mark.parametrize("n", [3, 1000, 4096, te.var("n")], ids=str)
@pytest.mark.parametrize("vector", [1, 4])
def test_vector_add_compiles(n, vector, arch):
    module = built(*programs.vector_add(n, vector=vector), arch=arch)
    assert module.format == "cubin" and module.image[:4] == b"\x7fELF" and module.arch == arch
    (report,) = module.report.values()
    assert report["spill_stores"] == report["spill_loads"] == report["stack"] == 0
    assert report["threads"] == (1 if (n, vector) == (3, 4) else 64)
    assert 0 < report["registers"] < 64 and report["occupancy"] > 0.4


def test_the_table_has_the_launch_parameters():
    n = te.var("n")
    (record,) = built(*programs.vector_add(n)).functions.values()
    assert [p["kind"] for p in record["params"]] == ["buffer"] * 3
    assert all(p["shape"] == ["n"] and p["dtype"] == "float32" for p in record["params"])
    (kernel,) = record["kernels"]
    assert kernel["name"] == "f_kernel0" and kernel["block"] == [64, 1, 1] and kernel["dynamic_shared"] == 0
    assert kernel["grid"] == [("//", ("+", "n", 63), 64), 1, 1]
    assert sorted(map(str, kernel["arguments"])) == sorted(
        map(str, [["param", 0], ["param", 1], ["param", 2], ["size", "n", "int32"]])
    )


def test_two_stages_are_two_kernels_with_a_workspace():
    a = te.placeholder((256, 64), name="A")
    k = te.reduce_axis((0, 64), name="k")
    row = te.compute((256,), lambda i: te.sum(a[i, k], axis=k), name="row")
    out = te.compute((256, 64), lambda i, j: a[i, j] - row[i], name="out")
    s = te.create_schedule(out.op)
    for stage in (row, out):
        s[stage].bind(stage.op.axis[0], te.thread_axis("blockIdx.x"))
    s[out].bind(out.op.axis[1], te.thread_axis("threadIdx.x"))
    module = built(s, [a, out])
    record = module.functions["f"]
    assert record["workspaces"] == [1024]
    assert [k["name"] for k in record["kernels"]] == ["f_kernel0", "f_kernel1"]
    assert all(["workspace", 0] in kernel["arguments"] for kernel in record["kernels"])
    assert set(module.report) == {"f_kernel0", "f_kernel1"}


def test_text_of_a_vector_access():
    text = text_of(*programs.vector_add(256, vector=4))
    assert text == '''extern "C" __global__ void __launch_bounds__(64) f_kernel0(float* __restrict__ C, const float* __restrict__ A, const float* __restrict__ B) {
  const int blockIdx_x = blockIdx.x;
  const int threadIdx_x = threadIdx.x;
  {
    const rc_vec<float, 4> A_lanes = rc_load<float, 4, 4>(&A[(threadIdx_x * 4)]);
    const rc_vec<float, 4> B_lanes = rc_load<float, 4, 4>(&B[(threadIdx_x * 4)]);
    rc_vec<float, 4> C_lanes;
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      C_lanes.lane[lane] = (A_lanes.lane[lane] + B_lanes.lane[lane]);
    }
    rc_store<float, 4, 4>(&C[(threadIdx_x * 4)], C_lanes);
  }
}
'''  # noqa: E501


def test_a_loop_without_threads_is_an_error():
    a = te.placeholder((16,), name="A")
    c = te.compute((16,), lambda i: a[i] + 1.0, name="C")
    with pytest.raises(CompileError, match=r"f: loop i runs on no thread axis.*thread_axis"):
        built(te.create_schedule(c.op), [a, c])


def test_a_statement_without_loops_needs_no_threads():
    a = te.placeholder((1,), name="A")
    c = te.compute((1,), lambda i: a[i] + 1.0, name="C")
    (kernel,) = built(te.create_schedule(c.op), [a, c]).functions["f"]["kernels"]
    assert (kernel["grid"], kernel["block"]) == ([1, 1, 1], [1, 1, 1])


def test_threads_of_a_block_must_be_constant():
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    c = te.compute((n,), lambda i: a[i] + 1.0, name="C")
    s = te.create_schedule(c.op)
    s[c].bind(c.op.axis[0], te.thread_axis("threadIdx.x"))
    with pytest.raises(CompileError, match=r"threadIdx.x has n threads.*constant"):
        split_kernels(te.lower(s, [a, c], name="f")["f"], "f")


def test_of_versions_by_a_size_only_one_has_blocks():
    n = te.size_var("n")
    a = te.placeholder((n,), name="A")
    c = te.compute((n,), lambda i: a[i] + 1.0, name="C")

    def launched(threads: int) -> te.Schedule:
        s = te.create_schedule(c.op)
        block, thread = s[c].split(c.op.axis[0], factor=threads)
        s[c].bind(block, te.thread_axis("blockIdx.x"))
        s[c].bind(thread, te.thread_axis("threadIdx.x"))
        return s

    large, small = launched(64), launched(8)
    large.specialize_small(small, unless=n > 8)
    kernels = built(large, [a, c]).functions["f"]["kernels"]
    extents = [SizeReader(["n"]).size(k["grid"][0], "grid") for k in kernels]
    grids = [[evaluate(extent, {"n": size}) for extent in extents] for size in (5, 8, 9, 100)]
    assert [k["block"][0] for k in kernels] == [64, 8]
    assert grids == [[0, 1], [0, 1], [1, 0], [2, 0]]


def test_a_kernel_that_can_not_be_launched_is_an_error():
    a = te.placeholder((4096,), name="A")
    c = te.compute((4096,), lambda i: a[i] + 1.0, name="C")
    s = te.create_schedule(c.op)
    s[c].bind(c.op.axis[0], te.thread_axis("threadIdx.x"))
    with pytest.raises(CompileError, match=r"f_kernel0: 4096 threads in a block, at most 1024"):
        built(s, [a, c])


def test_a_compile_error_shows_numbered_lines():
    with pytest.raises(CompileError) as caught:
        compile_source("__global__ void f() {\n  oops;\n}", "sm_80", compile_flags("sm_80"))
    assert '"oops" is undefined' in str(caught.value) and "2 |   oops;" in str(caught.value)


def test_a_newer_gpu_gets_ptx(monkeypatch):
    monkeypatch.setattr("relayc.backend.cuda.nvrtc._architectures", lambda: (75, 80))
    module = built(*programs.vector_add(64), arch="sm_90")
    assert module.format == "ptx" and b".target sm_80" in module.image
    assert module.report == {"f_kernel0": {}}


def test_a_registered_compiler_replaces_nvrtc():
    seen = []
    backend.register_func("cuda.callback_compile", lambda source, arch: seen.append((source, arch)) or b"image")
    try:
        module = built(*programs.vector_add(64))
    finally:
        backend.runtime.registry.remove_global_func("cuda.callback_compile")
    assert module.image == b"image" and seen == [(module.get_source("cuda"), "sm_90")]


def test_the_log_is_parsed():
    log = (
        "ptxas info    : Compiling entry function 'f' for 'sm_90'\n"
        "ptxas info    : Function properties for f\n"
        "    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 16384 bytes smem, 388 bytes cmem[0]\n"
    )
    assert parse_log(log) == {
        "f": {"stack": 16, "spill_stores": 8, "spill_loads": 4, "registers": 40, "shared": 16384}
    }


def test_compiled_code_is_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path))
    first = built(*programs.vector_add(64))
    monkeypatch.setattr("relayc.backend.cuda.nvrtc._compile", lambda *_: pytest.fail("compiled twice"))
    second = built(*programs.vector_add(64))
    assert (second.image, second.report) == (first.image, first.report)


@pytest.mark.parametrize(
    "value", [b"", b"\n", b"[]\n", b'{"format": "cubin", "log": ""}\nnonsense',
              b'{"format": "other", "log": ""}\n\x7fELF',
              b'{"format": "cubin", "log": 1}\n\x7fELF'],
)  # fmt: skip
def test_cached_nonsense_is_compiled_anew(tmp_path, monkeypatch, value):
    """NVRTC is replaced: what it would return does not matter here."""
    made = nvrtc.Image(b"\x7fELF code", "cubin", "log")
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: (13, 0))
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: made)
    key = "\n".join(["nvrtc", "13", "0", "--flag", "text"])
    default_cache().put(key, value)
    assert nvrtc.compile_source("text", "sm_90", ["--flag"]) == made
    assert default_cache().get(key) != value
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: pytest.fail("compiled twice"))
    assert nvrtc.compile_source("text", "sm_90", ["--flag"]) == made


def test_an_empty_log_does_not_overwrite_shared_bytes_objects():
    """NVRTC writes into a bytes object. Those of one byte are shared: b" " would be another byte everywhere."""
    handed = []
    assert _bytes(lambda _: (0, 1), lambda _, buffer: (handed.append(buffer) or 0,), None, "give its log") == b"\0"
    assert len(handed[0]) > 1
    assert built(*programs.vector_add(64)).get_source("ptx") and b" "[0] == 32


def test_nvrtcs_own_cache_is_disabled():
    """It exists beside a driver, and returns machine code without the assembler's figures."""
    assert "--no-cache" in compile_flags("sm_90")


def test_all_source_formats():
    module = built(*programs.vector_add(64, vector=4))
    assert "__global__" in module.get_source("cuda") == module.get_source()
    assert ".entry f_kernel0" in module.get_source("ptx")
    counts = instruction_counts(module.get_source("sass"))["f_kernel0"]
    loads = sum(n for name, n in counts.items() if name.startswith("LDG.E.128"))
    assert loads == 2 and counts["STG.E.128"] == 1 and counts["FADD"] == 4


def test_line_info_is_optional():
    plain = built(*programs.vector_add(64))
    with PassContext(config={"cuda.line_info": True}):
        lined = built(*programs.vector_add(64))
    assert len(lined.image) > len(plain.image) and b".debug_line" in lined.image


def test_fast_math_is_an_option():
    a = te.placeholder((64,), name="a")
    b = te.compute((64,), lambda i: te.exp(a[i]) / a[i], name="b")
    s = te.create_schedule(b.op)
    s[b].bind(b.op.axis[0], te.thread_axis("threadIdx.x"))
    exact = built(s, [a, b])
    with PassContext(config={"cuda.fast_math": True}):
        fast = built(s, [a, b])
    with PassContext(opt_level=4):
        fast_by_level = built(s, [a, b])

    def count(module):
        return sum(instruction_counts(module.get_source("sass"))["f_kernel0"].values())

    assert count(fast) < count(exact) / 2
    assert count(fast_by_level) == count(fast)
