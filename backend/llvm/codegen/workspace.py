"""Scratch memory: on the stack, or workspace of the execution context, which may be exhausted."""

from __future__ import annotations

from relayc.backend.llvm.codegen.emitter import Emitter, Index
from relayc.backend.llvm.codegen.functions import CTX_FREE, CTX_SHORTAGE, CTX_WORKSPACE, may_exhaust
from relayc.backend.llvm.codegen.index import index_of, index_operand, multiply_index
from relayc.backend.llvm.codegen.memory import byte_offset
from relayc.backend.llvm.types import element_bytes, memory_type
from relayc.te.tir import Allocate, Buffer, Call, product

__all__ = ["emit_allocate", "fits_on_stack", "leave_after", "leave_if_exhausted"]

_STACK_BYTES = 64 * 1024
"""Maximum bytes of a stack allocation, as long as a function has no more than `STACK_TOTAL` in all."""


def fits_on_stack(buffer: Buffer, left: int = _STACK_BYTES) -> bool:
    """Is scratch memory on the stack, of which so many bytes are left?"""
    count = product(buffer.shape)
    nbytes = element_bytes(buffer.dtype) * buffer.dtype.lanes
    return isinstance(count, int) and count * nbytes <= min(_STACK_BYTES, left)


def emit_allocate(e: Emitter, stmt: Allocate) -> None:
    """Allocate scratch memory for a statement: on the stack if it is small."""
    buffer = stmt.buffer
    size = product(buffer.shape)
    size_of = element_bytes(buffer.dtype) * buffer.dtype.lanes
    align = max(buffer.align, 64)
    e.alignment[buffer.data] = align
    if isinstance(size, int) and fits_on_stack(buffer, e.stack_left):
        e.stack_left -= size * size_of
        kind = f"[{max(size, 1)} x {memory_type(buffer.dtype)}]"
        e.values[buffer.data] = e.text.alloca(kind, align)
        e.unaliased.add(buffer.data)
        e.on_stack.add(buffer.data)
        e.emit(stmt.body)
        return
    count = Index(None, size, 0) if isinstance(size, int) else index_of(e, size)
    nbytes = index_operand(e, multiply_index(e, count, Index(None, size_of, 0)))
    text = e.text
    allocate = text.value(f"load ptr, ptr {byte_offset(e, '%ctx', CTX_WORKSPACE)}, align 8")
    pointer = text.value(f"call noalias ptr {allocate}(ptr %ctx, i64 {nbytes})")
    _leave_unless(e, text.value(f"icmp ne ptr {pointer}, null"))
    e.values[buffer.data] = pointer
    e.unaliased.add(buffer.data)
    e.workspaces.append(pointer)
    e.emit(stmt.body)
    _free(e, e.workspaces.pop())


def _free(e: Emitter, pointer: str) -> None:
    release = e.text.value(f"load ptr, ptr {byte_offset(e, '%ctx', CTX_FREE)}, align 8")
    e.text.effect(f"call void {release}(ptr %ctx, ptr {pointer})")


def leave_if_exhausted(e: Emitter) -> None:
    """Return if what was just called ran out of workspace: what it should have computed is undefined. A host
    function calls nothing after its kernel."""
    if e.messages is None:
        place = byte_offset(e, "%ctx", CTX_SHORTAGE)
        nbytes = e.text.value(f"load atomic i64, ptr {place} monotonic, align 8")
        _leave_unless(e, e.text.value(f"icmp eq i64 {nbytes}, 0"))


def leave_after(e: Emitter, call: Call) -> None:
    """Return if the kernel just called ran out of workspace, unless it is known to need none."""
    if may_exhaust(e, call):
        leave_if_exhausted(e)


def _leave_unless(e: Emitter, condition: str) -> None:
    """Free the function's workspace and return, unless a condition holds."""
    text, e.may_leave = e.text, True
    leave, stay = text.label("leave"), text.label("stay")
    text.branch(condition, stay, leave, likely=True)
    text.place(leave)
    with text.region():
        for pointer in reversed(e.workspaces):
            _free(e, pointer)
        text.effect("ret void")
    text.place(stay)
