"""Functions compiled from C against the binary interface: contexts, marshalling, workspace, calls back to Python."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading

import numpy as np
import pytest

from relayc.backend.runtime import (
    ArgumentError,
    DeviceError,
    HostFunc,
    KernelFunc,
    NDArray,
    PackedFunc,
    RegistryError,
    context,
    convert,
    get_device_api,
    nd,
    num_threads,
    register_func,
    remove_global_func,
    set_num_threads,
)
from relayc.backend.runtime.context import Context, Ctx, current_context

C_SOURCE = r"""
#include <stdint.h>
typedef struct Ctx Ctx;
typedef void (*Task)(Ctx*, void*, int32_t, int32_t, int64_t, int32_t);
struct Ctx {
  void (*parallel)(Ctx*, Task, void*, int32_t, int64_t);
  int32_t num_threads, draws;
  void* (*alloc_workspace)(Ctx*, int64_t);
  void (*free_workspace)(Ctx*, void*);
  int32_t (*call_packed)(Ctx*, const char*, void*, int32_t*, int32_t);
};
typedef struct { void* data; int32_t type, id, ndim; uint8_t code, bits; uint16_t lanes;
                 int64_t *shape, *strides; uint64_t byte_offset; } DLTensor;

void axpy(Ctx* c, float* x, float* y, float a, int32_t n) { for (int i = 0; i < n; i++) y[i] += a * x[i]; }

static void fill(Ctx* c, void* closure, int32_t task, int32_t tasks, int64_t step, int32_t threads) {
  int64_t* out = closure;
  int64_t n = out[0];
  for (int64_t i = task * n / tasks; i < (task + 1) * n / tasks; i++) out[i + 1] = i * i;
}
void squares(Ctx* c, int64_t* out) { c->parallel(c, fill, out, 64, 1); }

static void grow(Ctx* c, void* closure, int32_t task, int32_t tasks, int64_t step, int32_t threads) {
  int64_t* out = closure;
  for (int64_t i = task * 64 / tasks; i < (task + 1) * 64 / tasks; i++) out[i] = out[i] * 3 + step;
}
void steps(Ctx* c, int64_t* out) { c->parallel(c, grow, out, 64, 5); }

void scratch(Ctx* c, int64_t* out) {
  char* a = c->alloc_workspace(c, 100000);
  char* b = c->alloc_workspace(c, 5);
  a[99999] = 1; b[4] = 1;
  out[0] = (int64_t)a; out[1] = (int64_t)b; out[2] = c->num_threads;
  c->free_workspace(c, b);
  c->free_workspace(c, a);
}

int32_t host(Ctx* c, void* args, int32_t* kinds, int32_t n, int64_t* error) {
  int64_t* v = args;
  if (n != 2) { error[0] = n; return 1; }
  DLTensor* x = (DLTensor*)v[0];
  if (x->shape[0] != v[1]) { error[0] = v[1]; error[1] = x->shape[0]; return 3; }
  ((float*)((char*)x->data + x->byte_offset))[0] = 42;
  return 0;
}

int32_t kinds(Ctx* c, void* args, int32_t* kinds, int32_t n, int64_t* error) {
  int64_t* out = ((DLTensor*)((int64_t*)args)[0])->data;
  for (int i = 0; i < n; i++) {
    int64_t value = ((int64_t*)args)[i];
    out[2 * i] = kinds[i];
    out[2 * i + 1] = kinds[i] == 11 ? *(char*)value : value;
  }
  return 0;
}

int32_t calls_back(Ctx* c, void* args, int32_t* kinds, int32_t n, int64_t* error) {
  return c->call_packed(c, "test.packed.callback", args, kinds, n);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("packed")
    (folder / "f.c").write_text(C_SOURCE)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(folder / "f.so"), str(folder / "f.c")], check=True)
    return ctypes.CDLL(str(folder / "f.so"))


def _address(library, name):
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value


@pytest.fixture
def kernel(library):
    return lambda name, *params: KernelFunc(name, _address(library, name), params, library)


@pytest.fixture
def host(library):
    return lambda name, messages=(): HostFunc(name, _address(library, name), dict(messages), library)


@pytest.fixture
def callback():
    """Registers the function that compiled code calls back."""
    yield lambda f: register_func("test.packed.callback", f, override=True)
    remove_global_func("test.packed.callback")


def test_the_struct_is_laid_out_as_in_c():
    offsets = {name: getattr(Ctx, name).offset for name, _ in Ctx._fields_}
    assert offsets == {
        "parallel": 0,
        "num_threads": 8,
        "draws": 12,
        "alloc_workspace": 16,
        "free_workspace": 24,
        "call_packed": 32,
        "shortage": 40,
        "stream_draws": 48,
    }


def test_a_refused_workspace_is_an_error_of_the_call(monkeypatch):
    where = Context()

    def refuse(_device, nbytes):
        raise DeviceError(f"no {nbytes} bytes")

    monkeypatch.setattr(get_device_api("cpu"), "alloc_workspace", refuse)
    assert context._alloc_workspace(where.address, 100) is None
    with pytest.raises(DeviceError, match="a kernel could not allocate 100 bytes of workspace"):
        where.check()
    where.check()  # once


def test_a_kernel_takes_arrays_and_scalars(kernel):
    axpy = kernel("axpy", "buffer", "buffer", "float32", "int32")
    x, y = nd.array(np.arange(4, dtype="float32")), nd.array(np.ones(4, "float32"))
    assert axpy(x, y, 0.5, 4) is None
    assert y.numpy().tolist() == [1, 1.5, 2, 2.5]
    values = np.zeros(4, "float32")
    axpy(x, values, np.float32(2), np.int64(3))
    assert values.tolist() == [0, 2, 4, 0], "a numpy array is written in place"
    again = axpy.bind(x, y, 0.5, 4)
    again()
    again()
    assert y.numpy().tolist() == [1, 2.5, 4, 5.5]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((1, 2), r"axpy: got 2 arguments; expected 4: \('buffer', 'buffer', 'float32', 'int32'\)"),
        ((1.0, np.zeros(4, "f"), 1, 1), "axpy: argument 0 is float; expected an NDArray"),
        ((np.zeros(4, "f"), np.zeros((4, 4), "f").T, 1, 1), "argument 1 has strides"),
        ((np.zeros(4, "f"), np.zeros(4, "f"), "a", 1), r"argument 2 is str; expected a number \(float32\)"),
        ((np.zeros(4, "f"), np.broadcast_to(np.float32(1), 4), 1, 1), "argument 1 is read-only memory"),
    ],
)
def test_what_a_kernel_can_not_take_is_rejected(kernel, args, text):
    with pytest.raises(ArgumentError, match=text):
        kernel("axpy", "buffer", "buffer", "float32", "int32")(*args)


def test_an_unknown_parameter_kind_is_rejected(kernel):
    with pytest.raises(ArgumentError, match="kind \\['float99'\\]"):
        kernel("axpy", "buffer", "float99")


def test_a_parallel_region_runs_every_task(kernel, fresh_thread):
    out = np.zeros(101, "int64")
    out[0] = 100
    fresh_thread(lambda: kernel("squares", "buffer")(out))
    assert out[1:].tolist() == [i * i for i in range(100)]


def test_phases_of_a_parallel_region_run_in_order(kernel, fresh_thread):
    out = np.arange(64, dtype="int64")
    fresh_thread(lambda: kernel("steps", "buffer")(out))
    assert out.tolist() == [243 * i + 27 * 1 + 9 * 2 + 3 * 3 + 4 for i in range(64)]


@pytest.fixture(params=["pool", "no pool"])
def fresh_thread(request, monkeypatch):
    """Runs a function in a thread of its own, with a context made there."""
    if request.param == "no pool":
        monkeypatch.setattr("relayc.backend.runtime.context.parallel_address", lambda: None)
        monkeypatch.setattr("relayc.backend.runtime.context.workspace_addresses", lambda: None)

    def run(function):
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()

    return run


def test_workspace_is_aligned(kernel, fresh_thread):
    out = np.zeros(3, "int64")
    fresh_thread(lambda: kernel("scratch", "buffer")(out))
    assert out[0] and out[0] % 64 == 0 and out[1] % 64 == 0 and abs(out[0] - out[1]) > 5


def test_the_thread_count_reaches_compiled_code(kernel):
    out = np.zeros(3, "int64")
    try:
        set_num_threads(1)
        kernel("scratch", "buffer")(out)
        assert out[2] == 1
    finally:
        set_num_threads(None)
    kernel("scratch", "buffer")(out)
    assert out[2] == num_threads()
    assert Context(1).num_threads == 1
    context = Context()
    context.set_num_threads(1)
    assert context.num_threads == 1


def test_every_thread_has_its_own_context():
    found = []
    thread = threading.Thread(target=lambda: found.append(current_context()))
    thread.start()
    thread.join()
    assert found[0] is not current_context() and current_context() is current_context()


def test_a_failed_check_fills_its_message(host):
    function = host("host", {1: "expected 2 arguments, got {}", 3: "argument n is {} but x has shape[0] = {}"})
    x = nd.zeros((4,))
    function(x, 4)
    assert x.numpy()[0] == 42
    with pytest.raises(ArgumentError, match=r"^host: expected 2 arguments, got 1$"):
        function(x)
    with pytest.raises(ArgumentError, match=r"^host: argument n is 7 but x has shape\[0\] = 4$"):
        function(x, 7)


def test_a_check_without_a_message_still_fails(host):
    with pytest.raises(ArgumentError, match="argument check 1 failed"):
        host("host")()


def test_every_kind_of_value_is_marshalled(host):
    out = np.zeros(16, "int64")
    host("kinds")(out, -5, True, 1.5, None, "A", np.uint64(2**64 - 1), np.float32(0.5))
    pairs = out.reshape(-1, 2).tolist()
    bits = [int(np.float64(v).view("int64")) for v in (1.5, 0.5)]
    assert pairs[1:] == [[0, -5], [0, 1], [2, bits[0]], [4, 0], [11, 65], [0, -1], [2, bits[1]]]
    assert pairs[0][0] == 7


def test_values_that_can_not_be_marshalled_are_rejected(host):
    with pytest.raises(ArgumentError, match="argument 0 is 18446744073709551616, which does not fit"):
        host("kinds")(2**64)
    with pytest.raises(ArgumentError, match="argument 1 is dict"):
        host("kinds")(1, {})


def test_python_is_called_from_compiled_code(host, callback):
    seen = []

    def f(tensor, number, real, text, nothing):
        tensor[:] = tensor.numpy() * number
        seen.append((number, real, text, nothing, type(tensor)))

    callback(f)
    values = np.arange(3.0)
    host("calls_back")(values, 3, 0.25, "naïve", None)
    assert values.tolist() == [0, 3, 6]
    assert seen == [(3, 0.25, "naïve", None, NDArray)]


def test_an_exception_crosses_compiled_code(host, callback):
    def f(*_):
        raise KeyError("from inside")

    callback(f)
    function = host("calls_back")
    with pytest.raises(KeyError, match="from inside"):
        function(1)
    callback(lambda *_: None)
    function(1)


def test_a_function_that_is_not_registered_is_named(host):
    with pytest.raises(RegistryError, match=r"no global function 'test\.packed\.callback'"):
        host("calls_back")(1)


def test_convert():
    double = convert(lambda x: 2 * x)
    assert isinstance(double, PackedFunc) and double(4) == 8 and double.bind(3)() == 6
    assert convert([1.0, 2.0]).numpy().tolist() == [1, 2]
    assert convert("a") == "a" and convert(3) == 3 and convert(None) is None
