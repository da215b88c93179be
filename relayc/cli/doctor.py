"""`relayc doctor`: available devices and packages, and how to install missing ones."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import astuple, dataclass
from importlib import util

from relayc.backend.cache import default_cache
from relayc.backend.cpu import host_cpu
from relayc.backend.private_files import fault_of_folder
from relayc.backend.processors import processor_of
from relayc.backend.runtime import device
from relayc.backend.runtime.errors import RelaycError
from relayc.backend.runtime.threads import num_threads
from relayc.backend.target import Target
from relayc.cli.environment import system_name, version_of
from relayc.te.errors import CompileError

__all__ = ["Finding", "examine", "version", "versions"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: a subject, whether it is usable, what was found or what to do."""

    subject: str
    usable: bool
    text: str


def examine() -> list[Finding]:
    """All findings about this machine. Never raises: a failure is a finding."""
    return [
        Finding("python", True, f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *[_package(name) for name in ("numpy", "onnx", "llvmlite", "ml_dtypes")],
        _guarded("processor", _processor),
        _guarded("target llvm", lambda: str(Target("llvm"))),
        _guarded("machine model", _machine_model),
        _c_compiler(),
        _cache(),
        _cuda_compiler(),
        _guarded("cuda device", _cuda_device),
        _oracle(),
    ]


_PACKAGES = ("numpy", "onnx", "llvmlite", "ml_dtypes", "networkx", "typer", "rich", "onnxruntime", "cuda-bindings")


def versions() -> dict[str, str | None]:
    """The versions of Python, of the package and of what it uses; None for what is not installed."""
    return {
        "python": platform.python_version(),
        "system": system_name(),
        **{name: version_of(name) for name in ("relayc", *_PACKAGES)},
    }


def version() -> str:
    """The name and version of the installed compiler."""
    found = version_of("relayc")
    return "relayc, not installed: run from its sources" if found is None else f"relayc {found}"


def _package(name: str) -> Finding:
    found = version_of(name)
    return Finding(name, found is not None, found or f"not installed: pip install {name}")


def _guarded(subject: str, find: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, True, find())
    except (CompileError, RelaycError, OSError) as error:
        return Finding(subject, False, str(error))


def _processor() -> str:
    cpu, threads = host_cpu(), num_threads()
    caches = ", ".join(f"{size >> 10} KiB" for size in (cpu.caches.l1, cpu.caches.l2, cpu.caches.l3) if size)
    return f"{cpu.name} ({cpu.triple}), caches {caches}, {threads} threads may be used"


def _machine_model() -> str:
    """The row of the table of processors that schedules for this machine are chosen by, with its traits."""
    target = Target("llvm")
    row, name = processor_of(target), target.get("mtune", target.mcpu)
    if not row.is_known:
        return f"{name}: no known processor has its features; sizes are detected, no traits are assumed (-mtune=NAME)"
    latencies = "/".join(str(cycles or "?") for cycles in astuple(row.latencies))
    facts = [
        f"latencies {latencies} cycles", f"{row.fill_buffers or '?'} line-fill buffers", f"LLC: {row.llc or '?'}",
        f"multiply-adds of {row.fma_bits} bits a cycle", *row.traits,
    ]  # fmt: skip
    return f"{name} ({row.core}): {', '.join(facts)}"


def _c_compiler() -> Finding:
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    return Finding("target c", found is not None, found or "no C compiler on PATH; only target \"c\" needs one")


def _cache() -> Finding:
    cache = default_cache()
    if cache is None:
        return Finding("cache", False, "RELAYC_CACHE_DIR=off, or no home folder: every compilation starts from nothing")
    fault = fault_of_folder(cache.folder)
    if fault is not None:
        return Finding("cache", False, f"not used: {fault}")
    there = next(folder for folder in (cache.folder, *cache.folder.parents) if os.path.exists(folder))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Finding("cache", False, f"{cache.folder} can't be written; name another folder: RELAYC_CACHE_DIR=folder")
    return Finding("cache", True, str(cache.folder))


def _cuda_compiler() -> Finding:
    if not _importable("cuda.bindings.nvrtc"):
        return Finding("target cuda", False, "NVRTC is not installed: pip install 'relayc[cuda]' to compile for GPUs")
    return _guarded("target cuda", lambda: f"compiles for {Target('cuda').get('arch')} and others, no GPU needed")


def _importable(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _cuda_device() -> str:
    gpu = device("cuda", 0)
    gpu.api.set_device(gpu)  # says why, where there is none
    return f"{gpu.device_name}, compute capability {gpu.compute_version}"


def _oracle() -> Finding:
    found = _package("onnxruntime")
    text = f"{found.text}, for relayc verify" if found.usable else f"{found.text}, for relayc verify --against it"
    return Finding("onnxruntime", found.usable, text)
