"""The cost of an iteration of control flow: loops of ONNX with small bodies, next to onnxruntime.

    python -m benchmarks.control_flow [--target llvm] [--models counter,nested] [--seconds 0.3] [--out FILE]

A line gives the microseconds of CPU time per iteration (the innermost ones are counted) of both, medians of interleaved
rounds. The bodies do so little that this is what the loop itself costs. One thread; results must agree. FILE gets a
record of each case (`benchmarks.records`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, parser

from benchmarks.engines import onnxruntime_session
from benchmarks.records import append, origin
from benchmarks.timing import in_turns
from relayc import relay
from relayc.backend.runtime import GraphModule, device
from relayc.frontends.onnx import from_onnx

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model as ONNX text, its inputs, and how many iterations a run makes."""

    text: str
    feeds: Arrays
    turns: int

    @property
    def model(self) -> ModelProto:
        return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{self.text}')


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def _count(turns: int) -> np.ndarray:
    return np.array(turns, np.int64)


CASES: dict[str, Case] = {
    "counter": Case(
        """g (int64 n, float start, float limit) => (float y) {
            y = Loop (n, , start) <body = b (int64 i, bool c, float v) => (bool d, float w) {
                one = Constant <value_float = 1.0> ()
                w = Add (v, one)
                d = Less (w, limit)
            }>
        }""",
        {"n": _count(10**6), "start": np.array(0, np.float32), "limit": np.array(2000, np.float32)}, 2000,
    ),
    "vector": Case(
        """g (int64 n, float[128] x, float[128] k) => (float[128] y) {
            y = Loop (n, , x) <body = b (int64 i, bool c, float[128] v) => (bool d, float[128] w) {
                w0 = Mul (v, k)
                w = Add (w0, x)
                d = Identity (c)
            }>
        }""",
        {"n": _count(1000), "x": _random(128), "k": np.full(128, 0.5, np.float32)}, 1000,
    ),
    "branch": Case(
        """g (int64 n, float[16] x) => (float[16] y) {
            y = Loop (n, , x) <body = b (int64 i, bool c, float[16] v) => (bool d, float[16] w) {
                two = Constant <value_int = 2> ()
                zero = Constant <value_int = 0> ()
                half = Mod (i, two)
                even = Equal (half, zero)
                w = If (even) <then_branch = t () => (float[16] p) { p = Add (v, x) },
                               else_branch = e () => (float[16] q) { q = Sub (v, x) }>
                d = Identity (c)
            }>
        }""",
        {"n": _count(1000), "x": _random(16)}, 1000,
    ),
    "nested": Case(
        """g (int64 n, float[16] x) => (float[16] y) {
            y = Loop (n, , x) <body = b (int64 i, bool c, float[16] v) => (bool d, float[16] w) {
                w = Loop (n, , v) <body = inner (int64 j, bool c2, float[16] p) => (bool d2, float[16] q) {
                    q = Add (p, x)
                    d2 = Identity (c2)
                }>
                d = Identity (c)
            }>
        }""",
        {"n": _count(50), "x": _random(16)}, 2500,
    ),
    "scan": Case(
        """g (float[16, 32] h, float[512, 32] x, float[512, 32] delta, float[512, 16, 1] b, float[512, 16, 1] c,
              float[16, 32] a) => (float[16, 32] last, float[512, 32] y) {
            last, y = Scan (h, x, delta, b, c) <num_scan_inputs = 4, body = step
                    (float[16, 32] s, float[32] xt, float[32] dt, float[16, 1] bt, float[16, 1] ct)
                    => (float[16, 32] t, float[32] out) {
                axes = Constant <value_ints = [0]> ()
                ad = Mul (a, dt)
                decay = Exp (ad)
                kept = Mul (s, decay)
                dx = Mul (dt, xt)
                new = Mul (bt, dx)
                t = Add (kept, new)
                weighted = Mul (t, ct)
                out = ReduceSum <keepdims = 0> (weighted, axes)
            }>
        }""",
        {"h": _random(16, 32), "x": _random(512, 32), "delta": np.abs(_random(512, 32)) * 0.1, "b": _random(512, 16, 1),
         "c": _random(512, 16, 1), "a": -np.abs(_random(16, 32))}, 512,
    ),
    "growing": Case(
        """g (int64 n, float[1, 8] x) => (float[m, 8] y) {
            y = Loop (n, , x) <body = b (int64 i, bool c, float[k, 8] v) => (bool d, float[k2, 8] w) {
                w = Concat <axis = 0> (v, x)
                d = Identity (c)
            }>
        }""",
        {"n": _count(300), "x": _random(1, 8)}, 300,
    ),
    "sequence": Case(
        """g (int64 n, float[8] x) => (float[m, 8] y) {
            empty = SequenceEmpty <dtype = 1> ()
            s = Loop (n, , empty) <body = b (int64 i, bool c, seq(float[8]) v) => (bool d, seq(float[8]) w) {
                f = Cast <to = 1> (i)
                z = Mul (x, f)
                w = SequenceInsert (v, z)
                d = Identity (c)
            }>
            y = ConcatFromSequence <axis = 0, new_axis = 1> (s)
        }""",
        {"n": _count(300), "x": _random(8)}, 300,
    ),
    "elements": Case(
        """g (int64 n, float[300, 8] x) => (float[8] y) {
            none = Constant <value_ints = [1]> ()
            s = SplitToSequence <axis = 0, keepdims = 0> (x)
            start = Constant <value_floats = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]> ()
            y = Loop (n, , start) <body = b (int64 i, bool c, float[8] v) => (bool d, float[8] w) {
                z = SequenceAt (s, i)
                w = Add (v, z)
                d = Identity (c)
            }>
        }""",
        {"n": _count(300), "x": _random(300, 8)}, 300,
    ),
    "sizes": Case(
        """g (int64 n, float[4] x) => (float[m] y) {
            y = Loop (n, , x) <body = b (int64 i, bool c, float[k] v) => (bool d, float[k2] w) {
                most = Constant <value_int = 7> ()
                one = Constant <value_ints = [1]> ()
                r = Mod (i, most)
                length = Add (r, one)
                s = ReduceSum <keepdims = 0> (v)
                w = Expand (s, length)
                d = Identity (c)
            }>
        }""",
        {"n": _count(300), "x": np.full(4, 1e-9, np.float32)}, 300,
    ),
    "decoder": Case(
        """g (int64 n, int64 first, float[1, 64] h0, float[256, 64] embedding, float[64, 64] u, float[64, 256] head)
            => (int64[m] tokens) {
            token, h, tokens = Loop (n, , first, h0)
                    <body = b (int64 i, bool c, int64 t, float[1, 64] h)
                            => (bool d, int64 next, float[1, 64] g, int64 o) {
                one = Constant <value_ints = [1]> ()
                end = Constant <value_int = 256> ()
                at = Reshape (t, one)
                e = Gather <axis = 0> (embedding, at)
                r = MatMul (h, u)
                s = Add (e, r)
                g = Tanh (s)
                logits = MatMul (g, head)
                best = ArgMax <axis = 1, keepdims = 0> (logits)
                shape = Constant <value_ints = [0]> ()
                next = Squeeze (best, shape)
                o = Identity (next)
                same = Equal (next, end)
                d = Not (same)
            }>
        }""",
        {"n": _count(200), "first": _count(1), "h0": _random(1, 64), "embedding": _random(256, 64),
         "u": _random(64, 64) * 0.05, "head": _random(64, 256)}, 200,
    ),
}  # fmt: skip


def compiled(case: Case, target: str) -> GraphModule:
    """An executor of one thread for a case."""
    module, params = from_onnx(case.model)
    return GraphModule(relay.build(module, target, params)["default"](device("cpu", 0)), num_threads=1)


def measure(name: str, target: str, seconds: float, rounds: int) -> tuple[float, float]:
    """Microseconds of an iteration, ours and onnxruntime's: medians. Raises AssertionError if results differ."""
    case = CASES[name]
    module, peer = compiled(case, target), onnxruntime_session(case.model.SerializeToString())
    for mine, theirs in zip(module(**case.feeds), peer.run(None, case.feeds), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=2e-3, atol=2e-3)
    runs = {"relayc": module.run, "onnxruntime": lambda: peer.run(None, case.feeds)}
    times = in_turns(runs, rounds, seconds, time.thread_time)
    ours, others = (1e6 * statistics.median(times[name]) / case.turns for name in runs)
    return ours, others


def main() -> None:
    options = argparse.ArgumentParser(description="the cost of an iteration of control flow")
    options.add_argument("--target", default="llvm")
    options.add_argument("--models", default=",".join(CASES))
    options.add_argument("--seconds", type=float, default=0.3)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--out", type=Path, help="file for the records")
    chosen = options.parse_args()
    print(f"{'case':<10} {'relayc us':>10} {'onnxruntime us':>15} {'ratio':>7}   target {chosen.target}")
    for name in chosen.models.split(","):
        ours, others = measure(name, chosen.target, chosen.seconds, chosen.rounds)
        print(f"{name:<10} {ours:10.3f} {others:15.3f} {ours / others:7.2f}")
        if chosen.out is not None:
            times = {"relayc_us": round(ours, 3), "onnxruntime_us": round(others, 3)}
            measured = {"case": name, "target": chosen.target, "threads": 1, **times}
            append(chosen.out, origin("control_flow") | measured)


if __name__ == "__main__":
    main()
