"""Code for processors that this machine is not, compiled for it and run: for tests.

While `emulating()`, modules for a processor whose instructions this machine lacks are scheduled and generated for that
processor, as LLVM assembly. In it, calls of LLVM's intrinsics for missing instructions become calls of the functions of
`instructions.cpp`, and LLVM compiles it for this machine. All else runs as ever: executors, threads, several kernels.
What LLVM itself would select for the processor is not seen. Processors of another architecture are emulated too, as far
as the code generator uses intrinsics that `instructions.cpp` has.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

from relayc.backend.cpu import resolve_cpu
from relayc.backend.llvm import runtime
from relayc.backend.llvm.codegen import EmittedModule
from relayc.backend.llvm.codegen.table import INSTRUCTIONS
from relayc.backend.llvm.compiler import Compiler
from relayc.backend.llvm.runtime import ObjectCode
from relayc.backend.llvm.target import llvm_host_cpu
from relayc.backend.processors import PROCESSORS
from relayc.backend.target import Target, target_kind
from relayc.te.tir import PrimFunc
from tests.cuda_emulation.toolchain import build, compiler

__all__ = ["emulating", "library", "pretending", "unavailable", "with_calls"]

_SOURCE = Path(__file__).with_name("instructions.cpp")
_CALL = re.compile(
    r"(?P<space> *)(?:(?P<name>%\S+) = )?call (?P<result>.+) @llvm\.(?P<intrinsic>[\w.]+)\((?P<operands>.*)\)"
)
_ROUNDING = re.compile(r"( *%\S+ = )fptrunc <16 x float> (\S+) to <16 x bfloat>")
_ROUNDING_CALL = r"\1call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> \2)"
_DECLARED = re.compile(r"declare .* @llvm\.([\w.]+)\(.*")
_BFLOATS = re.compile(r"<(\d+) x bfloat>")


@functools.cache
def unavailable() -> str | None:
    """The reason why this machine can't emulate others; None if it can."""
    if compiler() is None:
        return "the emulation of processors needs g++"
    return None if "avx512bw" in _here().features else "the emulation of processors needs AVX-512"


@functools.cache
def _here() -> Target:
    """The target of this machine, whatever it pretends to be later."""
    return Target(str(Target("llvm")))


@functools.cache
def library() -> ctypes.CDLL:
    """The emulated instructions, whose names the process's code may call from now on."""
    flags = ("-std=c++20", "-O3", "-march=native", "-Wall", "-Wextra", "-Wno-psabi", "-fPIC", "-fvisibility=hidden")
    built = build("instructions.so", (*flags, "-shared", "-x", "c++", "-"), "", _SOURCE.read_text())
    return ctypes.CDLL(str(built), ctypes.RTLD_GLOBAL)


@functools.cache
def _lacking() -> frozenset[str]:
    """The intrinsics that the code generator uses (without "llvm.") and this machine has no instruction for."""
    here, found = _here().features, {"x86.ldtilecfg", "x86.tilerelease", "x86.avx512bf16.cvtneps2bf16.512"}
    present = {"x86.avx512.fpclass.ps.512"}  # of AVX512-DQ, in rows of AVX512-BF16
    for row in INSTRUCTIONS:
        (present if row.features <= here else found).update(intrinsic.name for intrinsic in row.intrinsics)
    return frozenset(found - present)


def with_calls(text: str) -> str:
    """LLVM assembly whose missing instructions are calls. Raises NotImplementedError for one without emulation."""
    declared, lines = dict[str, str](), list[str]()
    for i, line in enumerate(text.splitlines()):
        line = _ROUNDING.sub(_ROUNDING_CALL, line)
        line = line.replace("=w,", "=v,") if " asm " in line else line  # vector registers of Arm
        if (call := _CALL.fullmatch(line)) is not None and call["intrinsic"] in _lacking():
            lines += _called(call, f"%emulated{i}", declared)
        elif (known := _DECLARED.fullmatch(line)) is None or known[1] not in _lacking():
            lines.append(line)
    return "\n".join([*lines, *declared.values(), ""])


def _called(call: re.Match[str], fresh: str, declared: dict[str, str]) -> Iterable[str]:
    """The lines of a call of an emulated instruction. bfloat16 are passed in words, which C has vectors of."""
    function = f"emulated_{call['intrinsic'].replace('.', '_')}"
    if not hasattr(library(), function):
        raise NotImplementedError(f"no emulation of llvm.{call['intrinsic']}")
    kinds, values = list[str](), list[str]()
    for i, operand in enumerate(call["operands"].split(", ") if call["operands"] else ()):
        kind, value = operand.rsplit(" ", 1)
        passed = "i32" if kind == "i8" else _in_words(kind)
        if passed.startswith("<") and passed != kind:
            yield f"{call['space']}{fresh}.{i} = bitcast {kind} {value} to {passed}"
            value = f"{fresh}.{i}"
        kinds.append(passed)
        values.append(f"{passed} {value}")
    result = _in_words(call["result"])
    pure = "" if result == "void" else " nounwind willreturn memory(none)"
    declared[function] = f"declare {result} @{function}({', '.join(kinds)}){pure}"
    text = f"call {result} @{function}({', '.join(values)})"
    if result == call["result"]:
        yield f"{call['space']}{call['name']} = {text}" if call["name"] else f"{call['space']}{text}"
    else:
        yield f"{call['space']}{fresh} = {text}"
        yield f"{call['space']}{call['name']} = bitcast {result} {fresh} to {call['result']}"


def _in_words(kind: str) -> str:
    return _BFLOATS.sub(lambda found: f"<{int(found[1]) // 2} x i32>", kind)


@contextmanager
def emulating() -> Generator[None, None, None]:
    """A context in which code for other processors is compiled for this one, and loaded.

    There must be no cache of compiled code: its keys would not tell such code from the processor's own.
    """
    assert os.environ.get("RELAYC_CACHE_DIR") == "off"
    library()
    object_code, here = Compiler.object_code, _here()

    def emulated(self: Compiler, emitted: EmittedModule, functions: Iterable[PrimFunc]) -> ObjectCode:
        if self.target.features <= here.features:
            return object_code(self, emitted, functions)
        compiler = Compiler(here.with_attrs(opt_level=self.target.get("opt-level", 3)))
        return object_code(compiler, replace(emitted, text=with_calls(emitted.text)), functions)

    with mock.patch.object(Compiler, "object_code", emulated), mock.patch.object(runtime, "check_machine"):
        yield


@contextmanager
def pretending(processor: str) -> Generator[None, None, None]:
    """A context in which the target "llvm" means `processor`, with this machine's caches and cores, and is emulated."""
    host = replace(llvm_host_cpu(), name=processor, features=PROCESSORS[processor].features)
    with emulating(), mock.patch.object(target_kind("llvm"), "_parser", lambda attrs: resolve_cpu(attrs, host)):
        yield
