"""LabelEncoder, CategoryMapper and ZipMap of ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayc.frontends.onnx.containers import ZipMap
from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr

DOMAIN = "ai.onnx.ml"


@converter("LabelEncoder", since=1, domain=DOMAIN)
def label_encoder_1(node: OnnxNode) -> Expr:
    """Before version 2: strings to their positions in a list, or the reverse."""
    names = np.array(node.attrs.get_strings("classes_strings") or (), object)
    return _between(node, names, np.arange(names.size, dtype=np.int64))


@converter("LabelEncoder", since=2, domain=DOMAIN)
def label_encoder(node: OnnxNode) -> Expr:
    """Dictionary lookup with a default; the first of equal keys counts, and NaN equals NaN."""
    keys, values = _table(node, "keys"), _table(node, "values")
    if keys.shape != values.shape:
        raise node.error(f"{keys.size} keys for {values.size} values")
    default = _default(node, values)
    if keys.dtype == object or values.dtype == object:
        return _of_strings(node, keys, values, default)
    if not keys.size:
        return op.broadcast_to(Constant(default), node.type(0).shape)
    x = node[0]
    if str(x.dtype) != keys.dtype.name:
        raise node.error(f"keys of {keys.dtype.name}")
    wide = op.expand_dims(x, len(x.shape))
    equal = op.equal(wide, Constant(keys))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        equal = op.logical_or(equal, op.logical_and(op.isnan(wide), Constant(np.isnan(keys))))
    at = op.argmax(op.cast(equal, "int32"), axis=(-1,))
    found = op.take(Constant(values), at, axis=0, mode="fast")
    return op.where(op.any(equal, axis=(-1,)), found, Constant(default))


@converter("CategoryMapper", domain=DOMAIN)
def category_mapper(node: OnnxNode) -> Expr:
    """Strings to numbers, or numbers to strings."""
    names = np.array(node.attrs.get_strings("cats_strings") or (), object)
    numbers = np.array(node.attr_ints("cats_int64s"), np.int64)
    if names.shape != numbers.shape:
        raise node.error(f"{names.size} strings for {numbers.size} numbers")
    return _between(node, names, numbers)


def _between(node: OnnxNode, names: np.ndarray, numbers: np.ndarray) -> Expr:
    """Map the strings of input 0 to numbers, or numbers to strings."""
    number, name = node.attr_int("default_int64", -1), node.attr_str("default_string", "_Unused")
    if node.dtype(0) == "string":
        return _of_strings(node, names, numbers, np.array(number, np.int64))
    return _of_strings(node, numbers, names, np.array(name, object))


def _of_strings(node: OnnxNode, keys: np.ndarray, values: np.ndarray, default: np.ndarray) -> Expr:
    """Lookup where keys or values, or both, are strings."""
    if keys.dtype != object:
        return _picked_by_number(node, keys, values, default)
    position = op.strings.index(node[0], keys.tolist())
    return op.take(Constant(np.append(values, default)), position, axis=0, mode="fast")


def _picked_by_number(node: OnnxNode, keys: np.ndarray, values: np.ndarray, default: np.ndarray) -> Expr:
    """Map numbers to strings by the position of the first equal key, else the default's."""
    known = node.known_value(0)
    if known is not None:
        return Constant(_looked_up(known, keys, values, default))
    x = node[0]
    equal = op.equal(op.expand_dims(x, len(x.shape)), Constant(keys.astype(str(x.dtype))))
    position = op.argmax(op.cast(equal, "int32"), axis=(-1,))
    there = op.any(equal, axis=(-1,))
    at = op.where(there, op.cast(position, "int64"), Constant(np.array(len(keys), np.int64)))
    return op.take(Constant(np.append(values, default)), at, axis=0, mode="fast")


def _looked_up(x: np.ndarray, keys: np.ndarray, values: np.ndarray, default: np.ndarray) -> np.ndarray:
    table: dict[Any, Any] = {}
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        table.setdefault("NaN" if key != key else key, value)
    found = [table.get("NaN" if key != key else key, default.item()) for key in x.reshape(-1).tolist()]
    result = np.empty(len(found), values.dtype)
    result[:] = found
    return result.reshape(x.shape)


@converter("ZipMap", domain=DOMAIN)
def zip_map(node: OnnxNode) -> list[Expr]:
    """Rows of scores as maps, assembled on the host."""
    names = node.attrs.get_strings("classlabels_strings") or ()
    keys = names or node.attrs.get_ints("classlabels_int64s") or ()
    return [ZipMap(keys=tuple(keys))(node[0])]


def _table(node: OnnxNode, name: str) -> np.ndarray:
    """Keys or values from the attributes: a tensor, strings, integers or floats."""
    tensor = node.attr_tensor(f"{name}_tensor")
    if tensor is not None:
        return tensor.reshape(-1)
    strings = node.attrs.get_strings(f"{name}_strings")
    if strings:
        return np.array(strings, object)
    ints = node.attrs.get_ints(f"{name}_int64s")
    return np.array(ints, np.int64) if ints else np.array(node.attrs.get_floats(f"{name}_floats") or (), np.float32)


def _default(node: OnnxNode, values: np.ndarray) -> np.ndarray:
    tensor = node.attr_tensor("default_tensor")
    text = node.attr_str("default_string", "_Unused")
    number, real = node.attr_int("default_int64", -1), node.attr_float("default_float", -0.0)
    if tensor is not None:
        return tensor.reshape(())
    if values.dtype == object:
        return np.array(text, object)
    return np.array(number if values.dtype.kind in "iu" else real, values.dtype)
