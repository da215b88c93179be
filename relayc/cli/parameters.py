"""Arguments and options that several commands have, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relayc.cli.options import Activations, Build, Precision, parse_shapes

__all__ = [
    "Caches", "CheckIndices", "Device", "Fill", "InPrecision", "Input", "Json", "LastPosition", "Model",
    "OfActivations", "OptLevel", "Records", "Seed", "Shape", "Target", "Threads", "build_options",
]  # fmt: skip

Model = Annotated[Path, typer.Argument(help="an .onnx model, or an artifact that `relayc compile` wrote")]
Target = Annotated[
    str, typer.Option("--target", "-t", help='what to compile for: "llvm" (this machine), "llvm -mcpu=haswell", "cuda"')
]
Shape = Annotated[
    list[str] | None,
    typer.Option("--shape", "-s", help="shape of an input, x:1,3,224,224, or size of a named dimension, batch=1"),
]
InPrecision = Annotated[
    Precision, typer.Option("--precision", help="half precision: weights, most values; on CPUs bfloat16 in products")
]
OfActivations = Annotated[
    Activations,
    typer.Option("--activations", help="data of products with 4- or 8-bit weights: int8, float, or as the model says"),
]
OptLevel = Annotated[
    int, typer.Option("--opt-level", "-O", min=0, max=4, help="0: as written; 3: all passes; 4: fast math too")
]
Input = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", help="file.npz or file.json, values by input name; or name=file.npy; repeatable"),
]
Fill = Annotated[str | None, typer.Option("--fill", help="inputs without a value: random (seeded), ones or zeros")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object (docs/cli_json.md)")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="threads to use; default: all it may use")]
Device = Annotated[
    str | None, typer.Option("--device", "-d", help='where to run: "cpu", "cuda:0"; default: what it was compiled for')
]
Records = Annotated[
    str | None, typer.Option("--records", help='tuning records to use: a file; "off": none; default: the user\'s own')
]
CheckIndices = Annotated[
    bool, typer.Option("--check-indices", help="positions out of range in gathers and scatters are errors, not limited")
]
Caches = Annotated[
    list[str] | None,
    typer.Option("--caches", help='KV caches that runs append to in place: "auto", or input=output; repeatable'),
]
LastPosition = Annotated[
    str | None, typer.Option("--last-position", help='compute logits of the last position only: "auto", or the output')
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="seed of --fill random")]


def build_options(
    target: str,
    shapes: list[str] | None,
    opt_level: int,
    precision: Precision,
    records: str | None = None,
    check_indices: bool = False,
    activations: Activations = Activations.AUTO,
) -> Build:
    """What the options of a command say about compiling. Raises UsageError for shapes that can't be read."""
    shapes_by_name = parse_shapes(shapes or [])
    return Build(target, shapes_by_name, opt_level, precision, records, check_indices, activations=activations)
