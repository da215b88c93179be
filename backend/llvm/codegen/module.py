"""Functions and modules of the loop IR as LLVM assembly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from backend.llvm.assembly import FunctionText, ModuleText
from backend.llvm.codegen.convert import Machine
from backend.llvm.codegen.index import Index
from backend.llvm.codegen.stmt import AssertMessages, StmtEmitter
from backend.llvm.types import element_bytes, register_type
from te.errors import CompileError
from te.tir import Buffer, PrimFunc, SizeVar, Var

__all__ = ["EmittedModule", "emit_module"]


@dataclass(frozen=True, slots=True)
class EmittedModule:
    """LLVM assembly and what has to be remembered of its functions.

    `externals`: functions that it calls and does not hold: of other modules or of the process.
    `assert_messages`: for each packed function, the templates of its AssertStmts; failure k (from 1) has entry k - 1.
    """

    text: str
    names: tuple[str, ...]
    assert_messages: dict[str, list[str]] = field(default_factory=dict)
    externals: tuple[str, ...] = ()


def emit_module(functions: Iterable[PrimFunc], machine: Machine) -> EmittedModule:
    """LLVM assembly of lowered functions (flat buffers, math intrinsics already expanded) for a kind of machine.

    Raises CompileError for what the target has no code for.
    """
    module, names, messages = ModuleText(), [], {}
    for function in functions:
        try:
            own = _emit_function(module, function, machine)
        except CompileError as error:
            error.add_note(f"in function {function.name}")
            raise
        names.append(function.name)
        if own is not None:
            messages[function.name] = own
    attributes = ["attributes #0 = { nounwind noinline }", "attributes #1 = { nounwind noinline }"]
    text = "\n".join([module.text(set(names)), *attributes, ""])
    return EmittedModule(text, tuple(names), messages, module.externals(set(names)))


def _emit_function(module: ModuleText, function: PrimFunc, machine: Machine) -> AssertMessages | None:
    is_host = function.attrs.get("calling_convention") == "packed"
    messages: AssertMessages | None = [] if is_host else None
    text = FunctionText(module, function.name, "")
    emitter = StmtEmitter(text, machine, messages)
    unaliased = bool(function.attrs.get("noalias", True)) and not is_host
    parameters = ["ptr %ctx"]
    for i, var in enumerate(function.params):
        buffer = function.buffer_map.get(var)
        name = "%error" if is_host and i == len(function.params) - 1 else f"%p{i}"
        if var.dtype.is_handle:
            facts = _pointer_facts(buffer) if unaliased and buffer is not None else ""
            parameters.append(f"ptr {facts}{name}")
            emitter.env[var] = name
            if buffer is not None:
                emitter.env[buffer.data] = name
                if unaliased:
                    emitter.unaliased.add(buffer.data)
        else:
            parameters.append(f"{register_type(var.dtype)} {name}")
            _bind_scalar(emitter, var, name)
    result = "i32" if is_host else "void"
    text.set_signature(f"{result} @{function.name}({', '.join(parameters)}) #0")
    emitter.visit(function.body)
    text.effect("ret i32 0" if is_host else "ret void")
    text.finish()
    return messages


def _bind_scalar(emitter: StmtEmitter, var: Var, name: str) -> None:
    if not var.dtype.is_int:
        emitter.env[var] = name
        return
    if isinstance(var, SizeVar):
        emitter.nonnegative.add(var)
    kind = register_type(var.dtype)
    emitter.wide[var] = Index(name if kind == "i64" else emitter.text.pure(f"sext {kind} {name} to i64"), 0)


def _pointer_facts(buffer: Buffer) -> str:
    """What LLVM may know of a parameter: it alone leads to its elements, all of which can be read.

    Not its alignment: a caller may pass memory of its own (numpy aligns to 16 bytes at most), and unaligned vector
    instructions cost nothing on aligned addresses.
    """
    size = element_bytes(buffer.dtype)
    for extent in buffer.shape:
        size = size * extent if isinstance(extent, int) else 0
    known = size > 0 and buffer.strides is None
    return f"noalias dereferenceable({size}) " if known else "noalias "
