"""A converter's view of an ONNX node: typed inputs, typed attributes, and errors that name the node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any

import numpy as np
from onnx import GraphProto

from relayc.frontends.onnx.attributes import Attributes
from relayc.frontends.onnx.errors import (
    NothingInsideError,
    OnnxImportError,
    SeveralRanksError,
    UnsupportedOperatorError,
    ValueNeededError,
    compose,
)
from relayc.frontends.onnx.session import Session
from relayc.relay.expr import Expr, Function, Var
from relayc.relay.sizes import dims_match
from relayc.relay.type import TensorType
from relayc.te.dtype import DType
from relayc.te.ir import Span
from relayc.te.tir import Dim

__all__ = ["OnnxNode"]


SubgraphConverter = Callable[[GraphProto, Sequence[Expr]], list[Expr]]
GraphCloser = Callable[[GraphProto, Sequence[Var], Mapping[str, Expr], bool], tuple[Function, list[Expr]]]


class OnnxNode:
    """A node being converted: `op_type`, `opset` (of its domain), inputs, attributes, error reporting."""

    __slots__ = (
        "_close", "_session", "_subgraph", "attrs", "domain", "inputs", "name", "op_type", "opset", "outputs", "span",
        "where",
    )  # fmt: skip

    def __init__(
        self,
        *,
        name: str,
        op_type: str,
        domain: str,
        opset: int,
        inputs: Sequence[Expr | None],
        outputs: Sequence[str],
        attrs: Attributes,
        where: str,
        span: Span,
        session: Session,
        subgraph: SubgraphConverter,
        close: GraphCloser,
    ) -> None:
        self.name, self.op_type, self.domain, self.opset = name, op_type, domain, opset
        self.inputs, self.outputs, self.attrs, self.where = inputs, outputs, attrs, where
        self.span = span
        self._session, self._subgraph, self._close = session, subgraph, close

    def with_inputs(self, inputs: Sequence[Expr | None]) -> OnnxNode:
        """A copy of the node with other inputs, for an operator that is another one applied to computed values."""
        other = copy(self)
        other.inputs = inputs
        return other

    # inputs -----------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Expr:
        """Input `index`; an error when it is missing."""
        found = self.get(index)
        if found is None:
            raise self.error(f"input {index} is missing", expected=f"at least {index + 1} inputs")
        return found

    def get(self, index: int) -> Expr | None:
        """Input `index`; None when it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def all_inputs(self, least: int = 1) -> list[Expr]:
        """All inputs of a variadic operator."""
        if len(self.inputs) < least:
            raise self.error(f"{len(self.inputs)} inputs", expected=f"at least {least} inputs")
        return [self[i] for i in range(len(self.inputs))]

    def wants(self, index: int) -> bool:
        """Is output `index` used?"""
        return index < len(self.outputs) and self.outputs[index] != ""

    def type(self, index: int) -> TensorType:
        """The type of input `index`."""
        return self[index].tensor_type

    def dtype(self, index: int) -> DType:
        """The element type of input `index`."""
        return self.type(index).dtype

    def rank(self, index: int) -> int:
        """The number of dimensions of input `index`."""
        return self.type(index).ndim

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of input `index`, which must be static."""
        return self.static(self[index], f"the shape of input {index}")

    def static(self, x: Expr, what: str) -> tuple[int, ...]:
        """The shape of `x`, which must be static; `what` names it in the error."""
        ty = x.tensor_type
        if ty.is_static:
            return ty.static_shape
        raise self.value_needed(f"{what} is {ty}, and {self.op_type} needs it when compiling", x)

    def extent(self, x: Expr, axis: int, what: str) -> int:
        """The static size of `x` along `axis`; `what` names it in the error ("the features")."""
        d = x.shape[axis]
        if isinstance(d, int):
            return d
        raise self.value_needed(f"{what} of {x.ty} are counted at run time, and {self.op_type} needs them", x)

    def constant(self, index: int, what: str) -> np.ndarray:
        """The value of input `index`, which must be constant; `what` names it in the error ("the axes")."""
        value = self._session.value_of(self[index])
        if value is None:
            raise self.value_needed(
                f"{what} (input {index}) is computed at run time, and {self.op_type} needs its value when compiling",
                self[index],
            )
        return value

    def constant_or_none(self, index: int, what: str) -> np.ndarray | None:
        """The constant value of an optional input; None when it is omitted."""
        return None if self.get(index) is None else self.constant(index, what)

    def constant_ints(self, index: int, what: str) -> tuple[int, ...]:
        """The constant integers of input `index`, a vector or a scalar."""
        value = self.constant(index, what)
        if value.dtype.kind not in "iu":
            raise self.error(f"{what} (input {index}) is {value.dtype.name}", expected="int64")
        return tuple(int(v) for v in value.reshape(-1))

    def sizes_or_none(self, index: int) -> tuple[Dim, ...] | None:
        """The integers of input `index`, known or symbolic; None when they are computed at run time."""
        return self._session.sizes_of(self[index])

    def count(self, index: int, number: int, what: str) -> None:
        """Check that input `index` is a vector of `number` elements; a dynamic length is assumed to be `number`."""
        shape = self.type(index).shape
        if len(shape) == 1 and not dims_match(shape[0], number):
            raise self.error(f"{what} (input {index}) are {self.type(index)}", expected=f"{number} of them")

    def sizes(self, index: int, what: str, count: int | None = None) -> tuple[Dim, ...]:
        """Input `index` as sizes: static, symbolic, or bound to size variables at run time.

        `count` is the required number of sizes, if known.
        """
        if count is not None:
            self.count(index, count, what)
        known = self.sizes_or_none(index)
        return self.bind(self[index], what) if known is None else known

    def bind(self, x: Expr, what: str) -> tuple[Dim, ...]:
        """Size variables bound to the elements of the integer tensor `x` at run time."""
        bound = self._session.bind_sizes(x, f"{self.where}, {what}")
        if bound is None:
            raise self.value_needed(f"{what} is computed at run time, and {self.op_type} needs its value", x)
        return bound

    def with_named_size(self, x: Expr, axis: int) -> Expr:
        """`x` with a size variable for the large size of dimension `axis`."""
        return self._session.with_named_size(x, axis, f"{self.where}, the size")

    def check_equal(self, a: Dim, b: Dim, what: str) -> None:
        """Add a run-time check that two sizes are equal."""
        self._session.check_equal(a, b, f"{self.where}, {what}")

    @property
    def takes_whole_caches(self) -> bool:
        """Are KV caches of a window imported as caches of all positions?"""
        return self._session.whole_caches

    def known_value(self, index: int) -> np.ndarray | None:
        """The value of input `index` if it is constant; None when it is absent or computed at run time."""
        x = self.get(index)
        return None if x is None else self._session.value_of(x)

    def value_or_none(self, x: Expr) -> np.ndarray | None:
        """The value of an expression if it is constant, else None."""
        return self._session.value_of(x)

    def axis(self, axis: int, rank: int) -> int:
        """Normalise `axis`. Raises when it is outside of -rank .. rank-1."""
        if not -rank <= axis < rank:
            raise self.error(f"axis {axis} of a tensor of rank {rank}", expected=f"an axis from {-rank} to {rank - 1}")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Normalise `axes`, which must be distinct."""
        result = tuple(self.axis(a, rank) for a in axes)
        if len(set(result)) != len(result):
            raise self.error(f"the axes {list(axes)} name one axis twice")
        return result

    # attributes -------------------------------------------------------------------------------------------------------

    def attr_int(self, name: str, default: int | None = None) -> int:
        return self._required(self.attrs.get_int(name), default, name)

    def attr_bool(self, name: str, default: bool) -> bool:
        """An int attribute that is 0 or 1."""
        return self.attr_int(name, int(default)) != 0

    def attr_float(self, name: str, default: float | None = None) -> float:
        """A float attribute, rounded to float32 as all of them are, the default too."""
        single = None if default is None else float(np.float32(default))
        return self._required(self.attrs.get_float(name), single, name)

    def attr_str(self, name: str, default: str | None = None) -> str:
        return self._required(self.attrs.get_str(name), default, name)

    def attr_ints(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        return self._required(self.attrs.get_ints(name), default, name)

    def attr_strs(self, name: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A list of strings; required if there is no default."""
        return self._required(self.attrs.get_strings(name), default, name)

    def attr_choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """A string attribute out of `choices`."""
        value = self.attr_str(name, default)
        if value not in choices:
            raise self.unsupported(f"{name} is {value!r}", expected="one of " + ", ".join(map(repr, choices)))
        return value

    def attr_tensor(self, name: str) -> np.ndarray | None:
        proto = self.attrs.get_tensor(name)
        return None if proto is None else self._session.tensor(proto, f"{self.where}, attribute {name!r}")

    def attr_sparse_tensor(self, name: str) -> np.ndarray | None:
        """A sparse tensor attribute as a dense array."""
        proto = self.attrs.get_sparse_tensor(name)
        return None if proto is None else self._session.tensor(proto, f"{self.where}, attribute {name!r}")

    def attr_graph(self, name: str) -> GraphProto:
        return self._required(self.attrs.get_graph(name), None, name)

    def convert_graph(self, graph: GraphProto, args: Sequence[Expr]) -> list[Expr]:
        """Inline a subgraph attribute applied to `args`; it may capture names visible to this node."""
        return self._subgraph(graph, args)

    def close_graph(
        self,
        graph: GraphProto,
        params: Sequence[Var],
        known: Mapping[str, Expr] | None = None,
        *,
        may_not_run: bool = False,
    ) -> tuple[Function, list[Expr]]:
        """A subgraph attribute as a function of `params` and of the values it captures, and these values.

        Values of this graph may be `known` to it by other names. Of one that `may_not_run`, the sizes that it requires
        to be equal need not be so in other runs.
        """
        return self._close(graph, params, known or {}, may_not_run)

    def answer(self, question: str) -> bool | None:
        """What this version of the model takes for the value of a condition; None if it does not decide it."""
        return self._session.answer(question)

    def ask(self, question: str, taken: bool) -> None:
        """Note that the model is converted for one value of a condition only."""
        self._session.ask(question, taken)

    def fresh_sizes(
        self, ty: TensorType, axes: Sequence[int], name: str, *, inside: bool = False, ones: Sequence[int] = ()
    ) -> TensorType:
        """`ty` with new size variables along `axes`, which may be 1 (broadcast) along `ones`.

        They belong to the graph that contains this node or, with `inside`, to its subgraphs.
        """
        dims = [self._session.fresh_size(f"{name}_{a}", self.where, inside, a in ones) if a in axes else d
                for a, d in enumerate(ty.shape)]  # fmt: skip
        return ty.with_shape(dims)

    @property
    def unreached(self) -> list[list[NothingInsideError]]:
        """For each enclosing loop under type inference, outermost first: branches dropped as unreachable so far."""
        return self._session.unreached

    def broadcast(self, x: Expr, shape: Sequence[Dim]) -> tuple[Expr, tuple[Dim, ...]]:
        """`x`, and the shape that it broadcasts to with `shape`; repeated along axes that may be 1 at run time."""
        return self._session.broadcast(x, shape)

    def may_be_one(self, d: Dim) -> bool:
        """May the size be 1 on one path through the model and not on another?"""
        return self._session.may_be_one(d)

    def known_here(self, d: Dim) -> bool:
        """Is the size defined in the graph that contains this node, not only in its subgraphs?"""
        return self._session.known_here(d)

    def count_random(self) -> int:
        """The number of random nodes converted before this one."""
        return next(self._session.random_nodes)

    def attempt(self) -> AbstractContextManager[Callable[[], None]]:
        """A context that rolls back size equalities on an error, or when the returned function is called."""
        return self._session.attempt()

    def _required(self, value: Any, default: Any, name: str) -> Any:
        if value is not None:
            return value
        if default is None:
            raise self.error(f"the attribute {name!r} is missing")
        return default

    # errors -----------------------------------------------------------------------------------------------------------

    def found(self) -> str:
        """The types of the inputs, for error messages."""
        return ", ".join("(none)" if x is None else str(x.ty) for x in self.inputs)

    def error(self, problem: str, *, expected: str = "", remedy: str = "") -> OnnxImportError:
        """The error for an invalid model at this node."""
        return OnnxImportError(compose(self.where, problem, found=self.found(), expected=expected, remedy=remedy))

    def unsupported(self, problem: str, *, expected: str = "", remedy: str = "") -> UnsupportedOperatorError:
        """The error for an unsupported use of the operator that is legal ONNX."""
        return UnsupportedOperatorError(
            compose(self.where, problem, found=self.found(), expected=expected, remedy=remedy)
        )

    def several_ranks(self, problem: str) -> SeveralRanksError:
        """The error for computing with an element of a sequence whose rank is not known."""
        return SeveralRanksError(compose(self.where, problem, found=self.found(), expected="tensors of one rank"))

    def nothing_inside(self, what: str) -> NothingInsideError:
        """The error for reading an element of `what`, which is always empty."""
        problem = f"{what} never holds a tensor, and {self.op_type} takes one out of it"
        return NothingInsideError(compose(self.where, problem, found=self.found()))

    def value_needed(self, problem: str, x: Expr) -> ValueNeededError:
        """The error for `x`, which determines a shape but depends on graph inputs, naming them."""
        names = self._session.inputs_behind(x)
        listed = ", ".join(map(repr, names))
        remedy = f"fix the shapes of the inputs it depends on with shape={{...}}: {listed}" if names else ""
        if names:
            remedy += "; an input whose value itself is a shape can be bound with constants={name: array}"
        return ValueNeededError(compose(self.where, problem, found=self.found(), remedy=remedy), tuple(names))
