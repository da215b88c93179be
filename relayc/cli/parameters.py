"""Arguments and options that several commands have, declared once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from relayc.cli.options import Activations, Build, Precision, parse_shapes

__all__ = [
    "Caches", "CheckIndices", "Device", "Fill", "InPrecision", "Input", "Json", "LastPosition", "Model",
    "OfActivations", "OptLevel", "Records", "Seed", "Shape", "Target", "Threads", "build_options", "with_build",
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
    target: Target = "llvm",
    shape: Shape = None,
    opt_level: OptLevel = 3,
    precision: InPrecision = Precision.FLOAT32,
    activations: OfActivations = Activations.AUTO,
) -> Build:
    """What the options of a command say about compiling. Raises UsageError for shapes that can't be read."""
    return Build(target, parse_shapes(shape or []), opt_level, precision, activations=activations)


def with_build(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of `build_options` in place of its parameter `how`, which is what these make, with the
    names of those that the command line has."""
    options = signature(build_options, eval_str=True).parameters
    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        replaced = options.values() if parameter.name == "how" else [parameter]
        parameters += [p.replace(kind=Parameter.KEYWORD_ONLY) for p in replaced]
    parameters.append(Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context))

    @wraps(command)
    def run(context: typer.Context, **values: Any) -> None:
        how = build_options(**{name: values.pop(name) for name in options})
        sources = {name: context.get_parameter_source(name) for name in options}
        passed = tuple([name for name, source in sources.items() if source is not None and source.name != "DEFAULT"])
        command(how=replace(how, passed=passed), **values)

    vars(run)["__signature__"] = Signature(parameters)  # what typer reads
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
