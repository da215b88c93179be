"""The memory that `relayc inspect` predicts against what a process then uses.

    python -m benchmarks.memory [--zoo FOLDER] [MODEL ...]

Each model (by default the light ones of the onnx package, and those in the zoo's folder) is compiled, once for the
sizes of its inputs and once for any batch. A process of its own then loads the artifact, runs it once and reads all
outputs; the prediction is divided by its peak resident memory (VmHWM).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import relayc
from benchmarks.light import LIGHT_MODELS, write_light
from benchmarks.records import append, origin
from relayc.cli.model_facts import compiled_facts
from relayc.runtime import CompiledModel

RUN = """
import sys
import numpy as np
from relayc.runtime import GraphModule, device, load_model
arrays = np.load(sys.argv[2])
executor = GraphModule(load_model(sys.argv[1])["default"](device("cpu")))
executor.run({name: arrays[name] for name in arrays.files})
for index in range(executor.get_num_outputs()):
    executor.get_output(index).numpy()
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def used_bytes(artifact: Path, inputs: Path) -> int:
    """The peak memory of a process that runs the artifact once."""
    done = subprocess.run([sys.executable, "-c", RUN, artifact, inputs], capture_output=True, text=True, check=True)
    return 1024 * int(done.stdout)


def measure(name: str, kind: str, model: CompiledModel, inputs: Path, scratch: Path, out: Path | None) -> float:
    """Print, and append to `out`, a record of one compiled model; returns the prediction over what was used."""
    artifact = scratch / "model.relayc"
    model.save(artifact)
    with np.load(inputs) as arrays:
        facts = compiled_facts(model, {key: arrays[key].shape for key in arrays.files})
    used = used_bytes(artifact, inputs)
    ratio = facts["process_bytes"] / used
    row = {**origin("memory"), "case": name, "shapes": kind, "predicted": facts["process_bytes"], "used": used,
           "ratio": round(ratio, 3), "unknown": len(facts["memory"]["unknown"])}  # fmt: skip
    print(json.dumps(row), flush=True)
    if out is not None:
        append(out, row)
    return ratio


def main() -> None:
    """Measure the models that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zoo", type=Path, help="folder of models and inputs that benchmarks.zoo wrote")
    parser.add_argument("--out", type=Path, help="file for the records")
    parser.add_argument("models", nargs="*")
    options = parser.parse_args()
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        zoo = {path.stem: path for path in sorted(options.zoo.glob("*.onnx"))} if options.zoo else {}
        for name in options.models or [*(f"light_{model}" for model in LIGHT_MODELS), *zoo]:
            path, inputs = (zoo[name], zoo[name].with_suffix(".npz")) if name in zoo else write_light(
                name.removeprefix("light_"), scratch)  # fmt: skip
            static = relayc.compile_onnx(path, mod_name=name)
            ratios.append(measure(name, "static", static, inputs, scratch, options.out))
            with np.load(inputs) as arrays:
                free = {key: ("batch", *arrays[key].shape[1:]) for key in arrays.files}
            try:
                dynamic = relayc.compile_onnx(path, shape=free, mod_name=name)
            except Exception as error:  # noqa: BLE001 - many models are exported for one batch only
                print(json.dumps({"model": name, "shapes": "dynamic", "error": str(error).splitlines()[0]}), flush=True)
                continue
            ratios.append(measure(name, "dynamic", dynamic, inputs, scratch, options.out))
    print(json.dumps({"models": len(ratios), "least": min(ratios), "greatest": max(ratios)}))


if __name__ == "__main__":
    main()
