"""Types of graph inputs: as declared by the model, overridden by the user's shapes and element types."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ValueInfoProto

from relayc.backend.runtime.checks import as_integer
from relayc.backend.runtime.log import warn_once
from relayc.backend.runtime.metadata import DeclaredShape
from relayc.frontends.onnx.errors import OnnxImportError, UnknownRankError, compose, fault, unsupported
from relayc.frontends.onnx.sizes import SizeTable
from relayc.frontends.onnx.tensors import check_shape, dtype_name
from relayc.relay.type import MAX_RANK, TensorType
from relayc.te.dtype import dtype as parse_dtype
from relayc.te.tir import Dim, Var

__all__ = [
    "DtypeOverride", "ShapeOverride", "declared_shape", "graph_inputs", "input_types", "named_shape", "shapes_passed",
]  # fmt: skip

_NO_NAMES = frozenset({"", "?", "-1", "None"})
"""What exporters write for dimensions without a name: Paddle writes "?" for all of them."""

ShapeOverride = Mapping[str, Sequence[int | str | Var | None] | int]
"""Shape by input name, or size by the name of a symbolic dimension.

None keeps what the model declares; a name, or a variable (`te.var("batch")`), makes a dimension symbolic.
"""

DtypeOverride = str | Mapping[str, str]


def input_types(
    inputs: Sequence[ValueInfoProto],
    shape: ShapeOverride,
    dtype: DtypeOverride | None,
    where: str,
    table: SizeTable | None = None,
) -> dict[str, TensorType]:
    """Name -> type of each of `inputs`. Dimensions of equal name are one variable of `table`; fixing one fixes all.

    Raises `OnnxImportError` for overrides of unknown names, of another rank, or that contradict a named dimension.
    """
    return _Inputs(inputs, shape, dtype, where, SizeTable() if table is None else table).types()


def shapes_passed(shape: Any, where: str) -> dict[str, Any]:
    """Normalise the user's shapes to Python integers. Raises `OnnxImportError` for an invalid shape."""
    if shape is None:
        return {}
    if not isinstance(shape, Mapping):
        raise fault(where, f"shape= is {shape!r}", expected="a dictionary such as {'x': (1, 3, 224, 224), 'batch': 8}")
    found: dict[str, Any] = {}
    for name, passed in shape.items():
        try:
            found[name] = _shape_passed(passed)
        except TypeError as error:
            expected = "numbers, names of sizes, or None"
            raise fault(where, f"shape={{{name!r}: {passed!r}}}: {error}", expected=expected) from error
    return found


def _shape_passed(passed: Any) -> Any:
    """Normalise a size, a shape, or a list of shapes for a sequence; None is unchanged. Raises TypeError."""
    if isinstance(passed, list | tuple | np.ndarray):
        parts = [d if isinstance(d, str) else _shape_passed(d) for d in passed]
        return parts if isinstance(passed, list) else tuple(parts)
    number = as_integer(passed)
    if number is None and passed is not None and not isinstance(passed, Var):
        raise TypeError(f"{passed!r} is no size")
    return passed if number is None else number


def _dtypes_passed(dtype: Any, where: str) -> str | Mapping[str, str] | None:
    """The user's element types. Raises `OnnxImportError` for anything but names of types."""
    names = dtype.values() if isinstance(dtype, Mapping) else () if dtype is None else (dtype,)
    if not all(isinstance(name, str) for name in names):
        raise fault(where, f"dtype= is {dtype!r}", expected="'float16', or a dictionary such as {'x': 'float16'}")
    return dtype


class _Inputs:
    def __init__(
        self,
        inputs: Sequence[ValueInfoProto],
        shape: ShapeOverride,
        dtype: DtypeOverride | None,
        where: str,
        table: SizeTable,
    ) -> None:
        self.inputs, self.where, self.table = inputs, where, table
        self.shape = shape
        self.dtype = _dtypes_passed(dtype, where)
        self.sizes: dict[str, int] = {}
        self.contradicted: set[str] = set()
        """names of dimensions that have several sizes in the user's shapes: as in onnxruntime, they may"""
        self.declared = {value.name: self._declared(value) for value in inputs}

    def types(self) -> dict[str, TensorType]:
        self._check_names()
        for name, dims in self.declared.items():
            self._fix_sizes(name, dims)
        for size in sorted(self.contradicted):
            del self.sizes[size]
            warn_once(f"{self.where}: the shapes given by shape= differ in the dimension {size!r}, which the model has "
                      "once: it is imported for both")  # fmt: skip
        return {value.name: self._type(value) for value in self.inputs}

    def _declared(self, value: ValueInfoProto) -> DeclaredShape | None:
        where = f"{self.where}: input {value.name!r}"
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value")
            if kind is None:
                raise fault(where, "it has no type", expected="a tensor type")
            raise unsupported(where, f"inputs of kind {kind} are not supported", missing=kind.removesuffix("_type"))
        return named_shape(value)

    def _check_names(self) -> None:
        shapes = [*self.declared.values(), *[passed for passed in self.shape.values() if isinstance(passed, Sequence)]]
        symbols = {d for dims in shapes if dims is not None for d in dims if isinstance(d, str)}
        for name, passed in self.shape.items():
            if isinstance(passed, int) and name in symbols:
                if passed < 0:
                    raise fault(self.where, f"shape={{{name!r}: {passed}}}", expected="a size >= 0")
                self.sizes[name] = passed
            elif isinstance(passed, int) or name not in self.declared:
                raise self._unknown_name(name, symbols)
        if isinstance(self.dtype, Mapping):
            for name in self.dtype:
                if name not in self.declared:
                    known = ", ".join(map(repr, self.declared))
                    raise fault(
                        self.where, f"dtype= names {name!r}, which is no input", expected=f"names among {known}"
                    )

    def _unknown_name(self, name: str, symbols: set[str]) -> OnnxImportError:
        """The error for a size or shape of what the model doesn't have."""
        if name in self.declared:
            problem, remedy = f"shape= gives the input {name!r} one size", f"give all: {name}: (sizes, ...)"
        elif symbols:
            problem, remedy = f"shape= names {name!r}, which is no input and no dimension", ""
        else:
            problem = f"shape= names {name!r}, which is no input, and the model's dimensions have no names"
            remedy = "give the whole shape of an input; where the model declares a size it is fixed"
        inputs = [f"{n!r} {_declared_text(dims)}" for n, dims in self.declared.items()]
        known = ", ".join([*inputs, *[f"{s!r} (a dimension)" for s in sorted(symbols)]])
        return fault(self.where, problem, expected=f"names among {known}", remedy=remedy)

    def _fix_sizes(self, name: str, dims: DeclaredShape | None) -> None:
        """Record the sizes of named dimensions that the user's shape of an input fixes."""
        passed = self.shape.get(name)
        if passed is None or isinstance(passed, int):
            return
        if dims is not None and len(passed) != len(dims):
            raise fault(
                f"{self.where}: input {name!r}",
                f"shape= gives it {len(passed)} dimensions, the model declares {len(dims)}",
                expected=f"a shape like {_shape_text(dims)}",
            )
        for declared, size in zip(dims if dims is not None else [], passed, strict=False):
            if not isinstance(declared, str) or not isinstance(size, int):
                continue
            if self.sizes.setdefault(declared, size) == size:
                continue
            if declared in self.shape:
                raise fault(
                    f"{self.where}: input {name!r}",
                    f"shape= makes the dimension {declared!r} both {self.sizes[declared]} and {size}",
                    expected="one size for one name",
                )
            self.contradicted.add(declared)

    def _type(self, value: ValueInfoProto) -> TensorType:
        where = f"{self.where}: input {value.name!r}"
        dims, passed = self.declared[value.name], self.shape.get(value.name)
        if isinstance(passed, Sequence):
            names = [g.name if isinstance(g, Var) else g for g in passed]
            dims = tuple([d if g is None else g for g, d in zip(names, dims or [None] * len(passed), strict=True)])
        if dims is None and self.table.rank is not None:
            dims = (None,) * self.table.rank
        if dims is None:
            remedy = (
                f"give its shape: shape={{{value.name!r}: (1, 3, 224, 224)}}, or in the relayc command "
                f"--shape {value.name}:1,3,224,224"
            )
            raise UnknownRankError(compose(where, "the model does not say how many dimensions it has", remedy=remedy))
        if len(dims) > MAX_RANK:
            raise fault(where, f"{len(dims)} dimensions", expected=f"at most {MAX_RANK} dimensions")
        sizes = tuple(self._dim(d, f"{value.name}_{axis}") for axis, d in enumerate(dims))
        check_shape(tuple(s for s in sizes if isinstance(s, int)), where)
        return TensorType(sizes, self._dtype(value, where))

    def _dim(self, dim: int | str | None, fallback: str) -> Dim:
        if isinstance(dim, int):
            return dim
        name = fallback if dim is None else dim
        if name in self.sizes:
            return self.sizes[name]
        return self.table.dim("_" + name if name.startswith("#") else name, unnamed=dim is None)

    def _dtype(self, value: ValueInfoProto, where: str) -> str:
        if isinstance(self.dtype, str):
            wanted = self.dtype
        else:
            wanted = None if self.dtype is None else self.dtype.get(value.name)
        if wanted is None:
            return dtype_name(value.type.tensor_type.elem_type, where)
        try:
            return parse_dtype(wanted)
        except ValueError as error:
            raise fault(where, str(error)) from error


def _shape_text(dims: Sequence[int | str | None]) -> str:
    return "(" + ", ".join("?" if d is None else str(d) for d in dims) + ")"


def _declared_text(dims: DeclaredShape | None) -> str:
    """A declared shape for errors; "?" for what is unknown."""
    return "of any shape" if dims is None else f"[{', '.join('?' if d is None else str(d) for d in dims)}]"


def declared_shape(value: ValueInfoProto) -> DeclaredShape | None:
    """The declared dimensions of a tensor; None for an unknown rank, and for what is no tensor."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple([
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None
        for dim in tensor.shape.dim
    ])  # fmt: skip


def named_shape(value: ValueInfoProto) -> DeclaredShape | None:
    """`declared_shape`, with None for dimensions that exporters give what is no name."""
    declared = declared_shape(value)
    return None if declared is None else tuple([None if d in _NO_NAMES else d for d in declared])


def graph_inputs(graph: GraphProto, passed: Container[str] = ()) -> list[ValueInfoProto]:
    """The graph's inputs, without those that have an initializer and are not among the `passed` ones."""
    provided = {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    return [value for value in graph.input if value.name not in provided or value.name in passed]
