"""The fixed cost of a run from Python: small models, with fixed and with open sizes, next to onnxruntime.

    python -m benchmarks.fixed_cost [--seconds 0.2] [--rounds 5] [--out FILE]

A run is `infer`: it sets the inputs, runs, and gives the results as numpy arrays. "in the run" is what it takes without
inputs and results. A step of "decoder" appends to the KV caches of 12 layers, so its sizes are others each time;
onnxruntime is passed what it returned. Microseconds of CPU time of one thread, medians of interleaved rounds; results
must agree. FILE gets a record of each case (`benchmarks.records`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import ModelProto, numpy_helper, parser

from benchmarks.engines import onnxruntime_session
from benchmarks.records import append, origin
from benchmarks.timing import in_turns
from relayc import relay
from relayc.backend.runtime import GraphModule, device
from relayc.frontends.onnx import from_onnx
from relayc.relay.transform import find_kv_caches

Arrays = dict[str, np.ndarray]
_LAYERS, _STEPS = 12, 200

PERCEPTRON = """g (float[N, 32] x) => (float[N, 32] y) {
    a = MatMul (x, w0) b = Tanh (a) c = MatMul (b, w1) d = Tanh (c) e = MatMul (d, w2) y = Tanh (e) }"""
VOICE = """g (float[N, 512] chunk, int64[1] rate, float[N, 64] h, float[N, 64] c, float[N, 64] context)
        => (float[N, 1] speech, float[N, 64] h2, float[N, 64] c2, float[N, 64] context2) {
    x = Concat <axis = 1> (context, chunk) e = MatMul (x, encoder) r = Relu (e)
    gx = MatMul (r, wx) gh = MatMul (h, wh) gates = Add (gx, gh)
    gi, gf, gg, go = Split <axis = 1, num_outputs = 4> (gates)
    i = Sigmoid (gi) f = Sigmoid (gf) t = Tanh (gg) o = Sigmoid (go) fc = Mul (f, c) it = Mul (i, t) c2 = Add (fc, it)
    tc = Tanh (c2) h2 = Mul (o, tc) l = MatMul (h2, wo) p = Sigmoid (l)
    k = Constant <value_ints = [16000]> () known = Equal (rate, k) fast = Cast <to = 1> (known) speech = Mul (p, fast)
    begin = Constant <value_ints = [512]> () end = Constant <value_ints = [576]> ()
    axis = Constant <value_ints = [1]> () context2 = Slice (x, begin, end, axis) }"""
WEIGHTS = {"w0": (32, 32), "w1": (32, 32), "w2": (32, 32), "encoder": (576, 64), "wx": (64, 256), "wh": (64, 256),
           "wo": (64, 1), "table": (256, 64), "head": (64, 256),
           **dict.fromkeys(["Wq", "Wk", "Wv", "Wo"], (64, 64))}  # fmt: skip
SHAPES = {"x": (1, 32), "chunk": (1, 512), "h": (1, 64), "c": (1, 64), "context": (1, 64)}


def decoder_text() -> str:
    """A decoder of 4 heads of 16 channels, with caches as inputs and outputs."""
    ports = [f"{kind}{layer}" for layer in range(_LAYERS) for kind in "kv"]
    inputs = ", ".join(["int64[1, new] ids", *[f"float[1, 4, past, 16] past_{p}" for p in ports]])
    outputs = ", ".join(["float[1, new, 256] logits", *[f"float[1, 4, total, 16] present_{p}" for p in ports]])
    nodes = ["split = Constant <value_ints = [0, 0, 4, 16]> () merge = Constant <value_ints = [0, 0, 64]> ()",
             "x0 = Gather (table, ids)"]  # fmt: skip
    for i in range(_LAYERS):
        nodes += [f"{n}a{i} = MatMul (x{i}, W{n}) {n}b{i} = Reshape ({n}a{i}, split)"
                  f" {n}c{i} = Transpose <perm = [0, 2, 1, 3]> ({n}b{i})" for n in "qkv"]  # fmt: skip
        nodes += [f"present_{n}{i} = Concat <axis = 2> (past_{n}{i}, {n}c{i})" for n in "kv"]
        nodes.append(
            f"kt{i} = Transpose <perm = [0, 1, 3, 2]> (present_k{i}) s{i} = MatMul (qc{i}, kt{i}) p{i} = Softmax (s{i})"
            f" a{i} = MatMul (p{i}, present_v{i}) b{i} = Transpose <perm = [0, 2, 1, 3]> (a{i})"
            f" m{i} = Reshape (b{i}, merge) y{i} = MatMul (m{i}, Wo) x{i + 1} = Add (x{i}, y{i})"
        )
    return f"g ({inputs}) => ({outputs}) {{ {' '.join(nodes)} logits = MatMul (x{_LAYERS}, head) }}"


def model_of(text: str) -> ModelProto:
    """The model with the weights that it names."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
    rng, used = np.random.default_rng(7), {name for node in model.graph.node for name in node.input}
    for name, shape in WEIGHTS.items():
        values = (0.2 * rng.standard_normal(shape)).astype(np.float32)
        if name in used:
            model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


def executor(model: ModelProto, caches: bool = False) -> GraphModule:
    """An executor of one thread, which keeps the KV caches if asked to."""
    module, params = from_onnx(model)
    lib = relay.build(module, "llvm", params, caches=find_kv_caches(module) if caches else None)
    return GraphModule(lib["default"](device("cpu", 0)), num_threads=1)


def small(text: str) -> dict[str, Callable[[], object]]:
    """The runs of a small model."""
    model = model_of(text)
    module, peer = executor(model), onnxruntime_session(model.SerializeToString())
    rng = np.random.default_rng(3)
    feeds = {name: rng.standard_normal(SHAPES[name]).astype(np.float32) if name in SHAPES else np.array([16000])
             for name in module.get_input_info()[0]}  # fmt: skip
    for ours, theirs in zip(module.infer(feeds), peer.run(None, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    inside = module.clone()
    inside.run(feeds)
    return {"relayc": lambda: module.infer(feeds), "in the run": inside.run,
            "onnxruntime": lambda: peer.run(None, feeds)}  # fmt: skip


def decoder() -> dict[str, Callable[[], object]]:
    """The runs of a decoder: as many steps each, from empty caches on."""
    model = model_of(decoder_text())
    module, peer = executor(model, caches=True), onnxruntime_session(model.SerializeToString())
    caches = [value.name for value in model.graph.input][1:]
    ids = [np.array([[i % 256]]) for i in range(_STEPS)]

    def ours() -> np.ndarray:
        module.truncate_caches()
        return [module.infer({"ids": one}, (0,))[0] for one in ids][-1]

    def theirs() -> np.ndarray:
        past, logits = {name: np.zeros((1, 4, 0, 16), np.float32) for name in caches}, ids[0]
        for one in ids:
            logits, *present = peer.run(None, {"ids": one, **past})
            past = dict(zip(caches, present, strict=True))
        return logits

    np.testing.assert_allclose(ours(), theirs(), rtol=1e-3, atol=1e-4)
    return {"relayc": ours, "onnxruntime": theirs}


CASES: dict[str, tuple[Callable[[], dict[str, Callable[[], object]]], int]] = {
    "perceptron": (lambda: small(PERCEPTRON.replace("N", "1")), 1),
    "perceptron, open": (lambda: small(PERCEPTRON), 1),
    "voice": (lambda: small(VOICE.replace("N", "1")), 1),
    "voice, open": (lambda: small(VOICE), 1),
    "decoder step": (decoder, _STEPS),
}
"""Functions that make the runs of a case, and the steps in each."""


def main() -> None:
    options = argparse.ArgumentParser(description="the fixed cost of a run from Python")
    options.add_argument("--seconds", type=float, default=0.2)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--out", type=Path, help="file for the records")
    chosen = options.parse_args()
    print(f"{'case':<18} {'relayc us':>10} {'in the run':>11} {'onnxruntime us':>15} {'ratio':>6}")
    for name, (make, steps) in CASES.items():
        times = in_turns(make(), chosen.rounds, chosen.seconds, time.thread_time)
        us = {who: round(1e6 * statistics.median(seconds) / steps, 2) for who, seconds in times.items()}
        inside = us.get("in the run", float("nan"))
        print(f"{name:<18} {us['relayc']:10.2f} {inside:11.2f} {us['onnxruntime']:15.2f} "
              f"{us['relayc'] / us['onnxruntime']:6.2f}", flush=True)  # fmt: skip
        if chosen.out is not None:
            figures = {f"{who.replace(' ', '_')}_us": value for who, value in us.items()}
            append(chosen.out, origin("fixed_cost") | {"case": name, "threads": 1, **figures})


if __name__ == "__main__":
    main()
