"""Queries of ONNX's operator schemas by version: existence, attributes, element types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
from onnx import defs, helper

__all__ = ["NARROW", "as_dtype", "exists", "has_attribute", "input_count", "kind_of", "types_of", "types_of_schema"]

_ELEMENTS = {
    "float": "float32", "double": "float64", "float16": "float16", "bfloat16": "bfloat16", "int8": "int8",
    "int16": "int16", "int32": "int32", "int64": "int64", "uint8": "uint8", "uint16": "uint16", "uint32": "uint32",
    "uint64": "uint64", "bool": "bool", "float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2",
    "float8e4m3fnuz": "float8_e4m3fnuz", "float8e5m2fnuz": "float8_e5m2fnuz", "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn", "int4": "int4", "uint4": "uint4", "int2": "int2", "uint2": "uint2",
    "string": "object",
}  # fmt: skip
"""numpy's name of an element type by ONNX's."""

NARROW = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
          "int4", "uint4", "int2", "uint2")  # fmt: skip
"""Types that are stored and converted, not computed with."""


def as_dtype(name: str) -> np.dtype[np.generic]:
    """numpy's type, or ml_dtypes' where numpy has none."""
    return np.dtype(getattr(ml_dtypes, name, name))


def kind_of(dtype: str) -> int:
    """ONNX's number of an element type."""
    return int(helper.np_dtype_to_tensor_dtype(as_dtype(dtype)))


@dataclass(frozen=True, slots=True)
class _Signature:
    """The queried part of a schema, which itself takes 10 KB."""

    inputs: int
    """at most"""
    attributes: frozenset[str]
    types: tuple[tuple[str, ...], ...]
    """element types of each declared input"""


@cache
def _signature(op: str, opset: int, domain: str = "") -> _Signature | None:
    try:
        schema = defs.get_schema(op, opset, domain)
    except defs.SchemaError:
        return None
    return None if schema.deprecated else _signature_since(op, schema.since_version, domain)


@cache
def _signature_since(op: str, version: int, domain: str) -> _Signature:
    schema = defs.get_schema(op, version, domain)
    return _Signature(schema.max_input, frozenset(schema.attributes), types_of_schema(schema))


def types_of_schema(schema: defs.OpSchema) -> tuple[tuple[str, ...], ...]:
    """The element types that each input may have."""
    allowed = {t.type_param_str: t.allowed_type_strs for t in schema.type_constraints}
    return tuple([_elements(allowed.get(x.type_str, [x.type_str])) for x in schema.inputs])


def _elements(allowed: Sequence[str]) -> tuple[str, ...]:
    names = [t[len("tensor(") : -1] for t in allowed if t.startswith("tensor(")]
    return tuple([_ELEMENTS[name] for name in sorted(names) if name in _ELEMENTS])


def _known(op: str, opset: int) -> _Signature:
    found = _signature(op, opset)
    if found is None:
        raise LookupError(f"opset {opset} has no {op}")
    return found


def exists(op: str, opset: int, domain: str = "") -> bool:
    """Is there such an operator in this version of the operator set?"""
    return _signature(op, opset, domain) is not None


def has_attribute(op: str, opset: int, attribute: str) -> bool:
    return attribute in _known(op, opset).attributes


def input_count(op: str, opset: int) -> int:
    """Maximum number of inputs."""
    return _known(op, opset).inputs


def types_of(op: str, opset: int, position: int = 0) -> tuple[str, ...]:
    """Element types that an input may have."""
    types = _known(op, opset).types
    return types[min(position, len(types) - 1)]
