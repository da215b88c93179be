"""What a build decided, and why: the graph passes that ran, and the decisions of each kernel's schedule."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from relayc.backend.runtime.quantities import counted
from relayc.relay.expr import Call, Function
from relayc.te.ir import IRModule, Pass, PassContext, PassInstrument, collect
from relayc.te.ir.decisions import Decision, recording

__all__ = ["PassRecord", "PassRecorder", "explaining"]

PassContext.declare_option(
    "relay.explain", False,
    "the build report says which passes changed the model, which rules fired and nearly did, and why kernels have "
    "their schedules",
)  # fmt: skip


@dataclass
class PassRecord:
    """A pass of a build: whether it changed anything, its seconds, and its decisions.

    `calls`: how many more calls of each operator there are after it, fewer if negative; None for an execution graph. A
    pass over kernels has one record for all of them.
    """

    name: str
    changed: bool = False
    seconds: float = 0.0
    calls: dict[str, int] | None = None
    decisions: list[Decision] = field(default_factory=list[Decision])

    def lines(self) -> Iterator[str]:
        """The record as text: the pass, then the rules that fired, with the nodes, then near misses with reasons."""
        calls = "".join([f", {count:+d} {name}" for name, count in (self.calls or {}).items()])
        yield f"{self.name}: {'changed' if self.changed else 'nothing to do'}{calls}, {1e3 * self.seconds:.1f} ms"
        fired: dict[str, list[str]] = {}
        for decision in self.decisions:
            if decision.choice:
                fired.setdefault(decision.subject, []).append(str(decision.facts.get("node", "")))
        for rule, nodes in fired.items():
            yield f"  {rule} fired at {counted(len(nodes), 'node')}: {'; '.join(dict.fromkeys(nodes))}"
        missed = [(d.subject, *refused) for d in self.decisions if not d.choice for refused in d.refused]
        for rule, node, reason in dict.fromkeys(missed):
            yield f"  {rule} not at {node}: {reason}"

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values."""
        return {**vars(self), "decisions": [decision.to_json() for decision in self.decisions]}


class PassRecorder(PassInstrument):
    """Records passes with the decisions made in them, in the order of their first run; nested sequences are left out.

    `decisions` is what `recording()` gave; the records are appended to `records`.
    """

    def __init__(self, decisions: list[Decision], records: list[PassRecord]) -> None:
        self.decisions, self.records = decisions, records
        self._started: list[tuple[float, int, IRModule]] = []
        self._of_kernels: dict[str, PassRecord] = {}

    def before(self, pass_: Pass, module: IRModule) -> None:
        self._started.append((time.perf_counter(), len(self.decisions), module))

    def after(self, pass_: Pass, module: IRModule) -> None:
        start, first, before = self._started.pop()
        if type(pass_).__name__ == "Sequential":
            return
        record = self._record(pass_.name, "main" not in module)
        record.seconds += time.perf_counter() - start
        record.changed |= module is not before
        if isinstance(before.functions.get("main"), Function):
            calls = _calls(module)
            calls.subtract(_calls(before))
            record.calls = {name: count for name, count in sorted(calls.items()) if count}
        record.decisions += self.decisions[first:]

    def _record(self, name: str, of_kernels: bool) -> PassRecord:
        if of_kernels and name in self._of_kernels:
            return self._of_kernels[name]
        record = PassRecord(name)
        self.records.append(record)
        if of_kernels:
            self._of_kernels[name] = record
        return record


def _calls(module: IRModule) -> Counter[str]:
    """Calls of each operator, those inside fused functions included."""
    return Counter([e.operator.name for e in collect(module["main"], Call) if not isinstance(e.op, Function)])


@contextmanager
def explaining(records: list[PassRecord]) -> Generator[None]:
    """Append a record of each pass to `records` in this scope, if the current context has the option "relay.explain".
    """
    context = PassContext.current()
    if not context.option("relay.explain"):
        yield
        return
    with recording() as decisions:
        instruments = (*context.instruments, PassRecorder(decisions, records))
        with PassContext(
            context.opt_level, context.required_pass, context.disabled_pass, instruments, context.config
        ):
            yield
