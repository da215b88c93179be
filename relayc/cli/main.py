"""The `relayc` command: its global options and the commands it has."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from relayc.cli import benching, building, generating, inspecting, quantizing, running, serving
from relayc.cli.console import settings, show_log

__all__ = ["app"]

app = typer.Typer(
    name="relayc",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(import_module("relayc.cli.doctor").version())
        raise typer.Exit


@app.callback()
def options(
    traceback: Annotated[bool, typer.Option("--traceback", help="on an error, show the Python traceback")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="print what the compiler logs, on stderr")] = False,
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
    show_log(verbose)


for name, command in (
    ("compile", building.compile_),
    ("run", running.run),
    ("generate", generating.generate),
    ("bench", benching.bench),
    ("profile", running.profile),
    ("tune", building.tune),
    ("quantize", quantizing.quantize),
    ("inspect", inspecting.inspect),
    ("show", inspecting.show),
    ("serve", serving.serve),
    ("verify", inspecting.verify),
    ("sign", building.sign),
    ("doctor", inspecting.doctor),
    ("cache", building.cache),
):
    app.command(name)(command)


if __name__ == "__main__":
    app()
