"""The tutorial's first program: vector addition on every kind of target."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from relayc import backend, te
from relayc.backend.runtime import ArgumentError
from relayc.te.errors import CompileError

TARGETS = ["llvm", pytest.param("c", marks=pytest.mark.skipif(not shutil.which("cc"), reason="needs cc")), "interp"]


def vector_add(n, target):
    a = te.placeholder((n,), name="A")
    b = te.placeholder((n,), name="B")
    c = te.compute(a.shape, lambda i: a[i] + b[i], name="C")
    schedule = te.create_schedule(c.op)
    outer, inner = schedule[c].split(c.op.axis[0], factor=64)
    schedule[c].parallel(outer)
    schedule[c].vectorize(inner)
    return backend.build(schedule, [a, b, c], target)


@pytest.mark.parametrize("target", TARGETS)
def test_fixed_size(target):
    n = 1024
    fadd = vector_add(n, target)
    dev = backend.device(target, 0)
    rng = np.random.default_rng(0)
    a = backend.nd.array(rng.uniform(size=n).astype("float32"), dev)
    b = backend.nd.array(rng.uniform(size=n).astype("float32"), dev)
    c = backend.nd.array(np.zeros(n, "float32"), dev)
    fadd(a, b, c)
    np.testing.assert_array_equal(c.numpy(), a.numpy() + b.numpy())
    assert fadd.get_source()
    with pytest.raises(ArgumentError, match=r"argument 1 \(B\): shape\[0\] is 7, expected 1024"):
        fadd(a, backend.nd.array(np.zeros(7, "float32"), dev), c)


@pytest.mark.parametrize("target", TARGETS)
def test_symbolic_size(target):
    fadd = vector_add(te.size_var("n"), target)
    dev = backend.device(target, 0)
    for n in (1, 63, 64, 130):
        a, b = (backend.nd.array(np.arange(n, dtype="float32") * k, dev) for k in (1, 2))
        c = backend.nd.array(np.zeros(n, "float32"), dev)
        fadd(a, b, c)
        np.testing.assert_array_equal(c.numpy(), 3 * np.arange(n))
    with pytest.raises(ArgumentError, match=r"argument 1 \(B\): shape\[0\] is 3, expected 130 \(n\)"):
        fadd(a, backend.nd.array(np.zeros(3, "float32"), dev), c)


def test_two_kinds_of_target_share_a_device():
    llvm, c = backend.Target("llvm"), backend.Target("c")
    assert llvm.device_kind == c.device_kind == "cpu" and llvm.kind is not c.kind
    assert backend.device("llvm") == backend.device("c") == backend.device("cpu")


def test_device_code_is_an_imported_module():
    fadd = vector_add(256, "interp")
    device_module = fadd.imported_modules[0]
    assert device_module.type_key == "interp" and device_module.function_names() == ["main"]
    assert "C[" in device_module.get_source()
    dev = backend.device("interp")
    a, b, c = (backend.nd.array(np.full(256, k, "float32"), dev) for k in (1, 2, 0))
    device_module["main"](a, b, c)
    assert (c.numpy() == 3).all()
    host = backend.nd.array(np.zeros(256, "float32"))
    with pytest.raises(ArgumentError, match="is on device cpu, expected interp"):
        fadd(host, b, c)
    with pytest.raises(ArgumentError, match="on cpu:0"):
        device_module["main"](host, b, c)


def test_views_into_memory_that_has_no_address():
    fadd = vector_add(64, "interp")
    dev = backend.device("interp")
    whole = backend.nd.array(np.arange(192, dtype="float32"), dev)
    a, b, c = (whole._create_view((64,), "float32", 256 * k) for k in range(3))
    fadd(a, b, c)
    np.testing.assert_array_equal(whole.numpy()[128:], np.arange(64) + np.arange(64, 128))


@pytest.mark.skipif(not shutil.which("cc"), reason="needs cc")
def test_host_code_by_another_kind():
    fadd = vector_add(64, "interp -host=c")
    assert fadd.type_key == "c" and fadd.imported_modules[0].type_key == "interp"
    dev = backend.device("interp")
    a, b, c = (backend.nd.array(np.full(64, k, "float32"), dev) for k in (1, 2, 0))
    fadd(a, b, c)
    assert (c.numpy() == 3).all()
    with pytest.raises(ArgumentError, match="expected 3 arguments"):
        fadd(a, b)


def test_arguments_from_any_dlpack_producer():
    fadd = vector_add(64, "llvm")
    a, b = np.arange(64, dtype="float32"), np.ones(64, "float32")
    c = backend.nd.array(np.zeros(64, "float32"))
    fadd(backend.nd.array(a), backend.nd.array(b), c)
    np.testing.assert_array_equal(np.from_dlpack(c), a + b)


def test_time_evaluator():
    fadd = vector_add(64, "llvm")
    arrays = [backend.nd.array(np.zeros(64, "float32")) for _ in range(3)]
    result = fadd.time_evaluator("main", backend.device("cpu"), number=5, repeat=3)(*arrays)
    assert len(result.results) == 3 and 0 < result.min <= result.median <= result.max


def test_invalid_inputs_of_build():
    a = te.placeholder((4,), name="A")
    b = te.compute((4,), lambda i: a[i] + 1.0, name="B")
    for inputs, text in ((None, "build of a NoneType; expected a schedule"), (b, "build of a Tensor; expected")):
        with pytest.raises(CompileError, match=text):
            backend.build(inputs, [a, b], "llvm")
    with pytest.raises(CompileError, match="requires its arguments"):
        backend.build(te.create_schedule(b.op), target="llvm")
    with pytest.raises(CompileError, match=r"function name 'two words\(\);': LLVM code has letters"):
        backend.build(te.create_schedule(b.op), [a, b], "llvm", name="two words();")
