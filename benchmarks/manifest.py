"""A manifest of machine code: which code the compiler makes for several processors, compared with an earlier manifest.

    python -m benchmarks.manifest write FILE [--zoo FOLDER] [--targets znver4,sapphirerapids] [--only REGEX] [--jobs 2]
    python -m benchmarks.manifest compare OLD NEW [--common]

``write`` compiles the cases of `benchmarks/manifest_cases.py`: the kernels of the benchmark programs and the models of
`benchmarks.models`, of which those of the zoo need its folder. Nothing is run, and targets name their processor, cache
sizes and cores, so that every machine makes the same code; the cache of compiled code and tuning records are off.
``--only`` chooses cases by a regular expression, which is looked for in "PROGRAM: CASE".

``compare`` prints each kernel whose code differs, with its sizes in bytes, and a last line "D of N kernels differ"; the
exit status is 1 if any does. ``--common`` leaves out the cases and targets that only one of the manifests has.

A manifest shows that a change, such as one of names, leaves the machine code as it was. No name enters it: a kernel is
the `benchmarks.fingerprint` of its object file, which is one of the compiled model's; the functions that run a graph's
kernels one after the other, with all offsets in memory, count as one kernel more. A case is known by its program and
its place there; its name is for readers. Kernels of a case are compared as multisets. The file also has the version of
LLVM, on which the code depends.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from benchmarks.fingerprint import Fingerprint, fingerprint
from benchmarks.manifest_cases import PROGRAMS, Case
from relayc import relay
from relayc.backend.runtime.module import Module
from relayc.te.ir import PassContext

_FORMAT = 1
_LINUX_X86 = "llvm -mtriple=x86_64-unknown-linux-gnu -num-cores=2"
TARGETS = {
    "znver3": f"{_LINUX_X86} -mcpu=znver3 -l1-bytes=32768 -l2-bytes=524288 -l3-bytes=33554432",
    "znver4": f"{_LINUX_X86} -mcpu=znver4 -l1-bytes=32768 -l2-bytes=1048576 -l3-bytes=33554432",
    "znver5": f"{_LINUX_X86} -mcpu=znver5 -l1-bytes=49152 -l2-bytes=1048576 -l3-bytes=33554432",
    "skylake-avx512": f"{_LINUX_X86} -mcpu=skylake-avx512 -l1-bytes=32768 -l2-bytes=1048576 -l3-bytes=25165824",
    "sapphirerapids": f"{_LINUX_X86} -mcpu=sapphirerapids -l1-bytes=49152 -l2-bytes=2097152 -l3-bytes=33554432",
    "neoverse-n1": "llvm -mtriple=aarch64-unknown-linux-gnu -num-cores=2 -mcpu=neoverse-n1 -l1-bytes=65536 "
    "-l2-bytes=1048576 -l3-bytes=33554432",
}
"""AVX2; AVX-512 with 32 and with 48 KiB of L1; AVX-512 without VNNI; AMX; NEON."""
_SETTINGS = {"RELAYC_CACHE_DIR": "off", "RELAYC_NUM_THREADS": "1"}
"""Nothing compiled before is reused, nor a tuning record; each process has one thread for LLVM."""
_MODULE_HEADER = struct.Struct("<8sQ")

Kernels = dict[str, list[Fingerprint]]
"""Kernels by target."""
Manifest = dict[str, Any]


class _Task(NamedTuple):
    """A case by its program and its place there."""

    program: str
    place: int


# -- writing


@lru_cache(maxsize=2)
def _cases(program: str, zoo: Path | None) -> list[Case | None]:
    return list(PROGRAMS[program](zoo))


def object_files(module: Module) -> Iterator[bytes]:
    """The object files of a compiled module, from its byte form: magic, size of the header, header, object files."""
    data = module.save_to_bytes()
    _, size = _MODULE_HEADER.unpack_from(data)
    at = _MODULE_HEADER.size + size
    for part in json.loads(data[_MODULE_HEADER.size : at])["parts"]:
        yield data[at : at + part["size"]]
        at += part["size"]


def _compile(task: _Task, zoo: Path | None, targets: Sequence[str]) -> Kernels:
    """The kernels of a case for each target."""
    case = _cases(task.program, zoo)[task.place]
    assert case is not None, task
    model, kernels = case.make(), Kernels()
    for target in targets:
        with PassContext(config=dict(case.options)):
            library = relay.build(model, TARGETS[target])
        kernels[target] = [fingerprint(code) for code in object_files(library.module)]
    return kernels


def _chosen(zoo: Path | None, only: str) -> dict[_Task, str]:
    """The cases to compile, with their names."""
    found: dict[_Task, str] = {}
    for program in PROGRAMS:
        for place, case in enumerate(_cases(program, zoo)):
            if case is not None and re.search(only, f"{program}: {case.name}"):
                found[_Task(program, place)] = case.name
    return found


def _compile_all(options: argparse.Namespace, tasks: Mapping[_Task, str]) -> dict[_Task, Kernels]:
    """The kernels of all cases, compiled by several processes; cases that fail are told of and left out."""
    done: dict[_Task, Kernels] = {}
    left = Counter(task.program for task in tasks)
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        waiting: dict[Future[Kernels], _Task] = {
            pool.submit(_compile, task, options.zoo, options.targets): task for task in tasks
        }
        for future in as_completed(waiting):
            task, error = waiting[future], future.exception()
            if error is None:
                done[task] = future.result()
            else:
                print(f"{task.program}: {tasks[task]}: failed", file=sys.stderr)
                traceback.print_exception(error, file=sys.stderr)
            left[task.program] -= 1
            if not left[task.program]:
                print(f"{task.program}: compiled", file=sys.stderr, flush=True)
    return done


def write(options: argparse.Namespace) -> int:
    """Write a manifest; gives the exit status, which is 1 if a case failed."""
    os.environ.update(_SETTINGS)
    start, tasks = time.perf_counter(), _chosen(options.zoo, options.only)
    done = _compile_all(options, tasks)
    programs: dict[str, dict[str, Any]] = {}
    for task, name in tasks.items():
        if task in done:
            texts = {target: " ".join(map(str, kernels)) for target, kernels in done[task].items()}
            programs.setdefault(task.program, {})[str(task.place)] = {"name": name, "kernels": texts}
    targets = {name: TARGETS[name] for name in options.targets}
    version = ".".join(map(str, llvm.llvm_version_info))
    manifest = {"format": _FORMAT, "llvm": version, "targets": targets, "programs": programs}
    options.file.write_text(json.dumps(manifest, indent=1) + "\n")
    count = sum(len(kernels) for of in done.values() for kernels in of.values())
    print(f"{count} kernels of {len(done)} cases in {time.perf_counter() - start:.0f} s")
    return int(len(done) < len(tasks))


# -- comparing


def read(path: Path) -> Manifest:
    """A manifest from its file. Raises SystemExit for one of another format."""
    manifest = json.loads(path.read_text())
    if manifest.get("format") != _FORMAT:
        raise SystemExit(f"{path}: no manifest of format {_FORMAT}")
    return manifest


def _kernels(manifest: Manifest) -> dict[tuple[str, int, str], tuple[str, list[Fingerprint]]]:
    """(Program, place, target) -> (name of the case, its kernels)."""
    return {
        (program, int(place), target): (case["name"], [Fingerprint.read(text) for text in kernels.split()])
        for program, cases in manifest["programs"].items()
        for place, case in cases.items()
        for target, kernels in case["kernels"].items()
    }


def _changes(old: Sequence[Fingerprint], new: Sequence[Fingerprint]) -> Iterator[tuple[str, str]]:
    """Sizes before and after of the kernels that only one of two multisets has, "none" beside one without a peer."""
    gone, added = Counter(old) - Counter(new), Counter(new) - Counter(old)
    for before, after in zip_longest(gone.elements(), added.elements()):
        yield str(before.size) if before else "none", str(after.size) if after else "none"


def compare(old: Manifest, new: Manifest, common: bool = False) -> tuple[list[str], int, int]:
    """(Lines about what differs, number of kernels that differ, number of kernels)."""
    before, after = _kernels(old), _kernels(new)
    lines = [f"{what}: {old[what]} before, {new[what]} now" for what in ("llvm", "targets") if old[what] != new[what]]
    differing = total = 0
    for key in dict.fromkeys([*before, *after]):
        if common and not (key in before and key in after):
            continue
        program, place, target = key
        name = (after.get(key) or before[key])[0]
        kernels, others = (of[key][1] if key in of else [] for of in (before, after))
        total += max(len(kernels), len(others))
        for was, now in _changes(kernels, others):
            differing += 1
            lines.append(f"{program} {place}, {name}, {target}: {was} -> {now} bytes")
    return lines, differing, total


def _print_comparison(options: argparse.Namespace) -> int:
    lines, differing, total = compare(read(options.old), read(options.new), options.common)
    print("\n".join([*lines, f"{differing} of {total} kernels differ"]))
    return int(differing > 0)


# -- command line


def _target_names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown targets {', '.join(unknown)}; known are: {', '.join(TARGETS)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or compare, by the arguments; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="compile and write a manifest")
    writing.add_argument("file", type=Path)
    writing.add_argument("--zoo", type=Path, help="folder with the exported zoo models")
    writing.add_argument("--targets", type=_target_names, default=list(TARGETS), help="names, with commas")
    writing.add_argument("--only", default="", help="cases whose program and name match this regular expression")
    writing.add_argument("--jobs", type=int, default=2, help="processes")
    writing.set_defaults(run=write)
    comparing = commands.add_parser("compare", help="compare two manifests")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--common", action="store_true", help="leave out what only one of them has")
    comparing.set_defaults(run=_print_comparison)
    options = parser.parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    raise SystemExit(main())
