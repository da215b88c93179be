"""Numpy arrays that runs read in place: which are, what is kept of them, and what takes the place of that."""

from __future__ import annotations

import gc
import pickle
import weakref

import numpy as np
import pytest

from relayc.backend.runtime import ArgumentError, GraphModule, array_call, device, nd
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.input_ports import InputPorts

X = np.arange(6, dtype="float32").reshape(2, 3) - 2


@pytest.fixture
def executor(small, c_library):
    model = CompiledModel(small.graph(), small.weights, small.CLibrary(c_library))
    return GraphModule(model["default"](device("cpu")))


@pytest.fixture
def copies(monkeypatch):
    """The values that are copied into inputs, as they are."""
    found = []
    inner = InputPorts.set
    monkeypatch.setattr(InputPorts, "set", lambda self, p, value: (found.append(value), inner(self, p, value))[1])
    return found


def at_offset(values, offset):
    """A copy of `values` so many bytes behind a cache line."""
    memory = np.zeros(values.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    found = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    found[...] = values
    return found


def test_dense_arrays_are_read_in_place(executor, small, copies):
    for offset in (0, 4, 16, 60):
        values = at_offset(X, offset)
        values.flags.writeable = False
        np.testing.assert_array_equal(executor.infer({"x": values})[0], small.expected(X))
    assert not copies


def test_arrays_that_were_pickled_are_read_in_place(executor, small, copies):
    values = pickle.loads(pickle.dumps(X))
    assert values.dtype is not X.dtype
    np.testing.assert_array_equal(executor.infer({"x": values})[0], small.expected(X))
    assert not copies


@pytest.mark.parametrize(
    "make",
    [
        lambda: at_offset(X, 3), lambda: np.asfortranarray(X), lambda: np.repeat(X, 2, axis=1)[:, ::2],
        lambda: X.view(type("Sub", (np.ndarray,), {})), lambda: nd.array(X), X.tolist,
    ],
    ids=["misaligned", "by columns", "strided", "subclass", "NDArray", "lists"],
)  # fmt: skip
def test_other_values_are_copied(executor, small, copies, make):
    value = make()
    np.testing.assert_array_equal(executor.infer({"x": value})[0], small.expected(X))
    assert len(copies) == 1 and copies[0] is value


@pytest.mark.parametrize(
    "value",
    [X.astype("float64"), X.astype(">f4"), X.view("int32"), X[:1], X[0], X.reshape(3, 2), X[None]],
)
def test_arrays_of_other_types_are_refused(executor, small, value):
    with pytest.raises(ArgumentError, match=r"got shape .*; expected shape \(2, 3\), dtype float32"):
        executor.infer({"x": value})
    np.testing.assert_array_equal(executor.infer({"x": X})[0], small.expected(X))


def test_no_value_is_left_of_what_was_read_in_place(executor, small):
    values = X.copy()
    seen = weakref.ref(values)
    executor.set_input("x", -X)
    executor.infer({"x": values})
    del values
    gc.collect()
    assert seen() is None
    with pytest.raises(ArgumentError, match=r"inputs \['x'\] were never set, or only for a call of infer"):
        executor.run()
    executor.run(x=-X)
    np.testing.assert_array_equal(executor.get_output(0).numpy(), small.expected(-X))


def test_results_outlive_later_runs(executor, small):
    kept = [executor.infer({"x": k * X})[0] for k in (1, -1, 2)]
    lent = executor.get_output(0)
    executor.infer({"x": -2 * X})
    for found, k in zip([*kept, lent.numpy()], (1, -1, 2, 2), strict=True):
        np.testing.assert_array_equal(found, small.expected(k * X))


def test_inputs_are_copied_where_results_go_to_their_memory(executor, small, copies):
    memory = np.zeros(8, "float32")
    x, y = memory[2:].reshape(2, 3), memory.reshape(2, 4)
    executor.set_output_zero_copy("y", y)
    x[...] = X
    np.testing.assert_array_equal(executor.infer({"x": x})[0], small.expected(X))
    np.testing.assert_array_equal(y, small.expected(X))
    assert len(copies) == 1


def test_an_unknown_layout_of_objects_is_noticed(small, c_library, copies, monkeypatch):
    monkeypatch.setattr(array_call, "_layout", lambda: None)
    model = CompiledModel(small.graph(), small.weights, small.CLibrary(c_library))
    executor = GraphModule(model["default"](device("cpu")))
    for values in (X, -X):
        np.testing.assert_array_equal(executor.infer({"x": values})[0], small.expected(values))
    assert len(copies) == 1, "the second array goes where the first went"


def test_other_layouts_are_told_from_this_one(monkeypatch):
    monkeypatch.setattr(array_call, "_ALIGNED", 0x200)  # as if flags lay elsewhere
    assert array_call._layout.__wrapped__() is None
