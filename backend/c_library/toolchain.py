"""The system's C compiler and binutils, which turn sources and object code to libraries."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from relayc.backend.c.compiler import find_compiler
from relayc.te.errors import CompileError

__all__ = ["Toolchain", "find_toolchain"]

_WARNINGS = ("-Wall", "-Wextra", "-Wno-missing-field-initializers")
_LINK = ("-static-libgcc", "-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,-z,noexecstack", "-Wl,-z,relro", "-Wl,-z,now",
         "-Wl,--as-needed")  # fmt: skip
"""`nodelete`: threads of the pool sleep in the library's code until the process ends."""
_MOST_TEXT = 4000
"""Letters of a command, and of what it printed, that an error shows."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler, and the archiver and symbol editor that go with it; all run in the folder `folder`."""

    compiler: str
    archiver: str
    symbol_editor: str
    folder: Path

    def compile(self, source: str, output: str, options: Iterable[str] = ()) -> None:
        """Compile a C or assembly file to an object file."""
        flags = ["-O2", "-std=gnu11", "-fPIC", *_WARNINGS, *options]
        self._run([self.compiler, *flags, "-c", source, "-o", output])

    def merge(self, objects: Sequence[str], output: str, exported: Iterable[str]) -> None:
        """Link object files to one, which shows no symbols but those `exported`."""
        Path(self.folder, "objects.txt").write_text("\n".join(objects))
        self._run([self.compiler, "-r", "-nostdlib", "-o", "merged.o", "@objects.txt"])
        self._run([self.symbol_editor, *[f"--keep-global-symbol={name}" for name in exported], "merged.o", output])

    def link(self, item: str, output: str, options: Iterable[str] = ()) -> None:
        """Link an object file to a shared library."""
        flags = ["-shared", f"-Wl,-soname,{output}", *_LINK, *options]
        self._run([self.compiler, *flags, item, "-o", output, "-lm", "-pthread"])

    def archive(self, item: str, output: str) -> None:
        """Put an object file into a static library."""
        self._run([self.archiver, "rcs", output, item])

    def _run(self, command: Sequence[str]) -> None:
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            what = " ".join(command)[:_MOST_TEXT]
            raise CompileError(f"{what} failed with status {done.returncode}:\n{done.stderr[:_MOST_TEXT].strip()}")


def find_toolchain(compiler: str | None, triple: str, folder: Path) -> Toolchain:
    """The toolchain of `compiler`, or of the first compiler found.

    Raises CompileError if there is none, or one for other machines than those of the LLVM triple `triple`.
    """
    path = find_compiler(compiler, "a C library", "or name it: compiler=...")
    machine, wanted = _answer(path, "-dumpmachine"), triple.split("-")[0]
    if machine.split("-")[0] != wanted or "linux" not in machine or "linux" not in triple:
        raise CompileError(
            f"{path} compiles for {machine}, and the model was compiled for {triple}; compile the model for the "
            f"compiler's machine (target), or name a compiler for Linux on {wanted}: compiler=..."
        )
    archiver, editor = (_tool(path, name) for name in ("ar", "objcopy"))
    return Toolchain(path, archiver, editor, folder)


def _tool(compiler: str, name: str) -> str:
    """The path of a program of binutils that goes with the compiler."""
    found = shutil.which(_answer(compiler, f"-print-prog-name={name}")) or shutil.which(f"llvm-{name}")
    if found is None:
        raise CompileError(f"a C library needs {name}, which {compiler} can't find; install the package binutils")
    return found


def _answer(compiler: str, question: str) -> str:
    done = subprocess.run([compiler, question], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(f"{compiler} {question} failed with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()
