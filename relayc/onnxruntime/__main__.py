"""``python -m relayc.onnxruntime program.py ...`` runs a program with this package in the place of onnxruntime.

``python -m relayc.onnxruntime -m module ...`` runs a module.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from relayc.onnxruntime import install


def main() -> None:
    """Run the program that the command line names."""
    arguments = sys.argv[1:]
    as_module = arguments[:1] == ["-m"]
    program = arguments[1:] if as_module else arguments
    if not program:
        sys.exit("usage: python -m relayc.onnxruntime (program.py | -m module) [arguments ...]")
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
