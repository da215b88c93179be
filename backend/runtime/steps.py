"""What a graph whose sizes are known only at run time does, in order.

    step = run kernels | bind a size variable | check that two sizes are equal

A graph of fixed sizes has no steps: its kernels run in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from backend.runtime.fields import Record, damaged
from backend.runtime.sizes import Size, read_size

__all__ = ["Bind", "Check", "RunNodes", "Step", "read_steps", "step_to_json"]


@dataclass(frozen=True, slots=True)
class RunNodes:
    """Run the kernels `first` ... `last` - 1; `entry` names the compiled function that does, if there is one."""

    first: int
    last: int
    entry: str | None


@dataclass(frozen=True, slots=True)
class Bind:
    """The size variable `name` is element `element` of the integer tensor `tensor`, which `source` made."""

    name: str
    tensor: int
    element: int
    source: str


@dataclass(frozen=True, slots=True)
class Check:
    """Two sizes must be equal; `source` is the place in the user's model that wants it."""

    left: Size
    right: Size
    source: str


Step = RunNodes | Bind | Check


def step_to_json(step: Step) -> dict[str, Any]:
    """The step as JSON values."""
    if isinstance(step, RunNodes):
        return {"step": "run", "first": step.first, "last": step.last, "entry": step.entry}
    if isinstance(step, Bind):
        return {"step": "bind", "name": step.name, "tensor": step.tensor, "element": step.element,
                "source": step.source}  # fmt: skip
    return {"step": "check", "left": step.left, "right": step.right, "source": step.source}


def read_steps(records: Sequence[Record], sizes: Sequence[str], nodes: int, tensors: int) -> tuple[Step, ...]:
    """The steps that JSON values describe. Raises `ArtifactError` naming the first field that is wrong."""
    return tuple([_step(record, sizes, nodes, tensors) for record in records])


def _step(record: Record, sizes: Sequence[str], nodes: int, tensors: int) -> Step:
    kind = record.get("step", str)
    if kind == "run":
        record.only("step", "first", "last", "entry")
        first = record.number("first", 0, nodes)
        entry = None if record.value.get("entry") is None else record.get("entry", str)
        return RunNodes(first, record.number("last", first, nodes), entry)
    if kind == "bind":
        record.only("step", "name", "tensor", "element", "source")
        name = record.get("name", str)
        if name not in sizes:
            raise damaged(f"{record.where}.name", name, f"one of the size variables {list(sizes)}")
        tensor = record.number("tensor", 0, tensors - 1)
        return Bind(name, tensor, record.number("element"), record.get("source", str))
    if kind == "check":
        record.only("step", "left", "right", "source")
        left, right = (read_size(record.value.get(side), f"{record.where}.{side}", sizes) for side in ("left", "right"))
        return Check(left, right, record.get("source", str))
    raise damaged(f"{record.where}.step", kind, '"run", "bind" or "check"')
