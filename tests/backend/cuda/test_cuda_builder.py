"""Incremental compilation for GPUs: equal code, and nothing lowered a second time."""

from __future__ import annotations

import pytest

from relayc import te
from relayc.backend.cuda.builder import Builder, broken_limits
from relayc.backend.driver import ModuleBuilder, build
from relayc.backend.target import Target
from relayc.te.errors import CompileError
from relayc.te.tir import PrimFunc
from tests.backend.cuda import cuda_programs as programs

TARGET = Target("cuda -arch=sm_90")


def function(name: str, n: int = 256) -> PrimFunc:
    return te.lower(*programs.vector_add(n), name=name)[name]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path))


def test_parts_build_the_same_module_as_one_unit(cache):
    parts = Builder(TARGET)
    for name, n in (("f", 256), ("g", 1000)):
        parts.add([function(name, n)])
    whole = build(te.ir.IRModule({"f": function("f", 256), "g": function("g", 1000)}), target=TARGET)
    (kernels,) = whole.imported_modules
    made = parts.finish()
    assert (made.source, made.functions, made.image) == (kernels.source, kernels.functions, kernels.image)
    assert made.report == kernels.report


def test_earlier_parts_are_reused(cache):
    first = Builder(TARGET)
    assert first.reuse("key of f") is None
    first.add([function("f")], "key of f", "a note")
    again = Builder(TARGET)
    assert again.reuse("key of f") == "a note"
    assert again.reuse("key of g") is None
    assert Builder(Target("cuda -arch=sm_80")).reuse("key of f") is None
    a, b = first.finish(), again.finish()
    assert (a.source, a.functions, a.report, a.image) == (b.source, b.functions, b.report, b.image)


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b"\xff", b'{"text": 1, "functions": {}, "launches": [], "note": ""}',
              b'{"text": "", "functions": {}, "launches": [["f", "g", 0]], "note": ""}'],
)  # fmt: skip
def test_cached_nonsense_is_printed_anew(cache, value):
    parts = Builder(TARGET)
    parts._cache.put(parts._prefix + "key", value)
    assert parts.reuse("key") is None
    parts.add([function("f")], "key", "note")
    assert Builder(TARGET).reuse("key") == "note"


def test_a_kernel_added_under_a_reused_key_replaces_it(cache):
    first = Builder(TARGET)
    first.add([function("f")], "key", "nonsense")
    again = Builder(TARGET)
    assert again.reuse("key") == "nonsense"
    again.add([function("f")], "key", "note")
    assert again._sources == first._sources and Builder(TARGET).reuse("key") == "note"


def test_without_a_cache_nothing_is_reused(monkeypatch):
    monkeypatch.setenv("RELAYC_CACHE_DIR", "off")
    parts = Builder(TARGET)
    parts.add([function("f")], "key", "note")
    assert Builder(TARGET).reuse("key") is None
    assert parts.finish().function_names() == ["f"]


def test_functions_that_check_their_arguments_are_hosted():
    builder = ModuleBuilder(TARGET)
    builder.add(function("f"))
    builder.add(function("g").with_attr("packed_api", False))
    library = builder.finish()
    (kernels,) = library.imported_modules
    assert (library.type_key, library.function_names(), kernels.function_names()) == ("llvm", ["f"], ["f", "g"])


def test_broken_limits_are_described():
    assert broken_limits(function("f"), TARGET) == []
    a = te.placeholder((2048,), name="a")
    b = te.compute((2048,), lambda i: a[i] + 1.0, name="b")
    s = te.create_schedule(b.op)
    s[b].bind(b.op.axis[0], te.thread_axis("threadIdx.x"))
    wide = te.lower(s, [a, b], name="wide")["wide"]
    assert broken_limits(wide, TARGET)[0].startswith("wide_kernel0: 2048 threads in a block, at most 1024")
    unbound = te.lower(te.create_schedule(b.op), [a, b], name="unbound")["unbound"]
    (sentence,) = broken_limits(unbound, TARGET)
    assert "thread" in sentence
    with pytest.raises(CompileError, match="2048 threads in a block"):
        Builder(TARGET).add([wide])
