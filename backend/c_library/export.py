"""Export of a compiled model as a C library: `export_c` writes the folder, whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from relayc.backend.c_library.model_source import ModelSource
from relayc.backend.c_library.naming import check_name, usual_name
from relayc.backend.c_library.toolchain import Toolchain, find_toolchain
from relayc.backend.c_library.weights import lay_out_weights, write_weights
from relayc.backend.llvm.runtime import LLVMModule
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.errors import ArgumentError, ModuleError

__all__ = ["build_library", "export_c"]

_MOST_EMBEDDED = 1 << 30
"""Bytes of weights that may lie in a library: code reaches no further than 2 GB."""
_WEIGHTS = """    .section .rodata
    .balign 4096
    .globl relayc_weights
relayc_weights:
    .incbin "weights.bin"
    .section .note.GNU-stack, "", %progbits
"""


def export_c(
    model: CompiledModel,
    folder: str | os.PathLike[str],
    name: str | None = None,
    *,
    weights: str = "library",
    compiler: str | None = None,
) -> None:
    """Write a model as a C library; see `CompiledModel.export_c`."""
    code = _code_of(model)
    if weights not in ("library", "file"):
        raise ArgumentError(f"weights={weights!r}; expected 'library' or 'file'")
    name = usual_name(model.graph.name) if name is None else check_name(name)
    _check_exportable(model)
    layout = lay_out_weights(model.params, in_file=weights == "file")
    if weights == "library" and layout.nbytes > _MOST_EMBEDDED:
        raise ArgumentError(
            f"model {model.graph.name!r} has {layout.nbytes / 1e9:.1f} GB of weights, expected at most "
            f"{_MOST_EMBEDDED / 1e9:.1f} in a library; export them to a file: weights='file'"
        )
    file = f"{name}.weights" if weights == "file" else None
    source = ModelSource(name, model.graph, layout, code.features, file)
    target = Path(os.path.abspath(folder))
    _check_replaceable(target, _file_names(name))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name[:40]}.", dir=target.parent) as scratch:
        work, made = Path(scratch, "work"), Path(scratch, "made")
        work.mkdir()
        made.mkdir()
        tools = find_toolchain(compiler, code.triple, work)
        with open((made / file) if file else (work / "weights.bin"), "wb") as written:
            write_weights(written, model.params, layout)
        build_library(source, code.object_files(), tools)
        for result in (f"{name}.h", f"{name}.c", f"lib{name}.so", f"lib{name}.a"):
            os.replace(work / result, made / result)
        (made / "main.c").write_text(source.example(), encoding="utf-8")
        (made / "CMakeLists.txt").write_text(source.cmake(), encoding="utf-8")
        _move(made, target, Path(scratch, "before"))


def build_library(source: ModelSource, objects: Iterable[bytes], tools: Toolchain, options: Iterable[str] = ()) -> None:
    """Write header and code of a library to the folder of `tools`, and compile them with the kernels' object files.

    `options` are further ones of the compiler. Weights that are to be in the library are in the file weights.bin.
    """
    name, folder, options = source.name, tools.folder, list(options)
    header = source.header()
    (folder / f"{name}.h").write_text(header, encoding="utf-8")
    (folder / f"{name}.c").write_text(source.code(), encoding="utf-8")
    tools.compile(f"{name}.c", "code.o", options)
    parts = ["code.o"]
    if source.weights_file is None:
        (folder / "weights.S").write_text(_WEIGHTS)
        tools.compile("weights.S", "weights.o")
        parts.append("weights.o")
    for number, code in enumerate(objects):
        parts.append(f"kernels_{number}.o")
        (folder / parts[-1]).write_bytes(code)
    tools.merge(parts, f"{name}.o", _functions(header))
    tools.link(f"{name}.o", f"lib{name}.so", options)
    tools.archive(f"{name}.o", f"lib{name}.a")


def _functions(header: str) -> list[str]:
    """The functions that a header declares."""
    return re.findall(r"^[a-z][\w ]*[ *](\w+)\([^;{]*\);$", header, re.M)


def _code_of(model: CompiledModel) -> LLVMModule:
    """The object code of a model. Raises `ModuleError` for code of other kinds."""
    kinds = [module.type_key for module in model.module._tree()]
    if not isinstance(model.module, LLVMModule) or len(kinds) > 1:
        raise ModuleError(
            f"model {model.graph.name!r}, for target {model.graph.target.split()[0]!r}, has code of kind "
            f"{', '.join(kinds)}; a C library needs that of kind llvm: compile it for target llvm"
        )
    return model.module


def _check_exportable(model: CompiledModel) -> None:
    """Raise `ModuleError` for inputs and outputs that are no tensors."""
    graph = model.graph
    passed = [*[graph.tensors[i] for i in graph.inputs], *[graph.tensors[i] for i in graph.outputs]]
    for tensor in passed:
        if tensor.is_sequence:
            raise ModuleError(
                f"model {graph.name!r}: {tensor.name!r} is a sequence; a C library takes tensors only: import the "
                "model with a list of shapes for an input, or with other outputs (from_onnx(outputs=...))"
            )
    if graph.strings is not None and (graph.strings.inputs or graph.strings.outputs):
        names = [*[graph.tensors[graph.inputs[i]].name for i in graph.strings.inputs],
                 *[graph.tensors[graph.outputs[i]].name for i in graph.strings.outputs]]  # fmt: skip
        raise ModuleError(f"model {graph.name!r}: {names[0]!r} is of strings; a C library takes numbers only")
    if graph.caches and graph.variants:
        raise ModuleError(
            f"model {graph.name!r} keeps KV caches between runs and has specialisations, not both of which a C library "
            "can have; compile it without caches=, and pass the caches as inputs and outputs"
        )


# -- the folder


def _file_names(name: str) -> set[str]:
    """The files that an export may write."""
    return {f"{name}.h", f"{name}.c", f"lib{name}.so", f"lib{name}.a", f"{name}.weights", "main.c", "CMakeLists.txt"}


def _check_replaceable(folder: Path, names: set[str]) -> None:
    """Raise `ArgumentError` for what is there and no earlier export of this library."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ArgumentError(f"can't write {folder}, which is a file; expected a folder, or a name that is free")
    others = sorted(set(os.listdir(folder)) - names)
    if others:
        raise ArgumentError(f"can't write {folder}: it has other files, such as {others[0]}; name another folder")


def _move(made: Path, target: Path, before: Path) -> None:
    """Put the folder `made` in the place of `target`, which moves to `before`."""
    if target.exists():
        os.rename(target, before)
    try:
        os.rename(made, target)
    except OSError:
        if before.exists():
            shutil.move(before, target)
        raise
