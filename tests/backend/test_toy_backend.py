"""An out-of-tree device, target kind and code generator, all defined here; no source file knows the "abacus".

The abacus is a processor with memory of its own that is programmed in Python source, one scalar at a time.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager

import numpy as np
import pytest

from relayc import backend, te
from relayc.backend.c_like import CLikeGenerator
from relayc.backend.runtime import (
    ArgumentError,
    DeviceAPI,
    DeviceError,
    Module,
    ModuleError,
    PythonFunc,
    get_global_func,
)
from relayc.backend.runtime.device import Device, DeviceAttrKind
from relayc.backend.target import TargetError
from relayc.te.errors import CompileError

# -- the device


class AbacusAPI(DeviceAPI):
    addressable = False

    def __init__(self):
        super().__init__()
        self.spaces = {}
        self.streams = []

    def get_attr(self, device, kind):
        return {DeviceAttrKind.EXIST: device.index < 2, DeviceAttrKind.WARP_SIZE: 5}.get(kind)

    def alloc_data_space(self, device, nbytes, alignment=64):
        handle = 1 + max(self.spaces, default=0)
        self.spaces[handle] = bytearray(nbytes)
        return handle

    def free_data_space(self, device, handle):
        del self.spaces[handle]

    def copy_data_from_to(
        self, source, source_offset, target, target_offset, nbytes, device_from, device_to, stream=None
    ):
        if device_from.kind == "cpu":
            data = ctypes.string_at(source + source_offset, nbytes)
        else:
            data = bytes(self.spaces[source][source_offset : source_offset + nbytes])
        if device_to.kind == "cpu":
            ctypes.memmove(target + target_offset, data, nbytes)
        else:
            self.spaces[target][target_offset : target_offset + nbytes] = data

    def create_stream(self, device):
        self.streams.append(len(self.streams))
        return self.streams[-1]


API = AbacusAPI()
backend.register_device_kind("abacus", 4711)
backend.register_func("device_api.abacus", lambda: API)

# -- the target kind

KIND = (
    backend.register_target_kind("abacus", device="abacus")
    .add_attr_option("beads", int, 10, "beads on a rod")
    .add_attr_option("rods", int)
    .set_default_keys(["abacus", "cpu"])
    .set_parser(lambda attrs: {"rods": 2 * attrs["beads"], **attrs})
    .set_device_query(lambda device: {"beads": 5 + device.index})
)

# -- the code generator: a dialect of the C-like generator that is Python


class PythonDialect(CLikeGenerator):
    language = "abacus"
    type_names = dict.fromkeys(("int32", "int64", "float32", "float64", "bool"), "")

    @contextmanager
    def block(self, head, tail=""):
        self.line(f"{head or 'if True'}:")
        self.depth += 1
        yield
        self.depth -= 1

    def visit_IntImm(self, node):
        return str(node.value)

    def visit_FloatImm(self, node):
        return repr(node.value)

    def convert(self, text, of, to):
        return f"int({text})" if to.is_integral and of.is_float else text

    def visit_For(self, node):
        low, extent = self.scalar(node.min), self.scalar(node.extent)
        with self.block(f"for {self.name(node.loop_var)} in range({low}, {low} + {extent})"):
            self.visit(node.body)

    def each_lane(self, lanes, statement):
        for lane in range(lanes):
            self.line(statement(str(lane)))

    def pointer_type(self, of, scope):
        return ""

    def element(self, access):
        return f"{self.name(access.buffer.data)}[{self.index(access.indices)}]"

    def function(self, function):
        params = [self.parameter(function, p).strip() for p in function.params]
        with self.block(f"def {function.name}({', '.join(params)})"):
            self.visit(function.body)
        return "\n".join(self.lines)


class AbacusModule(Module):
    type_key = "abacus"

    def __init__(self, sources):
        super().__init__()
        self.sources = sources

    def function_names(self):
        return list(self.sources)

    def _find(self, name):
        if name not in self.sources:
            return None
        scope = {}
        exec(self.sources[name], scope)
        return PythonFunc(lambda *args: scope[name](*map(view_of, args)), name)

    def get_source(self, fmt=""):
        return "\n\n".join(self.sources.values())


def view_of(value):
    if not isinstance(value, backend.NDArray):
        return value
    return np.frombuffer(API.spaces[value.handle], value.dtype, value.size, value.byte_offset)


built_for = []


@backend.register_func("target.build.abacus")
def build_abacus(module, target):
    built_for.append(target)
    return AbacusModule({name: PythonDialect().function(module[name]) for name in module})


# -- a user's view


def scaled_sum():
    a, b = te.placeholder((12,), name="A"), te.placeholder((12,), name="B")
    c = te.compute((12,), lambda i: a[i] * 2.0 + b[i], name="C")
    schedule = te.create_schedule(c.op)
    outer, inner = schedule[c].split(c.op.axis[0], factor=4)
    schedule[c].parallel(outer)
    schedule[c].vectorize(inner)
    return schedule, [a, b, c]


def test_compile_and_run():
    schedule, args = scaled_sum()
    module = backend.build(schedule, args, "abacus -beads=7", name="scaled_sum")
    dev = backend.device("abacus", 1)
    a, b = (backend.nd.array(np.arange(12, dtype="float32") + k, dev) for k in (0, 5))
    c = backend.nd.array(np.zeros(12, "float32"), dev)
    module["scaled_sum"](a, b, c)
    np.testing.assert_array_equal(c.numpy(), 2 * a.numpy() + b.numpy())
    assert "def scaled_sum(A, B, C):" in module.imported_modules[0].get_source()
    target = built_for[-1]
    assert (target.get("beads"), target.get("rods"), target.keys) == (7, 14, ("abacus", "cpu"))


def test_its_arguments_are_checked_by_the_host():
    schedule, args = scaled_sum()
    module = backend.build(schedule, args, "abacus")
    dev, other = backend.device("abacus", 0), backend.device("abacus", 1)
    arrays = [backend.nd.array(np.zeros(12, "float32"), dev) for _ in range(3)]
    with pytest.raises(ArgumentError, match="dtype is int32, expected float32"):
        module(backend.nd.array(np.zeros(12, "int32"), dev), *arrays[1:])
    with pytest.raises(ArgumentError, match="is on device cpu, expected abacus"):
        module(backend.nd.array(np.zeros(12, "float32")), *arrays[1:])
    with pytest.raises(ArgumentError, match="is on device 1 of its kind, the arguments before it on 0"):
        module(arrays[0], backend.nd.array(np.zeros(12, "float32"), other), arrays[2])


def test_an_error_on_the_device_reaches_the_caller():
    schedule, args = scaled_sum()
    module = backend.build(schedule, args, "abacus", name="f")
    dev = backend.device("abacus")
    arrays = [backend.nd.array(np.zeros(12, "float32"), dev) for _ in range(3)]
    module.imported_modules[0].sources["f"] = "def f(*args): raise ZeroDivisionError('no beads left')"
    with pytest.raises(ZeroDivisionError, match="no beads left"):
        module(*arrays)


def test_device_attributes_streams_and_memory():
    dev = Device("abacus", 1)
    assert dev.exist and dev.warp_size == 5 and dev.max_clock_rate is None
    assert not Device("abacus", 2).exist
    assert dev.create_raw_stream() == 0 and dev.create_raw_stream() == 1
    before = len(API.spaces)
    array = backend.nd.array(np.arange(3), dev)
    assert len(API.spaces) == before + 1
    other = array.copyto(backend.device("cpu"))
    assert other.numpy().tolist() == [0, 1, 2]
    del array
    assert len(API.spaces) == before
    workspace = API.alloc_workspace(dev, 100)
    API.free_workspace(dev, workspace)
    with pytest.raises(DeviceError):
        API.free_workspace(dev, workspace)


def test_target_from_its_live_device():
    assert backend.Target.from_device("abacus:1").get("beads") == 6
    assert backend.Target("abacus -host='llvm -mcpu=haswell'").host.mcpu == "haswell"


def test_unsupported_features_are_reported():
    with pytest.raises(TargetError, match=r"no option 'bead' \(did you mean 'beads'\?\)"):
        backend.Target("abacus -bead=3")
    a = te.placeholder((4,), "float16", name="A")
    b = te.compute((4,), lambda i: a[i] + a[i], name="B")
    with pytest.raises(CompileError, match=r"abacus code has no intrinsic|abacus has no type"):
        c = te.compute((4,), lambda i: te.exp(b[i]), name="C")
        backend.build(te.create_schedule(c.op), [a, c], "abacus")
    with pytest.raises(ModuleError, match="can't be saved"):
        schedule, args = scaled_sum()
        backend.build(schedule, args, "abacus").imported_modules[0].save_to_bytes()


def test_a_kind_without_a_code_generator():
    backend.register_target_kind("abacus2", device="abacus")
    schedule, args = scaled_sum()
    with pytest.raises(TargetError, match=r"no code generator for target kind 'abacus2'.*'target.build.abacus2'"):
        backend.build(schedule, args, "abacus2")
    assert get_global_func("target.build.abacus2", allow_missing=True) is None
