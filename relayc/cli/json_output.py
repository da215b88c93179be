"""Results of commands as JSON objects, for programs: what `--json` prints. `docs/cli_json.md` has their schema."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np

__all__ = ["SCHEMA", "error_json", "result_json"]

SCHEMA = 1
"""Version of the objects: it grows when a field goes or changes its meaning; new fields don't change it."""


def result_json(command: str, record: Mapping[str, Any]) -> str:
    """The result of a command as one line of JSON, in ASCII, which any terminal takes. Numbers that JSON lacks (NaN,
    infinity) become null."""
    return json.dumps({"schema": SCHEMA, "command": command, **_plain(record)}, allow_nan=False)


def error_json(command: str, kind: str, message: str) -> str:
    """The error that ended a command as one line of JSON."""
    return result_json(command, {"error": {"kind": kind, "message": message}})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, PathLike):
        return str(value)
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
