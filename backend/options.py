"""Options of `PassContext` that code generators read, declared here so that they are known before a generator loads."""

from __future__ import annotations

from relayc.te.ir import PassContext

__all__ = ["fast_math"]

_FAST_MATH_LEVEL = 4

PassContext.declare_option("llvm.fast_math", False, "divisions by constants as products, zeros without signs, on CPUs")
PassContext.declare_option("cuda.fast_math", False, "approximate division, square root and functions on CUDA devices")
PassContext.declare_option("cuda.line_info", False, "lines of the CUDA text in machine code, for NVIDIA's profilers")


def fast_math(kind: str) -> bool:
    """Does the current context allow less exact code for a target kind, by its option or by optimisation level 4?"""
    context = PassContext.current()
    return bool(context.config.get(f"{kind}.fast_math", context.opt_level >= _FAST_MATH_LEVEL))
