"""Emission of LLVM assembly as text, one function at a time.

Writing text is several times faster than building `llvmlite.ir` objects that are printed afterwards, and LLVM has to
parse text either way. `FunctionText.pure` performs local value numbering: an instruction without side effects that
already dominates this point is not emitted again, so the text stays short however often a schedule repeats an address.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from relayc.te.errors import CompileError

__all__ = ["FunctionText", "ModuleText"]


class ModuleText:
    """Functions, declarations and constants of one LLVM module."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.finishing: set[str] = set()
        """Names of kernels that need no workspace, and so can't run out of it."""
        self._declarations: dict[str, str] = {}
        self._strings: dict[str, str] = {}
        self._byte_constants: dict[tuple[bytes, int], str] = {}
        self._structs: dict[str, str] = {}
        self._numbers = 0
        self.metadata: dict[str, str] = {}
        """Numbered metadata nodes that instructions refer to, such as "!0", and their definitions."""

    def fresh_number(self) -> int:
        """A number unique in the module, for names of outlined functions."""
        self._numbers += 1
        return self._numbers

    def has(self, name: str) -> bool:
        """Does the module already have a function of this name?"""
        return any(f"@{name}(" in text.split("\n", 1)[0] for text in self.functions)

    def declare(self, name: str, result: str, args: str) -> None:
        """Declare an external function or an intrinsic, once."""
        self._declarations.setdefault(name, f"declare {result} @{name}({args})")

    def string(self, text: str) -> str:
        """The address of a zero-terminated constant string, as an operand."""
        name = self._strings.get(text)
        if name is None:
            name = self._strings[text] = f"@.str{len(self._strings)}"
        return name

    def constant_bytes(self, data: bytes, align: int) -> str:
        """The address of constant bytes, as an operand."""
        name = self._byte_constants.get((data, align))
        if name is None:
            name = self._byte_constants[data, align] = f"@.bytes{len(self._byte_constants)}"
        return name

    def struct(self, fields: Sequence[str]) -> str:
        """The name of the structure of these types: written out at each use it would make long text."""
        return self._structs.setdefault(f"{{ {', '.join(fields)} }}", f"%struct{len(self._structs)}")

    def externals(self, defined: set[str]) -> tuple[str, ...]:
        """Declared functions that are neither in `defined` nor LLVM intrinsics."""
        return tuple(n for n in self._declarations if n not in defined and not n.startswith("llvm."))

    def text(self, defined: set[str]) -> str:
        """The whole module, without declarations of the functions in `defined`."""
        constants = [_constant(name, text.encode() + b"\0") for text, name in self._strings.items()]
        constants += [_constant(name, data, f", align {n}") for (data, n), name in self._byte_constants.items()]
        declarations = [line for name, line in self._declarations.items() if name not in defined]
        metadata = [f"{number} = {node}" for number, node in self.metadata.items()]
        structs = [f"{name} = type {fields}" for fields, name in self._structs.items()]
        return "\n".join([*structs, *constants, *declarations, *self.functions, *metadata, ""])


def _constant(name: str, data: bytes, align: str = "") -> str:
    body = "".join([chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data])
    return f'{name} = private unnamed_addr constant [{len(data)} x i8] c"{body}"{align}'


class FunctionText:
    """The body of one function: instructions are appended to the current basic block."""

    def __init__(self, module: ModuleText, name: str, signature: str) -> None:
        if not re.fullmatch(r"[A-Za-z_$.][\w$.]*", name, re.ASCII):
            raise CompileError(f"function name {name!r}: LLVM code has letters, digits, '_', '$' and '.' in names")
        self.module = module
        self.name = name
        self.block = "entry"
        self._signature = signature
        self._allocas: list[str] = []
        self._lines: list[str] = []
        self._states: list[tuple[int, str]] = []
        """what `enclose` sets, and the places in `_lines` where it does"""
        self._end = ""
        self._count = 0
        self._known: dict[str, str] = {}
        self._trail: list[str] = []
        self.written_once = 0
        """The number of values that are not `pure`, such as those of loads: equal instructions may give others."""
        self.indices: dict[object, Any] = {}
        """Expression -> the index that a code generator made of it, of pure values defined so far."""
        self.ramps: dict[object, Any] = {}
        """Expression of several lanes -> the index that a code generator made of it, of pure values defined so far."""

    def value(self, instruction: str) -> str:
        """Append an instruction that has a value; returns the value's name."""
        self.written_once += 1
        return self._named(instruction)

    def _named(self, instruction: str) -> str:
        self._count += 1
        name = f"%v{self._count}"
        self._lines.append(f"  {name} = {instruction}")
        return name

    def pure(self, instruction: str, state: str = "") -> str:
        """Append an instruction without side effects, or reuse an equal one that dominates this point; returns its
        value.

        A load has the `state` of the memory that it reads: one of another state is another instruction.
        """
        key = state + instruction
        name = self._known.get(key)
        if name is None:
            name = self._known[key] = self._named(instruction)
            self._trail.append(key)
        return name

    def effect(self, instruction: str) -> None:
        """Append an instruction that has no value."""
        self._lines.append("  " + instruction)

    def alloca(self, kind: str, align: int) -> str:
        """Stack memory of the function's frame, allocated in the entry block."""
        self._count += 1
        name = f"%v{self._count}"
        self._allocas.append(f"  {name} = alloca {kind}, align {align}")
        return name

    def label(self, hint: str) -> str:
        """A fresh basic-block label."""
        self._count += 1
        return f"{hint}{self._count}"

    def place(self, label: str) -> None:
        """Start basic block `label`; the previous one must have been terminated."""
        self._lines.append(f"{label}:")
        self.block = label

    def goto(self, label: str) -> None:
        """End the block with an unconditional branch."""
        self._lines.append(f"  br label %{label}")

    def branch(self, condition: str, then: str, otherwise: str, *, likely: bool = False) -> None:
        """End the block with a conditional branch; `likely` marks the branch to `then` as the likely one."""
        weights = ""
        if likely:
            self.module.metadata["!1"] = '!{!"branch_weights", i32 2000, i32 1}'
            weights = ", !prof !1"
        self._lines.append(f"  br i1 {condition}, label %{then}, label %{otherwise}{weights}")

    @contextmanager
    def region(self) -> Generator[None]:
        """A context for blocks that may not execute: values defined inside are not reused after it."""
        mark = len(self._trail)
        yield
        for instruction in self._trail[mark:]:
            del self._known[instruction]
        del self._trail[mark:]
        self.forget()

    def forget(self) -> None:
        """Forget the indices of expressions: not all of the values they were made of are known any more."""
        self.indices.clear()
        self.ramps.clear()

    def set_signature(self, signature: str) -> None:
        """Set the text of the definition between ``define`` and the body."""
        self._signature = signature

    def enclose(self, first: str, last: str) -> None:
        """Set a state by an instruction, and end it by one before the function's return, the same for all states.

        A function of one state sets it at its beginning; others where each is needed.
        """
        self._states.append((len(self._lines), f"  {first}"))
        self._end = f"  {last}\n"

    def finish(self) -> None:
        """Add the function to its module."""
        body = [f"{self._end}{line}" if line.startswith("  ret ") else line for line in self._lines]
        different = {first for _, first in self._states}
        states = [(0, first) for first in different] if len(different) == 1 else self._states
        for place, first in reversed(states):
            body.insert(place, first)
        head = [f"define {self._signature} {{", "entry:", *self._allocas]
        self.module.functions.append("\n".join([*head, *body, "}", ""]))
