"""Every kernel of whole models against the machine's ceilings, interleaved with their measurement.

    python -m benchmarks.roofline [--zoo FOLDER] [--models resnet50,bert_base] [--threads 1] [--output FOLDER]

For each model and number of threads a summary by families of kernels is printed, and FOLDER gets NAME_THREADS.svg, the
plot, and NAME_THREADS.json, all figures. "% of peak" is the share of the FMA peak, convolutions counted as direct ones;
"% of copy" the share of the copy bandwidth. Kernels whose tensors fit into the caches can exceed the latter, so kernels
without FMAs are listed separately by whether they exceed the caches.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from benchmarks.models import all_models, locate
from relayc import relay
from relayc.backend.runtime import GraphModule, device
from relayc.backend.runtime.profiler import NodeTiming, Report
from relayc.backend.runtime.roofline import roofline_svg
from relayc.backend.target import Target
from relayc.cli.profiling import profile_executor
from relayc.frontends.onnx import from_onnx

FAMILIES: dict[str, Callable[[NodeTiming], bool]] = {
    "Winograd convolutions": lambda call: "winograd" in call.ops,
    "depthwise and other convolutions": lambda call: "nn.conv" in call.ops and "packed" not in call.ops,
    "packed convolutions": lambda call: "nn.conv" in call.ops,
    "products": lambda call: call.flops > 0,
    "without multiply-adds, in caches": lambda call: call.bytes <= sum(Target("llvm").cache_bytes),
    "without multiply-adds, beyond caches": lambda call: True,
}
"""The families of kernels; the first that matches counts."""


def family(call: NodeTiming) -> str:
    """The family of a kernel."""
    return next(name for name, fits in FAMILIES.items() if fits(call))


def measure(path: Path, inputs: Path, threads: int, rounds: int) -> Report:
    """Compile a model and profile it."""
    feeds = dict(np.load(inputs))
    mod, params = from_onnx(onnx.load(path), shape={name: x.shape for name, x in feeds.items()})
    lib = relay.build(mod, "llvm", params, mod_name=path.stem)
    executor = GraphModule(lib["default"](device("cpu", 0)), threads)
    executor.set_input(**feeds)
    return profile_executor(executor, rounds, repeat=5)


def summary(report: Report) -> str:
    """Time and shares of the ceilings by family, and of the whole model."""
    assert report.ceilings is not None
    groups = sorted(report.by(family), key=lambda call: -call.seconds)
    total = report.total_us
    flops = sum(call.flops for call in report)
    whole = report.configuration["run us"]
    lines = [f"{'kernels':38} {'count':>5} {'ms':>9} {'time %':>7} {'% of peak':>10} {'% of copy':>10}"]
    for call in groups:
        peak, copy = 100 * call.gflops / report.ceilings.gflops, 100 * call.gbs / report.ceilings.gbs
        lines.append(f"{call.name:38} {call.count:5} {call.us / 1e3:9.3f} {100 * call.us / total:7.1f} "
                     f"{peak:10.1f} {copy:10.1f}")  # fmt: skip
    peak = flops / whole * 1e-3 / report.ceilings.gflops
    lines.append(f"{'whole run':38} {len(report):5} {whole / 1e3:9.3f} {100:7.1f} {100 * peak:10.1f}   "
                 f"{100 * report.roof_share:.1f} % of the roof")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, help="folder with the exported zoo models")
    parser.add_argument("--models", help="comma-separated names; default: all")
    parser.add_argument("--threads", default="1", help="comma-separated thread counts")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="folder for plots and figures")
    options = parser.parse_args()
    names = options.models.split(",") if options.models else all_models()
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            found = locate(name, options.batch, options.zoo, Path(scratch))
            if found is None:
                print(f"{name}: not in the zoo folder, left out")
                continue
            for threads in [int(t) for t in options.threads.split(",")]:
                report = measure(*found, threads, options.rounds)
                print(f"\n{found[0].stem}, {threads} threads; {report.ceilings}\n{summary(report)}", flush=True)
                if options.output is not None:
                    stem = options.output / f"{found[0].stem}_{threads}"
                    stem.with_suffix(".svg").write_text(roofline_svg(report))
                    stem.with_suffix(".json").write_text(report.json())


if __name__ == "__main__":
    main()
