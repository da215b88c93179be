"""Session of one import: values, symbolic sizes and their equalities, available to converters through their node."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from onnx import SparseTensorProto

from relayc.frontends.onnx.errors import NothingInsideError
from relayc.frontends.onnx.fold import Folder, graph_inputs_of
from relayc.frontends.onnx.model import Model
from relayc.frontends.onnx.model_file import StoredBytes, WeightFile
from relayc.frontends.onnx.size_producers import SizeProducers
from relayc.frontends.onnx.sizes import SizeTable
from relayc.frontends.onnx.symbolic import sizes_in
from relayc.frontends.onnx.tensors import sparse_to_numpy, stored_tensor, to_numpy
from relayc.relay.expr import Call, Expr
from relayc.relay.op.creation import Sizes
from relayc.relay.op.transform import Concatenate
from relayc.relay.sizes import Assumptions, assuming, dims_equal, size_variables
from relayc.relay.stored import StoredConstant
from relayc.relay.type import TensorType
from relayc.te.errors import CompileError
from relayc.te.ir import Span
from relayc.te.tir import Dim, PrimExpr, SizeVar

__all__ = ["Session"]

MAX_BOUND = 64
"""Most elements of a tensor whose values are bound to size variables at run time."""


class Session:
    """State of one conversion of a model, and of the graph being converted: main, or a nested body."""

    def __init__(self, model: Model, table: SizeTable) -> None:
        self.model = model
        self.table = table
        self.folder = Folder()
        self.size_producers = SizeProducers()
        self.unreached: list[list[NothingInsideError]] = []
        """for each enclosing loop under type inference, outermost first: branches dropped as unreachable so far"""
        self._bound: list[tuple[Expr, str, tuple[str, ...]]] = []
        """computed integer tensors, their source, and the size variables bound to their elements"""
        self._checks: list[tuple[Dim, Dim, str]] = []
        self._assumed_inside: list[tuple[Dim, Dim]] = []
        """sizes assumed to be equal in bodies"""
        self._assumptions = Assumptions()
        """sizes assumed to be equal in this graph"""
        self._bodies: tuple[str, ...] = ()
        """the nodes whose bodies are being converted, outermost first: the nesting of the current graph"""
        self._files: dict[Path, WeightFile] = {}
        """files with external data, by path"""
        self._met: Counter[str] = Counter()
        """number of size variables created per place"""

    # for the importer -------------------------------------------------------------------------------------------------

    @contextmanager
    def assuming(self, place: str) -> Generator[None]:
        """A context in which sizes that operators require to be equal are assumed to be; for the node at `place`."""
        with assuming() as self._assumptions:
            self.at(place)
            yield

    @contextmanager
    def body_of(self, owner: str) -> Generator[None]:
        """A context in which a body of the node `owner` is converted and finished."""
        outer = self._bound, self._checks, self._bodies, self._assumptions
        self._bound, self._checks, self._bodies = [], [], (*self._bodies, owner)
        try:
            yield
            self._assumed_inside += self._assumptions.equal
        finally:
            self._bound, self._checks, self._bodies, self._assumptions = outer

    def at(self, place: str) -> None:
        """Set the node being converted."""
        self._assumptions.place = place

    def learn(self) -> bool:
        """Turn assumed equalities of sizes into known ones for the next conversion. False if there was nothing new."""
        return self.table.solve([*self._assumptions.equal, *self._assumed_inside])

    def finish(self, outputs: Sequence[Expr]) -> tuple[list[Expr], dict[str, Any]]:
        """The graph's outputs followed by the tensors that bind sizes, and the attributes that describe them."""
        own = [name for name, (_, bodies) in self.table.computed.items() if bodies == self._bodies]
        bound = [x for x, _, _ in self._bound]
        kept = self.size_producers.lost([*outputs, *bound], own)
        checks = [*self._checks, *self.table.open(self._assumptions), *self._solved()]
        records: list[tuple[str, int, int, str]] = []
        for output, (_, source, names) in enumerate(self._bound, len(outputs)):
            records += [(name, output, element, source) for element, name in enumerate(names)]
        for output, (name, x, axis) in enumerate(kept, len(outputs) + len(bound)):
            records.append((name, output, -1 - axis, str(x.span)))
        attrs = {"bound_sizes": tuple(records), "size_checks": tuple(checks)} if records or checks else {}
        return [*outputs, *bound, *[x for _, x, _ in kept]], attrs

    def _solved(self) -> list[tuple[Dim, Dim, str]]:
        """Checks for computed sizes that were solved as equal to others."""
        return [(self.table.dim(name), self.table.variable(name), source)
                for _, source, names in self._bound for name in names if name in self.table.solved]  # fmt: skip

    # for converters ---------------------------------------------------------------------------------------------------

    @contextmanager
    def attempt(self) -> Generator[Callable[[], None]]:
        """A context that rolls back size equalities on an error, or when the function that it returns is called."""
        assumed = self._assumptions
        notes: tuple[list[Any], ...] = (
            self._bound, self._checks, self._assumed_inside, assumed.equal, assumed.places,
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
        found = sizes_in(expr)
        return None if found is None else tuple(d if isinstance(d, PrimExpr) else int(d) for d in found.reshape(-1))

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
        if isinstance(finished, Call) and isinstance(finished.op, Concatenate) and ty.ndim == 1:
            parts = [self.bind_sizes(part, source) for part in finished.args]
            return None if None in parts else tuple([d for part in parts if part is not None for d in part])
        number = self._number(source)
        names = tuple(f"#size{number}_{element}" for element in range(ty.size))
        self._bound.append((finished, source, names))
        return tuple(self.table.compute(name, self._bodies) for name in names)

    def name_size(self, d: Dim, source: str) -> Dim:
        """A size variable bound to the expression `d`, shared by equal expressions."""
        if isinstance(d, int | SizeVar):
            return d
        for x, _, names in self._bound:
            if isinstance(x, Call) and isinstance(x.op, Sizes) and dims_equal(x.op.values[0], d):
                return self.table.dim(names[0])
        name = f"#size{self._number(source)}_0"
        value = Sizes(values=(d,), shape=(1,))(span=Span(self.model.name, source))
        self._bound.append((value, source, (name,)))
        self.table.named.add(name)
        return self.table.compute(name, self._bodies)

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
        """May the size be 1 on one path through the model and not on another?"""
        return isinstance(d, SizeVar) and d.name in self.table.may_be_one

    def known_here(self, d: Dim) -> bool:
        """Is the size defined in the graph being converted, not only in a nested one?"""
        return self.table.known_in(d, self._bodies)

    def check_equal(self, a: Dim, b: Dim, source: str) -> None:
        """Add a run-time check that two sizes are equal."""
        self._checks.append((a, b, source))

    def inputs_behind(self, expr: Expr) -> list[str]:
        """Names of the graph inputs whose values or sizes `expr` depends on."""
        used = size_variables(expr.ty.shape) if isinstance(expr.ty, TensorType) else {}
        sources = [x for x, _, names in self._bound if not used.keys().isdisjoint(names)]
        return list(dict.fromkeys([name for x in (expr, *sources) for name in graph_inputs_of(x)]))

    def stored(
        self, proto: Any, where: str, raw_data: np.ndarray | StoredBytes | None, span: Span
    ) -> StoredConstant | None:
        """A TensorProto as a constant whose values stay in the model's files; None if they are not stored there."""
        if isinstance(proto, SparseTensorProto):
            return None
        return stored_tensor(proto, self.model.folders, where, raw_data, self._weight_file, span)

    def _weight_file(self, path: Path) -> WeightFile:
        found = self._files.get(path)
        if found is None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            found = self._files[path] = WeightFile(path.name, descriptor)
        return found

    def tensor(self, proto: Any, where: str, raw_data: np.ndarray | StoredBytes | None = None) -> np.ndarray:
        """The value of a TensorProto or SparseTensorProto; `raw_data` has the data that was read apart."""
        if isinstance(proto, SparseTensorProto):
            return sparse_to_numpy(proto, self.model.folders, where)
        return to_numpy(proto, self.model.folders, where, raw_data)
