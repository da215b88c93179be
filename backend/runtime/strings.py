"""Runtime strings: compiled code handles them as positions in a string table of the executor.

A string tensor is an int64 tensor of positions in the table, so data movement, gathers, comparisons and sequences of
strings compile as for integers. String constants of the model have the same numbers in every run, strings of inputs
and computed ones get numbers of that run. Number 0 is the empty string.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from relayc.backend.runtime.errors import ArgumentError

__all__ = ["StringArray", "StringTable", "Strings", "as_strings"]

Strings = np.ndarray[Any, np.dtype[np.object_]]
"""An array of Python's str."""


def as_strings(value: Any) -> Strings:
    """Convert numpy strings, an object array, nested lists or one string to an array of str.

    Bytes are decoded as UTF-8. Raises ValueError for anything else, such as None.
    """
    if isinstance(value, StringArray):
        return value.numpy()
    passed = np.asarray(value) if isinstance(value, np.ndarray) else np.asarray(value, dtype=object)
    if passed.dtype.kind not in "OSUT":
        raise ValueError(f"{passed.dtype.name} are no strings")
    result = np.empty(passed.size, object)
    result[:] = [_as_string(item) for item in passed.reshape(-1).tolist()]
    return result.reshape(passed.shape)


def _as_string(item: object) -> str:
    if isinstance(item, str):
        return str(item)
    if isinstance(item, bytes):
        return item.decode("utf-8")
    raise ValueError(f"{item!r:.80} is no string")


class StringArray:
    """An output of strings. `numpy()` is an array of str (dtype object); `shape`, `dtype` ("string") as of an NDArray.

    It belongs to the caller and never changes.
    """

    __slots__ = ("_values",)

    dtype = "string"

    def __init__(self, values: Strings) -> None:
        self._values = values

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    @property
    def ndim(self) -> int:
        return self._values.ndim

    def numpy(self) -> Strings:
        """The strings as an array of the caller's own."""
        return self._values.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("strings are handed out as copies")
        return np.array(self._values, dtype=dtype)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<StringArray {list(self.shape)}: {np.array2string(self._values, threshold=8)}>"


class StringTable:
    """The string table of a run. The first strings are the model's constants `named`, whose numbers never change."""

    def __init__(self, named: Sequence[str]) -> None:
        self._strings = list(named)
        self._numbers = {text: number for number, text in enumerate(self._strings)}
        self._named = len(self._strings)

    def __len__(self) -> int:
        return len(self._strings)

    def forget(self) -> None:
        """Drop the strings of an earlier run."""
        for text in self._strings[self._named :]:
            del self._numbers[text]
        del self._strings[self._named :]

    def numbers(self, values: Strings) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The number of each string; new strings are added to the table."""
        known, strings = self._numbers, self._strings
        found: list[int] = []
        for text in values.reshape(-1).tolist():
            number = known.get(text)
            if number is None:
                number = known[text] = len(strings)
                strings.append(text)
            found.append(number)
        return np.array(found, np.int64).reshape(values.shape)

    def strings(self, numbers: np.ndarray[Any, Any]) -> Strings:
        """The string of each number. Raises `ArgumentError` for one that is out of range."""
        flat: Iterable[int] = numbers.reshape(-1).tolist()
        strings, count = self._strings, len(self._strings)
        result = np.empty(numbers.size, object)
        for at, number in enumerate(flat):
            if not 0 <= number < count:
                raise ArgumentError(f"the number {number} stands for no string; expected 0 to {count - 1}")
            result[at] = strings[number]
        return result.reshape(numbers.shape)
