"""The commands `run` and `bench` where only numpy and ml_dtypes are installed: artifacts, no compiler, plain text.

`python -m relayc` uses it where typer or rich is missing. Exit codes are those of the whole command: 0 done, 1 failed,
2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from relayc.backend.runtime import load_model
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.cli.environment import Load, bench_record, noise_of, version_of
from relayc.cli.inputs import Inputs, results_of
from relayc.cli.json_output import error_json, result_json
from relayc.cli.options import UsageError, check_writable, input_files, parse_shapes, write_archive
from relayc.cli.plain import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    Latency,
    failure,
    is_onnx,
    output_line,
    output_record,
)

__all__ = ["main"]

_COMPILER = "only the runtime is installed here; for all commands, and for .onnx files: pip install relayc"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of `arguments`, by default the process's; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if is_onnx(options.model):
            raise UsageError(f"{options.model}: expected an artifact; {_COMPILER}")
        inputs = Inputs.read(options.input, options.fill, options.seed, parse_shapes(options.shape))
        compiled = load_model(options.model)
        executor = GraphModule.of(compiled, options.device, options.threads)
        inputs.set(executor, compiled)
        (_bench if options.command == "bench" else _run)(executor, compiled, options)
    except UsageError as error:
        return _failed(options, "usage", str(error), EXIT_USAGE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if options.traceback:
            raise
        return _failed(options, *failure(error), EXIT_FAILED)
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser whose errors say that there are more commands."""

    def error(self, message: str) -> NoReturn:
        super().error(f"{message}\n({_COMPILER})")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="relayc", description=f"Run compiled models ({_COMPILER}).")
    parser.add_argument("--version", action="version", version=f"relayc {version_of('relayc')}, the runtime")
    parser.add_argument("--traceback", action="store_true", help="on an error, show the Python traceback")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{run,bench}")
    for name, text in (("run", "run an artifact once"), ("bench", "measure its latency")):
        command = commands.add_parser(name, help=text)
        command.add_argument("model", type=Path, help="an artifact that `relayc compile` wrote")
        command.add_argument("--input", "-i", action="append", default=[], help="file.npz or name=file.npy; repeatable")
        command.add_argument("--fill", default=None if name == "run" else "random", help="random, ones or zeros")
        command.add_argument("--shape", "-s", action="append", default=[], help="x:1,3,224,224 or batch=1; repeatable")
        command.add_argument("--seed", type=_natural, default=0, help="seed of --fill random")
        command.add_argument("--device", "-d", help='"cpu", "cuda:0"; default: what it was compiled for')
        command.add_argument("--threads", type=int, help="threads to use; default: all it may use")
        command.add_argument("--json", action="store_true", help="print one JSON object (docs/cli_json.md)")
        if name == "run":
            command.add_argument("--output", "-o", type=Path, help="write the outputs to this .npz")
        else:
            command.add_argument("--repeat", "-n", type=int, default=50, help="measurements")
            command.add_argument("--number", type=int, default=1, help="runs per measurement")
    return parser


def _natural(text: str) -> int:
    """An integer from 0 on, of an option; argparse says which one has another value."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r}; expected an integer, 0 or more")
    return int(text)


def _run(executor: GraphModule, compiled: CompiledModel, options: argparse.Namespace) -> None:
    check_writable(options.output, read=[options.model, *input_files(options.input)])
    executor.run()
    results = results_of(executor, compiled)
    if options.json:
        outputs = [output_record(name, value) for name, value in results.items()]
        record = {"model": options.model, "device": str(executor.device), "outputs": outputs, "written": options.output}
        print(result_json("run", record))
    else:
        print("\n".join(output_line(name, value) for name, value in results.items()))
    if options.output is not None:
        write_archive(options.output, results)


def _bench(executor: GraphModule, compiled: CompiledModel, options: argparse.Namespace) -> None:
    before = Load.now()
    latency = Latency.of(executor.benchmark(repeat=options.repeat, number=options.number).results)
    warning = noise_of(latency.spread, Load.now().others_since(before))
    if options.json:
        rows = [(executor.num_threads, latency)]
        how = options.repeat, options.number
        print(result_json("bench", bench_record(options.model, compiled, executor, rows, how, warning)))
        return
    figures = f"p50 {latency.p50:.3f} ms, p90 {latency.p90:.3f} ms, p99 {latency.p99:.3f} ms"
    rate = f"{latency.runs_per_second:.1f} runs/s"
    print(f"{figures}, {rate}, {options.repeat} figures, {executor.num_threads} threads")
    if warning is not None:
        print(f"warning: {warning}", file=sys.stderr)


def _failed(options: argparse.Namespace, kind: str, text: str, code: int) -> int:
    if options.json:
        print(error_json(options.command, kind, text))
    print(f"error: {kind}\n{text}", file=sys.stderr)
    return code
