"""Disassembly of GPU machine code by NVIDIA's nvdisasm."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from relayc.backend.runtime.errors import ModuleError

__all__ = ["disassemble", "instruction_counts"]

_FUNCTION = re.compile(r"^\.text\.(\w+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)")


def _find() -> str:
    """The path of `nvdisasm`: from NVIDIA's packages, or on the search path."""
    try:
        found = importlib.import_module("cuda.pathfinder").find_nvidia_binary_utility("nvdisasm")
    except (ImportError, AttributeError):
        found = None
    found = shutil.which("nvdisasm") if found is None else str(found)
    if found is None:
        raise ModuleError("no nvdisasm to show machine code with: pip install nvidia-cuda-nvdisasm")
    return found


def disassemble(cubin: bytes) -> str:
    """The instructions (SASS) of a cubin. Raises ModuleError if nvdisasm is missing or fails, with its output."""
    tool = _find()
    with tempfile.TemporaryDirectory(prefix="relayc-") as folder:
        path = Path(folder, "module.cubin")
        path.write_bytes(cubin)
        done = subprocess.run([tool, "-c", str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ModuleError(f"{tool} failed with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def instruction_counts(sass: str) -> dict[str, Counter[str]]:
    """Function -> count of each of its instructions, by full mnemonic ("HMMA.16816.F32", "LDS.128")."""
    counts: dict[str, Counter[str]] = {}
    current: Counter[str] = Counter()
    for line in sass.splitlines():
        function = _FUNCTION.match(line)
        if function is not None:
            current = counts[function[1]] = Counter()
        instruction = _INSTRUCTION.match(line)
        if instruction is not None:
            current[instruction[1]] += 1
    return counts
