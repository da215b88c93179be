"""Packages that ship trained models, unedited, on relayc.onnxruntime and on onnxruntime: answers and times.

    pip install silero-vad rapidocr-onnxruntime magika ddddocr nudenet
    python -m benchmarks.packages [--packages silero_vad,magika] [--threads 1,2] [--sizes 200]

Each package is called in a process of its own for each engine, on generated inputs; where its model takes any size, of
`--sizes` different ones. Then some of the calls are made again and timed: figures are CPU time of the whole call, what
the package does around its model included, and of the first calls, in which models are compiled or initialised.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.records import RESULTS, Record, append, markdown, origin, read

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ("relayc", "onnxruntime")
_TIMED = 40
"""About how many of the calls are timed."""

Call = Callable[[], Any]


def _picture(rng: np.random.Generator, width: int, height: int, text: str) -> Any:
    """A picture with text on a noisy background."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.fromarray(rng.integers(200, 256, (height, width, 3), dtype=np.uint8))
    ImageDraw.Draw(picture).text((6, height // 4), text, fill=(10, 10, 40), font=ImageFont.load_default(height // 2))
    return picture


def silero_vad(rng: np.random.Generator, sizes: int) -> Iterator[Call]:
    """Voice detection: windows of 512 samples of batches of any size, with a state."""
    import torch
    from silero_vad import load_silero_vad

    model = load_silero_vad(onnx=True)

    def call(batch: int) -> list[float]:
        model.reset_states()
        windows = [torch.from_numpy(rows) for rows in sounds[:, :batch]]
        return [round(float(p), 3) for window in windows for p in model(window, 16000).reshape(-1)]

    sounds = (rng.standard_normal((3, sizes, 512)) / 10).astype(np.float32)
    return iter([partial(call, 1 + k) for k in range(sizes)])


def rapidocr_onnxruntime(rng: np.random.Generator, sizes: int) -> Iterator[Call]:
    """Text in pictures of any size: detection, orientation, recognition."""
    from rapidocr_onnxruntime import RapidOCR

    engine = RapidOCR()

    def call(picture: np.ndarray) -> list[str]:
        found, _ = engine(picture)
        return [text for _, text, _ in found or []]

    shapes = [(120 + 5 * (k % 40), 40 + 8 * (k // 40)) for k in range(sizes)]
    return iter([partial(call, np.asarray(_picture(rng, w, h, f"No. {w * h}"))) for w, h in shapes])


def magika(rng: np.random.Generator, sizes: int) -> Iterator[Call]:
    """Kinds of files; the model has one size."""
    from magika import Magika

    engine = Magika()
    texts = [(ROOT / "benchmarks" / name).read_bytes() for name in ("packages.py", "README.md", "results/zen4.jsonl")]
    texts += [bytes(rng.integers(0, 256, 5000, dtype=np.uint8))]
    return iter([partial(lambda data: str(engine.identify_bytes(data).output.label), text) for text in texts * 5])


def ddddocr(rng: np.random.Generator, sizes: int) -> Iterator[Call]:
    """Short texts in pictures of any width."""
    from ddddocr import DdddOcr

    engine = DdddOcr(show_ad=False)

    def encoded(width: int) -> bytes:
        file = io.BytesIO()
        _picture(rng, width, 64, f"{width:04}").save(file, "PNG")
        return file.getvalue()

    return iter([partial(engine.classification, encoded(90 + k)) for k in range(sizes)])


def nudenet(rng: np.random.Generator, sizes: int) -> Iterator[Call]:
    """Detection in pictures, which the package brings to one size."""
    from nudenet import NudeDetector

    engine = NudeDetector()
    pictures = [rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in ((320, 320), (200, 300), (500, 333))]
    return iter([partial(lambda picture: str(engine.detect(picture)), picture) for picture in pictures * 3])


PACKAGES = {call.__name__: call for call in (silero_vad, rapidocr_onnxruntime, magika, ddddocr, nudenet)}


def _limit_threads(count: int) -> None:
    """Give every session so many threads, whatever options a package makes."""
    import onnxruntime

    make = onnxruntime.InferenceSession

    def session(model: Any, sess_options: Any = None, *args: Any, **more: Any) -> Any:
        options = onnxruntime.SessionOptions() if sess_options is None else sess_options
        options.intra_op_num_threads, options.log_severity_level = count, 3
        return make(model, options, *args, **more)

    onnxruntime.InferenceSession = session  # type: ignore[misc]


def run_package(name: str, threads: int, sizes: int) -> None:
    """Call a package, and print its answers and the CPU time as JSON: of the first calls, and the median of others."""
    _limit_threads(threads)
    begin = time.process_time()
    calls = [*PACKAGES[name](np.random.default_rng(0), sizes)]
    answers = [call() for call in calls]
    first, times = time.process_time() - begin, list[float]()
    for call in calls[:: max(1, len(calls) // _TIMED)]:
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    print(json.dumps({"answers": answers, "first_s": first, "ms": 1e3 * statistics.median(times)}))


def measure(name: str, threads: int, sizes: int, rounds: int) -> Record:
    """The record of one package; raises ValueError where the engines' answers differ."""
    program = [__file__, "--run", name, "--threads", str(threads), "--sizes", str(sizes)]
    commands = {"relayc": [sys.executable, "-m", "relayc.onnxruntime", *program],
                "onnxruntime": [sys.executable, *program]}  # fmt: skip
    found: dict[str, list[Record]] = {engine: [] for engine in ENGINES}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "RELAYC_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)}
        for number in range(rounds):
            for engine in ENGINES if number % 2 else ENGINES[::-1]:
                done = subprocess.run(commands[engine], env=environment, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise RuntimeError(f"{name} on {engine}: {done.stderr[-2000:]}")
                found[engine].append(json.loads(done.stdout.splitlines()[-1]))
    ours, theirs = [found[engine][0]["answers"] for engine in ENGINES]
    differing = sum(a != b for a, b in zip(ours, theirs, strict=True))
    facts = {**origin("packages"), "case": name, "threads": threads, "calls": len(ours), "differing": differing,
             "clock": "cpu"}  # fmt: skip
    for engine, starts in found.items():
        facts[f"{engine}_cold_s"] = round(starts[0]["first_s"], 3)
        facts[f"{engine}_warm_s"] = round(min(start["first_s"] for start in starts[1:] or starts), 3)
        facts[f"{engine}_ms"] = round(statistics.median(start["ms"] for start in starts), 4)
    return facts


def table(path: Path) -> str:
    """The last record of each package in Markdown; a ratio above 1: relayc is faster."""
    last = {(record["case"], record["threads"]): record for record in read(path)}
    first = [f"first calls, {engine}, s" for engine in ("relayc cold", "relayc", "onnxruntime")]
    titles = ["calls", "answers that differ", *first, *[f"a call, {e}, ms" for e in ENGINES], "ratio"]
    rows = [["package", "threads", *titles]]
    for (name, threads), r in last.items():
        starts = [r["relayc_cold_s"], r["relayc_warm_s"], r["onnxruntime_warm_s"]]
        figures = [*[f"{s:.1f}" for s in starts], *[f"{r[f'{e}_ms']:.2f}" for e in ENGINES]]
        ratio = r["onnxruntime_ms"] / r["relayc_ms"]
        rows.append([name, str(threads), str(r["calls"]), str(r["differing"]), *figures, f"{ratio:.2f}"])
    return markdown(rows)


def main() -> None:
    """Measure the packages, append their records, and print the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=lambda text: text.split(","), default=[*PACKAGES])
    parser.add_argument("--threads", type=lambda text: [*map(int, text.split(","))], default=[1, 2])
    parser.add_argument("--sizes", type=int, default=200, help="different sizes, for models that take any")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each engine")
    parser.add_argument("--results", type=Path, default=RESULTS / "packages.jsonl")
    parser.add_argument("--table", action="store_true", help="print the table of the results, measure nothing")
    parser.add_argument("--run", choices=[*PACKAGES], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is not None:
        run_package(options.run, options.threads[0], options.sizes)
        return
    for name in () if options.table else options.packages:
        for threads in options.threads:
            append(options.results, measure(name, threads, options.sizes, options.rounds))
            print(name, threads, "measured", flush=True)
    print(table(options.results))


if __name__ == "__main__":
    main()
