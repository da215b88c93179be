"""Lowers a fused function to a loop function: computes, then a schedule, then loops."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from relayc import te
from relayc.backend.runtime.registry import get_global_func
from relayc.backend.runtime.sizes import Size
from relayc.backend.target import Target
from relayc.relay.analysis import body_order, users
from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from relayc.relay.lowering.canonical_sizes import sizes_of
from relayc.relay.lowering.in_place import in_place_inputs
from relayc.relay.lowering.kernel_passes import kernel_passes
from relayc.relay.lowering.load_scalars import LoadScalars
from relayc.relay.lowering.work import known_part, product_of, smaller, total
from relayc.relay.lowering.workspace import Workspace, lift_workspaces
from relayc.relay.op.base import OpDef
from relayc.relay.sizes import assuming, product
from relayc.relay.type import TensorType, TupleType, Type
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, PassContext, Sequential
from relayc.te.ir.decisions import Decision, record, recording
from relayc.te.tir import Buffer, PrimExpr, PrimFunc, SizeVar, decl_buffer
from relayc.te.tir.analysis import free_variables
from relayc.topi.groups import in_one_loop
from relayc.topi.registry import schedules_for
from relayc.topi.tuning import Config, Knob, Value

__all__ = ["Kernel", "Workload", "lower", "offset_name", "to_tensors"]

Verify = Callable[[PrimFunc, Target], list[str]]
"""The type of "target.verify.<kind>": returns a sentence for each limit of the target that a function exceeds."""

_NAME_LENGTH = 60


@dataclass(frozen=True)
class Workload:
    """A fused function as a unit of compilation: equal `key` means equal code."""

    function: Function
    key: str

    @staticmethod
    def of(function: Function) -> Workload:
        """The workload of a primitive function; its text is the key, since it contains types and attributes."""
        return Workload(function, str(function))

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """Names of the operators inside, producers first."""
        return tuple(e.operator.name for e in body_order(self.function) if isinstance(e, Call))

    @property
    def operator_classes(self) -> set[type[OpDef]]:
        """The definitions of the operators inside."""
        return {type(e.operator) for e in body_order(self.function) if isinstance(e, Call)}

    @cached_property
    def name(self) -> str:
        """A linker name: the operators, and a hash of the key that keeps names apart."""
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:10]
        words = "_".join(name.replace(".", "_") for name in self.operators)
        return f"fused_{words[:_NAME_LENGTH]}_{digest}"

    @property
    def largest_extents(self) -> Mapping[str, int]:
        """The largest values of the size variables that stand for extents and positions: see
        `relay.lowering.share_extents` and `share_positions`."""
        return dict(self.function.attrs.get("extents", ()))

    @cached_property
    def operations(self) -> Size:
        """Multiply-adds, counted as two operations, by the function's size variables."""
        calls = [e for e in body_order(self.function) if isinstance(e, Call)]
        counts = [each for call in calls for each in call.operator.multiplications([a.ty for a in call.args], call.ty)]
        return total([product_of((2, *extents)) for extents in counts])

    @cached_property
    def traffic(self) -> Size:
        """Bytes read and written when every result, and the part of every argument that is used, is accessed once, by
        the function's size variables."""
        used = users(self.function.body)
        reads = [_bytes_read(p, used.get(id(p), [])) for p in self.function.params]
        return total([*reads, _bytes(self.function.body.ty)])

    @property
    def flops(self) -> int:
        """`operations` of static extents; those of symbolic ones count as none."""
        return known_part(self.operations)

    @property
    def nbytes(self) -> int:
        """`traffic` of tensors of static shape."""
        return known_part(self.traffic)

    @property
    def multiplied(self) -> str:
        """The element type that its first contraction multiplies; "" without one."""
        for e in body_order(self.function):
            types = [a.ty for a in e.args] if isinstance(e, Call) else []
            if isinstance(e, Call) and e.operator.multiplications(types, e.ty):
                return e.operator.multiplied(types)
        return ""


def _bytes(ty: Type) -> Size:
    return total([product_of((each.dtype.nbytes, *each.shape)) for each in tensor_types(ty)])


def _bytes_read(param: Var, used: Sequence[Expr]) -> Size:
    """The bytes read of an argument; for an argument of gathers only, the bytes of the gathered elements."""
    whole = _bytes(param.ty)
    picked: list[Size] = []
    for user in used:
        picks = isinstance(user, Call) and (user.operator.looks_up or user.operator.permutes_elements)
        if not isinstance(user, Call) or not picks or user.args[0] is not param:
            return whole
        picked.append(_bytes(user.ty))
    return smaller(whole, total(picked)) if used else whole


@dataclass(frozen=True)
class Kernel:
    """A lowered workload.

    `workspaces`: the scratch buffers that are its parameters after its results. `in_place`: positions of the inputs
    that its result may overwrite. `sizes`: the size variables that are its last parameters. `decisions`: why it has its
    schedule, with the option "relay.explain".
    """

    name: str
    function: PrimFunc
    workspaces: tuple[Workspace, ...]
    in_place: tuple[int, ...]
    sizes: tuple[str, ...]
    decisions: tuple[Decision, ...] = ()


def tensor_types(ty: Type) -> list[TensorType]:
    """The tensors of a value, tuples flattened."""
    if isinstance(ty, TensorType):
        return [ty]
    assert isinstance(ty, TupleType)
    return [t for f in ty.fields for t in tensor_types(f)]


def _scalar(constant: Constant) -> te.Tensor:
    if constant.data.size != 1:
        raise CompileError(f"a constant of shape {constant.data.shape} stands inside a fused function; only scalars "
                           "may, others are arguments")  # fmt: skip
    value = te.const(constant.data.reshape(-1)[0].item(), constant.dtype)
    return te.compute(constant.data.shape, lambda *_: value, name="constant", tag="elemwise")


def to_tensors(function: Function) -> tuple[list[te.Tensor], list[te.Tensor]]:
    """The inputs and outputs of a primitive function as tensor expressions."""
    values: dict[int, te.Tensor | Sequence[te.Tensor]] = {}
    inputs: list[te.Tensor] = []
    for param in function.params:
        ty = param.tensor_type
        placeholder = te.placeholder(ty.shape, ty.dtype, name=_identifier(param.name))
        inputs.append(placeholder)
        values[id(param)] = placeholder
    for expr in body_order(function):
        if id(expr) not in values:
            values[id(expr)] = _evaluate(expr, values)
    result = values[id(function.body)]
    return inputs, [result] if isinstance(result, te.Tensor) else list(result)


def _evaluate(expr: Expr, values: dict[int, Any]) -> Any:
    match expr:
        case Constant():
            return _scalar(expr)
        case Tuple():
            return [values[id(f)] for f in expr.fields]
        case TupleGetItem():
            return values[id(expr.tuple_value)][expr.index]
        case Call():
            return expr.operator.compute(*[values[id(a)] for a in expr.args])
        case Var():
            raise CompileError(f"variable {expr.name} in a fused function is none of its parameters")
        case _:
            raise CompileError(f"a fused function can't hold a {type(expr).__name__}")


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name) or "p"


def offset_name(position: int) -> str:
    """The size variable of a kernel whose multiple the argument at `position` begins behind the address passed."""
    return f"#offset{position}"


def _strided_buffers(function: Function, tensors: Sequence[te.Tensor]) -> dict[te.Tensor, Buffer]:
    """Buffers for the arguments that are not contiguous, or begin behind the address that is passed for them.

    Schedules see these strides as an attribute of the operation, "memory_strides", by the number of its output. For
    offsets see `relay.lowering.buffer_aliasing.note_strides`.
    """
    buffers: dict[te.Tensor, Buffer] = {}
    all_strides = function.attrs.get("strides", ())
    units = function.attrs.get("offsets", (None,) * len(all_strides))
    size = next(iter(sizes_of(function).values()), SizeVar("n"))  # a static kernel has sizes of the default type
    for i, (tensor, strides, unit) in enumerate(zip(tensors, all_strides, units, strict=False)):
        if strides is not None:
            tensor.op.attrs.setdefault("memory_strides", {})[tensor.value_index] = strides
        if strides is not None or unit is not None:
            offset = 0 if unit is None else product((unit, SizeVar(offset_name(i), size.dtype)))
            buffers[tensor] = decl_buffer(
                tensor.shape, tensor.dtype, tensor.name, strides=strides, elem_offset=offset
            )
    return buffers


def lower(workload: Workload, target: Target, config: Config | None = None) -> Kernel:
    """Lower the operators' computes by the anchor's schedule with the parameters of `config` to loops.

    If the target has limits to verify ("target.verify.<kind>"), the first schedule that keeps them is taken. Raises
    CompileError with the group's operators and their origin in the model.
    """
    config = Config() if config is None else config
    with assuming():  # the equalities of sizes that the model checks are assumed to hold
        if not PassContext.current().option("relay.explain"):
            return _lower(workload, target, config)
        with recording() as decisions:
            kernel = _lower(workload, target, config)
    return replace(kernel, decisions=(*decisions, *map(_parameter, config.chosen())))


def _parameter(chosen: tuple[Knob, Value]) -> Decision:
    """A parameter of a schedule as a decision: its value, the cost model's, and the others that it may have."""
    knob, value = chosen
    others = ", ".join(str(other) for other in knob.candidates if other != value)
    return Decision(f"parameter {knob.name}", str(value), facts={"cost_model": knob.default, "others": others})


def _lower(workload: Workload, target: Target, config: Config) -> Kernel:
    try:
        collapsed = Sequential(kernel_passes(target), "collapse")(IRModule({workload.name: workload.function}))
        inputs, outputs = to_tensors(collapsed[workload.name])
        if target.device_kind == "cpu":
            outputs = in_one_loop(outputs)
        with config:
            function, workspaces = _first_that_fits(workload, inputs, outputs, target)
    except Exception as error:
        error.add_note(f"while lowering the fused group {workload.operators} of type {workload.function.ty}")
        raise
    in_place = in_place_inputs(function, len(inputs)) if len(outputs) == 1 and "gpu" not in target.keys else ()
    if in_place:
        function = function.with_attr("noalias", False).with_attr("overlapping", (*in_place, len(inputs)))
    if "cpu" in target.keys:
        function = LoadScalars(len(inputs))(IRModule({workload.name: function}))[workload.name]
    sizes = tuple(p.name for p in function.params if isinstance(p, SizeVar))
    return Kernel(workload.name, function, tuple(workspaces), in_place, sizes)


def size_parameters(function: PrimFunc) -> tuple[SizeVar, ...]:
    """The size variables used by the body or by the shapes of the arguments, which the kernel takes as integer
    parameters."""
    dims = [d for buffer in function.buffer_map.values() for d in buffer.shape if isinstance(d, PrimExpr)]
    used = [v for part in (*dims, function.body) for v in free_variables(part) if isinstance(v, SizeVar)]
    return tuple(dict.fromkeys(used))


def _first_that_fits(
    workload: Workload, inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target
) -> tuple[PrimFunc, list[Workspace]]:
    """The loops of the first schedule whose kernels the target can run, and their workspaces."""
    verify: Verify | None = get_global_func(f"target.verify.{target.kind.name}", allow_missing=True)
    rejected: list[str] = []
    binds = _strided_buffers(workload.function, [*inputs, *outputs])
    has_sizes = bool(sizes_of(workload.function)) or "offsets" in workload.function.attrs
    for number, schedule in enumerate(schedules_for(outputs, target), 1):
        module = te.lower(schedule, [*inputs, *outputs], name=workload.name, binds=binds)
        function, workspaces = lift_workspaces(module[workload.name].with_attr("packed_api", False))
        function = function.with_attr("target", target)  # verified and built as one function
        if has_sizes:
            function = function.replace(params=(*function.params, *size_parameters(function)))
        broken = [] if verify is None else verify(function, target)
        if not broken:
            return function, workspaces
        rejected.append("; ".join(broken))
        record(Decision("limits of the target", "", [(f"schedule {number}", rejected[-1])]))
    tries = "".join(f"\n  schedule {i}: {why}" for i, why in enumerate(rejected, 1))
    raise CompileError(f"no schedule of this group keeps the limits of {target}:{tries}")
