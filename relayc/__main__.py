"""`relayc`, `python -m relayc`: the command; where typer or rich is not installed, what of it runs artifacts."""

import io
import signal
import sys
from importlib import import_module
from importlib.util import find_spec

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files and tensors may not fit its encoding
    try:
        if find_spec("typer") is None or find_spec("rich") is None:
            sys.exit(import_module("relayc.cli.runtime_only").main())
        import_module("relayc.cli.main").app(prog_name="relayc")
    except KeyboardInterrupt:  # while modules are imported: commands report it themselves
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
