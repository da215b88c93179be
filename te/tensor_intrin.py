"""Tensor intrinsics: hand-written statements that compute a small tensor expression. (TVM: `te.decl_tensor_intrin`.)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relayc.te.errors import ScheduleError
from relayc.te.operation import ComputeOp, Operation
from relayc.te.tensor import Tensor
from relayc.te.tir.buffer import Buffer, decl_buffer
from relayc.te.tir.expr import PrimExpr
from relayc.te.tir.stmt import Evaluate, Stmt

__all__ = ["TensorIntrin", "decl_tensor_intrin"]


@dataclass(frozen=True, slots=True, eq=False)
class TensorIntrin:
    """What `op` computes, done by statements over `buffers` (one for each input and output tensor of `op`).

    `body` computes the outputs as a whole; for a reduction `reduce_init` starts them and `reduce_update` adds to them.
    """

    name: str
    op: ComputeOp
    buffers: Mapping[Tensor, Buffer]
    body: Stmt | None
    reduce_init: Stmt | None
    reduce_update: Stmt | None


def decl_tensor_intrin(
    op: Operation,
    fcompute: Callable[[Sequence[Buffer], Sequence[Buffer]], Any],
    name: str = "tensor_intrin",
    binds: Mapping[Tensor, Buffer] | None = None,
    default_buffer_params: Mapping[str, Any] | None = None,
) -> TensorIntrin:
    """Declare that ``fcompute(input buffers, output buffers)`` computes `op`, for `Stage.tensorize`.

    It returns a statement or call, or a tuple (body, reduce_init, reduce_update) of them or None for a reduction.
    Element (i, j) of a buffer is the tensor's wherever the tensor lies; code that takes a buffer's address must declare
    the buffer in `binds` with variables as strides (and elem_offset), which are then bound to the tensor's, or demand
    a compact tensor by leaving strides out. (TVM: `te.decl_tensor_intrin`.)
    """
    if not isinstance(op, ComputeOp):
        raise ScheduleError(f"decl_tensor_intrin of {op.name}: expected a compute, got a {type(op).__name__}")
    bound, params = dict(binds or {}), dict(default_buffer_params or {})
    tensors = (*op.input_tensors, *op.outputs)
    buffers = {t: bound.get(t) or decl_buffer(t.shape, t.dtype, t.name, **params) for t in tensors}
    made = fcompute([buffers[t] for t in op.input_tensors], [buffers[t] for t in op.outputs])
    parts = [_statement(name, part) for part in (made if isinstance(made, tuple | list) else (made,))]
    body, init, update = [*parts, None, None][:3]
    if body is None and (init is None or update is None):
        raise ScheduleError(f"decl_tensor_intrin {name}: the function gave no body; expected a statement, or for a "
                            "reduction the tuple (body, reduce_init, reduce_update)")  # fmt: skip
    return TensorIntrin(name, op, buffers, body, init, update)


def _statement(name: str, part: Any) -> Stmt | None:
    if part is None or isinstance(part, Stmt):
        return part
    if isinstance(part, PrimExpr):
        return Evaluate(part)
    raise ScheduleError(f"decl_tensor_intrin {name}: the function gave {part!r}; expected a statement or a call")
