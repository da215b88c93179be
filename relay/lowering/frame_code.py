"""Statements of the loop IR that read and write the words of a frame, and call functions of the module."""

from __future__ import annotations

from relayc.backend.runtime.frames import WORD_BYTES
from relayc.te.tir import Evaluate, PrimExpr, Stmt, StringImm, call_intrin, const

__all__ = ["bool_at", "call", "copy_bytes", "int_at", "offset_of", "store"]


def offset_of(word: int) -> PrimExpr:
    """The byte offset of a word."""
    return const(word * WORD_BYTES, "int64")


def store(pointer: PrimExpr, value: PrimExpr, word: int = 0) -> Stmt:
    """Store a value in a word behind `pointer`."""
    return Evaluate(call_intrin("int32", "store_at", pointer, offset_of(word), value))


def copy_bytes(to: PrimExpr, source: PrimExpr, nbytes: PrimExpr) -> Stmt:
    """Copy bytes between places that do not overlap."""
    return Evaluate(call_intrin("int32", "copy_bytes", to, source, nbytes))


def call(name: str, *arguments: PrimExpr) -> Stmt:
    """Call a function of the module; when memory for workspaces is exhausted, the caller returns behind it."""
    return Evaluate(call_intrin("int32", "call_kernel", StringImm(name), *arguments))


def bool_at(address: PrimExpr) -> PrimExpr:
    """The bool at an address."""
    return call_intrin("bool", "load_at", address, offset_of(0))


def int_at(address: PrimExpr) -> PrimExpr:
    """The int64 at an address."""
    return call_intrin("int64", "load_at", address, offset_of(0))
