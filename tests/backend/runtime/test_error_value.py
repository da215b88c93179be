"""Formatting of values in the messages of failed argument checks."""

from __future__ import annotations

import pytest

from relayc.backend.runtime.context import ARG_TENSOR
from relayc.backend.runtime.packed_func import ErrorValue


@pytest.mark.parametrize(
    ("spec", "value", "text"),
    [
        ("", 7, "7"),
        ("dtype", 2 | 32 << 8 | 1 << 16, "float32"),
        ("dtype", 0 | 8 << 8 | 4 << 16, "int8x4"),
        ("dtype", 99, "number 99"),
        ("device", 2, "cuda"),
        ("device", 9999, "number 9999"),
        ("kind", ARG_TENSOR, "tensor"),
        ("kind", 55, "number 55"),
    ],
)
def test_formats(spec, value, text):
    assert ("{:" + spec + "}").format(ErrorValue(value)) == text
