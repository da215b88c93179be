"""Decode and prefill of a whole language model, in the formats that people deploy, by every engine that is installed.

    python -m benchmarks.llm [--kinds int4,float32] [--engines relayc,onnxruntime] [--batches 1,4] [--prompts 128,512]
                             [--contexts 32,1024] [--rounds 3] [--steps 16] [--threads 1] [--folder FOLDER]
                             [--results FILE]

The model is the decoder of `benchmarks.llm_models`: 201 million parameters, as Llama. Prefill computes the logits of
the last position of a prompt; decode is a step of one token, the mean of greedy steps behind a context. Engines, each
in a process of its own (`benchmarks.llm_engines`), measure in turns: on one thread the CPU time of their process, on
several the time by the clock; the median of the rounds counts. onnxruntime and onnxruntime-genai append to caches in
place (GroupQueryAttention with shared buffers), relayc to its own, OpenVINO keeps them as state. Those that aren't
installed are left out.

The roofs are measured beside them: a sum over 128 MiB, and chains of FMA, of dot products or, with AMX, of products of
tiles from registers. The share of a decode step is that of the bandwidth, counting weights and caches; of prefill that
of the operations, counting products, and attention to the keys that a query may see. Tokens: how many of 64 greedy ones
behind 32 agree with onnxruntime's, and the largest difference of logits relative to the largest. FOLDER keeps the
models (3 GB).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.llm_engines import ENGINES, ROOT, runs
from benchmarks.llm_models import FORMATS, LLAMA
from benchmarks.peak import SumOfMemory
from benchmarks.records import Record, append, markdown, origin
from benchmarks.report import language_models
from relayc.backend.llvm.ceilings import MultiplyLoop

_GREEDY_TOKENS, _GREEDY_CONTEXT = 64, 32
_PEAK_OPERATIONS = 3 << 30


@dataclass(frozen=True)
class Cell:
    """A measurement: prefill of a prompt, or, with `steps`, decode behind a context."""

    batch: int
    positions: int
    steps: int = 0

    @property
    def name(self) -> str:
        what = f"decode, context {self.positions}" if self.steps else f"prefill {self.positions}"
        return what if self.batch == 1 else f"{what}, batch {self.batch}"

    @property
    def command(self) -> str:
        return (
            f"decode {self.batch} {self.positions} {self.steps}"
            if self.steps
            else f"prefill {self.batch} {self.positions}"
        )

    def work(self, kind: str) -> float:
        """Bytes that a step of decode reads, or operations of prefill."""
        c = LLAMA
        if self.steps:
            return c.weight_bytes(kind) + self.batch * c.cache_bytes(self.positions + self.steps // 2)
        rows = self.batch * self.positions
        once = c.hidden * c.tokens
        return 2.0 * (rows * (c.weights - once) + self.batch * once) + self.batch * c.attention_flops(self.positions, 0)


class Process:
    """The process of an engine. Use as a context manager; `peak_megabytes` is known after exit."""

    def __init__(self, engine: str, kind: str, folder: Path, threads: int) -> None:
        environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", "RELAYC_NUM_THREADS": str(threads)}
        self.peak_megabytes = float("nan")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.llm_engines", engine, kind, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )  # fmt: skip
        self._read()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"exit status {self._process.wait()}; the message is above")

    def ask(self, command: str) -> dict[str, float]:
        """Run a command of `benchmarks.llm_engines`. Raises RuntimeError if the process ends."""
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        return self._read()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self.peak_megabytes = self.ask("memory")["peak"]
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


class Roofs:
    """This core's ceilings, the medians of samples that alternate with what is compared to them."""

    def __init__(self, kind: str) -> None:
        assert kind in FORMATS
        loop = MultiplyLoop.find("int8" if kind.startswith("int") else kind) or MultiplyLoop.find("float32")
        assert loop is not None, "the roofs of processors with AVX2 are known"
        self._peak = partial(loop.gflops, _PEAK_OPERATIONS, time.thread_time)
        self._read = SumOfMemory()
        self._samples: list[tuple[float, float]] = []

    def sample(self) -> None:
        self._samples.append((self._read.gbs(), self._peak()))

    def of(self, cell: Cell) -> float:
        """Bytes or operations per second."""
        gbs, gops = (statistics.median(each) for each in zip(*self._samples, strict=True))
        return 1e9 * (gbs if cell.steps else gops)


@dataclass
class Found:
    """What one engine measured."""

    seconds: dict[Cell, list[float]] = field(default_factory=dict)
    megabytes: float = float("nan")
    tokens: Any = None
    logits: Any = None

    def median(self, cell: Cell) -> float:
        return statistics.median(self.seconds[cell])


def measure(
    kind: str, engines: Sequence[str], cells: Sequence[Cell], rounds: int, folder: Path, threads: int
) -> tuple[dict[str, Found], Roofs]:
    """The engines in turns, cell by cell. An engine that can't run the format is left out, and says why."""
    roofs, running, found = Roofs(kind), dict[str, Process](), dict[str, Found]()
    try:
        for engine in engines:
            try:
                running[engine], found[engine] = Process(engine, kind, folder, threads), Found()
                running[engine].ask(cells[0].command)
            except RuntimeError as error:
                print(f"{engine}, {kind}: left out: {error}", file=sys.stderr)
                running.pop(engine, None)
                found.pop(engine, None)
        for _ in range(rounds):
            for cell in cells:
                roofs.sample()
                for engine, process in running.items():
                    seconds = process.ask(cell.command)["seconds"]
                    found[engine].seconds.setdefault(cell, []).append(seconds)
        for engine, process in running.items():
            file = folder / "tokens.npz"
            process.ask(f"tokens {_GREEDY_CONTEXT} {_GREEDY_TOKENS} {file}")
            with np.load(file) as stored:
                found[engine].tokens, found[engine].logits = stored["tokens"], stored["logits"]
    finally:
        for engine, process in running.items():
            process.__exit__()
            found[engine].megabytes = process.peak_megabytes
    return found, roofs


def record_of(kind: str, cell: Cell, found: dict[str, Found], roofs: Roofs, threads: int) -> Record:
    """A line of the results; with one thread it has shares of the roofs, which are those of one core."""
    times = {engine: each.median(cell) for engine, each in found.items()}
    roof, work = roofs.of(cell), cell.work(kind)
    peers = [seconds for engine, seconds in times.items() if engine != "relayc"]
    ratio = {"ratio": round(min(peers) / times["relayc"], 2)} if peers and "relayc" in times else {}
    record: Record = {
        **origin("llm"), "case": _case(f"{kind}, {cell.name}", threads), "kind": kind, "cell": cell.name,
        "threads": threads, "batch": cell.batch, "positions": cell.positions,
        **{f"{e}_ms": round(1e3 * s, 2) for e, s in times.items()}, **ratio,
    }  # fmt: skip
    if threads == 1:
        record |= {f"{e}_roof": round(work / s / roof, 2) for e, s in times.items()}
        record["read_gbs" if cell.steps else "peak_gops"] = round(roof / 1e9, 1)
    return record


def _case(name: str, threads: int) -> str:
    return name if threads == 1 else f"{name}, {threads} threads"


def summary_of(kind: str, found: dict[str, Found], threads: int) -> Record:
    """Peak memory, and agreement of tokens and logits with onnxruntime's."""
    record: Record = {**origin("llm"), "case": _case(f"{kind}, memory and tokens", threads), "kind": kind}
    record |= {f"{engine}_megabytes": round(each.megabytes) for engine, each in found.items()}
    like = found.get("onnxruntime")
    for engine, each in found.items() if like is not None else ():
        record[f"{engine}_tokens"] = int((each.tokens == like.tokens).sum())
        record[f"{engine}_difference"] = float(
            f"{np.abs(each.logits - like.logits).max() / np.abs(like.logits).max():.2g}"
        )
    return record


def _compiled(kind: str, folder: Path) -> None:
    """Compile relayc's artifact in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.llm_engines", "compile", kind, str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(FORMATS))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--batches", type=_numbers, default=[1, 4])
    parser.add_argument("--prompts", type=_numbers, default=[128, 512])
    parser.add_argument("--contexts", type=_numbers, default=[32, 1024])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="several are measured by the clock; default: 1")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    cells = [Cell(b, n) for b in args.batches for n in args.prompts]
    cells += [Cell(b, n, args.steps) for b in args.batches for n in args.contexts]
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        for kind in args.kinds.split(","):
            engines = [name for name in args.engines.split(",") if runs(name, kind)]
            if "relayc" in engines:
                _compiled(kind, folder)
            found, roofs = measure(kind, engines, cells, args.rounds, folder, args.threads)
            made = [*[record_of(kind, cell, found, roofs, args.threads) for cell in cells],
                    summary_of(kind, found, args.threads)]  # fmt: skip
            records += made
            for record in made:
                print(
                    {k: v for k, v in record.items() if k not in ("program", "machine", "date", "kind", "cell")},
                    flush=True,
                )
                if args.results is not None:
                    append(args.results, record)
    print(markdown(language_models(records)))


if __name__ == "__main__":
    main()
