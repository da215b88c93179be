"""Session of one import: values, symbolic sizes and their equalities, available to converters through their node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from onnx import SparseTensorProto

from relayc.frontends.onnx.broadcasting import Broadcasting
from relayc.frontends.onnx.errors import NothingInsideError
from relayc.frontends.onnx.fold import Folder, graph_inputs_of
from relayc.frontends.onnx.model import Model
from relayc.frontends.onnx.size_elements import Unknown
from relayc.frontends.onnx.size_producers import SizeProducers
from relayc.frontends.onnx.sizes import SizeTable
from relayc.frontends.onnx.tensors import sparse_to_numpy, stored_tensor, to_numpy
from relayc.frontends.onnx.weights import StoredBytes, StoredWeights
from relayc.relay import op
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import aligning
from relayc.relay.op.common import with_dim
from relayc.relay.op.creation import Sizes
from relayc.relay.sizes import Assumptions, assuming, dims_equal, may_be_one, size_variables
from relayc.relay.stored import StoredConstant
from relayc.relay.type import TensorType
from relayc.te.errors import CompileError
from relayc.te.ir import Span
from relayc.te.tir import Dim, PrimExpr, SizeVar

__all__ = ["Session"]

MAX_BOUND = 64
"""Most elements of a tensor whose values are bound to size variables at run time."""


@dataclass
class _Bound:
    """A computed integer tensor of a node (`source`) and the size variables bound to its elements, by index."""

    tensor: Expr
    source: str
    number: int
    names: dict[int, str] = field(default_factory=dict)

    def name_of(self, element: int) -> str:
        """The variable of an element, bound from now on."""
        return self.names.setdefault(element, f"#size{self.number}_{element}")


class Session:
    """State of one conversion of a model, and of the graph being converted: main, or a nested body."""

    def __init__(self, model: Model, table: SizeTable, whole_caches: bool = False) -> None:
        self.model = model
        self.table = table
        self.whole_caches = whole_caches
        """are KV caches of a window imported as caches of all positions?"""
        self.folder = Folder()
        self.size_producers = SizeProducers()
        self.unreached: list[list[NothingInsideError]] = []
        """for each enclosing loop under type inference, outermost first: branches dropped as unreachable so far"""
        self.random_nodes = count()
        """numbers for random nodes, in the order of conversion"""
        self._bound: list[_Bound] = []
        """computed integer tensors to whose elements size variables are bound"""
        self._checks: list[tuple[Dim, Dim, str]] = []
        self._assumed_inside: list[Assumptions] = []
        """sizes assumed to be equal in bodies"""
        self._broadcasting = Broadcasting(self.may_be_one, self._common_size, self._check_broadcast)
        self._assumptions = Assumptions()
        """sizes assumed to be equal in this graph"""
        self._bodies: tuple[str, ...] = ()
        """the nodes whose bodies are being converted, outermost first: the nesting of the current graph"""
        self._weights = StoredWeights()
        self._met: Counter[str] = Counter()
        """number of size variables created per place"""

    # for the importer -------------------------------------------------------------------------------------------------

    @contextmanager
    def assuming(self, place: str) -> Generator[None]:
        """A context in which sizes that operators require to be equal are assumed to be; for the node at `place`."""
        with assuming() as self._assumptions, aligning(self._broadcasting.align):
            self.at(place)
            yield

    @contextmanager
    def body_of(self, owner: str, may_not_run: bool) -> Generator[None]:
        """A context in which a body of the node `owner` is converted and finished.

        What a body that `may_not_run` requires is not required of the model.
        """
        met = len(self._assumed_inside)
        outer = self._bound, self._checks, self._bodies, self._assumptions
        self._bound, self._checks, self._bodies = [], [], (*self._bodies, owner)
        try:
            yield
            self._assumed_inside.append(self._assumptions)
            for inside in self._assumed_inside[met:] if may_not_run else ():
                inside.required[:] = [False] * len(inside.required)
        finally:
            self._bound, self._checks, self._bodies, self._assumptions = outer

    def at(self, place: str) -> None:
        """Set the node being converted."""
        self._assumptions.place = place

    def learn(self) -> bool:
        """Turn assumed equalities of sizes into known ones for the next conversion. False if there was nothing new."""
        learned = [self.table.learn(assumed) for assumed in (self._assumptions, *self._assumed_inside)]
        return any(learned)

    def finish(self, outputs: Sequence[Expr]) -> tuple[list[Expr], dict[str, Any]]:
        """The graph's outputs followed by the tensors that bind sizes, and the attributes that describe them."""
        own = [name for name, (_, bodies) in self.table.computed.items() if bodies == self._bodies]
        bound = [x.tensor for x in self._bound]
        kept = self.size_producers.lost([*outputs, *bound], own)
        checks = [*self._checks, *self.table.open(self._assumptions), *self._solved()]
        different = {(a, b): source for a, b, source in reversed(checks)}
        records: list[tuple[str, int, int, str]] = []
        for output, x in enumerate(self._bound, len(outputs)):
            records += [(name, output, element, x.source) for element, name in x.names.items()]
        for output, (name, x, axis) in enumerate(kept, len(outputs) + len(bound)):
            records.append((name, output, -1 - axis, str(x.span)))
        unique = tuple([(a, b, source) for (a, b), source in reversed(different.items())])
        attrs = {"bound_sizes": tuple(records), "size_checks": unique} if records or checks else {}
        return [*outputs, *bound, *[x for _, x, _ in kept]], attrs

    def _solved(self) -> list[tuple[Dim, Dim, str]]:
        """Checks for computed sizes that were solved as equal to others."""
        return [(self.table.dim(name), self.table.variable(name), x.source)
                for x in self._bound for name in x.names.values() if name in self.table.solved]  # fmt: skip

    # for converters ---------------------------------------------------------------------------------------------------

    @contextmanager
    def attempt(self) -> Generator[Callable[[], None]]:
        """A context that rolls back size equalities on an error, or when the function that it returns is called."""
        assumed = self._assumptions
        notes: tuple[list[Any], ...] = (
            self._bound, self._checks, self._assumed_inside, assumed.equal, assumed.required, assumed.places,
        )  # fmt: skip
        lengths, met = [len(note) for note in notes], self._met.copy()

        def forget() -> None:
            self._met = met.copy()
            for note, length in zip(notes, lengths, strict=True):
                del note[length:]

        try:
            yield forget
        except CompileError:
            forget()
            raise

    def value_of(self, expr: Expr) -> np.ndarray | None:
        """The value of a constant expression; None when it depends on an input."""
        return self.folder.value(expr)

    def sizes_of(self, expr: Expr) -> tuple[Dim, ...] | None:
        """The elements of an integer tensor, static or symbolic; None when they are computed at run time."""
        value = self.folder.value(expr)
        if value is not None and value.dtype.kind in "iu":
            return tuple(value.reshape(-1).tolist())
        found = self.folder.elements.of(expr)
        if found is None or not expr.dtype.is_integral or any(isinstance(d, Unknown) for d in found.flat):
            return None
        return tuple(d if isinstance(d, PrimExpr) else int(d) for d in found.flat)

    def bind_sizes(self, expr: Expr, source: str) -> tuple[Dim, ...] | None:
        """Size variables bound to the elements of a computed integer tensor; None if that is impossible."""
        ty = expr.tensor_type
        if ty.size is None or not ty.dtype.is_int or ty.size > MAX_BOUND:
            return None
        if ty.size == 0:
            return ()
        finished = self.folder.finish(expr, Span(self.model.name, source))
        known = self.sizes_of(finished)
        if known is not None:
            return known
        elements = self.folder.elements.of(finished)
        assert elements is not None, "small tensors have elements"
        return tuple([self._bound_element(d, source) if isinstance(d, Unknown) else d for d in elements.flat])

    def _bound_element(self, element: Unknown, source: str) -> Dim:
        """The size variable bound to one element of a computed integer tensor, which all its uses share."""
        known = next((bound for bound in self._bound if bound.tensor is element.source), None)
        if known is None:
            known = _Bound(element.source, source, self._number(source))
            self._bound.append(known)
        return self.table.compute(known.name_of(element.index), self._bodies)

    def name_size(self, d: Dim, source: str) -> Dim:
        """A size variable bound to the expression `d`, shared by equal expressions."""
        if isinstance(d, int | SizeVar):
            return d
        for x in self._bound:
            if isinstance(x.tensor, Call) and isinstance(x.tensor.op, Sizes) and dims_equal(x.tensor.op.values[0], d):
                return self.table.dim(x.names[0])
        value = Sizes(values=(d,), shape=(1,))(span=Span(self.model.name, source))
        named = _Bound(value, source, self._number(source))
        self._bound.append(named)
        self.table.named.add(named.name_of(0))
        return self.table.compute(named.name_of(0), self._bodies)

    def with_named_size(self, x: Expr, axis: int, source: str) -> Expr:
        """`x` with a size variable for a dimension of large size, so that later index arithmetic stays small."""
        return op.reshape(x, with_dim(x.shape, axis, self.name_size(x.shape[axis], source)))

    def _number(self, place: str) -> int:
        """A number for the next size variable of `place`, stable across conversions."""
        self._met[place] += 1
        return self.table.number((*self._bodies, place, self._met[place]))

    def fresh_size(self, name: str, place: str, inside: bool, may_be_one: bool) -> Dim:
        """A new size variable, or its known value; with `inside` it belongs to the bodies of the node at `place`."""
        unique = f"{name}_{self._number(f'{place}, {name}')}"
        if may_be_one:
            self.table.may_be_one.add(unique)
        return self.table.compute(unique, (*self._bodies, place) if inside else self._bodies)

    def may_be_one(self, d: Dim) -> bool:
        """May an operator have to broadcast the size, or is it taken to equal those that it is broadcast with?"""
        if self.table.broadcasting:
            return not isinstance(d, int) and may_be_one(d)
        return isinstance(d, SizeVar) and d.name in self.table.may_be_one

    def broadcast(self, x: Expr, shape: Sequence[Dim]) -> tuple[Expr, tuple[Dim, ...]]:
        """`x`, and the shape that it broadcasts to with `shape`; repeated along axes that may be 1 at run time."""
        common = self._broadcasting.shape(x.shape, shape)
        return self._broadcasting.broadcast(x, common[len(common) - len(x.shape) :]), common

    def _common_size(self, d: Dim) -> Dim:
        return self.name_size(d, f"{self._assumptions.place}, a broadcast size")

    def _check_broadcast(self, a: Dim, b: Dim) -> None:
        self.check_equal(a, b, f"{self._assumptions.place}, broadcasting,")

    def known_here(self, d: Dim) -> bool:
        """Is the size defined in the graph being converted, not only in a nested one?"""
        return self.table.known_in(d, self._bodies)

    def answer(self, question: str) -> bool | None:
        """What this version of the model takes for the value of a condition; None if it does not decide it."""
        return self.table.answers.get(question)

    def ask(self, question: str, taken: bool) -> None:
        """Note that the model is converted for one value of a condition only."""
        self.table.asked[question] = taken

    def check_equal(self, a: Dim, b: Dim, source: str) -> None:
        """Add a run-time check that two sizes are equal."""
        self._checks.append((a, b, source))

    def inputs_behind(self, expr: Expr) -> list[str]:
        """Names of the graph inputs whose values or sizes `expr` depends on."""
        used = size_variables(expr.ty.shape) if isinstance(expr.ty, TensorType) else {}
        sources = [x.tensor for x in self._bound if not used.keys().isdisjoint(x.names.values())]
        return list(dict.fromkeys([name for x in (expr, *sources) for name in graph_inputs_of(x)]))

    def stored(
        self, proto: Any, where: str, raw_data: np.ndarray | StoredBytes | None, span: Span
    ) -> StoredConstant | None:
        """A TensorProto as a constant whose values stay in the model's files; None if they are not stored there."""
        if isinstance(proto, SparseTensorProto):
            return None
        return stored_tensor(proto, self.model.folders, where, raw_data, self._weights, span)

    def tensor(self, proto: Any, where: str, raw_data: np.ndarray | StoredBytes | None = None) -> np.ndarray:
        """The value of a TensorProto or SparseTensorProto; `raw_data` has the data that was read apart."""
        if isinstance(proto, SparseTensorProto):
            return sparse_to_numpy(proto, self.model.folders, where)
        return to_numpy(proto, self.model.folders, where, raw_data)
