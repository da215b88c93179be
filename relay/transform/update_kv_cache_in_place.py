"""UpdateKVCacheInPlace: the executor keeps a decoder's KV caches, and appends to them in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, cast

from relayc.relay.bind_sizes import bind_sizes
from relayc.relay.expr import Call, Expr, Function, Tuple, Var
from relayc.relay.op import cache as cached
from relayc.relay.op.common import with_dim
from relayc.relay.op.elementwise import cast as cast_elements
from relayc.relay.op.joining import Concatenate
from relayc.relay.sizes import add_sizes, dims_equal, size_variables
from relayc.relay.type import TensorType
from relayc.relay.versions import EQUAL_SIZES, versions_of, without_versions
from relayc.te.dtype import DType
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, Pass, PassContext, post_order, rewrite_dag
from relayc.te.tir import Dim, SizeVar

__all__ = ["CAPACITY", "UpdateKVCacheInPlace", "find_kv_caches"]

CAPACITY = "#capacity"
"""The size variable of a cache's capacity in rows."""


@dataclass(frozen=True)
class UpdateKVCacheInPlace(Pass):
    """Inputs named in `caches` become KV caches; the outputs they name, the caches with new rows appended, are dropped.

    A cache is concatenated with the rows that a run adds along one dimension, or updated with them by `cache.update`.
    The input is replaced by a buffer with spare capacity, to which the new rows are appended (`cache.append`), and of
    which the filled part is read. All have one length: sizes that an exporter names for each are one size variable, and
    the total that `cache.update` is told is checked to be that length and the new rows. Caches follow the other
    parameters; the function's attribute "caches" has (name, axis, rows before, rows added) of each. The result has one
    version: that of equal sizes, unless it holds for empty caches only. Caches of float32 are stored as `stored`.
    Raises CompileError for an output that is not its input with rows appended.
    """

    caches: Mapping[str, str] = field(default_factory=dict[str, str])
    stored: str = "float32"

    opt_level: ClassVar[int] = 0

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        if not self.caches:
            return module
        module = _version(module, self.caches)
        names: list[str] = list(module.attrs.get("output_names", ()))
        for name in self.caches.values():
            if name not in names:
                known = ", ".join(names) or "without names"
                raise CompileError(f"caches name the output {name!r}; the outputs are: {known}")
        main = _with_one_length(cast(Function, module["main"]), self.caches, names)
        changed = _Rewriter(main, self.caches, names, self.stored).function()
        kept = [name for name in names if name not in self.caches.values()]
        return IRModule({**module.functions, "main": changed}, {**module.attrs, "output_names": kept})


def _version(module: IRModule, caches: Mapping[str, str]) -> IRModule:
    """The version of the model that is compiled with caches.

    One that takes two lengths of the inputs to be equal, as of a mask and of new tokens, holds for empty caches only.
    Lengths are symbolic sizes behind the first dimension.
    """
    equal = versions_of(module).get(EQUAL_SIZES)
    if equal is None:
        return without_versions(module)
    merged: dict[str, str] = {}
    for old, new in zip(module["main"].params, equal["main"].params, strict=True):
        if old.name not in caches and isinstance(old.ty, TensorType) and isinstance(new.ty, TensorType):
            for a, b in zip(old.ty.shape[1:], new.ty.shape[1:], strict=True):
                if isinstance(a, SizeVar) and isinstance(b, SizeVar) and merged.setdefault(b.name, a.name) != a.name:
                    return without_versions(module)
    return equal


def find_kv_caches(module: IRModule) -> dict[str, str]:
    """Every input that an output extends by one tensor, and that output: the pairs that `caches` may name.

    An input that something else reads, too, is none of them, nor is one that gets rows of which only a run's values
    tell how many. All get as many rows: where some get a symbolic number, those that get a number of their own are
    left out, and else those that get another number than the first.
    """
    main = cast(Function, module["main"])
    readers = Counter(id(arg) for e in post_order(main.body) if isinstance(e, Call) for arg in e.args)
    params = {id(p): p for p in main.params if readers[id(p)] == 1}
    found: dict[str, str] = {}
    rows: dict[str, Dim] = {}
    for name, output in zip(module.attrs.get("output_names", ()), main.results, strict=False):
        append = _append_of(output)
        parameter = append and params.get(id(append.prefix))
        if append and parameter and isinstance(parameter.shape[append.axis], SizeVar) and _tells_rows(main, append):
            found.setdefault(parameter.name, name)
            rows.setdefault(parameter.name, append.rows)
    symbolic = [n for n in rows.values() if not isinstance(n, int)]
    common = symbolic or list(rows.values())[:1]
    return {parameter: output for parameter, output in found.items() if rows[parameter] in common}


def _tells_rows(main: Function, append: _Append) -> bool:
    """Whether the sizes of inputs tell how many rows are appended."""
    shapes = [p.ty.shape for p in main.params if isinstance(p.ty, TensorType)]
    return size_variables([append.rows]).keys() <= {d.name for shape in shapes for d in shape if isinstance(d, SizeVar)}


def _with_one_length(main: Function, caches: Mapping[str, str], names: Sequence[str]) -> Function:
    """The function with one size variable for the rows of all caches, which an executor appends to together.

    Other symbolic sizes of a cache that those of its new rows tell are bound to them.
    """
    params = {p.name: p for p in main.params}
    lengths: list[SizeVar] = []
    sizes: dict[str, Dim] = {}
    for name, output in caches.items():
        append, param = _append_of(main.results[names.index(output)]), params.get(name)
        if append and param and append.prefix is param and isinstance(length := param.shape[append.axis], SizeVar):
            lengths.append(length)
            for axis, (d, n) in enumerate(zip(param.shape, append.added.shape, strict=True)):
                if axis != append.axis and isinstance(d, SizeVar) and isinstance(n, int):
                    sizes[d.name] = n
    if len({length.name for length in lengths}) > 1:
        sizes.update({length.name: lengths[0] for length in lengths})
    if not sizes:
        return main
    bound = bind_sizes(main, sizes)
    attrs = dict(bound.attrs)
    if "size_checks" in attrs:
        attrs["size_checks"] = tuple([(a, b, s) for a, b, s in attrs["size_checks"] if not dims_equal(a, b)])
    return Function(bound.params, bound.body, attrs, span=bound.span)


class _Append(NamedTuple):
    """A tensor, the tensor that is appended to it, and the axis.

    `begins` are the positions of the new rows by entry, `total` the size that says how many rows the result holds;
    None where the tensors are concatenated.
    """

    prefix: Expr
    added: Expr
    axis: int
    begins: Expr | None = None
    total: Dim | None = None

    @property
    def rows(self) -> Dim:
        """How many rows are appended."""
        return self.added.shape[self.axis]


def _append_of(e: Expr) -> _Append | None:
    """The append that `e` is, if it is one."""
    if not isinstance(e, Call):
        return None
    if isinstance(e.op, cached.Update):
        prefix, added, begins = e.args
        return _Append(prefix, added, 2, begins, e.op.total)
    if not isinstance(e.op, Concatenate) or len(e.args) != 2:
        return None
    prefix, added = e.args
    return _Append(prefix, added, e.op.axis % len(e.shape))


@dataclass(frozen=True, slots=True)
class _Cache:
    """The parameter that replaces an input, and the rows that a run appends to it."""

    param: Var
    append: _Append


class _Rewriter:
    """Rewrites one function."""

    def __init__(self, function: Function, caches: Mapping[str, str], outputs: Sequence[str], stored: str) -> None:
        self.old, self.outputs, self.names, self.stored = function, outputs, caches, stored
        self.fields = function.results
        params = {p.name: p for p in function.params}
        strange = [name for name in caches if name not in params]
        if strange:
            raise CompileError(f"caches name {', '.join(strange)}, no inputs; the inputs are: {', '.join(params)}")
        self.capacity = SizeVar(CAPACITY)
        self.caches = {id(params[name]): self._cache(params[name], output) for name, output in caches.items()}

    def _cache(self, parameter: Var, output: str) -> _Cache:
        what = f"input {parameter.name!r} can't be a cache of output {output!r}"
        append = _append_of(self.fields[self.outputs.index(output)])
        if append is None:
            raise CompileError(f"{what}: expected the input with one tensor appended")
        if append.prefix is not parameter or not isinstance(parameter.shape[append.axis], SizeVar):
            raise CompileError(f"{what}: expected the input, of symbolic length, with rows appended")
        if not _tells_rows(self.old, append):
            raise CompileError(f"{what}: expected as many rows appended as sizes of inputs tell, not {append.rows}")
        kind = self.stored if parameter.dtype == "float32" else parameter.dtype
        roomy = TensorType(with_dim(parameter.shape, append.axis, self.capacity), kind)
        return _Cache(Var(parameter.name, roomy, span=parameter.span), append)

    def function(self) -> Function:
        """The function with its caches after the other parameters, and without the outputs that are caches."""
        dropped = {self.outputs.index(name) for name in self.names.values()}
        kept = [i for i in range(len(self.fields)) if i not in dropped]
        body = cast(Tuple, rewrite_dag(Tuple(tuple([self.fields[i] for i in kept])), self._append))
        read = [cast(Var, e).name for e in post_order(body) if id(e) in self.caches]
        if read:
            raise CompileError(f"caches {', '.join(read)} are read before anything is appended to them")
        inputs = [p for p in self.old.params if id(p) not in self.caches]
        records = [_record(cache) for cache in self.caches.values()]
        attrs = {**self.old.attrs, "caches": tuple(records)}
        checks = [check for cache in self.caches.values() for check in _checks(cache)]
        attrs["size_checks"] = tuple(dict.fromkeys([*attrs.get("size_checks", ()), *checks]))
        if "bound_sizes" in attrs:
            bound = cast("Sequence[tuple[str, int, int, str]]", attrs["bound_sizes"])
            attrs["bound_sizes"] = tuple((name, kept.index(at), element, s) for name, at, element, s in bound)
        result = body if len(kept) > 1 else body.fields[0]
        return Function((*inputs, *[c.param for c in self.caches.values()]), result, attrs, span=self.old.span)

    def _append(self, e: Expr) -> Expr:
        append = _append_of(e)
        cache = append and self.caches.get(id(append.prefix))
        if not append or not cache or append.axis != cache.append.axis:
            return e
        prefix, added, axis, begins, total = append
        whole = cached.append(cache.param, _as(cache.param.dtype, added), prefix.shape[axis], axis, begins)
        return _as(e.dtype, cached.filled(whole, e.shape[axis] if total is None else total, axis))


def _as(dtype: DType, x: Expr) -> Expr:
    """`x` with this element type."""
    return x if x.dtype == dtype else cast_elements(x, str(dtype))


def _record(cache: _Cache) -> tuple[str, int, Dim, Dim]:
    """The attribute of a cache: (name, axis, rows before, rows added)."""
    prefix, _, axis, *_ = cache.append
    return cache.param.name, axis, prefix.shape[axis], cache.append.rows


def _checks(cache: _Cache) -> list[tuple[Dim, Dim, str]]:
    """The size check that the rows which an update is told are those of the cache and the new ones."""
    prefix, _, axis, _, total = cache.append
    if total is None:
        return []
    kept = add_sizes(prefix.shape[axis], cache.append.rows)
    return [(total, kept, "the positions that the executor keeps and new ones")]
