from __future__ import annotations

import ctypes
import gc
import json
import pickle
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from relayc.backend.runtime import ArgumentError, DeviceError, cpu, device, nd
from relayc.backend.runtime.dlpack import DLTensor, export_capsule
from relayc.backend.runtime.ndarray import wrap_numpy

EVERY_DTYPE = [
    "bool",
    "int2",
    "int4",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint2",
    "uint4",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
]


class Producer:
    """A DLPack producer that records the arguments of `__dlpack__`."""

    def __init__(self, values, legacy=False):
        self.values, self.legacy, self.asked = values, legacy, None

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        if self.legacy and options:
            raise TypeError("unexpected keyword")
        self.asked = options
        return self.values.__dlpack__(**options)


class Consumer:
    """Takes a capsule's tensor the way numpy does."""

    def __init__(self, capsule, where=(1, 0)):
        self.capsule, self.where = capsule, where

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return self.where


@pytest.mark.parametrize("name", EVERY_DTYPE)
@pytest.mark.parametrize("on_toy", [False, True])
def test_every_dtype_round_trips(name, on_toy, toy):
    where = toy[0] if on_toy else cpu()
    values = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0]]).astype(nd.empty((), name).numpy().dtype)
    x = nd.array(values, where)
    assert (x.shape, x.dtype, x.device) == ((3, 3), name, where)
    assert x.numpy().dtype == values.dtype
    np.testing.assert_array_equal(x.numpy().astype("f8"), values.astype("f8"))
    np.testing.assert_array_equal(x.copyto(cpu()).numpy().astype("f8"), values.astype("f8"))


def test_attributes_of_an_array():
    x = nd.empty((2, 3, 4), "float16")
    assert (x.ndim, x.size, x.nbytes, x.strides, x.byte_offset) == (3, 24, 48, (12, 4, 1), 0)
    assert x.handle % 64 == 0 and x.is_contiguous and x.same_as(x)
    assert nd.empty(5).shape == (5,) and nd.empty((), "int8").numpy().shape == ()
    assert nd.empty((0, 3)).numpy().shape == (0, 3)
    with pytest.raises(ArgumentError, match=r"shape \(2\.5, 2\): expected integers"):
        nd.empty((2.5, 2))
    assert nd.zeros((2,), "int4").numpy().tolist() == [0, 0]
    assert nd.array(3.5).numpy() == 3.5
    assert nd.array([1, 2], dtype="bfloat16").dtype == "bfloat16"


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int4", "float32x4"])
def test_an_array_is_pickled_with_its_values(name, toy):
    x = nd.zeros((3, 2), name, toy[0])
    again = pickle.loads(pickle.dumps(x))
    assert (again.shape, again.dtype, again.device) == (x.shape, x.dtype, x.device)
    assert again.numpy().tobytes() == x.numpy().tobytes()


def test_vector_lanes_are_a_last_dimension_in_numpy():
    x = nd.empty((2,), "float32x4")
    x[:] = np.arange(8, dtype="float32").reshape(2, 4)
    assert x.numpy().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]] and x.nbytes == 32


def test_array_copies_and_numpy_copies():
    source = np.arange(4.0)
    x = nd.array(source)
    source[0] = 9
    out = x.numpy()
    out[1] = 9
    assert x.numpy().tolist() == [0, 1, 2, 3]


def test_assignment():
    x = nd.zeros((2, 2))
    x[:] = 3
    x[...] = x.numpy() + 1
    assert x.numpy().tolist() == [[4, 4], [4, 4]]
    x[0] = nd.array([1.0, 2.0], dtype="float32")
    assert x.tolist() == [[1, 2], [4, 4]]
    far = nd.zeros((2, 2), device="interp")
    far[:] = 1
    with pytest.raises(ArgumentError, match="only x\\[:\\] = value"):
        far[0] = 1
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        nd.from_dlpack(frozen)[0] = 1


@pytest.mark.parametrize("where", ["cpu", "interp"])
def test_values_are_read_as_numpy_reads_them(where):
    values = np.arange(6, dtype="float32").reshape(2, 3)
    x, y = nd.array(values, where), nd.array(values, where)
    assert (x == y).all() and (x == values).all() and (values == x).all() and (x == 3).sum() == 1
    assert (x != y).sum() == 0 and not x.same_as(y)
    assert len({x: 1, y: 2}) == 2, "keys of a dictionary are objects"
    assert x[1].tolist() == [3, 4, 5] and x[1, 2] == 5 and x[:, 0].tolist() == [0, 3] and x[x == 5] == [5]
    assert len(x) == 2 and [row.tolist() for row in x] == values.tolist() == x.tolist()
    assert float(x[0, 1]) == 1 and float(nd.array([2.5], where)) == 2.5 and int(nd.array(7, where)) == 7
    row = x[0]
    row[:] = -1
    assert x[0, 0] == 0, "a copy"
    assert nd.array(np.int64(3), where).item() == 3 and bool(nd.array([1], where)) and not nd.array([0], where)
    for wrong in (bool, float, len):
        with pytest.raises((ValueError, TypeError)):
            wrong(x if wrong is not len else nd.array(1))
    with pytest.raises(IndexError):
        x[5]


def test_the_dtype_equals_numpy_s():
    x = nd.zeros((1,), "float32")
    assert x.dtype == "float32" == x.dtype and x.dtype == np.float32 and x.dtype == np.dtype("float32")
    assert np.dtype("float32") == x.dtype and x.dtype != np.float64 and x.dtype != "int8" and x.dtype != object
    assert x.dtype in {"float32"} and {x.dtype: 1}["float32"] == 1 and x.dtype in (np.int8, np.float32)
    assert nd.zeros((1,), "bfloat16").dtype == ml_dtypes.bfloat16 and x.dtype != None  # noqa: E711
    assert pickle.loads(pickle.dumps(x.dtype)) == np.float32 and json.dumps(x.dtype) == '"float32"'


def test_arrays_of_other_libraries_are_copied_and_refusals_name_the_remedy():
    class Producer:
        requires_grad = True

        def __dlpack__(self, **_: object) -> object:
            raise BufferError("requires gradients")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    class Other:
        def __dlpack__(self, **options: object) -> object:
            return np.arange(3.0).__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    assert nd.array(Other()).tolist() == [0, 1, 2] and nd.array(Other(), dtype="int8").dtype == np.int8
    for take in (nd.array, nd.from_dlpack):
        with pytest.raises(ArgumentError, match=r"requires gradients; pass x\.detach\(\)"):
            take(Producer())
    with pytest.raises(ArgumentError, match="300 out of bounds for int8"):
        nd.array([300], dtype="int8")


@pytest.mark.parametrize("values", [np.zeros((2, 3), "float64"), np.zeros((3, 2), "float32"), np.float32(1)])
def test_copies_want_the_same_shape_and_dtype(values):
    x = nd.zeros((2, 3))
    with pytest.raises(ArgumentError, match=r"to NDArray of shape \(2, 3\), dtype float32 on cpu:0"):
        x.copyfrom(values)
    with pytest.raises(ArgumentError, match="expected the same shape and dtype"):
        nd.array(values).copyto(x)


def test_copies_between_devices(toy):
    where, api = toy
    values = np.arange(6, dtype="int32").reshape(2, 3)
    there = nd.array(values, where)
    again = there.copyto(device("toy", 0))
    back = nd.zeros((2, 3), "int32")
    again.copyto(back)
    assert back.numpy().tolist() == values.tolist()
    assert [entry[1:3] for entry in api.log if entry[0] == "copy"] == [
        ("cpu:0", "toy:1"),
        ("toy:1", "toy:0"),
        ("toy:0", "cpu:0"),
    ]
    assert api.log[-1] == ("sync", None), "a copy to the host is waited for"


def test_memory_of_a_device_is_freed(toy):
    where, api = toy
    before = len(api.spaces)
    x = nd.empty((10,), device=where)
    view = x._create_view((2,), byte_offset=8)
    del x
    assert len(api.spaces) == before + 1, "a view keeps its memory"
    del view
    assert len(api.spaces) == before
    with pytest.raises(DeviceError, match="out of memory"):
        nd.empty((1 << 20,), device=where)


def test_views(toy):
    x = nd.array(np.arange(12, dtype="float32"))
    view = x._create_view((2, 2), byte_offset=16)
    view[:] = 0
    assert x.numpy().tolist() == [0, 1, 2, 3, 0, 0, 0, 0, 8, 9, 10, 11]
    assert view.handle == x.handle + 16 and view.byte_offset == 0
    assert x._create_view((3,), "int32").dtype == "int32"
    for shape, offset in (((13,), 0), ((12,), 4), ((2,), -4), ((-1,), 0)):
        with pytest.raises(ArgumentError, match="no view of shape"):
            x._create_view(shape, byte_offset=offset)
    there = nd.array(np.arange(12, dtype="float32"), toy[0])
    part = there._create_view((3,), byte_offset=12)._create_view((2,), byte_offset=4)
    assert part.handle == there.handle and part.byte_offset == 16 and part.numpy().tolist() == [4, 5]


def test_numpy_shares_memory_both_ways():
    x = nd.zeros((2, 3))
    seen = np.from_dlpack(x)
    seen[1, 2] = 5
    assert x.numpy()[1, 2] == 5
    source = np.zeros((2, 3), "float32")
    taken = nd.from_dlpack(source)
    taken[:] = 4
    assert source.sum() == 24
    assert np.asarray(x, copy=False).ctypes.data == x.handle
    assert np.asarray(x).ctypes.data != x.handle


@pytest.mark.parametrize("legacy", [False, True])
def test_any_dlpack_producer_is_imported_without_a_copy(legacy):
    values = np.arange(6, dtype="int16").reshape(2, 3)
    producer = Producer(values, legacy)
    x = nd.from_dlpack(producer)
    assert x.handle == values.ctypes.data
    assert producer.asked == ({} if legacy else {"max_version": (1, 1)})


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    values=hnp.arrays(
        dtype=st.sampled_from(["bool", "int8", "int64", "uint16", "float16", "float32", "float64"]),
        shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    data=st.data(),
)
def test_dlpack_keeps_values_and_strides(values, data):
    order = data.draw(st.permutations(range(values.ndim)))
    strided = values.transpose(order)
    x = nd.from_dlpack(Producer(strided))
    assert x.shape == strided.shape
    np.testing.assert_array_equal(x.numpy(), strided)
    np.testing.assert_array_equal(np.from_dlpack(x), strided)
    np.testing.assert_array_equal(x.copyto(cpu()).numpy(), strided)


def test_a_consumer_keeps_the_memory_alive_until_it_releases_it():
    x = nd.array(np.arange(4.0))
    alive = weakref.ref(x)
    seen = np.from_dlpack(x)
    del x
    gc.collect()
    assert alive() is not None and seen.tolist() == [0, 1, 2, 3]
    del seen
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("max_version", [None, (1, 0), (1, 1)])
def test_an_unused_capsule_releases_memory(max_version):
    x = nd.zeros((2,))
    alive = weakref.ref(x)
    capsule = x.__dlpack__(max_version=max_version)
    del x
    assert alive() is not None
    del capsule
    assert alive() is None


@pytest.mark.parametrize("name", ["bfloat16", "int4", "float8_e5m2"])
def test_a_failing_dlpack_consumer_releases_memory(name):
    x = nd.zeros((4,), name)
    alive = weakref.ref(x)
    with pytest.raises((RuntimeError, BufferError)):
        np.from_dlpack(x)
    del x
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("name", EVERY_DTYPE)
@pytest.mark.parametrize("versioned", [False, True])
def test_a_capsule_comes_back_as_it_went(name, versioned):
    x = nd.zeros((3, 2), name)
    if not versioned and x.tensor.bits < 8:
        with pytest.raises(BufferError, match="an element in each byte, which an unversioned capsule can't say"):
            x.to_dlpack()
        return
    y = nd.from_dlpack(x.__dlpack__(max_version=(1, 1)) if versioned else x.to_dlpack())
    assert (y.handle, y.shape, y.dtype, y.device) == (x.handle, x.shape, x.dtype, x.device)


def test_packed_elements_are_unpacked(toy):
    """Packed sub-byte elements come in unversioned capsules and in those without the padded flag."""
    for where in (cpu(), toy[0]):
        bytes_of = nd.array(np.array([0x21, 0xF3, 0x04], np.uint8), where)
        packed = DLTensor(bytes_of.handle, where.dlpack_type, where.index, 1, 0, 4, 1, (ctypes.c_int64 * 1)(5), None, 0)
        x = nd.from_dlpack(export_capsule(packed, bytes_of, versioned=False, read_only=False))
        assert (x.dtype, x.device) == ("int4", where) and x.numpy().tolist() == [1, 2, 3, -1, 4]


def test_the_producer_is_released_with_the_array():
    class Array(np.ndarray):
        pass

    values = np.zeros(3).view(Array)
    alive = weakref.ref(values)
    x = nd.from_dlpack(Producer(values))
    view = x._create_view((2,))
    del values, x
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


def test_a_capsule_is_taken_once():
    capsule = nd.zeros((2,)).to_dlpack()
    nd.from_dlpack(capsule)
    for used in (capsule, 3, "x", [0.5] * 1000):
        with pytest.raises(ArgumentError, match="not an unused DLPack capsule") as caught:
            nd.from_dlpack(used)
        assert len(str(caught.value)) < 300


def test_read_only_memory_stays_read_only():
    values = np.arange(3.0)
    values.flags.writeable = False
    for x in (nd.from_dlpack(values), nd.from_dlpack(Producer(values))):
        assert x.read_only and x._create_view((2,)).read_only
        with pytest.raises(ArgumentError, match="read-only"):
            x[:] = 0
        with pytest.raises(ArgumentError, match="read-only"):
            nd.zeros((3,), "float64").copyto(x)
        with pytest.raises(BufferError, match="unversioned"):
            x.to_dlpack()
        assert not np.from_dlpack(Consumer(x.__dlpack__(max_version=(1, 0)))).flags.writeable
        assert not x.copyto(cpu()).read_only


def test_numpy_arrays_that_need_a_copy_say_so():
    for values in (np.zeros(3, ">f4"), np.zeros(3, "i4,i1")["f0"]):
        with pytest.raises(ArgumentError, match="without a copy"):
            wrap_numpy(values)
    assert nd.array(np.arange(3, dtype=">f4")).numpy().tolist() == [0, 1, 2]
    assert wrap_numpy(np.ones(3, ml_dtypes.bfloat16)).dtype == "bfloat16"
    assert wrap_numpy(np.ones(3, ml_dtypes.int4)).numpy().tolist() == [1, 1, 1]


def test_dlpack_device_and_copy():
    x = nd.zeros((2,))
    assert x.__dlpack_device__() == (1, 0)
    assert nd.from_dlpack(x.__dlpack__(copy=True)).handle != x.handle
    assert nd.from_dlpack(x.__dlpack__(copy=False, dl_device=(1, 0))).handle == x.handle


def test_dlpack_from_a_device(toy):
    where, api = toy
    x = nd.array(np.arange(3.0), where)
    api.log.clear()
    x.__dlpack__()
    x.__dlpack__(stream=5)
    x.__dlpack__(stream=-1)
    assert api.log == [("sync", None), ("order", None, 5)]
    here = nd.from_dlpack(x.__dlpack__(dl_device=(1, 0)))
    assert here.device == cpu() and here.numpy().tolist() == [0, 1, 2]
    with pytest.raises(BufferError, match="without a copy"):
        x.__dlpack__(dl_device=(1, 0), copy=False)
    part = x._create_view((2,), byte_offset=8)
    again = nd.from_dlpack(part.__dlpack__())
    assert again.byte_offset == 8 and again.numpy().tolist() == [1, 2]


def test_strided_memory_is_copied_on_the_host_only(toy):
    strided = nd.from_dlpack(np.arange(6.0).reshape(2, 3).T)
    assert not strided.is_contiguous
    target = nd.zeros((3, 2), "float64")
    strided.copyto(target)
    assert target.numpy().tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(DeviceError, match="only contiguous arrays"):
        strided.copyto(toy[0])


def test_nothing_leaks():
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(200):
        x = nd.array(np.arange(8.0))
        np.from_dlpack(x)
        nd.from_dlpack(x.to_dlpack())
        x._create_view((2,))
        nd.from_dlpack(np.zeros(3))
    del x
    gc.collect()
    assert len(gc.get_objects()) - before < 50
