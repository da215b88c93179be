"""`CUDAModule`: machine code for a GPU, what is needed to launch it, and how it was made."""

from __future__ import annotations

from typing import Any

from backend.runtime.errors import ModuleError
from backend.runtime.module import Module
from backend.runtime.packed_func import PackedFunc

__all__ = ["CUDAModule"]


class CUDAModule(Module):
    """Kernels of one image and the functions made of them.

    `image` is machine code for `arch` ("cubin") or PTX ("ptx", for a GPU newer than the compiler); `functions` says for
    each function its parameters, workspaces and kernels in order; `source` is the CUDA C++ text; `report` has what the
    assembler said of each kernel.
    """

    type_key = "cuda"

    def __init__(
        self, image: bytes, format: str, arch: str, functions: dict[str, Any], source: str, report: dict[str, Any]
    ) -> None:
        super().__init__()
        self.image = image
        self.format = format
        self.arch = arch
        self.functions = functions
        self.source = source
        self.report = report

    def function_names(self) -> list[str]:
        return list(self.functions)

    def _find(self, name: str) -> PackedFunc | None:
        if name not in self.functions:
            return None
        raise ModuleError(f"function {name!r} was compiled for {self.arch}; this machine can't launch it")

    def get_source(self, fmt: str = "") -> str:
        if fmt in ("", "cuda"):
            return self.source
        raise ModuleError(f"module of type 'cuda' has its source in format 'cuda', not {fmt!r}")
