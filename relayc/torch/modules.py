"""`from_torch` and `compile_torch`: modules of PyTorch as modules of the compiler, and as compiled models."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.onnx import ONNXProgram

from relayc import compile_onnx
from relayc.frontends.onnx import from_onnx
from relayc.runtime import ArgumentError, CompiledModel
from relayc.te.ir import IRModule
from relayc.torch.exporting import quiet_export

__all__ = ["compile_torch", "from_torch"]

Module = torch.nn.Module | ExportedProgram


def from_torch(
    module: Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    freeze_params: bool = True,
) -> tuple[IRModule, dict[str, np.ndarray]]:
    """Convert a module of PyTorch to a module of the graph IR and weights, as `from_onnx` returns them.

    `args` and `kwargs` are examples of the arguments of `forward`, which is traced by `torch.export`, as in evaluation
    (`module.eval()`). `dynamic_shapes` is that of `torch.export.export`: ``{"x": {0: "batch"}}`` makes a dimension
    symbolic. Inputs have the names of `forward`'s arguments. `module` may be an `ExportedProgram`, which has its own
    examples and shapes. Weights are copied by `relay.build`, and must not change until then.

    Raises `TorchExportError` for what torch can't export, and what `from_onnx` raises.
    """
    return from_onnx(_program(module, args, kwargs, dynamic_shapes), freeze_params=freeze_params)


def compile_torch(
    module: Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    target: Any = "llvm",
    opt_level: int = 3,
    config: Mapping[str, Any] | None = None,
    mod_name: str = "default",
    progress: Callable[[str, int, int], None] | None = None,
) -> CompiledModel:
    """Compile a module of PyTorch: the arguments are those of `from_torch` and of `compile_onnx`.

    The compiled model has weights of its own, and neither it nor its file needs torch. A model compiled before comes
    from the cache. Raises what `from_torch` and `compile_onnx` raise.
    """
    program = _program(module, args, kwargs, dynamic_shapes)
    return compile_onnx(
        program, target, opt_level=opt_level, config=config, mod_name=mod_name, progress=progress
    )  # fmt: skip


def _program(module: Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any) -> ONNXProgram:
    if isinstance(module, ExportedProgram):
        if args or kwargs or dynamic_shapes:
            raise ArgumentError("an ExportedProgram has its arguments and shapes; expected it alone")
        return quiet_export(module)
    if not isinstance(module, torch.nn.Module):
        kind = type(module).__name__
        raise ArgumentError(f"got a {kind}; expected a torch.nn.Module or an ExportedProgram")
    if not isinstance(args, tuple | list):
        raise ArgumentError(f"args is a {type(args).__name__}; expected a tuple of the arguments of forward")
    with _evaluating(module), torch.no_grad():
        return quiet_export(module, tuple(args), kwargs=dict(kwargs or {}), dynamic_shapes=dynamic_shapes)


@contextmanager
def _evaluating(module: torch.nn.Module) -> Generator[None]:
    """A context in which the module and all in it evaluate."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
