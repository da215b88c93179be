"""String inputs and outputs of an executor: encoded as positions in a string table before a run, decoded after it."""

from __future__ import annotations

from typing import Any

from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.ndarray import NDArray
from relayc.backend.runtime.strings import StringArray, Strings, StringTable

__all__ = ["StringPorts"]

StringValue = Strings | list["StringValue"]
"""A tensor of strings, or a sequence of such, as passed by the caller."""


class StringPorts:
    """The string inputs and outputs of one executor; `table` is the string table of its last run.

    `inputs` and `outputs` are the positions of strings and of sequences of strings.
    """

    def __init__(self, graph: Graph) -> None:
        strings = graph.strings
        self.are_used = strings is not None
        """does the graph have strings?"""
        self.inputs = frozenset(() if strings is None else strings.inputs)
        self.outputs = frozenset(() if strings is None else strings.outputs)
        self.table = StringTable(("",) if strings is None else strings.table)
        self._passed: dict[int, StringValue] = {}

    def set(self, position: int, value: StringValue) -> None:
        """Store the value of an input for later runs."""
        self._passed[position] = value

    def is_set(self, position: int) -> bool:
        """Was a value of an input set?"""
        return position in self._passed

    def release(self) -> None:
        """Drop the values of all inputs."""
        self._passed = {}

    def copy_to(self, other: StringPorts) -> None:
        """Copy the inputs to another executor of the same model."""
        other._passed = dict(self._passed)

    def numbers(self) -> dict[int, Any]:
        """Start a run: the encoded inputs by position, arrays or lists of arrays."""
        self.table.forget()
        return {position: self._numbered(value) for position, value in self._passed.items()}

    def _numbered(self, value: StringValue) -> Any:
        if isinstance(value, list):
            return [self._numbered(item) for item in value]
        return self.table.numbers(value)

    def strings(self, value: Any) -> Any:
        """Decode a result: a `StringArray`, or a list of them."""
        if isinstance(value, NDArray):
            return StringArray(self.table.strings(value.numpy()))
        return [self.strings(item) for item in value]
