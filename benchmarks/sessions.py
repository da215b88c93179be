"""Sessions of relayc.onnxruntime beside onnxruntime's: time until they are ready, to the first result, and of a run.

    python -m benchmarks.sessions --zoo FOLDER

Every start is a process of its own: relayc's first has an empty cache ("cold"), the others find the compiled model
there ("warm"). Starts of the two engines alternate. "ready" is the creation of the session, without the import; the
first result is that of the first run after it, and a run is one with the model's inputs. Figures are medians of CPU
time, of sessions of one thread: other programs on the machine change it little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.models import all_models, locate
from benchmarks.records import RESULTS, Record, append, geometric_mean, markdown, origin, read

ROOT = Path(__file__).resolve().parent.parent
ENGINES = {"relayc": "relayc.onnxruntime", "onnxruntime": "onnxruntime"}

_START = """
import json, sys, time
from importlib import import_module

import numpy as np

package, path, inputs, seconds = sys.argv[1:]
clock = time.process_time
begin = clock()
ort = import_module(package)
imported = clock()
options = ort.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = 1, 1, 3
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
ready = clock()
feeds = dict(np.load(inputs))
loaded = clock()
session.run(None, feeds)
first = clock()
times = []
while clock() < first + float(seconds):
    start = clock()
    session.run(None, feeds)
    times.append(clock() - start)
facts = {"import_ms": imported - begin, "ready_ms": ready - imported, "first_ms": first - loaded}
print(json.dumps({name: round(1e3 * value, 3) for name, value in facts.items()} | {"times": times}))
"""


def _start(engine: str, path: Path, inputs: Path, seconds: float, cache: Path) -> Record:
    """The milliseconds of CPU time of one start in a new process, and the seconds of the runs after it."""
    environment = {**os.environ, "RELAYC_CACHE_DIR": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their bytecode
    arguments = [ENGINES[engine], str(path), str(inputs), str(seconds)]
    command = [sys.executable, "-c", _START, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _medians(starts: Sequence[Record]) -> Record:
    facts = {name: statistics.median(start[name] for start in starts) for name in ("import_ms", "ready_ms", "first_ms")}
    times = [seconds for start in starts for seconds in start["times"]]
    return {name: round(ms, 3) for name, ms in facts.items()} | {"ms": round(1e3 * statistics.median(times), 4)}


def measure(name: str, path: Path, inputs: Path, starts: int, seconds: float) -> Record:
    """The record of one model."""
    with tempfile.TemporaryDirectory() as folder:
        cold = _start("relayc", path, inputs, 0.01, Path(folder))
        found: dict[str, list[Record]] = {engine: [] for engine in ENGINES}
        for _ in range(starts):
            for engine, results in found.items():
                results.append(_start(engine, path, inputs, seconds, Path(folder)))
    facts = {**origin("sessions"), "case": name, "threads": 1, "clock": "cpu", "starts": starts,
             "cold_ready_ms": cold["ready_ms"]}  # fmt: skip
    medians = {engine: _medians(results) for engine, results in found.items()}
    return facts | {f"{engine}_{key}": ms for engine, figures in medians.items() for key, ms in figures.items()}


def _ratio(record: Record, figure: str) -> float:
    return record[f"onnxruntime_{figure}"] / record[f"relayc_{figure}"]


def table(records: Iterable[Record]) -> str:
    """The last record of each model in Markdown, milliseconds, with ratios: above 1, relayc is faster."""
    last = {record["case"]: record for record in records}
    figures = {"ready_ms": "ready", "first_ms": "first", "ms": "run"}
    titles = [f"{engine} {title}" for title in figures.values() for engine in (*ENGINES, "ratio")]
    rows = [["model", "cold ready", *titles]]
    for name, record in last.items():
        cells = [name, f"{record['cold_ready_ms']:.0f}"]
        for figure in figures:
            cells += [f"{record[f'{engine}_{figure}']:.2f}" for engine in ENGINES]
            cells.append(f"{_ratio(record, figure):.2f}")
        rows.append(cells)
    means = [geometric_mean(_ratio(record, figure) for record in last.values()) for figure in figures]
    rows.append(["geometric mean", "", *[cell for mean in means for cell in ("", "", f"{mean:.2f}")]])
    return markdown(rows)


def main() -> None:
    """Measure the models, append their records, and print the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, help="folder with the exported zoo models")
    parser.add_argument("--models", type=lambda text: text.split(","), default=all_models())
    parser.add_argument("--starts", type=int, default=3, help="warm starts of each engine")
    parser.add_argument("--seconds", type=float, default=0.5, help="of runs after each start")
    parser.add_argument("--results", type=Path, default=RESULTS / "sessions.jsonl")
    parser.add_argument("--table", action="store_true", help="print the table of the results, measure nothing")
    options = parser.parse_args()
    for name in () if options.table else options.models:
        with tempfile.TemporaryDirectory() as scratch:
            found = locate(name, 1, options.zoo, Path(scratch))
            if found is None:
                print(f"{name}: not in the zoo folder, left out")
                continue
            append(options.results, measure(name, *found, options.starts, options.seconds))
            print(name, "measured", flush=True)
    print(table(read(options.results)))


if __name__ == "__main__":
    main()
