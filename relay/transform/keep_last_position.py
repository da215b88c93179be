"""KeepLastPosition: logits of the last position only, without computing the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from relayc.relay.expr import Call, Expr, Function, Tuple, const
from relayc.relay.op.base import OpDef, OpPattern, make_call
from relayc.relay.op.nn.dense import BatchMatmul, Dense
from relayc.relay.op.nn.norm import LayerNorm, RMSNorm
from relayc.relay.op.reduce import Reduction
from relayc.relay.sizes import dims_equal
from relayc.relay.type import TensorType
from relayc.relay.versions import versions_of, with_versions, without_versions
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, Pass, PassContext, post_order
from relayc.te.tir import SizeVar

__all__ = ["KeepLastPosition", "find_logits"]

_AXIS, _RANK = 1, 3
"""The axis of positions, and the rank of what has one: (batch, positions, channels)."""


@dataclass(frozen=True)
class KeepLastPosition(Pass):
    """The outputs named in `outputs`, (batch, positions, ...), become (batch, 1, ...): their last position.

    The slice moves to the inputs of products, normalisations and elementwise operators, so that a decoder computes the
    logits of one position of a prompt. Raises CompileError for an unknown output, and for one of another rank than 3.
    """

    outputs: tuple[str, ...] = ()

    opt_level: ClassVar[int] = 0

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        if not self.outputs:
            return module
        versions = {name: self._changed(version) for name, version in versions_of(module).items()}
        return with_versions(without_versions(module).with_function("main", self._changed(module)), versions)

    def _changed(self, module: IRModule) -> Function:
        main = cast(Function, module["main"])
        names: Sequence[str] = module.attrs.get("output_names", ())
        fields = main.results
        for name in self.outputs:
            if name not in names:
                known = ", ".join(names) or "without names"
                raise CompileError(f"the last position of output {name!r} is wanted; the outputs are: {known}")
            ty = fields[names.index(name)].ty
            if not isinstance(ty, TensorType) or ty.ndim != _RANK:
                raise CompileError(
                    f"the last position of output {name!r} is wanted, {ty}; expected (batch, positions, n)"
                )
        kept = _last_positions(fields, [names.index(name) for name in self.outputs])
        body = Tuple(tuple(kept)) if isinstance(main.body, Tuple) else kept[0]
        return Function(main.params, body, main.attrs, span=main.span)


def find_logits(module: IRModule) -> str | None:
    """The output "logits", or else the only one of floats and shape (batch, positions, n), n fixed; None without."""
    names: Sequence[str] = module.attrs.get("output_names", ())
    main = cast(Function, module["main"])
    found = [name for name, e in zip(names, main.results, strict=False) if _is_logits(e)]
    return "logits" if "logits" in found else found[0] if len(found) == 1 else None


def _is_logits(e: Expr) -> bool:
    if not isinstance(e.ty, TensorType) or len(e.shape) != _RANK or "float" not in str(e.ty.dtype):
        return False
    return isinstance(e.shape[_AXIS], SizeVar) and isinstance(e.shape[2], int)


def _last_positions(outputs: Sequence[Expr], chosen: Sequence[int]) -> list[Expr]:
    """The outputs, those at `chosen` with their last position only.

    What only they need is computed for this position; what other results need as well is computed once, and sliced.
    """
    whole = [e for i, e in enumerate(outputs) if i not in chosen]
    order = cast("list[Expr]", list(post_order(outputs)))
    readers: dict[int, list[Expr]] = {id(e): [] for e in order}
    for e in order:
        for read in e.node_children():
            readers[id(read)].append(e)
    narrow = {id(outputs[i]) for i in chosen} - {id(e) for e in whole}
    for e in reversed(order):
        if id(e) in narrow or (readers[id(e)] and all(id(r) in narrow for r in readers[id(e)])):
            (narrow.add if _keeps_positions(e) else narrow.discard)(id(e))
    last: dict[int, Expr] = {}
    for e in order:
        if id(e) in narrow:
            call = cast(Call, e)
            last[id(e)] = make_call(call.operator, [_last(a, last) for a in call.args], call.span)
    return [_last(e, last) if i in chosen else e for i, e in enumerate(outputs)]


def _last(e: Expr, known: dict[int, Expr]) -> Expr:
    """The last position of e, if e has positions: operands of a lower rank, or with one position, broadcast."""
    if len(e.shape) != _RANK or dims_equal(e.shape[_AXIS], 1):
        return e
    if id(e) not in known:
        known[id(e)] = make_call("take", (e, const([-1], "int64")), e.span, axis=_AXIS, mode="numpy")
    return known[id(e)]


def _keeps_positions(e: Expr) -> bool:
    """Does position i of a result with positions depend on position i of the operands only?"""
    if not isinstance(e, Call) or not isinstance(e.op, OpDef) or not e.args:
        return False
    if not isinstance(e.ty, TensorType) or len(e.shape) != _RANK or dims_equal(e.shape[_AXIS], 1):
        return False
    if isinstance(e.op, BatchMatmul):
        return not e.op.transpose_a and len(e.args[1].shape) == 2  # a matrix of weights
    attributes = e.op.attributes()
    if attributes.get("axis", -1) not in (-1, _RANK - 1, (-1,), (_RANK - 1,)) or "shape" in attributes:
        return False
    if e.op.pattern <= OpPattern.BROADCAST:
        return not any(map(_has_positions_first, e.args))
    return isinstance(e.op, Dense | LayerNorm | RMSNorm | Reduction) and len(e.args[0].shape) == _RANK


def _has_positions_first(operand: Expr) -> bool:
    """Does an operand of a broadcast have positions along its first axis, for it has no batch?"""
    return len(operand.shape) == _RANK - 1 and not dims_equal(operand.shape[0], 1)
