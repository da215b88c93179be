"""Runs the system's C compiler on generated source."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Collection
from pathlib import Path

from relayc.backend.target import Target
from relayc.te.errors import CompileError

__all__ = ["checked_features", "compile_shared_library", "compiler_flags", "feature_check", "find_compiler"]

_CANDIDATES = ("cc", "gcc", "clang")
_FLAG_FEATURES = (
    "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe",
    "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16", "avx512ifma", "avx512vbmi",
    "avx512vbmi2", "avx512bitalg", "avx512vpopcntdq",
)  # fmt: skip
"""x86 features that the compilers have flags for and generate instructions of."""


_CHECKED_FEATURES = frozenset({
    "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "bmi", "bmi2", "avx512f", "avx512cd",
    "avx512bw", "avx512dq", "avx512vl", "avx512vbmi", "avx512ifma",
})  # fmt: skip
"""Features that `__builtin_cpu_supports` of every GCC and Clang can query."""
_CHECKED_BY_GCC_11 = frozenset({
    "f16c", "lzcnt", "movbe", "avx512vnni", "avx512bf16", "avx512vbmi2", "avx512bitalg", "avx512vpopcntdq", "avxvnni",
    "amx-tile", "amx-int8", "amx-bf16",
})  # fmt: skip


def feature_check(target: Target) -> tuple[str, tuple[str, ...]]:
    """C text of `relayc_missing_feature`, and the features that it checks.

    The function returns 0, or the number (from 1) of the first feature that the processor lacks.
    """
    checked: tuple[str, ...] = ()
    if str(target.get("mtriple")).startswith("x86_64"):
        checked = tuple(f for f in _FLAG_FEATURES if f in target.features and f in _CHECKED_FEATURES)
    tests = [f'  if (!__builtin_cpu_supports("{feature}")) return {i};' for i, feature in enumerate(checked, 1)]
    start = ["  __builtin_cpu_init();"] if checked else []
    return "\n".join(["int32_t relayc_missing_feature(void) {", *start, *tests, "  return 0;", "}"]), checked


def checked_features(features: Collection[str]) -> list[tuple[str, list[str]]]:
    """The features of x86 processors among `features` that `__builtin_cpu_supports` can query, each group with the
    condition of the preprocessor under which the compiler can, "" for every one."""
    groups = (("", _CHECKED_FEATURES), ("!defined(__clang__) && __GNUC__ >= 11", _CHECKED_BY_GCC_11))
    return [(condition, found) for condition, group in groups if (found := sorted(group.intersection(features)))]


def find_compiler(wanted: str | None, user: str, advice: str) -> str:
    """The path of the compiler `wanted`, or of the first one found.

    Raises CompileError if there is none: `user` is what needs one, `advice` what else can be done.
    """
    names = (wanted,) if wanted is not None else _CANDIDATES
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return found
    raise CompileError(
        f"{user} needs a C compiler: none of {', '.join(names)} is on the search path; install one (for instance the "
        f"package gcc), {advice}"
    )


def compiler_flags(target: Target) -> list[str]:
    """Compiler flags for the target's features, independent of the host."""
    flags = [f"-O{target.get('opt-level')}", "-std=gnu11", "-fPIC", "-shared", "-fwrapv", "-fno-strict-aliasing",
             "-fno-math-errno", "-fno-trapping-math", "-w"]  # fmt: skip
    if str(target.get("mtriple")).startswith("x86_64"):
        flags += ["-march=x86-64", *[f"-m{f}" for f in _FLAG_FEATURES if f in target.features]]
        if target.vector_bytes == 64:
            flags.append("-mprefer-vector-width=512")
    return flags


def compile_shared_library(source: str, target: Target) -> bytes:
    """Compile `source` to a shared library and return its bytes.

    Raises CompileError if there is no compiler, and with the compiler's output if it fails.
    """
    advice = "name it with -compiler=..., or use target llvm"
    compiler = find_compiler(target.get("compiler"), "target kind 'c'", advice)
    with tempfile.TemporaryDirectory(prefix="relayc-") as folder:
        Path(folder, "module.c").write_text(source)
        command = [compiler, *compiler_flags(target), "module.c", "-o", "module.so", "-lm"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CompileError(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stderr.strip()}")
        return Path(folder, "module.so").read_bytes()
