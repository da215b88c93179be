"""The commands `run` and `bench` where only numpy and ml_dtypes are installed: artifacts, no compiler, plain text.

`python -m relayc` uses it where typer or rich is missing. Exit codes are those of the whole command: 0 done, 1 failed,
2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from relayc.backend.runtime import RelaycError, device, load_model
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.frontends.cli.inputs import results_of, set_inputs
from relayc.frontends.cli.options import UsageError, check_writable, write_archive

__all__ = ["main"]

_COMPILER = "only the runtime is installed here; for all commands, and for .onnx files: pip install relayc"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of `arguments`, by default the process's; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        compiled, executor = _opened(options)
        set_inputs(executor, options.input, options.fill, options.seed, options.shape)
        if options.command == "bench":
            _bench(executor, options.repeat, options.number)
        else:
            _run(executor, compiled, options.output)
    except UsageError as error:
        return _failed(error, 2)
    except (RelaycError, OSError, MemoryError) as error:
        return _failed(error, 1)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="relayc", description=f"Run compiled models ({_COMPILER}).")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{run,bench}")
    for name, text in (("run", "run an artifact once"), ("bench", "measure its latency")):
        command = commands.add_parser(name, help=text)
        command.add_argument("model", type=Path, help="an artifact that `relayc compile` wrote")
        command.add_argument("--input", "-i", action="append", default=[], help="file.npz or name=file.npy; repeatable")
        command.add_argument("--fill", default=None if name == "run" else "random", help="random, ones or zeros")
        command.add_argument("--shape", "-s", action="append", default=[], help="x:1,3,224,224 or batch=1; repeatable")
        command.add_argument("--seed", type=int, default=0, help="seed of --fill random")
        command.add_argument("--device", "-d", help='"cpu", "cuda:0"; default: what it was compiled for')
        command.add_argument("--threads", type=int, help="threads to use; default: all it may use")
        if name == "run":
            command.add_argument("--output", "-o", type=Path, help="write the outputs to this .npz")
        else:
            command.add_argument("--repeat", "-n", type=int, default=50, help="measurements")
            command.add_argument("--number", type=int, default=1, help="runs per measurement")
    return parser


def _opened(options: argparse.Namespace) -> tuple[CompiledModel, GraphModule]:
    if options.model.suffix.lower() in (".onnx", ".pb"):
        raise UsageError(f"{options.model}: expected an artifact; {_COMPILER}")
    compiled = load_model(options.model)
    where = device(compiled.graph.device if options.device is None else options.device)
    return compiled, GraphModule(compiled["default"](where), options.threads)


def _run(executor: GraphModule, compiled: CompiledModel, output: Path | None) -> None:
    check_writable(output)
    executor.run()
    results = results_of(executor, compiled)
    for name, value in results.items():
        print(f"{name}: {'string' if value.dtype.kind == 'U' else value.dtype}{list(value.shape)}")
    if output is not None:
        write_archive(output, results)


def _bench(executor: GraphModule, repeat: int, number: int) -> None:
    seconds = executor.benchmark(repeat=repeat, number=number).results
    low, median, high = (float(v) * 1e3 for v in np.percentile(seconds, [10, 50, 90]))
    print(f"median {median:.3f} ms, p10 {low:.3f} ms, p90 {high:.3f} ms, {len(seconds)} runs, "
          f"{executor.num_threads} threads")  # fmt: skip


def _failed(error: Exception, code: int) -> int:
    print(f"error: {type(error).__name__}\n{error}", file=sys.stderr)
    return code
