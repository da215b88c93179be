"""ToMixedPrecision: float32 programs compute in half precision where that is safe and pays.

Each operator declares its type (`OpDef.mixed_precision`): contractions always take the low-precision type, operators
whose values leave its range never do, and all others follow their inputs. Casts are made where the two meet, one for
each value and type; a value keeps the type it was computed in, so two casts never follow each other. Constants are
rounded here, once.

With `of_weights` only products with constant weights take the low-precision type, and give float32, as do all other
operators: for processors whose gain is in the products (vdpbf16ps), and whose caches hold what is between them. Images
of more bytes than `round_images_above` that convolutions read rounded are stored rounded, for residual connections too.

Sums stay in float32: contractions, reductions and normalisations accumulate in float32 and round their results. The
pass costs one rounding (2^-11 relative for float16, 2^-8 for bfloat16) of each stored value and weight. TVM:
`relay.transform.ToMixedPrecision`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import ml_dtypes  # pyright: ignore[reportMissingImports]
import numpy as np

from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, numpy_dtype
from relayc.relay.op.base import MixedPrecision, OpDef, get_op, make_call
from relayc.relay.op.nn.conv import Conv1D, Conv2D, Conv3D
from relayc.relay.op.nn.dense import BatchMatmul, Dense
from relayc.relay.op.nn.pool import MaxPool
from relayc.relay.stored import fetched
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.type import TensorType, TupleType, Type
from relayc.te.dtype import DType, dtype
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext, post_order

__all__ = ["MIXED_PRECISION_TYPES", "ToMixedPrecision"]

MIXED_PRECISION_TYPES = ("float16", "bfloat16")
_WIDE = dtype("float32")

PassContext.declare_option(
    "relay.ToMixedPrecision.dtype", "", "float16 or bfloat16: relay.build converts models to mixed precision",
    choices=("", *MIXED_PRECISION_TYPES),
)


@dataclass(frozen=True)
class ToMixedPrecision(FunctionPass):
    """float32 computations in `mixed_precision_type`, "float16" or "bfloat16".

    `always` and `never` name operators whose declaration is overridden. With `of_weights` only products with constant
    weights are converted, and give float32. Inputs keep their types, and so do outputs with `keep_orig_output_dtype`.
    Run it after batch normalisations are folded and decomposed normalisations recognised, as `default_pipeline` does
    with the option "relay.ToMixedPrecision.dtype". Raises CompileError for another type, and for unknown operators.
    """

    mixed_precision_type: str = "float16"
    always: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    keep_orig_output_dtype: bool = True
    of_weights: bool = False
    round_images_above: float = math.inf

    opt_level: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.mixed_precision_type not in MIXED_PRECISION_TYPES:
            raise CompileError(f"mixed precision in {self.mixed_precision_type!r}; expected one of "
                               f"{', '.join(MIXED_PRECISION_TYPES)}")  # fmt: skip
        for name in (*self.always, *self.never):
            get_op(name)

    def transform(self, function: Function, context: PassContext) -> Function:
        return _Converter(self).convert(function)

    def precision_of(self, op: OpDef) -> MixedPrecision:
        """The precision of an operator under these settings."""
        if op.name in self.never:
            return MixedPrecision.NEVER
        return MixedPrecision.ALWAYS if op.name in self.always else op.mixed_precision


class _Converter:
    """Walks a function once. `done` holds each expression computed in its new type, `casts` its other types."""

    def __init__(self, settings: ToMixedPrecision) -> None:
        self.settings = settings
        self.narrow = dtype(settings.mixed_precision_type)
        self.done: dict[int, Expr] = {}
        self.casts: dict[tuple[int, DType], Expr] = {}

    def convert(self, function: Function) -> Function:
        order = cast("list[Expr]", list(post_order(function)))
        stored_narrow = self.images_stored_narrow(order) if self.settings.of_weights else set[int]()
        for e in order:
            if e is not function:
                self.done[id(e)] = self.stored_narrow(e) if id(e) in stored_narrow else self.visit(e)
        body = self.done[id(function.body)]
        if self.settings.keep_orig_output_dtype:
            body = self.restored(function.body)
        return function if body is function.body else function.with_body(body)

    def images_stored_narrow(self, order: Sequence[Expr]) -> set[int]:
        """The ids of large float32 results that both low-precision convolutions and other operators read, and of
        results of max pooling that only the former do."""
        convolved, others, limit = set[int](), set[int](), self.settings.round_images_above
        calls = [e for e in order if isinstance(e, Call)]
        for call in calls:
            narrow = isinstance(call.op, Conv1D | Conv2D | Conv3D) and self.takes_narrow(call, call.op)
            (convolved if narrow else others).update(id(a) for a in call.args)
        large = {id(e) for e in calls if _float32_bytes(e.ty) > limit}
        pooled = {id(e) for e in calls if isinstance(e.op, MaxPool) and e.dtype == _WIDE}
        grouped = {id(field) for e in order if isinstance(e, Tuple) for field in e.fields}
        return convolved & (large & others | pooled - others - grouped)

    def stored_narrow(self, e: Expr) -> Expr:
        """`e` computed and rounded, in float32: low-precision readers take the rounded value itself.

        The largest of rounded values is the rounded largest one, so max pooling reads rounded values.
        """
        if isinstance(e, Call) and isinstance(e.op, MaxPool):
            narrow = e.rebuild(lambda child: child if child is e.op else self.as_narrow(self.restored(child)))
        else:
            narrow = self.as_narrow(self.visit(e))
        wide = self.cast_to(narrow, _WIDE)
        self.casts[id(wide), self.narrow] = narrow
        return wide

    def visit(self, e: Expr) -> Expr:
        if isinstance(e, Tuple | TupleGetItem):
            return e.rebuild(lambda child: self.done[id(child)])
        if isinstance(e, Call) and isinstance(e.op, OpDef) and self.takes_narrow(e, e.op):
            if self.settings.of_weights:
                operands = [self.as_narrow(self.done[id(a)]) for a in e.args]
                return make_call(e.op.replace(out_dtype=str(_WIDE)), operands, e.span)
            first = e.args[: e.op.num_narrowed_inputs]
            narrow = [self.as_narrow(self.done[id(a)]) for a in first]
            return make_call(e.op, [*narrow, *map(self.restored, e.args[len(first) :])], e.span)
        return e.rebuild(lambda child: self.restored(child) if isinstance(child, Expr) else child)

    def takes_narrow(self, call: Call, op: OpDef) -> bool:
        """Should the call be computed in the low-precision type?"""
        precision = self.settings.precision_of(op)
        if precision is MixedPrecision.NEVER or not any(_holds(a.ty, _WIDE) for a in call.args):
            return False
        if self.settings.of_weights:
            return _multiplies_weights(call, op)
        return precision is MixedPrecision.ALWAYS or any(_holds(self.done[id(a)].ty, self.narrow) for a in call.args)

    def as_narrow(self, e: Expr) -> Expr:
        return self.cast_between(e, _WIDE, self.narrow)

    def restored(self, e: Expr) -> Expr:
        """The converted expression, cast back to the types of `e`."""
        return self.as_type(self.done.get(id(e), e), e.ty)

    def as_type(self, e: Expr, wanted: Type) -> Expr:
        if e.ty is wanted:
            return e
        if isinstance(wanted, TupleType):
            return Tuple(tuple([self.as_type(f, t) for f, t in zip(_fields(e), wanted.fields, strict=True)]))
        assert isinstance(wanted, TensorType)
        return self.cast_to(e, wanted.dtype)

    def cast_between(self, e: Expr, source: DType, target: DType) -> Expr:
        """`e` with tensors of type `source` cast to `target`, all others left alone."""
        if not _holds(e.ty, source):
            return e
        if isinstance(e.ty, TupleType):
            return Tuple(tuple([self.cast_between(f, source, target) for f in _fields(e)]))
        return self.cast_to(e, target)

    def cast_to(self, e: Expr, target: DType) -> Expr:
        if e.dtype == target:
            return e
        key = (id(e), target)
        if key not in self.casts:
            self.casts[key] = _rounded(e, target) if isinstance(e, Constant) else make_call(
                "cast", (e,), e.span, dtype=str(target))  # fmt: skip
        return self.casts[key]


def _multiplies_weights(call: Call, op: OpDef) -> bool:
    """Is this a product of float32 with a constant matrix, or a convolution in one group with constant filters?"""
    weight = call.args[1] if len(call.args) == 2 else None
    if not isinstance(weight, Constant) or call.dtype != _WIDE:
        return False
    match op:
        case Conv1D() | Conv2D() | Conv3D():
            return op.groups == 1
        case BatchMatmul():
            return len(weight.shape) == 2 and not op.transpose_a
        case _:
            return isinstance(op, Dense)


def _float32_bytes(ty: Type) -> int:
    """Bytes of a tensor of float32 and of known size; 0 for others."""
    return ty.size * _WIDE.nbytes if isinstance(ty, TensorType) and ty.dtype == _WIDE and ty.size is not None else 0


def _holds(ty: Type, element: DType) -> bool:
    """Is there a tensor of type `element` in a value?"""
    if isinstance(ty, TupleType):
        return any(_holds(f, element) for f in ty.fields)
    return isinstance(ty, TensorType) and ty.dtype == element


def _fields(e: Expr) -> Iterable[Expr]:
    if isinstance(e, Tuple):
        return e.fields
    assert isinstance(e.ty, TupleType)
    return [TupleGetItem(e, i) for i in range(len(e.ty.fields))]


def _rounded(constant: Constant, target: DType) -> Constant:
    """The constant rounded to another type.

    Finite values stay finite: a mask of huge negative values must not become one of infinities, which give NaN where a
    whole row is masked.
    """
    data, kind = fetched(constant), numpy_dtype(str(target))
    with np.errstate(over="ignore"):
        rounded = data.astype(kind)
    lost = np.isinf(rounded)
    if lost.any():
        limit = np.asarray(ml_dtypes.finfo(kind).max, kind)
        rounded = np.where(lost & np.isfinite(data), np.where(data < 0, -limit, limit), rounded)
    return Constant(rounded, span=constant.span)
