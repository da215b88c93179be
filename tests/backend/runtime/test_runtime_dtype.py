from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from relayc.backend.runtime.dtype import (
    data_type,
    from_dlpack_triple,
    from_numpy,
    nbytes,
    to_numpy,
    unpack,
)
from relayc.backend.runtime.errors import ArgumentError

SCALARS = [
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
SUBBYTE = ["int4", "uint4", "int2", "uint2", "float4_e2m1fn"]


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("lanes", [1, 2, 16])
def test_every_dtype_survives_numpy_and_dlpack(name, lanes):
    dtype = name if lanes == 1 else f"{name}x{lanes}"
    info = data_type(dtype)
    assert info.lanes == lanes
    assert from_dlpack_triple(info.code, info.bits, info.lanes) == dtype
    assert from_numpy(to_numpy(dtype)) == name


def test_dlpack_codes_are_those_of_dlpack_h():
    triples = {
        name: (data_type(name).code, data_type(name).bits) for name in ("bool", "bfloat16", "float8_e5m2", "uint4")
    }
    assert triples == {"bool": (6, 8), "bfloat16": (4, 16), "float8_e5m2": (12, 8), "uint4": (1, 4)}


@pytest.mark.parametrize("bad", ["", "float", "float31", "int8x1", "x4", "float32x0", "Float32", "float32x4x4"])
def test_an_unknown_dtype_name_is_rejected(bad):
    with pytest.raises(ArgumentError, match=r"unknown dtype .*known are bool"):
        data_type(bad)


def test_types_without_counterpart_are_rejected():
    with pytest.raises(ArgumentError, match="no counterpart"):
        from_numpy(np.complex64)
    with pytest.raises(ArgumentError, match=r"code=5, bits=64"):
        from_dlpack_triple(5, 64, 1)


def test_byte_order_does_not_matter_to_the_name():
    assert from_numpy(np.dtype(">f4")) == "float32"


def test_sizes():
    assert [nbytes(name, 3) for name in ("int4", "uint2", "bool", "bfloat16", "float32x4", "int4x8")] == [
        3,
        3,
        3,
        6,
        48,
        24,
    ]


def test_the_first_packed_element_lies_in_the_lowest_bits():
    assert unpack(np.array([0x21, 0x0F], np.uint8), "int4", 3).tolist() == [1, 2, -1]
    assert unpack(np.array([0b00111001, 1], np.uint8), "uint2", 5).tolist() == [1, 2, 3, 0, 1]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(name=st.sampled_from(SUBBYTE), codes=st.lists(st.integers(0, 15), max_size=33))
def test_unpacked_bits_are_the_packed_ones(name, codes):
    info = data_type(name)
    codes = [code & ((1 << info.bits) - 1) for code in codes]
    number = sum(code << (info.bits * i) for i, code in enumerate(codes))
    packed = np.frombuffer(number.to_bytes((len(codes) * info.bits + 7) // 8, "little"), np.uint8)
    values = unpack(packed, name, len(codes))
    assert values.dtype == info.numpy and values.view(np.uint8).tolist() == codes
