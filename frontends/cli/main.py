"""The `relayc` command: compile, run, bench, profile, tune, show, verify and sign models."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from relayc.backend.runtime.files import replacing
from relayc.backend.runtime.roofline import roofline_svg
from relayc.frontends.cli.console import Steps, err, guarded, out, print_latency, print_top, settings
from relayc.frontends.cli.inputs import results_of, set_inputs
from relayc.frontends.cli.kernels import code_module, kernel_lines
from relayc.frontends.cli.models import open_model
from relayc.frontends.cli.options import (
    Build,
    Form,
    Precision,
    UsageError,
    check_writable,
    parse_shapes,
    write_archive,
)
from relayc.frontends.cli.plain import executor_for, is_onnx, output_line

__all__ = ["app"]

app = typer.Typer(
    name="relayc",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[Path, typer.Argument(help="an .onnx model, or an artifact that `relayc compile` wrote")]
Target = Annotated[
    str, typer.Option("--target", "-t", help='what to compile for: "llvm" (this machine), "llvm -mcpu=haswell", "cuda"')
]
Shape = Annotated[
    list[str] | None,
    typer.Option("--shape", "-s", help="shape of an input, x:1,3,224,224, or size of a named dimension, batch=1"),
]
InPrecision = Annotated[
    Precision, typer.Option("--precision", help="half precision: weights and most values; sums stay float32")
]
OptLevel = Annotated[
    int, typer.Option("--opt-level", "-O", min=0, max=4, help="0: as written; 3: all passes; 4: fast math too")
]
Input = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", help="file.npz or file.json, values by input name; or name=file.npy; repeatable"),
]
Fill = Annotated[str | None, typer.Option("--fill", help="inputs without a value: random (seeded), ones or zeros")]
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
Seed = Annotated[int, typer.Option("--seed", min=0, help="seed of --fill random")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(import_module("relayc.frontends.cli.doctor").version())
        raise typer.Exit


@app.callback()
def options(
    traceback: Annotated[bool, typer.Option("--traceback", help="on an error, show the Python traceback")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and end")
    ] = False,
) -> None:
    """A deep-learning compiler: ONNX models to native code.

    [bold]relayc compile model.onnx -o model.relayc[/bold] makes an artifact; [bold]relayc run[/bold] and
    [bold]relayc bench[/bold] take an artifact or an .onnx file. Exit codes: 0 done, 1 failed, 2 wrong usage,
    130 stopped.
    """
    settings.traceback = traceback


def _build(
    target: str,
    shapes: list[str] | None,
    opt_level: int,
    precision: Precision,
    records: str | None = None,
    check_indices: bool = False,
) -> Build:
    return Build(target, parse_shapes(shapes or []), opt_level, precision, records, check_indices)


@app.command("compile")
@guarded
def compile_(
    model: Annotated[Path, typer.Argument(help="an .onnx model")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="default: the model's name with .relayc")
    ] = None,
    target: Target = "llvm",
    shape: Shape = None,
    opt_level: OptLevel = 3,
    precision: InPrecision = Precision.FLOAT32,
    records: Records = None,
    check_indices: CheckIndices = False,
) -> None:
    """Compile an ONNX model to an artifact, which runs without the compiler.

    Example: relayc compile resnet50.onnx -o resnet50.relayc --shape x:1,3,224,224
    """
    if not is_onnx(model):
        raise UsageError(f"{model}: expected an .onnx file")
    path = model.with_suffix(".relayc") if output is None else output
    check_writable(path)
    steps = Steps()
    compiled = open_model(model, _build(target, shape, opt_level, precision, records, check_indices), steps)
    with steps.step("save"):
        compiled.save(path)
    out.print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)


@app.command()
@guarded
def run(
    model: Model,
    inputs: Input = None,
    fill: Fill = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write the outputs to this .npz")] = None,
    print_count: Annotated[int, typer.Option("--print-top", min=0, help="print so many of the largest values")] = 0,
    device: Device = None,
    target: Target = "llvm",
    shape: Shape = None,
    opt_level: OptLevel = 3,
    precision: InPrecision = Precision.FLOAT32,
    threads: Threads = None,
    seed: Seed = 0,
    check_indices: CheckIndices = False,
) -> None:
    """Run a model once: an artifact, or an .onnx file, which is compiled first.

    Example: relayc run resnet50.relayc --input image.npz --print-top 5
    """
    check_writable(output)
    steps = Steps(quiet=not is_onnx(model))
    compiled = open_model(model, _build(target, shape, opt_level, precision, None, check_indices), steps)
    executor = executor_for(compiled, device, threads)
    set_inputs(executor, inputs or [], fill, seed, shape or [])
    executor.run()
    results = results_of(executor, compiled)
    for name, value in results.items():
        out.print(output_line(name, value))
        if print_count:
            print_top(name, value, print_count)
    if output is not None:
        write_archive(output, results)
        err.print(f"wrote {output}", soft_wrap=True)


@app.command()
@guarded
def bench(
    model: Model,
    inputs: Input = None,
    fill: Fill = "random",
    repeat: Annotated[int, typer.Option("--repeat", "-n", min=1, help="figures to take")] = 50,
    number: Annotated[int, typer.Option("--number", min=1, help="runs per figure")] = 1,
    profile: Annotated[int, typer.Option("--profile", min=0, help="also list so many of the slowest kernels")] = 0,
    device: Device = None,
    target: Target = "llvm",
    shape: Shape = None,
    opt_level: OptLevel = 3,
    precision: InPrecision = Precision.FLOAT32,
    threads: Threads = None,
    seed: Seed = 0,
) -> None:
    """Measure the latency of a model: median, 10th and 90th percentile.

    Example: relayc bench resnet50.relayc --threads 1 --profile 10
    """
    steps = Steps(quiet=not is_onnx(model))
    executor = executor_for(open_model(model, _build(target, shape, opt_level, precision), steps), device, threads)
    set_inputs(executor, inputs or [], fill, seed, shape or [])
    with steps.step("measure"):
        result = executor.benchmark(repeat=repeat, number=number)
    print_latency(result.results, executor.num_threads)
    if profile:
        out.print(executor.profile().table(top=profile), soft_wrap=True)


@app.command()
@guarded
def profile(
    model: Model,
    inputs: Input = None,
    fill: Fill = "random",
    top: Annotated[int, typer.Option("--top", min=1, help="list so many of the slowest kernels")] = 25,
    by_operators: Annotated[bool, typer.Option("--by-operators", help="sum up kernels of the same operators")] = False,
    repeat: Annotated[int, typer.Option("--repeat", "-n", min=1, help="runs in each round")] = 5,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="rounds; ceilings are measured between them")] = 5,
    svg: Annotated[Path | None, typer.Option("--svg", help="write a picture of the roofline")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="write all figures as JSON")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="write all figures as comma-separated values")] = None,
    device: Device = None,
    target: Target = "llvm",
    shape: Shape = None,
    opt_level: OptLevel = 3,
    precision: InPrecision = Precision.FLOAT32,
    threads: Threads = None,
    seed: Seed = 0,
) -> None:
    """Measure every kernel: time, share, GFLOP/s, GB/s and, on a CPU, how near it is to the machine's ceilings.

    The ceilings, multiply-adds from registers and copies from memory, are measured in between. Work whose data is in a
    cache can be above the second. Example: relayc profile resnet50.relayc --threads 1 --svg resnet50.svg
    """
    check_writable(svg, json, csv)
    executor = executor_for(
        open_model(model, _build(target, shape, opt_level, precision), Steps(quiet=not is_onnx(model))), device, threads
    )
    set_inputs(executor, inputs or [], fill, seed, shape or [])
    report = import_module("relayc.frontends.cli.profiling").profile_executor(executor, rounds, repeat)
    if svg is not None and report.ceilings is None:
        raise UsageError(f"--svg: the ceilings of {executor.device} are not known; expected a model on a CPU")
    facts = [f"{name} {value}" for name, value in report.configuration.items() if name != "target"]
    facts += [] if report.ceilings is None else [str(report.ceilings)]
    out.print(", ".join(facts), soft_wrap=True)
    shown = report.by(lambda call: call.ops) if by_operators else report
    out.print(shown.table(top=top), soft_wrap=True)
    for path, text in ((json, report.json), (csv, report.csv), (svg, lambda: roofline_svg(report))):
        if path is not None:
            with replacing(path) as file:
                file.write(text().encode())
            err.print(f"wrote {path}", soft_wrap=True)


@app.command()
@guarded
def tune(
    model: Annotated[Path, typer.Argument(help="an .onnx model")],
    minutes: Annotated[float, typer.Option("--minutes", min=0, help="how long to search, about")] = 5.0,
    records: Annotated[
        Path | None, typer.Option("--records", help="file of what is found; default: the user's own, which builds read")
    ] = None,
    target: Target = "llvm",
    shape: Shape = None,
    opt_level: OptLevel = 3,
    precision: InPrecision = Precision.FLOAT32,
    threads: Threads = None,
) -> None:
    """Search faster schedule parameters for the kernels of a model, by measuring them on this machine.

    What is clearly faster than the default is kept, by kernel and processor, and used by later compilations; nothing
    gets slower. Stop it at any time. Example: relayc tune resnet50.onnx --minutes 10 --shape x:1,3,224,224
    """
    if not is_onnx(model):
        raise UsageError(f"{model}: expected an .onnx file")
    how = _build(target, shape, opt_level, precision)
    report = import_module("relayc.frontends.cli.tuning").tune_onnx(model, how, Steps(), minutes, records, threads)
    out.print(str(report), soft_wrap=True)


@app.command()
@guarded
def show(
    model: Model,
    form: Annotated[Form, typer.Argument(help="what to show")] = Form.GRAPH,
    kernel: Annotated[str | None, typer.Option("--kernel", "-k", help="only kernels whose name holds this")] = None,
    target: Target = "llvm",
    shape: Shape = None,
    opt_level: OptLevel = 3,
    precision: InPrecision = Precision.FLOAT32,
) -> None:
    """Print a stage of a model as text.

    graph: as imported · optimized: after the graph passes · kernels: what runs, for a GPU with registers, spills,
    shared memory and occupancy · loops: lowered loop IR · llvm: LLVM IR · asm: machine code · cuda, ptx, sass: a GPU's.
    An artifact shows its kernels and its CUDA code. Example: relayc show model.onnx asm --kernel conv2d
    """
    how = _build(target, shape, opt_level, precision)
    if form is Form.KERNELS:
        compiled = open_model(model, how, Steps(quiet=True))
        out.print("\n".join(kernel_lines(compiled, kernel)), soft_wrap=True)
    elif is_onnx(model):
        import_module("relayc.frontends.cli.show").print_form(model, form, kernel, how)
    elif form in (Form.CUDA, Form.PTX, Form.SASS) and kernel is None:
        code = code_module(open_model(model, how, Steps(quiet=True)).module, "cuda")
        out.print(code.get_source(form.value), soft_wrap=True)
    else:
        raise UsageError(f"{form} of {model}: an artifact shows its kernels and its CUDA code; expected an .onnx file")


@app.command()
@guarded
def verify(
    model: Annotated[Path, typer.Argument(help="an .onnx model")],
    against: Annotated[str, typer.Option("--against", help="onnxruntime, or reference: our numpy references")] = (
        "onnxruntime"
    ),
    inputs: Input = None,
    fill: Fill = "random",
    tolerance: Annotated[
        float | None, typer.Option("--tolerance", min=0, help="largest error of floats, by the largest magnitude")
    ] = None,
    listed: Annotated[int, typer.Option("--list", min=0, help="print so many of the tensors furthest off")] = 10,
    target: Target = "llvm",
    shape: Shape = None,
    opt_level: OptLevel = 3,
    seed: Seed = 0,
) -> None:
    """Compare every intermediate tensor with another implementation and name the first node that departs.

    Exit code 1 when one does. Example: relayc verify resnet50.onnx --shape x:1,3,224,224 --against onnxruntime
    """
    if not is_onnx(model):
        raise UsageError(f"{model}: expected an .onnx file")
    check = import_module("relayc.frontends.cli.verifying").verify_model
    shapes = parse_shapes(shape or [])
    if not check(model, inputs, fill, seed, shapes, against, target, opt_level, tolerance, listed):
        raise typer.Exit(1)


@app.command()
@guarded
def sign(
    artifact: Annotated[Path, typer.Argument(help="an artifact that `relayc compile` wrote")],
    key: Annotated[Path, typer.Option("--key", help="PEM file of an Ed25519 key: private, with --check public")],
    check: Annotated[bool, typer.Option("--check", help="check that the artifact was signed with this key")] = False,
) -> None:
    """Sign an artifact, or check its signature, which is beside it in artifact.sig.

    Example: relayc sign model.relayc --key private.pem, and relayc sign model.relayc --check --key public.pem, which
    prints the SHA-256 that load_model takes as expect_sha256. Exit code 1 when the signature is another's.
    """
    signing = import_module("relayc.backend.runtime.signing")
    if check:
        out.print(f"{signing.check_signature(artifact, key)}  {artifact}", soft_wrap=True)
    else:
        out.print(f"wrote {signing.sign_artifact(artifact, key)}", soft_wrap=True)


@app.command()
@guarded
def doctor() -> None:
    """Say what this machine can do, and what to install for the rest."""
    findings = import_module("relayc.frontends.cli.doctor").examine()
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        mark = "yes" if finding.usable else "no "
        out.print(f"{mark}  {finding.subject:<{width}}  {finding.text}", soft_wrap=True)


@app.command()
@guarded
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="remove what is in it; tuning records stay")] = False,
) -> None:
    """Say what the cache of compiled code holds, and where it is: what was compiled once is found there again."""
    found = import_module("relayc.backend.cache").default_cache()
    if found is None:
        out.print("the cache is off (RELAYC_CACHE_DIR=off)")
        return
    count, size = found.usage()
    if clear:
        found.clear()
    held = f"{count} entries, {size / 1e6:.1f} MB of at most {found.limit / 1e6:.0f} MB"
    out.print(f"{found.folder}: {'removed ' if clear else ''}{held}", soft_wrap=True)


if __name__ == "__main__":
    app()
