"""The commands `compile`, `tune`, `cache` and `sign`."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from relayc.backend.runtime.quantities import bytes_text
from relayc.cli.console import Steps, err, guarded, out, print_result
from relayc.cli.models import open_model
from relayc.cli.options import Build, Emit, UsageError, WeightsPlace, check_folder, check_writable, parse_caches
from relayc.cli.parameters import Caches, CheckIndices, Json, LastPosition, Records, Threads, with_build
from relayc.cli.plain import is_onnx

__all__ = ["cache", "compile_", "sign", "tune"]


@guarded
@with_build
def compile_(
    model: Annotated[Path, typer.Argument(help="an .onnx model")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="default: the model's name with .relayc, or of a C library without suffix"),
    ] = None,
    emit: Annotated[
        Emit, typer.Option("--emit", help="an artifact for relayc's runtime, or a folder with a C library")
    ] = Emit.ARTIFACT,
    weights: Annotated[
        WeightsPlace, typer.Option("--weights", help="of a C library: in the library, or in a file beside it")
    ] = WeightsPlace.LIBRARY,
    *,
    how: Build,
    records: Records = None,
    check_indices: CheckIndices = False,
    caches: Caches = None,
    last_position: LastPosition = None,
    json: Json = False,
) -> None:
    """Compile an ONNX model to an artifact, which runs without the compiler, or to a C library.

    Example: relayc compile resnet50.onnx -o resnet50.relayc --shape x:1,3,224,224
    """
    artifact = emit is Emit.ARTIFACT
    if not (is_onnx(model) or (model.is_file() and not artifact)):
        raise UsageError(f"{model}: expected an .onnx file{'' if artifact else ', or an artifact'}")
    path = model.with_suffix(".relayc" if artifact else "") if output is None else output
    if artifact:
        check_writable(path, read=[model])
    else:
        check_folder(path)
    steps = Steps()
    how = replace(
        how, records=records, check_indices=check_indices, caches=parse_caches(caches or []),
        last_position=last_position,
    )  # fmt: skip
    compiled = open_model(model, how, steps)
    if how.caches == "auto" and not compiled.graph.caches:
        err.print(f"{model}: no output is an input with rows appended; the artifact keeps no caches", soft_wrap=True)
    with steps.step("save" if artifact else "C library"):
        if artifact:
            compiled.save(path)
        else:
            compiled.export_c(path, weights=weights.value)
    size = sum(file.stat().st_size for file in ([path] if artifact else path.iterdir()))
    report = compiled.build_report
    record = {
        "model": str(model),
        "artifact": str(path),
        "bytes": size,
        "target": compiled.graph.target,
        "nodes": len(compiled.graph.nodes),
        "from_cache": report is None,
        "seconds": {} if report is None else report.seconds,
    }
    print_result(json, "compile", record, lambda: out.print(f"wrote {path} ({bytes_text(size)})", soft_wrap=True))


@guarded
@with_build
def tune(
    model: Annotated[Path, typer.Argument(help="an .onnx model")],
    minutes: Annotated[float, typer.Option("--minutes", min=0, help="how long to search, about")] = 5.0,
    records: Annotated[
        Path | None, typer.Option("--records", help="file of what is found; default: the user's own, which builds read")
    ] = None,
    *,
    how: Build,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Search faster schedule parameters for the kernels of a model, by measuring them on this machine.

    What is clearly faster than the default is kept, by kernel and processor, and used by later compilations; nothing
    gets slower. Stop it at any time. Example: relayc tune resnet50.onnx --minutes 10 --shape x:1,3,224,224
    """
    if not is_onnx(model):
        raise UsageError(f"{model}: expected an .onnx file")
    report = import_module("relayc.cli.tuning").tune_onnx(model, how, Steps(), minutes, records, threads)
    record = {"model": str(model), **report.record()}
    print_result(json, "tune", record, lambda: out.print(str(report), soft_wrap=True))


@guarded
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="remove what is in it; tuning records stay")] = False,
    json: Json = False,
) -> None:
    """Say what the cache of compiled code holds, and where it is: what was compiled once is found there again."""
    found = import_module("relayc.backend.cache").default_cache()
    if found is None:
        off = {"folder": None, "entries": 0, "bytes": 0, "limit": 0, "cleared": False}
        print_result(json, "cache", off, lambda: out.print("no cache: RELAYC_CACHE_DIR=off, or no home folder"))
        return
    count, size = found.usage()
    if clear:
        found.clear()
    entries = "1 entry" if count == 1 else f"{count} entries"
    held = f"{'removed ' if clear else ''}{entries}, {bytes_text(size)} of at most {bytes_text(found.limit)}"
    record = {"folder": str(found.folder), "entries": count, "bytes": size, "limit": found.limit, "cleared": clear}
    print_result(json, "cache", record, lambda: out.print(f"{found.folder}: {held}", soft_wrap=True))


@guarded
def sign(
    artifact: Annotated[Path, typer.Argument(help="an artifact that `relayc compile` wrote")],
    key: Annotated[Path, typer.Option("--key", help="PEM file of an Ed25519 key: private, with --check public")],
    check: Annotated[bool, typer.Option("--check", help="check that the artifact was signed with this key")] = False,
    json: Json = False,
) -> None:
    """Sign an artifact, or check its signature, which is beside it in artifact.sig.

    Example: relayc sign model.relayc --key private.pem, and relayc sign model.relayc --check --key public.pem, which
    prints the SHA-256 that load_model takes as expect_sha256. Exit code 1 when the signature is another's.
    """
    signing = import_module("relayc.backend.runtime.signing")
    if check:
        digest = signing.check_signature(artifact, key)
        record = {"artifact": str(artifact), "sha256": digest, "signature": None}
        print_result(json, "sign", record, lambda: out.print(f"{digest}  {artifact}", soft_wrap=True))
    else:
        written = signing.sign_artifact(artifact, key)
        record = {"artifact": str(artifact), "sha256": None, "signature": str(written)}
        print_result(json, "sign", record, lambda: out.print(f"wrote {written}", soft_wrap=True))
