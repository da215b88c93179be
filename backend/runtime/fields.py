"""Validated reading of untrusted JSON records: a missing or invalid field is an `ArtifactError` that names it."""

from __future__ import annotations

from typing import Any, TypeVar

from relayc.backend.runtime.errors import ArtifactError

__all__ = ["Record", "damaged"]

_T = TypeVar("_T")
_REMEDY = "The file is damaged or was not written by relayc; compile the model again"


def damaged(where: str, found: object, expected: str) -> ArtifactError:
    """The error for an invalid value; long values are truncated."""
    shown = repr(found)
    return ArtifactError(
        f"{where} is {shown if len(shown) < 100 else shown[:97] + '...'}; expected {expected}. {_REMEDY}"
    )


class Record:
    """A JSON object at a place (`where`, such as "model.relayc: graph.tensors[3]") read with checks."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise damaged(where, value, "an object")
        self.value: dict[str, Any] = value
        self.where = where

    def get(self, key: str, kind: type[_T]) -> _T:
        """The field `key`, an instance of exactly `kind` (a bool is no int)."""
        found = self._take(key)
        if type(found) is not kind:
            raise damaged(f"{self.where}.{key}", found, f"a value of type {kind.__name__}")
        return found

    def number(self, key: str, low: int = 0, high: int = 1 << 62) -> int:
        """The field `key`, an integer from `low` to `high`, both included."""
        found = self.get(key, int)
        if not low <= found <= high:
            raise damaged(f"{self.where}.{key}", found, f"an integer from {low} to {high}")
        return found

    def strings(self, key: str) -> tuple[str, ...]:
        """The field `key`, a list of strings."""
        return self._list(key, str)

    def numbers(self, key: str, low: int = 0, high: int = 1 << 62) -> tuple[int, ...]:
        """The field `key`, a list of integers from `low` to `high`."""
        found = self._list(key, int)
        for value in found:
            if not low <= value <= high:
                raise damaged(f"{self.where}.{key}", value, f"integers from {low} to {high}")
        return found

    def records(self, key: str) -> list[Record]:
        """The field `key`, a list of objects."""
        return [Record(value, f"{self.where}.{key}[{i}]") for i, value in enumerate(self.get(key, list))]

    def record(self, key: str) -> Record:
        """The field `key`, an object."""
        return Record(self._take(key), f"{self.where}.{key}")

    def only(self, *keys: str) -> None:
        """Reject fields of other names: unknown fields must not be ignored."""
        for key in self.value:
            if key not in keys:
                raise damaged(f"{self.where}.{key}", self.value[key], f"no such field, only {', '.join(keys)}")

    def _list(self, key: str, kind: type[_T]) -> tuple[_T, ...]:
        found: list[Any] = self.get(key, list)
        for value in found:
            if type(value) is not kind:
                raise damaged(f"{self.where}.{key}", value, f"a list of {kind.__name__}")
        return tuple(found)

    def _take(self, key: str) -> Any:
        if key not in self.value:
            raise ArtifactError(f"{self.where} has no field {key!r}. {_REMEDY}")
        return self.value[key]
