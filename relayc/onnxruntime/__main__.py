"""``python -m relayc.onnxruntime program.py ...`` runs a program with this package in the place of onnxruntime.

``python -m relayc.onnxruntime -m module ...`` runs a module.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import NoReturn

from relayc.onnxruntime import install

_USAGE = "usage: python -m relayc.onnxruntime (program.py | -m module) [arguments ...]"


def _fail(message: str) -> NoReturn:
    """End with Python's exit code for wrong usage."""
    print(message, file=sys.stderr)
    sys.exit(2)


def main() -> None:
    """Run the program that the command line names."""
    arguments = sys.argv[1:]
    as_module = arguments[:1] == ["-m"]
    program = arguments[1:] if as_module else arguments
    if program[:1] in (["-h"], ["--help"]):
        print(_USAGE)
        return
    if not program:
        _fail(_USAGE)
    if not as_module and not Path(program[0]).exists():
        _fail(f"can't open {program[0]!r}: there is no such file; {_USAGE}")
    install()
    sys.argv = program
    if as_module:
        sys.path.insert(0, "")
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()
