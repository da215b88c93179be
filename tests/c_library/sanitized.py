"""Libraries of models with checks of their memory and of undefined behaviour in the code around the kernels."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from relayc.backend.c_library.export import build_library
from relayc.backend.c_library.model_source import ModelSource
from relayc.backend.c_library.toolchain import find_toolchain
from relayc.backend.c_library.weights import lay_out_weights, write_weights
from relayc.backend.llvm.runtime import LLVMModule
from relayc.backend.runtime import CompiledModel

FLAGS = ["-g", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build(model: CompiledModel, folder: Path, program: str | None = None) -> None:
    """Write the library "net" of a model, and ``program``, of the C code `program` or of the example, with checks."""
    assert isinstance(model.module, LLVMModule)
    layout = lay_out_weights(model.params, in_file=False)
    with open(folder / "weights.bin", "wb") as file:
        write_weights(file, model.params, layout)
    source = ModelSource("net", model.graph, layout, model.module.features, None)
    build_library(source, model.module.object_files(), find_toolchain("gcc", model.module.triple, folder), FLAGS)
    (folder / "main.c").write_text(source.example() if program is None else program)
    run(["gcc", *FLAGS, "main.c", "libnet.a", "-lm", "-pthread", "-o", "program"], folder)


def run(command: Sequence[str | Path], folder: Path) -> str:
    """What a program prints; it must succeed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr
