"""Functions and modules of the loop IR as LLVM assembly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from relayc.backend.llvm.assembly import FunctionText, ModuleText
from relayc.backend.llvm.codegen.convert import Machine
from relayc.backend.llvm.codegen.index import Index
from relayc.backend.llvm.codegen.nontemporal import LINE_BYTES, nontemporal_buffers
from relayc.backend.llvm.codegen.stmt import AssertMessages, StmtEmitter
from relayc.backend.llvm.types import element_bytes, register_type
from relayc.te.errors import CompileError
from relayc.te.tir import Buffer, PrimFunc, SizeVar, Var

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
    """Add the function, and a twin that stores results past the caches where they are larger than those."""
    is_host = function.attrs.get("calling_convention") == "packed"
    twin = f"{function.name}.streaming"
    wanted = frozenset[Var]() if is_host else nontemporal_buffers(function, machine.caches)
    streamed = _emit_twin(module, function, machine, twin, wanted) if wanted else wanted
    emitter, parameters = _begin(module, function, machine, function.name)
    text = emitter.text
    text.set_signature(f"{'i32' if is_host else 'void'} @{function.name}({', '.join(parameters)}) #0")
    if streamed:
        _call_when_aligned(text, [emitter.env[v] for v in emitter.env if v in streamed], twin, parameters)
    emitter.visit(function.body)
    text.effect("ret i32 0" if is_host else "ret void")
    text.finish()
    return emitter.messages


def _emit_twin(
    module: ModuleText, function: PrimFunc, machine: Machine, name: str, streamed: frozenset[Var]
) -> frozenset[Var]:
    """Add the function under another name, for aligned `streamed`; returns those of them that it does stream to.

    Where there are none it is not added.
    """
    count = len(module.functions)
    emitter, parameters = _begin(module, function, machine, name)
    emitter.alignment.update(dict.fromkeys(streamed, LINE_BYTES))
    emitter.streamed = streamed
    emitter.text.set_signature(f"internal void @{name}({', '.join(parameters)}) #1")
    emitter.visit(function.body)
    emitter.end_nontemporal()
    emitter.text.effect("ret void")
    emitter.text.finish()
    found = frozenset(emitter.streaming_stores)
    if found == streamed:
        return found
    del module.functions[count:]  # what it does not stream to is worth prefetching
    return _emit_twin(module, function, machine, name, found) if found else found


def _call_when_aligned(text: FunctionText, pointers: Iterable[str], twin: str, parameters: Iterable[str]) -> None:
    """Leave the work to the twin if all the pointers are aligned to a line."""
    bits = "0"
    for pointer in pointers:
        bits = text.value(f"or i64 {bits}, {text.value(f'ptrtoint ptr {pointer} to i64')}")
    rest = text.value(f"and i64 {bits}, {LINE_BYTES - 1}")
    aligned, otherwise = text.label("aligned"), text.label("otherwise")
    text.branch(text.value(f"icmp eq i64 {rest}, 0"), aligned, otherwise)
    text.place(aligned)
    arguments = [f"{p.split()[0]} {p.split()[-1]}" for p in parameters]
    text.effect(f"call void @{twin}({', '.join(arguments)})")
    text.effect("ret void")
    text.place(otherwise)


def _begin(
    module: ModuleText, function: PrimFunc, machine: Machine, name: str
) -> tuple[StmtEmitter, list[str]]:
    """An emitter that knows the function's parameters, and how those are declared."""
    is_host = function.attrs.get("calling_convention") == "packed"
    emitter = StmtEmitter(FunctionText(module, name, ""), machine, [] if is_host else None)
    every = range(len(function.params))
    overlapping = () if function.attrs.get("noalias", True) else function.attrs.get("overlapping", every)
    parameters = ["ptr %ctx"]
    for i, var in enumerate(function.params):
        buffer = function.buffer_map.get(var)
        name = "%error" if is_host and i == len(function.params) - 1 else f"%p{i}"
        if var.dtype.is_handle:
            unaliased = not is_host and i not in overlapping
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
    return emitter, parameters


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
