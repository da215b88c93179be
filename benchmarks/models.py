"""Whole models against onnxruntime and OpenVINO: each engine in its own process, in turns, medians and ratios.

    python -m benchmarks.models [--zoo FOLDER] [--models light_resnet50,bert_base] [--threads 1,2] [--turns 5]

Light models come from the onnx package (random weights); the zoo is exported by ``python -m benchmarks.zoo FOLDER``.
The ratio is the better peer's median time divided by ours: above 1 we are faster.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.engines import compare
from benchmarks.light import LIGHT_MODELS, write_light

ZOO_MODELS = ("resnet50", "mobilenet_v2", "bert_base", "vit_b16", "gpt2", "segformer_b0", "lstm_tagger")


def _locate(name: str, zoo: Path | None, scratch: Path) -> tuple[Path, Path] | None:
    if name.startswith("light_"):
        return write_light(name.removeprefix("light_"), scratch)
    if zoo is None or not (zoo / f"{name}.onnx").exists():
        return None
    return zoo / f"{name}.onnx", zoo / f"{name}.npz"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, help="folder with the exported zoo models")
    parser.add_argument("--models", help="comma-separated names; default: all")
    parser.add_argument("--threads", default="1,2", help="comma-separated thread counts")
    parser.add_argument("--engines", default="relayc,onnxruntime,openvino")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one turn")
    return parser.parse_args()


def main() -> None:
    """Measure and print the table."""
    options = _arguments()
    names = options.models.split(",") if options.models else [*(f"light_{m}" for m in LIGHT_MODELS), *ZOO_MODELS]
    engines = options.engines.split(",")
    table = Table("model", "threads", *[f"{e} ms" for e in engines], *[f"{e} prepare s" for e in engines], "ratio")
    ratios: list[float] = []
    console = Console(width=160)
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            found = _locate(name, options.zoo, Path(scratch))
            if found is None:
                console.print(f"{name}: not in the zoo folder, left out")
                continue
            for threads in [int(t) for t in options.threads.split(",")]:
                results = compare(engines, found[0], threads, found[1], options.turns, options.seconds)
                medians = [statistics.median(e.times) * 1e3 for e in results]
                ratio = min(medians[1:], default=float("nan")) / medians[0]
                ratios.append(ratio)
                row = [f"{m:.2f}" for m in medians] + [f"{e.prepare_seconds:.2f}" for e in results]
                table.add_row(name, str(threads), *row, f"{ratio:.2f}")
                console.print(f"{name} threads={threads} " + " ".join(row) + f" ratio={ratio:.2f}")
    console.print(table)
    if ratios:
        console.print(f"geometric mean of the ratios: {np.exp(np.mean(np.log(ratios))):.2f}")


if __name__ == "__main__":
    main()
