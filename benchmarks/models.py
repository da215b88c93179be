"""Whole models against onnxruntime and OpenVINO: a process for each engine, interleaved; medians and ratios.

    python -m benchmarks.models [--zoo FOLDER] [--models light_resnet50,bert_base] [--threads 1,2] [--batch 1,8]
                                [--rounds 5] [--seconds 0.5] [--minutes 30] [--again]
    python -m benchmarks.models --table [--results benchmarks/results/zen4.jsonl]

Light models come from the onnx package (random weights); the zoo is exported by ``python -m benchmarks.zoo FOLDER``
(and ``--batch 8``). The ratio is the fastest peer's median time divided by that of relayc: above 1, relayc is faster.

A measured case (model, batch, threads) is appended at once as one line of JSON to the results of this CPU
(``results/zen4.jsonl``); a later call goes on with the cases that are missing there (``--again``: measures all of them
anew; the last line of a case counts). No model is begun after ``--minutes``. ``--table`` measures nothing and prints
all results; ``python -m benchmarks.report`` puts their ratios into the README.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines import Engine, compare, compile_seconds
from benchmarks.light import LIGHT_MODELS, write_light
from benchmarks.records import RESULTS, Record, append, geometric_mean, machine, markdown, read

ZOO_MODELS = ("resnet50", "mobilenet_v2", "bert_base", "vit_b16", "gpt2", "segformer_b0", "lstm_tagger")
PEERS = ("onnxruntime", "openvino")

Case = tuple[str, int, int]
"""Model, batch, threads."""


def all_models() -> list[str]:
    """The names of the models: light ones, then the zoo."""
    return [*(f"light_{model}" for model in LIGHT_MODELS), *ZOO_MODELS]


def locate(name: str, batch: int, zoo: Path | None, scratch: Path) -> tuple[Path, Path] | None:
    """The files of a model and its inputs; light models are written to `scratch`. None: not in the zoo folder."""
    if name.startswith("light_"):
        return write_light(name.removeprefix("light_"), scratch, batch)
    path = (zoo or scratch) / (f"{name}.onnx" if batch == 1 else f"{name}_b{batch}.onnx")
    return (path, path.with_suffix(".npz")) if path.exists() else None


def case_of(record: Record) -> Case:
    """The model, batch and number of threads of a record."""
    return record["model"], record["batch"], record["threads"]


def read_results(path: Path) -> dict[Case, Record]:
    """The last record of each case, in the order in which the cases came first."""
    return {case_of(record): record for record in read(path)}


def ratio(record: Record) -> float:
    """The fastest peer's median time divided by that of relayc; NaN when either is missing."""
    peers = [record["engines"][name]["ms"] for name in PEERS if name in record["engines"]]
    ours = record["engines"].get("relayc")
    return min(peers) / ours["ms"] if peers and ours else float("nan")


def _facts(engine: Engine) -> Record:
    low, high = np.percentile(engine.times, [10, 90])
    return {
        "ms": round(statistics.median(engine.times) * 1e3, 4),
        "p10": round(float(low) * 1e3, 4),
        "p90": round(float(high) * 1e3, 4),
        "rounds": [round(statistics.median(times) * 1e3, 4) for times in engine.rounds],
        "runs": len(engine.times),
        "prepare_s": round(engine.prepare_seconds, 4),
        "peak_mb": round(engine.peak_megabytes, 1),
    }


class _Model:
    """One model at one batch: its files, and its artifact, compiled with an empty kernel cache and with a full one."""

    def __init__(self, path: Path, inputs: Path, folder: Path) -> None:
        self.path, self.inputs, self.artifact = path, inputs, folder / "model.relayc"
        with tempfile.TemporaryDirectory() as cache:
            cold = compile_seconds(path, self.artifact, inputs, Path(cache))
            warm = compile_seconds(path, self.artifact, inputs, Path(cache))
        self.facts = {"cold_s": round(cold, 3), "warm_s": round(warm, 3), "bytes": self.artifact.stat().st_size}

    def measure(self, case: Case, engines: Sequence[str], rounds: int, seconds: float) -> Record:
        """The record of one case."""
        files = {name: self.artifact if name == "relayc" else self.path for name in engines}
        results = compare(files, case[2], self.inputs, rounds, seconds)
        return {
            "model": case[0],
            "batch": case[1],
            "threads": case[2],
            "date": time.strftime("%Y-%m-%d"),
            "compile": self.facts,
            "engines": {engine.name: _facts(engine) for engine in results if engine.times},
        }


def run(options: argparse.Namespace) -> None:
    """Measure the cases that are missing, one model at one batch after the other, and append their records."""
    known = {} if options.again else read_results(options.results)
    end = time.monotonic() + 60 * options.minutes
    for batch in options.batch:
        for name in options.models:
            cases = [(name, batch, threads) for threads in options.threads if (name, batch, threads) not in known]
            if not cases:
                continue
            if time.monotonic() > end:
                print(f"{name} and all after it: left for another call, {options.minutes} minutes are over")
                return
            with tempfile.TemporaryDirectory() as scratch:
                found = locate(name, batch, options.zoo, Path(scratch))
                if found is None:
                    print(f"{name}, batch {batch}: not in the zoo folder, left out")
                    continue
                model = _Model(*found, Path(scratch))
                for case in cases:
                    record = model.measure(case, options.engines, options.rounds, options.seconds)
                    append(options.results, record)
                    print(_line(record), flush=True)


def _line(record: Record) -> str:
    engines = ", ".join(f"{name} {facts['ms']:.2f} ms" for name, facts in record["engines"].items())
    name, batch, threads = case_of(record)
    return f"{name}, batch {batch}, {threads} threads: {engines}, ratio {ratio(record):.2f}"


def _figure(record: Record | None, engine: str, name: str, digits: int) -> str:
    facts = {} if record is None else record["engines"].get(engine, {})
    return f"{facts[name]:.{digits}f}" if name in facts else "-"


def tables(results: dict[Case, Record]) -> str:
    """All results in Markdown: times and ratios at each batch and thread count; start-up time and memory."""
    parts: list[str] = []
    names = list(dict.fromkeys(model for model, _, _ in results))
    engines = ("relayc", *PEERS)
    for batch in sorted({batch for _, batch, _ in results}):
        threads = sorted({case[2] for case in results if case[1] == batch})
        head = [f"{engine}, {count}t" for count in threads for engine in (*engines, "ratio")]
        rows = [["model", *head]]
        for name in names:
            cells = [name]
            for count in threads:
                record = results.get((name, batch, count))
                cells += [_figure(record, engine, "ms", 2) for engine in engines]
                cells.append("-" if record is None else f"{ratio(record):.2f}")
            rows.append(cells)
        means = [
            geometric_mean(ratio(r) for case, r in results.items() if case[1:] == (batch, count)) for count in threads
        ]
        rows.append(["geometric mean", *[cell for mean in means for cell in ("", "", "", f"{mean:.2f}")]])
        parts.append(f"Batch {batch}, milliseconds; `1t`, `2t`: threads.\n\n{markdown(rows)}")
    parts.append(f"Start-up time and peak of resident memory.\n\n{markdown(costs(results))}")
    return "\n\n".join(parts)


def smallest_cases(results: dict[Case, Record]) -> dict[str, Record]:
    """The record of each model with the smallest batch and number of threads."""
    smallest: dict[str, Record] = {}
    for (name, _, _), record in sorted(results.items(), key=lambda item: item[0][1:]):
        smallest.setdefault(name, record)
    return smallest


def costs(results: dict[Case, Record]) -> list[list[str]]:
    """Seconds to compile and to prepare each model, and the peak of memory, with the smallest batch and one thread."""
    rows = [["model", "compile cold s", "in cache s", "load s", "onnxruntime session s", "OpenVINO compile s",
             "peak MB", "onnxruntime MB", "OpenVINO MB"]]  # fmt: skip
    for name, record in smallest_cases(results).items():
        cells = [f"{record['compile']['cold_s']:.2f}", f"{record['compile']['warm_s']:.2f}"]
        cells += [_figure(record, engine, "prepare_s", 3) for engine in ("relayc", *PEERS)]
        cells += [_figure(record, engine, "peak_mb", 0) for engine in ("relayc", *PEERS)]
        rows.append([name, *cells])
    return rows


def _separated(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [kind(part) for part in text.split(",")]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, help="folder with the exported zoo models")
    parser.add_argument("--models", type=_separated(str), default=all_models(), help="comma-separated; default: all")
    parser.add_argument("--threads", type=_separated(int), default=[1, 2], help="comma-separated; default: 1,2")
    parser.add_argument("--batch", type=_separated(int), default=[1, 8], help="comma-separated; default: 1,8")
    parser.add_argument("--engines", type=_separated(str), default=["relayc", *PEERS])
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each engine, interleaved")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one measurement of an engine; at least one run")
    parser.add_argument("--minutes", type=float, default=30, help="begin no model after this time")
    parser.add_argument("--results", type=Path, default=RESULTS / f"{machine()}.jsonl",
                        help="file of results, a line of JSON for each case; default: this CPU's")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="measure also cases that have a result")
    parser.add_argument("--table", action="store_true", help="print the tables from the results, measure nothing")
    return parser.parse_args()


def main() -> None:
    """Measure missing cases and print all results, or only print them."""
    options = _arguments()
    if not options.table:
        run(options)
    print(tables(read_results(options.results)))


if __name__ == "__main__":
    main()
