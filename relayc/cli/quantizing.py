"""The command `quantize`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from relayc.backend.runtime.quantities import bytes_text
from relayc.cli.console import Steps, guarded, out, print_result
from relayc.cli.options import UsageError, check_writable, parse_shapes
from relayc.cli.parameters import Json, Shape, Target, Threads
from relayc.cli.plain import EXIT_FAILED, is_onnx

__all__ = ["quantize"]


@guarded
def quantize(
    model: Annotated[Path, typer.Argument(help="an .onnx model in float32")],
    calibration: Annotated[list[Path], typer.Argument(help=".npz files: typical inputs by name, some hundred runs")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="default: the model's name with _int8.onnx")
    ] = None,
    max_error: Annotated[
        float, typer.Option("--max-error", min=0, help="largest relative L2 error of an output, over all runs")
    ] = 0.05,
    method: Annotated[str, typer.Option("--method", help="ranges of values: minmax, entropy or percentile")] = "minmax",
    listed: Annotated[int, typer.Option("--list", min=0, help="print so many layers of the largest error")] = 20,
    target: Target = "llvm",
    shape: Shape = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Quantise a model to int8, layer by layer only where it is measured to be faster and accurate enough.

    The output is an ONNX model for `relayc compile`. Exit code 1 when nothing is gained, and nothing is written.
    Example: relayc quantize resnet50.onnx images.npz --max-error 0.03
    """
    if not is_onnx(model):
        raise UsageError(f"{model}: expected an .onnx file")
    path = model.with_name(f"{model.stem}_int8.onnx") if output is None else output
    check_writable(path, read=[model, *calibration])
    with Steps().step("quantize") as step:
        report = import_module("relayc.quantization").quantize(
            model, calibration, path, max_error=max_error, method=method, target=target,
            shape=parse_shapes(shape or []), threads=threads, progress=step.show,
        )  # fmt: skip

    def text() -> None:
        if listed:
            out.print(report.table(listed), soft_wrap=True)
        out.print(str(report), soft_wrap=True)
        if report.output is not None:
            out.print(f"wrote {path} ({bytes_text(path.stat().st_size)})", soft_wrap=True)

    print_result(json, "quantize", report.record(), text)
    if report.output is None:
        raise typer.Exit(EXIT_FAILED)
