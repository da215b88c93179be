"""Names of data types: vectors of every element type are parsed correctly."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from relayc.te.dtype import dtype

SCALARS = [
    "bool", "int2", "int4", "int8", "int64", "uint4", "uint64", "float16", "bfloat16", "float64", "float4_e2m1fn",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip


@pytest.mark.parametrize("name", SCALARS)
def test_element_type_of_vectors(name: str) -> None:
    vector = dtype(name).with_lanes(16)
    assert vector == f"{name}x16"
    assert (vector.lanes, vector.element, vector.variant) == (16, dtype(name), dtype(name).variant)


@pytest.mark.parametrize("name", ["float31", "int3", "bool8", "float8", "float8_e4", "x4", "float32x", "float8_x16"])
def test_unknown_type_names_raise(name: str) -> None:
    with pytest.raises(ValueError, match="unknown dtype"):
        dtype(name)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda kind: pickle.loads(pickle.dumps(kind))])
def test_equal_names_are_one_object_however_they_are_made(again: Callable[[object], object]) -> None:
    kind = dtype("float32x16")
    assert again(kind) is kind
