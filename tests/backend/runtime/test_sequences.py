"""Runtime sequences: persistence and sharing, copied bytes, damaged descriptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from relayc.backend.runtime import device, nd
from relayc.backend.runtime.errors import ArtifactError
from relayc.backend.runtime.execution_plan import SequenceStep
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.sequences import ArraySequence, joined, run_sequence_action

HOST = device("cpu", 0)


def number(value: int) -> Any:
    """A stand-in for an array."""
    return value


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_sequences_behave_like_python_lists(data):
    """All versions are persistent, whichever of them is changed next."""
    versions: list[tuple[ArraySequence, list[int]]] = [(ArraySequence([number(0)]), [0])]
    for step in range(data.draw(st.integers(1, 25))):
        old, expected = data.draw(st.sampled_from(versions))
        changed = list(expected)
        if expected and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(expected) - 1))
            del changed[at]
            versions.append((old.erased(at), changed))
        else:
            at = data.draw(st.one_of(st.just(len(expected)), st.integers(0, len(expected))))
            changed.insert(at, step + 1)
            versions.append((old.inserted(at, number(step + 1)), changed))
    for version, expected in versions:
        assert list(version) == expected and len(version) == len(expected)
        assert [version[i] for i in range(len(expected))] == expected


def test_appending_shares_the_store_and_branching_off_copies():
    whole = ArraySequence([number(i) for i in range(100)])
    longer = whole.inserted(100, number(100))
    assert longer._store is whole._store and len(whole) == 100
    branch = whole.inserted(100, number(-1))
    assert branch._store is not whole._store and branch[100] == -1 and longer[100] == 100


def test_a_store_is_at_most_twice_its_sequence():
    queue = ArraySequence([number(i) for i in range(50)])
    for i in range(1000):
        queue = queue.inserted(50, number(i)).erased(0)
        assert len(queue._store) <= 2 * len(queue) + 1
    while len(queue):
        queue = queue.erased(len(queue) - 1)
        assert len(queue._store) <= 2 * len(queue) + 1


def test_a_position_outside_is_an_error():
    with pytest.raises(IndexError):
        ArraySequence([number(0)])[1]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.sampled_from(["int8", "float64", "int4"]),
)
def test_concatenation_and_splitting_copy_the_bytes(axis, sizes, dtype):
    random = np.random.default_rng(0)
    shapes = [[2, 3, 5] for _ in sizes]
    for shape, size in zip(shapes, sizes, strict=True):
        shape[axis] = size
    numbers = [random.integers(0, 7, shape).astype("int8" if dtype == "int4" else dtype) for shape in shapes]
    parts = [nd.array(x, HOST)._create_view(x.shape, dtype) for x in numbers]
    whole = joined(parts, axis, HOST)
    np.testing.assert_array_equal(whole.numpy(), np.concatenate([p.numpy() for p in parts], axis))
    values = [whole, nd.array(np.array(sizes, np.int64), HOST)]
    again = run_sequence_action(SequenceStep("cut", (0, 1), 2, axis, False, "here"), values.__getitem__, HOST)
    assert isinstance(again, ArraySequence)
    for a, b in zip(again, parts, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())  # type: ignore[union-attr]


def graph() -> dict[str, Any]:
    """A graph that appends its tensor to its sequence."""
    tensors = [
        {"name": "xs", "shape": [], "dtype": "float32", "storage": ["input", 0], "is_list": True},
        {"name": "x", "shape": [3], "dtype": "float32", "storage": ["input", 1]},
        {"name": "ys", "shape": [], "dtype": "float32", "storage": ["value", 2], "is_list": True},
    ]
    step = {"step": "list", "action": "insert", "inputs": [0, 1], "output": 2, "axis": 0, "new_axis": False,
            "source": "s"}  # fmt: skip
    return {
        "version": 1, "name": "g", "device": "cpu", "target": "llvm", "tensors": tensors, "nodes": [], "inputs": [0, 1],
        "outputs": [2], "arena_bytes": 0, "entry": None, "sizes": [], "steps": [step],
    }  # fmt: skip


def test_a_description_is_read_as_it_was_written():
    read = Graph.from_json(graph())
    assert read.tensors[0].is_sequence and isinstance(read.steps[0], SequenceStep)
    assert Graph.from_json(read.to_json()) == read


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("steps", 0, "action"), "sort", "'sort'"),
        (("steps", 0, "inputs"), [0], "insert of 'l'"),
        (("steps", 0, "inputs"), [1, 1], "insert of 'tt'"),
        (("steps", 0, "inputs"), [0, 3], "inputs"),
        (("steps", 0, "output"), 1, "giving 't'"),
        (("steps", 0, "axis"), 65, "axis"),
        (("steps", 0, "new_axis"), 1, "new_axis"),
        (("tensors", 0, "shape"), [2], "a sequence without a shape"),
        (("tensors", 2, "storage"), ["arena", 0], "a sequence without a shape"),
        (("tensors", 2, "storage"), ["value", 7], "a position below 3"),
        (("tensors", 0, "is_list"), "yes", "is_list"),
    ],
)
def test_damaged_descriptions_are_rejected(damaged, place, value, message):
    with pytest.raises(ArtifactError) as error:
        Graph.from_json(damaged(graph(), place, value))
    assert message in str(error.value)


def test_a_kernel_takes_no_sequences():
    damaged = graph()
    damaged["nodes"] = [{"name": "n", "func": "f", "inputs": [0], "outputs": [1], "scratch": [], "ops": [],
                         "sources": [], "flops": 0, "bytes": 0}]  # fmt: skip
    damaged["tensors"][1]["storage"] = ["own", 1]
    damaged["inputs"] = [0]
    damaged["steps"] = []
    with pytest.raises(ArtifactError, match="tensors, no sequences"):
        Graph.from_json(damaged)
