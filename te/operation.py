"""Operations: the nodes of a tensor expression, which produce its tensors.

    operation = placeholder                        an input
              | compute(axes, reduce axes, body)   each element by a formula of its indices
              | scan(init, update, state)          a recurrence along the first dimension
              | extern(inputs, statement)          buffers filled by loops written by hand

`input_tensors` of an operation are the tensors its formulas read.
"""

from __future__ import annotations

import copy
import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from relayc.te.dtype import dtype
from relayc.te.errors import CompileError
from relayc.te.ir.abstract import Abstract
from relayc.te.ir.visitor import post_order
from relayc.te.tag import current_tag
from relayc.te.tensor import Tensor
from relayc.te.tir.buffer import Buffer, decl_buffer
from relayc.te.tir.expr import Dim, IterVar, PrimExpr, ProducerLoad, Range, Reduce, SizeVar, Var
from relayc.te.tir.ops import as_dim, as_int, convert
from relayc.te.tir.stmt import Evaluate, Stmt

__all__ = [
    "ComputeOp", "ExternOp", "Operation", "PlaceholderOp", "ScanOp", "compute", "extern", "placeholder",
    "reduce_axis", "scan", "size_var", "thread_axis", "var",
]  # fmt: skip


class Operation(Abstract):
    """Base of operations: a name, a tag and attributes for schedules, outputs, and the axes a stage starts with."""

    def __init__(self, name: str, tag: str, attrs: Mapping[str, Any] | None) -> None:
        self.name = name
        self.tag = tag or current_tag()
        self.attrs: dict[str, Any] = dict(attrs or {})
        self._outputs: tuple[Tensor, ...] = ()

    @property
    def num_outputs(self) -> int:
        """How many tensors it makes."""
        return len(self._outputs)

    def output(self, index: int) -> Tensor:
        """Tensor number `index`; always the same object."""
        return self._outputs[index]

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """All tensors it makes."""
        return self._outputs

    @property
    @abstractmethod
    def input_tensors(self) -> tuple[Tensor, ...]:
        """The tensors it reads, once each, in the order of their first use."""

    @property
    def axis(self) -> tuple[IterVar, ...]:
        """The data axes, outermost first: one for each dimension of a compute's outputs."""
        return ()

    @property
    def reduce_axis(self) -> tuple[IterVar, ...]:
        """The axes it reduces over."""
        return ()

    @property
    def root_axes(self) -> tuple[IterVar, ...]:
        """The axes a stage of this operation starts with, outermost first."""
        return (*self.axis, *self.reduce_axis)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


class PlaceholderOp(Operation):
    """An input of the program."""

    def __init__(self, name: str, shape: tuple[Dim, ...], dtype_: str) -> None:
        super().__init__(name, "", None)
        self._outputs = (Tensor(shape, dtype_, self, 0),)

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        return ()


class ComputeOp(Operation):
    """Outputs whose element at `axis` is `body`: one expression for each output, or reductions sharing one combiner.

    Raises CompileError for a reduction below the top of an expression or reductions that differ.
    """

    def __init__(
        self,
        name: str,
        tag: str,
        attrs: Mapping[str, Any] | None,
        axis: Sequence[IterVar],
        body: Sequence[PrimExpr],
    ) -> None:
        super().__init__(name, tag, attrs)
        self._axis = tuple(axis)
        self.body = tuple(body)
        nodes = list(post_order(self.body))
        self._reduce_axis = _check_reductions(name, self.body, [e for e in nodes if isinstance(e, Reduce)])
        shape = tuple([_extent(iv) for iv in self._axis])
        self._outputs = tuple([Tensor(shape, e.dtype, self, i) for i, e in enumerate(self.body)])
        self._inputs = tuple(dict.fromkeys([e.producer for e in nodes if isinstance(e, ProducerLoad)]))

    @property
    def axis(self) -> tuple[IterVar, ...]:
        return self._axis

    @property
    def reduce_axis(self) -> tuple[IterVar, ...]:
        return self._reduce_axis

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        return self._inputs


def _extent(axis: IterVar) -> Dim:
    assert axis.dom is not None
    return axis.dom.extent


def _check_reductions(name: str, body: tuple[PrimExpr, ...], everywhere: Sequence[Reduce]) -> tuple[IterVar, ...]:
    """The reduce axes of a body, which must be a reduction as a whole or contain none of those in `everywhere`."""
    reductions = [e for e in body if isinstance(e, Reduce)]
    inner = [e for e in everywhere if all(e is not own for own in reductions)]
    if inner:
        raise CompileError(
            f"compute {name}: the reduction {inner[0]} lies inside another expression; a reduction must be the "
            "whole body: give it a te.compute of its own and use its result"
        )
    if not reductions:
        return ()
    first = reductions[0]
    same = all(e.combiner is first.combiner for e in reductions) and len(first.source) == len(body)
    if not same or [e.value_index for e in reductions] != list(range(len(body))):
        raise CompileError(
            f"compute {name}: with a reduction all {len(body)} outputs must be the components of one reduction, in "
            "order: return the tuple that the reducer gave"
        )
    return first.axis


class ScanOp(Operation):
    """A recurrence along dimension 0: `state[0 : t0]` is `init`, `state[t]` is `update` of earlier states."""

    def __init__(
        self,
        name: str,
        tag: str,
        attrs: Mapping[str, Any] | None,
        init: tuple[Tensor, ...],
        update: tuple[Tensor, ...],
        state_placeholder: tuple[Tensor, ...],
        inputs: tuple[Tensor, ...],
    ) -> None:
        super().__init__(name, tag, attrs)
        self.init, self.update, self.state_placeholder, self.inputs = init, update, state_placeholder, inputs
        start = init[0].shape[0]
        steps = as_dim(convert(update[0].shape[0]) - start)
        index = Var(f"{name}.idx")
        self.scan_axis = IterVar(Range(start, steps), index, "scan")
        self._outputs = tuple([Tensor(u.shape, u.dtype, self, i) for i, u in enumerate(update)])

    def with_inputs(self, tensors: Mapping[Tensor, Tensor]) -> ScanOp:
        """This scan over other tensors, along the same axes."""
        new = copy.copy(self)
        new.init = tuple([tensors.get(t, t) for t in self.init])
        new.update = tuple([tensors.get(t, t) for t in self.update])
        new.inputs = tuple([tensors.get(t, t) for t in self.inputs])
        new._outputs = tuple([Tensor(t.shape, t.dtype, new, i) for i, t in enumerate(self._outputs)])
        return new

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        return (*self.init, *self.update)

    @property
    def root_axes(self) -> tuple[IterVar, ...]:
        return (self.scan_axis,)

    def body_operations(self) -> set[Operation]:
        """The operations of one step: the updates and those between the states and them."""
        updates = {t.op for t in self.update}
        readers: dict[Operation, list[Operation]] = {}
        pending, seen = list(updates), set(updates)
        while pending:
            op = pending.pop()
            for source in (t.op for t in op.input_tensors):
                readers.setdefault(source, []).append(op)
                if source not in seen:
                    seen.add(source)
                    pending.append(source)
        inside: set[Operation] = set()
        pending = [t.op for t in self.state_placeholder]
        while pending:
            for reader in readers.get(pending.pop(), ()):
                if reader not in inside:
                    inside.add(reader)
                    pending.append(reader)
        return inside | updates


class ExternOp(Operation):
    """Output buffers filled by a statement over input buffers."""

    def __init__(
        self,
        name: str,
        tag: str,
        attrs: Mapping[str, Any] | None,
        inputs: tuple[Tensor, ...],
        input_buffers: tuple[Buffer, ...],
        output_buffers: tuple[Buffer, ...],
        body: Stmt,
    ) -> None:
        super().__init__(name, tag, attrs)
        self.inputs = inputs
        self.input_buffers, self.output_buffers, self.body = input_buffers, output_buffers, body
        self._outputs = tuple([Tensor(b.shape, b.dtype, self, i) for i, b in enumerate(output_buffers)])

    def with_inputs(self, tensors: Mapping[Tensor, Tensor]) -> ExternOp:
        """This operation over other tensors of the same shapes."""
        new = copy.copy(self)
        new.inputs = tuple([tensors.get(t, t) for t in self.inputs])
        new._outputs = tuple([Tensor(t.shape, t.dtype, new, i) for i, t in enumerate(self._outputs)])
        return new

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        return tuple(dict.fromkeys(self.inputs))


def _shape(shape: Any) -> tuple[Dim, ...]:
    dims = tuple(shape) if isinstance(shape, Iterable) and not isinstance(shape, PrimExpr) else (shape,)
    result = tuple([as_dim(d) for d in dims])
    for d in result:
        if isinstance(d, int) and d < 0:
            raise CompileError(f"shape {result} has a negative dimension")
        if isinstance(d, PrimExpr) and not d.dtype.is_integral:
            raise CompileError(f"dimension {d} of shape {result} is a {d.dtype}; expected an integer")
    return result


def placeholder(shape: Any, dtype: str = "float32", name: str = "placeholder") -> Tensor:
    """An input tensor. (TVM: `te.placeholder`.)"""
    return PlaceholderOp(name, _shape(shape), dtype).output(0)


def var(name: str = "tindex", dtype: str = "int32") -> Var:
    """A symbolic scalar. (TVM: `te.var`.)"""
    return Var(name, _dtype(dtype))


def size_var(name: str = "size", dtype: str = "int32") -> SizeVar:
    """A symbolic size, at least 0. (TVM: `te.size_var`.)"""
    return SizeVar(name, _dtype(dtype))


_dtype = dtype


def reduce_axis(dom: Any, name: str = "rv") -> IterVar:
    """An axis to reduce over: `dom` is (begin, end) or a `Range`. (TVM: `te.reduce_axis`.)"""
    domain = _range(dom)
    return IterVar(domain, Var(name, _index_type(domain.extent)), "reduce")


def _range(dom: Any) -> Range:
    if isinstance(dom, Range):
        return Range(as_dim(dom.min), as_dim(dom.extent))
    try:
        begin, end = dom
    except (TypeError, ValueError):
        raise CompileError(f"an axis' domain is (begin, end) or a Range, got {dom!r}") from None
    return Range(as_dim(begin), as_dim(convert(end) - begin))


def _index_type(extent: Dim) -> Any:
    return extent.dtype if isinstance(extent, PrimExpr) else dtype("int32")


_THREAD_TAGS = ("blockIdx.", "threadIdx.", "vthread", "cthread", "pipeline")


def thread_axis(dom: Any = None, tag: str = "", name: str = "") -> IterVar:
    """A hardware thread axis for `bind`: ``thread_axis("threadIdx.x")`` or ``thread_axis((0, 64), "threadIdx.x")``.

    Without a domain the extent is that of the loop it is bound to. "vthread" makes virtual threads, interleaved in one
    hardware thread. (TVM: `te.thread_axis`.)
    """
    if isinstance(dom, str):
        dom, tag = None, dom
    if isinstance(dom, int | PrimExpr):
        dom = (0, dom)
    if not tag.startswith(_THREAD_TAGS):
        raise CompileError(f"thread axis tag {tag!r} is unknown; known are blockIdx.x/y/z, threadIdx.x/y/z, vthread")
    return IterVar(None if dom is None else _range(dom), Var(name or tag), "thread", tag)


def compute(
    shape: Any,
    fcompute: Callable[..., Any],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
    varargs_names: Sequence[str] | None = None,
) -> Any:
    """The tensor of `shape` whose element at (i, j, ...) is ``fcompute(i, j, ...)``; a tuple of results gives a tuple.

    The axes are named as `fcompute`'s parameters are; `varargs_names` names those a ``*indices`` parameter takes.
    Returns a `Tensor`, or a tuple of them. (TVM: `te.compute`.)

    Raises CompileError when the number of parameters differs from that of dimensions, or a body is not an expression.
    """
    dims = _shape(shape)
    names = _axis_names(fcompute, len(dims), name, varargs_names)
    axis = [IterVar(Range(0, d), Var(n, _index_type(d)), "data") for n, d in zip(names, dims, strict=True)]
    result = fcompute(*[iv.var for iv in axis])
    several = isinstance(result, tuple | list)
    body = [_body_expr(name, e) for e in (result if several else (result,))]
    outputs = ComputeOp(name, tag, attrs, axis, body).outputs
    return outputs if several else outputs[0]


def _body_expr(name: str, value: Any) -> PrimExpr:
    if isinstance(value, Tensor):
        raise CompileError(f"compute {name}: the body is the whole tensor {value.name}; index it, as in x[i, j]")
    return convert(value)


def _axis_names(fcompute: Callable[..., Any], ndim: int, name: str, varargs: Sequence[str] | None) -> list[str]:
    parameters = inspect.signature(fcompute).parameters.values()
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in plain and p.default is p.empty]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        rest = ndim - len(names)
        if varargs is not None and len(varargs) != rest:
            raise CompileError(f"compute {name}: varargs_names has {len(varargs)} names for {rest} dimensions")
        names += list(varargs) if varargs is not None else [f"i{k}" for k in range(len(names), ndim)]
    if len(names) != ndim:
        raise CompileError(
            f"compute {name}: the function takes {len(names)} indices ({', '.join(names)}) but the shape has {ndim} "
            "dimensions; give it one parameter for each dimension"
        )
    return names


def scan(
    init: Tensor | Sequence[Tensor],
    update: Tensor | Sequence[Tensor],
    state_placeholder: Tensor | Sequence[Tensor],
    inputs: Sequence[Tensor] = (),
    name: str = "scan",
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
) -> Any:
    """A recurrence along dimension 0: states begin with `init`; `update` computes step t from `state_placeholder`.

    Shapes: init (t0, ...), update and state (T, ...). Returns the states as a tensor, or a tuple. (TVM: `te.scan`.)
    """
    several = not isinstance(init, Tensor)
    inits, updates, states = _tensors(init), _tensors(update), _tensors(state_placeholder)
    if not len(inits) == len(updates) == len(states):
        raise CompileError(f"scan {name}: {len(inits)} init, {len(updates)} update and {len(states)} state tensors; "
                           "expected as many of each")  # fmt: skip
    for i, u, s in zip(inits, updates, states, strict=True):
        same_type = i.dtype == u.dtype == s.dtype
        if not same_type or not i.ndim == u.ndim == s.ndim or not _same_shape(u.shape, s.shape):
            raise CompileError(f"scan {name}: state {s} and update {u} must have one shape and dtype, and init {i} the "
                               "same but for dimension 0")  # fmt: skip
    outputs = ScanOp(name, tag, attrs, inits, updates, states, tuple(inputs)).outputs
    return outputs if several else outputs[0]


def _tensors(value: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)


def _same_shape(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    known = [(as_int(x), as_int(y)) for x, y in zip(a, b, strict=True)]
    return all(x == y for x, y in known if x is not None and y is not None)


def extern(
    shape: Any,
    inputs: Sequence[Tensor],
    fcompute: Callable[[Sequence[Buffer], Sequence[Buffer]], Stmt | PrimExpr],
    name: str = "extern",
    dtype: str | Sequence[str] | None = None,
    in_buffers: Sequence[Buffer] | None = None,
    out_buffers: Sequence[Buffer] | None = None,
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
) -> Any:
    """Tensors filled by the statement ``fcompute(input buffers, output buffers)``.

    `shape` is one shape or a list of them, `dtype` likewise (the inputs' by default, when they agree). Returns a
    tensor, or a list of them for a list of shapes. (TVM: `te.extern`.)
    """
    several = len(shape) > 0 and isinstance(shape[0], tuple | list)
    shapes = [_shape(s) for s in shape] if several else [_shape(shape)]
    dtypes = _extern_dtypes(name, dtype, inputs, len(shapes))
    ins = list(in_buffers) if in_buffers is not None else [decl_buffer(t.shape, t.dtype, t.name) for t in inputs]
    outs = list(out_buffers) if out_buffers is not None else [
        decl_buffer(s, t, name if len(shapes) == 1 else f"{name}.v{i}")
        for i, (s, t) in enumerate(zip(shapes, dtypes, strict=True))
    ]  # fmt: skip
    body = fcompute(ins, outs)
    if not isinstance(body, Stmt | PrimExpr):
        raise CompileError(f"extern {name}: the function returned {body!r}; expected a statement or a call")
    stmt = body if isinstance(body, Stmt) else Evaluate(body)
    outputs = ExternOp(name, tag, attrs, tuple(inputs), tuple(ins), tuple(outs), stmt).outputs
    return list(outputs) if several else outputs[0]


def _extern_dtypes(name: str, dtypes: str | Sequence[str] | None, inputs: Sequence[Tensor], count: int) -> list[str]:
    if dtypes is None:
        found = {t.dtype for t in inputs}
        if len(found) != 1:
            raise CompileError(f"extern {name}: inputs have dtypes {sorted(found)}; name the outputs' with dtype=")
        return [found.pop()] * count
    return [dtypes] * count if isinstance(dtypes, str) else list(dtypes)
