"""The inputs and outputs of an executor that are strings: turned into numbers before a run, and back after it."""

from __future__ import annotations

from typing import Any

from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.ndarray import NDArray
from relayc.backend.runtime.strings import StringArray, Strings, StringTable

__all__ = ["StringPorts"]

Given = Strings | list["Given"]
"""A tensor of strings, or a list of such, as the caller gave it."""


class StringPorts:
    """The strings of one executor: `table` has those of its last run by number.

    `inputs` and `outputs` are the positions of those that are strings, or lists of such.
    """

    def __init__(self, graph: Graph) -> None:
        strings = graph.strings
        self.inputs = frozenset(() if strings is None else strings.inputs)
        self.outputs = frozenset(() if strings is None else strings.outputs)
        self.table = StringTable(("",) if strings is None else strings.table)
        self._given: dict[int, Given] = {}

    def set(self, position: int, value: Given) -> None:
        """Keep what an input is given for the runs to come."""
        self._given[position] = value

    def copy_to(self, other: StringPorts) -> None:
        """Give another executor of the same model the same inputs."""
        other._given = dict(self._given)

    def numbers(self) -> dict[int, Any]:
        """The numbers of the inputs by position, in a new run: arrays, and lists of them."""
        self.table.forget()
        return {position: self._numbered(value) for position, value in self._given.items()}

    def _numbered(self, value: Given) -> Any:
        if isinstance(value, list):
            return [self._numbered(item) for item in value]
        return self.table.numbers(value)

    def strings(self, value: Any) -> Any:
        """The strings that a result's numbers stand for: a `StringArray`, or a list of such."""
        if isinstance(value, NDArray):
            return StringArray(self.table.strings(value.numpy()))
        return [self.strings(item) for item in value]
