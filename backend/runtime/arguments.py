"""Conversion and validation of executor inputs: arrays of the graph's types, or an `ArgumentError`.

`model` is the model's name, for the errors.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relayc.backend.runtime.device import Device
from relayc.backend.runtime.dtype import data_type, to_numpy
from relayc.backend.runtime.errors import ArgumentError, SizeMismatchError
from relayc.backend.runtime.graph import GraphTensor
from relayc.backend.runtime.ndarray import NDArray, empty, from_dlpack
from relayc.backend.runtime.sequences import ArraySequence
from relayc.backend.runtime.strings import as_strings

__all__ = ["array_of", "as_argument", "as_sequence", "as_string_arrays", "check_placement", "check_type"]


def as_argument(tensor: GraphTensor, value: Any, model: str) -> Any:
    """Convert an input: arrays unchanged, any DLPack object to an NDArray, nested lists to a numpy array."""
    if isinstance(value, (NDArray, np.ndarray)):
        return value
    if not hasattr(value, "__dlpack__"):
        return array_of(value, tensor.dtype, _place(tensor, model))
    try:
        return from_dlpack(value.detach() if getattr(value, "requires_grad", False) else value)
    except ArgumentError as error:
        raise ArgumentError(f"{_place(tensor, model)}: {error}") from error


def as_sequence(tensor: GraphTensor, value: Any, model: str, where: Device) -> ArraySequence:
    """Copy the elements of a sequence to the device `where`."""
    if not isinstance(value, list | tuple):
        raise ArgumentError(f"{_place(tensor, model)}: got {type(value).__name__}; expected a list of arrays")
    items: list[NDArray] = []
    for number, item in enumerate(value):
        passed = as_argument(tensor, item, model)
        wanted = tensor.dtype if isinstance(passed.dtype, str) else to_numpy(tensor.dtype)
        if passed.dtype != wanted:
            place = f"element {number} of {_place(tensor, model)}"
            raise ArgumentError(f"{place}: got dtype {passed.dtype}; expected {tensor.dtype}")
        items.append(empty(passed.shape, tensor.dtype, where).copyfrom(passed))
    return ArraySequence(items)


def as_string_arrays(tensor: GraphTensor, value: Any, model: str) -> Any:
    """Convert a string input to an object array, a sequence of strings to a list of object arrays."""
    if tensor.is_sequence and not isinstance(value, list | tuple):
        got = type(value).__name__
        raise ArgumentError(f"{_place(tensor, model)}: got {got}; expected a list of arrays of strings")
    try:
        strings = [as_strings(item) for item in value] if tensor.is_sequence else as_strings(value)
    except ValueError as error:
        raise ArgumentError(f"{_place(tensor, model)}: {error}; expected strings") from error
    if isinstance(strings, np.ndarray):
        check_type(tensor._replace(dtype="string"), strings.shape, "string", model)
    return strings


def check_type(
    tensor: GraphTensor, shape: tuple[int, ...], dtype: object, model: str, ranks: Container[int] = ()
) -> None:
    """Raise `ArgumentError` unless shape and dtype are those of the graph's tensor; any shape of `ranks` will do."""
    if isinstance(dtype, str):
        is_wanted = str.__eq__(dtype, tensor.dtype)  # the names that NDArrays have compare slowly by themselves
    else:
        is_wanted = dtype == to_numpy(tensor.dtype)
    fits = len(shape) in ranks or (
        len(shape) == len(tensor.shape)
        and all(not isinstance(d, int) or d == n for d, n in zip(tensor.shape, shape, strict=True))
    )
    if not fits or not is_wanted:
        kind = ArgumentError if fits else SizeMismatchError
        raise kind(
            f"{tensor.storage} {tensor.name!r} of model {model!r}: got shape {shape}, dtype {dtype}; "
            f"expected shape {tensor.shape_text}, dtype {tensor.dtype}"
        )


def check_placement(array: NDArray, where: Device, name: str, remedy: str) -> None:
    """Raise `ArgumentError` unless compiled code for the device can use the memory as it is: dense and aligned."""
    misplaced, api = array.device != where or not array.is_contiguous, array.device.api
    alignment = max(api.assumed_alignment, data_type(array.dtype).numpy.alignment)
    if misplaced or (api.addressable and array.handle % alignment):
        raise ArgumentError(
            f"{name}: memory on {array.device} with strides {array.strides} at {array.handle:#x} can't be used in "
            f"place; expected contiguous memory on {where} aligned to {alignment} bytes. Use {remedy}"
        )


def array_of(value: Any, dtype: str, where: str) -> npt.NDArray[Any]:
    """Nested lists of numbers as an array of `dtype`. `where` names the value in errors.

    Raises `ArgumentError` for values that the type can't hold, such as floats in a list for integers.
    """
    if value is None or isinstance(value, Mapping):
        got = "None" if value is None else f"a {type(value).__name__}"
        raise ArgumentError(f"{where}: got {got}; expected an array or numbers")
    try:
        with np.errstate(all="ignore"):
            items, array = np.asarray(value, dtype=object), np.asarray(value, dtype=to_numpy(dtype))
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"{where}: no array of {dtype}: {error}") from error
    rank = data_type(dtype).rank
    lost = [kind for kind in {type(item) for item in items.flat} if _rank_of(kind) > rank]
    if lost:
        raise ArgumentError(
            f"{where}: got a list that holds a {lost[0].__name__}; expected {dtype}. To convert "
            f"it all the same, pass an array: numpy.asarray(...).astype({dtype!r})"
        )
    return array


def _rank_of(kind: type) -> int:
    """The rank (see `DataType.rank`) of numbers of a Python type; that of text and complex numbers is above all."""
    if issubclass(kind, bool | np.bool_):
        return 0
    return 1 if hasattr(kind, "__index__") else 2 if hasattr(kind, "__float__") else 3


def _place(tensor: GraphTensor, model: str) -> str:
    return f"input {tensor.name!r} of model {model!r}"
