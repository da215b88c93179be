"""Statistics of the code that is generated for GPUs, which need no GPU: kernels, registers, spills, instructions, time.

    python -m benchmarks.gpu_code [--zoo FOLDER] [--models light_resnet50,bert_base] [--precisions float32,float16]
                                  [--arch sm_90]

Registers and spills are the assembler's report. Instructions are counted statically in the machine code, loops once:
FFMA (float32 FMA), HMMA (tensor cores), LDGSTS (asynchronous copies from global to shared memory), LDSM (loads of
matrix fragments), LDL and STL (spills). Seconds are CPU time of a compilation with an empty and with a full cache.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.light import LIGHT_MODELS, write_light
from benchmarks.models import ZOO_MODELS
from relayc import relay
from relayc.backend.cuda.disassemble import instruction_counts
from relayc.backend.cuda.module import CUDAModule
from relayc.frontends.onnx import from_onnx
from relayc.te.ir import PassContext

_INSTRUCTIONS = ("FFMA", "HMMA", "LDGSTS", "LDSM", "LDL", "STL")


def compiled(path: Path, precision: str, arch: str) -> tuple[CUDAModule, int, float]:
    """(kernels, nodes of the model, CPU seconds from the imported graph to machine code)."""
    module, params = from_onnx(path)
    start = time.process_time()
    with PassContext(config={"relay.ToMixedPrecision.dtype": "" if precision == "float32" else precision}):
        library = relay.build(module, f"cuda -arch={arch}", params)
    seconds = time.process_time() - start
    code = library.module
    assert isinstance(code, CUDAModule)
    return code, len(library.graph.nodes), seconds


def row(name: str, path: Path, precision: str, arch: str) -> list[str]:
    """The figures of a model, compiled twice with an initially empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RELAYC_CACHE_DIR"] = folder
        code, nodes, cold = compiled(path, precision, arch)
        _, _, warm = compiled(path, precision, arch)
    reports = code.report.values()
    counts = Counter[str]()
    for kernel in instruction_counts(code.get_source("sass")).values():
        for instruction, count in kernel.items():
            counts[instruction.partition(".")[0]] += count
    return [name, precision, str(nodes), str(len(reports)), str(max(r["registers"] for r in reports)),
            str(sum(r["spill_stores"] > 0 for r in reports)), str(max(r["shared"] for r in reports)),
            *[str(counts[i]) for i in _INSTRUCTIONS], f"{cold:.1f}", f"{warm:.2f}"]  # fmt: skip


def models(options: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, Path]]:
    """Names and files of the selected models that exist."""
    names = options.models.split(",") if options.models else [*(f"light_{m}" for m in LIGHT_MODELS), *ZOO_MODELS]
    for name in names:
        if name.startswith("light_"):
            yield name, write_light(name.removeprefix("light_"), scratch)[0]
        elif options.zoo is not None and (options.zoo / f"{name}.onnx").exists():
            yield name, options.zoo / f"{name}.onnx"
        else:
            print(f"{name}: not in the zoo folder, left out")


def main() -> None:
    """Compile and print the table, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, help="folder with the exported zoo models")
    parser.add_argument("--models", help="comma-separated names; default: all")
    parser.add_argument("--precisions", default="float32,float16")
    parser.add_argument("--arch", default="sm_90")
    options = parser.parse_args()
    columns = ["model", "precision", "nodes", "kernels", "most registers", "spilling", "most shared B", *_INSTRUCTIONS,
               "cold s", "warm s"]  # fmt: skip
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    with tempfile.TemporaryDirectory() as scratch:
        for name, path in models(options, Path(scratch)):
            for precision in options.precisions.split(","):
                print(f"| {' | '.join(row(name, path, precision, options.arch))} |", flush=True)


if __name__ == "__main__":
    main()
