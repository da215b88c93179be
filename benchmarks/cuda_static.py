"""Static figures of single GPU kernels from NVIDIA's compiler and disassembler; needs no GPU.

    python -m benchmarks.cuda_static [--arch sm_80,sm_90]

Registers per thread, bytes of spills, shared memory, threads, occupancy, and static counts of the instructions that
matter for products: FFMA (float32 FMA), HMMA and IMMA (tensor cores), LDSM (matrix fragments from shared memory),
LDGSTS (asynchronous copies from global to shared memory), LDS and LDG of 16 bytes. `benchmarks.gpu_code` does the same
for whole models.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table

from relayc import relay
from relayc.backend.cuda.disassemble import disassemble, instruction_counts
from relayc.backend.cuda.module import CUDAModule
from relayc.te.ir import IRModule

__all__ = ["PROGRAMS"]

INSTRUCTIONS = ("FFMA", "HMMA", "IMMA", "LDSM", "LDGSTS", "LDS.128", "LDG.E.128")


def _product(m: int, n: int, k: int, dtype: str) -> relay.Function:
    x, w = relay.var("x", (m, k), dtype), relay.var("w", (n, k), dtype)
    return relay.Function((x, w), relay.nn.dense(x, w))


def _convolution(channels: int, filters: int, size: int, kernel: int, dtype: str) -> relay.Function:
    x, w = (relay.var(n, s, dtype) for n, s in {"x": (1, size, size, channels),
                                                "w": (kernel, kernel, channels, filters)}.items())  # fmt: skip
    conv = relay.nn.conv2d(x, w, padding=kernel // 2, data_layout="NHWC", kernel_layout="HWIO")
    return relay.Function((x, w), relay.nn.relu(conv))


def _attention(dtype: str) -> relay.Function:
    q, k, v = (relay.var(name, (1, 12, 512, 64), dtype) for name in "qkv")
    return relay.Function((q, k, v), relay.nn.attention(q, k, v, scale=0.125))


PROGRAMS = {
    f"{name}, {dtype}": make
    for dtype in ("float32", "float16")
    for name, make in {
        "product 4096 x 4096 x 4096": lambda dtype=dtype: _product(4096, 4096, 4096, dtype),
        "product 128 x 3072 x 768": lambda dtype=dtype: _product(128, 3072, 768, dtype),
        "product 1 x 4096 x 4096": lambda dtype=dtype: _product(1, 4096, 4096, dtype),
        "convolution 56 x 56, 3 x 3, 64 to 64": lambda dtype=dtype: _convolution(64, 64, 56, 3, dtype),
        "convolution 14 x 14, 1 x 1, 1024 to 256": lambda dtype=dtype: _convolution(1024, 256, 14, 1, dtype),
        "attention 12 x 512 x 64": lambda dtype=dtype: _attention(dtype),
    }.items()
}


def _compiled(program: IRModule, arch: str) -> CUDAModule:
    library = relay.build(program, f"cuda -arch={arch}")
    found = [m for m in (library.module, *library.module.imported_modules) if isinstance(m, CUDAModule)]
    return found[0]


def _counts(module: CUDAModule) -> dict[str, dict[str, int]]:
    """Kernel -> occurrences of each of `INSTRUCTIONS`, with its variants."""
    return {kernel: _named(counts) for kernel, counts in instruction_counts(disassemble(module.image)).items()}


def _named(counts: Counter[str]) -> dict[str, int]:
    return {wanted: sum(n for name, n in counts.items() if _is_variant(name, wanted)) for wanted in INSTRUCTIONS}


def _is_variant(name: str, wanted: str) -> bool:
    head, *parts = wanted.split(".")
    own_head, *own_parts = name.split(".")
    return own_head == head and set(parts) <= set(own_parts)


def _cells(figures: dict[str, Any]) -> list[str]:
    spills = figures["spill_stores"] + figures["spill_loads"]
    return [str(figures["registers"]), str(spills), str(figures["shared"]), str(figures["threads"]),
            f"{figures['occupancy']:.2f}"]  # fmt: skip


def show_programs(arch: str, console: Console) -> None:
    """One row for each kernel of the programs."""
    table = Table("program", "kernel", "registers", "spills", "shared", "threads", "occupancy", *INSTRUCTIONS,
                  title=f"Kernels for {arch}")  # fmt: skip
    for name, make in PROGRAMS.items():
        module = _compiled(IRModule({"main": make()}), arch)
        counts = _counts(module)
        for kernel, figures in module.report.items():
            cells = [str(counts[kernel][i]) for i in INSTRUCTIONS]
            table.add_row(name, kernel.rsplit("_", 1)[-1], *_cells(figures), *cells)
    console.print(table)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90", help="comma-separated architectures")
    console = Console(width=200)
    for arch in parser.parse_args().arch.split(","):
        show_programs(arch, console)


if __name__ == "__main__":
    main()
