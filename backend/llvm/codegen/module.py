"""Functions and modules of the loop IR as LLVM assembly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from relayc.backend.llvm.assembly import FunctionText, ModuleText
from relayc.backend.llvm.codegen.emitter import Emitter, Index
from relayc.backend.llvm.codegen.machine import Machine
from relayc.backend.llvm.codegen.nontemporal import LINE_BYTES, nontemporal_buffers
from relayc.backend.llvm.codegen.pass_selection import PassSelection, select_passes
from relayc.backend.llvm.codegen.stores import end_nontemporal
from relayc.backend.llvm.codegen.visitor import RULES
from relayc.backend.llvm.types import element_bytes, register_type
from relayc.te.errors import CompileError
from relayc.te.tir import Buffer, BufferLoad, BufferStore, Call, Evaluate, PrimFunc, SizeVar, Stmt, StringImm, Var
from relayc.te.tir.analysis import nodes_of

__all__ = ["EmittedModule", "emit_module"]


@dataclass(frozen=True, slots=True)
class EmittedModule:
    """LLVM assembly and its function tables.

    `passes`: how many of LLVM's passes it needs. `externals`: functions that it calls but does not define, in other
    modules or the process. `assert_messages`: for each packed function, the templates of its AssertStmts; failure k
    (from 1) has entry k - 1.
    """

    text: str
    passes: PassSelection
    names: tuple[str, ...]
    assert_messages: dict[str, list[str]] = field(default_factory=dict)
    externals: tuple[str, ...] = ()


def emit_module(functions: Iterable[PrimFunc], machine: Machine) -> EmittedModule:
    """LLVM assembly of lowered functions (flat buffers, math intrinsics already expanded) for a machine.

    Raises CompileError for unsupported code.
    """
    module, functions, messages = ModuleText(), list(functions), {}
    names, texts = [function.name for function in functions], dict[str, list[str]]()
    steps = _called_steps(functions) if len(functions) > 1 else set[str]()
    for function in sorted(functions, key=lambda function: function.name not in steps):
        try:
            own = _emit_function(module, function, machine)
        except CompileError as error:
            error.add_note(f"in function {function.name}")
            raise
        texts[function.name], module.functions = module.functions, []
        if own is not None:
            messages[function.name] = own
    module.functions = [text for name in names for text in texts[name]]
    attributes = ["attributes #0 = { nounwind noinline }", "attributes #1 = { nounwind noinline }"]
    text = "\n".join([module.text(set(names)), *attributes, ""])
    return EmittedModule(text, select_passes(functions), tuple(names), messages, module.externals(set(names)))


def _called_steps(functions: Iterable[PrimFunc]) -> set[str]:
    """Names of the kernels' steps, which come first: callers have to know whether they allocate workspace."""
    found: set[str] = set()
    statements: list[Any] = [function.body for function in functions]
    while statements:
        stmt = statements.pop()
        if isinstance(stmt, Evaluate) and isinstance(stmt.value, Call) and stmt.value.op == "call_step":
            assert isinstance(stmt.value.args[0], StringImm)
            found.add(stmt.value.args[0].value)
        statements += [child for child in stmt.node_children() if isinstance(child, Stmt)]
    return found


def _emit_function(module: ModuleText, function: PrimFunc, machine: Machine) -> list[str] | None:
    """Add the function, and a version with non-temporal stores for results that exceed the cache."""
    is_host = function.attrs.get("calling_convention") == "packed"
    streaming = f"{function.name}.streaming"
    wanted = frozenset[Var]() if is_host else nontemporal_buffers(function, machine.caches)
    streamed = _emit_streaming(module, function, machine, streaming, wanted) if wanted else wanted
    emitter, parameters = _begin(module, function, machine, function.name)
    text = emitter.text
    text.set_signature(f"{'i32' if is_host else 'void'} @{function.name}({', '.join(parameters)}) #0")
    if streamed:
        _call_when_aligned(text, [emitter.values[v] for v in emitter.values if v in streamed], streaming, parameters)
    emitter.emit(function.body)
    text.effect("ret i32 0" if is_host else "ret void")
    text.finish()
    if not emitter.may_leave:
        module.finishing.add(function.name)
    return emitter.messages


def _emit_streaming(
    module: ModuleText, function: PrimFunc, machine: Machine, name: str, streamed: frozenset[Var]
) -> frozenset[Var]:
    """Add a version with non-temporal stores to aligned `streamed` buffers; returns those that it does stream to.

    If there are none, nothing is added.
    """
    count = len(module.functions)
    emitter, parameters = _begin(module, function, machine, name)
    emitter.alignment.update(dict.fromkeys(streamed, LINE_BYTES))
    emitter.streamed = streamed
    emitter.text.set_signature(f"internal void @{name}({', '.join(parameters)}) #1")
    emitter.emit(function.body)
    end_nontemporal(emitter)
    emitter.text.effect("ret void")
    emitter.text.finish()
    found = frozenset(emitter.streaming_stores)
    if found == streamed:
        return found
    del module.functions[count:]  # buffers that turn out not to be streamed may be prefetched
    return _emit_streaming(module, function, machine, name, found) if found else found


def _call_when_aligned(text: FunctionText, pointers: Iterable[str], streaming: str, parameters: Iterable[str]) -> None:
    """Branch to the streaming version if all the pointers are aligned to a cache line."""
    bits = "0"
    for pointer in pointers:
        bits = text.value(f"or i64 {bits}, {text.value(f'ptrtoint ptr {pointer} to i64')}")
    rest = text.value(f"and i64 {bits}, {LINE_BYTES - 1}")
    aligned, otherwise = text.label("aligned"), text.label("otherwise")
    text.branch(text.value(f"icmp eq i64 {rest}, 0"), aligned, otherwise)
    text.place(aligned)
    arguments = [f"{p.split()[0]} {p.split()[-1]}" for p in parameters]
    text.effect(f"call void @{streaming}({', '.join(arguments)})")
    text.effect("ret void")
    text.place(otherwise)


def _begin(module: ModuleText, function: PrimFunc, machine: Machine, name: str) -> tuple[Emitter, list[str]]:
    """An emitter with the function's parameters bound, and their declarations."""
    is_host = function.attrs.get("calling_convention") == "packed"
    emitter = Emitter(FunctionText(module, name, ""), machine, RULES, [] if is_host else None)
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
            emitter.values[var] = name
            if buffer is not None:
                emitter.values[buffer.data] = name
                if unaliased:
                    emitter.unaliased.add(buffer.data)
        else:
            parameters.append(f"{register_type(var.dtype)} {name}")
            _bind_scalar(emitter, var, name)
    emitter.constant = frozenset(emitter.unaliased - _written(function))
    return emitter, parameters


_WRITING = frozenset((BufferStore, Call))


def _written(function: PrimFunc) -> set[Var]:
    """The pointers that a function may write through: of what it stores to, and what it hands to other functions."""
    nodes = nodes_of(function.body, _WRITING)
    found = {node.buffer.data for node in nodes if isinstance(node, BufferStore)}
    calls = [node for node in nodes if isinstance(node, Call)]
    prefetched = {call.args[0] for call in calls if call.op == "prefetch"}
    for call in calls:
        if call.op == "address_of" and call not in prefetched:
            found.update([load.buffer.data for load in call.args if isinstance(load, BufferLoad)])
        found.update([a for a in call.args if isinstance(a, Var) and a.dtype.is_handle])
    return found


def _bind_scalar(emitter: Emitter, var: Var, name: str) -> None:
    if not var.dtype.is_int:
        emitter.values[var] = name
        return
    if isinstance(var, SizeVar):
        emitter.nonnegative.add(var)
    kind = register_type(var.dtype)
    emitter.indices[var] = Index(name if kind == "i64" else emitter.text.pure(f"sext {kind} {name} to i64"), 0)


def _pointer_facts(buffer: Buffer) -> str:
    """LLVM attributes of a pointer parameter: no aliasing, and the dereferenceable size.

    Alignment is left out: a caller may pass its own memory (numpy aligns to 16 bytes), and unaligned vector
    instructions cost nothing on aligned addresses.
    """
    size = element_bytes(buffer.dtype)
    for extent in buffer.shape:
        size = size * extent if isinstance(extent, int) else 0
    known = size > 0 and buffer.strides is None
    return f"noalias dereferenceable({size}) " if known else "noalias "
