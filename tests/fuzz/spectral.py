"""Generators for Fourier transforms, window functions and mel filters."""

from __future__ import annotations

from tests.fuzz.builder import GraphBuilder, Value, operator
from tests.fuzz.dims import Symbolic

__all__: list[str] = []


@operator("HannWindow", "HammingWindow", "BlackmanWindow")
def window(g: GraphBuilder, name: str) -> Value:
    size = g.integer(2, 20)
    inputs = [g.constant(size, g.choice(["int64", "int32"]))]
    made = g.node(name, inputs, "float32", (size,), False, -0.1, 1, periodic=g.integer(0, 1))
    g.values.remove(made)
    raised = [made, g.constant(1.0, "float32")]  # at the ends is what rounding leaves of 0
    return g.node("Add", raised, "float32", (size,), False, 0.9, 2)


@operator("DFT")
def fourier(g: GraphBuilder) -> Value:
    batch = Symbolic.named("batch") if g.dynamic else g.integer(1, 3)
    size, kind = g.integer(2, 12), g.choice(["float32", "float32", "float64"])
    inverse, parts = g.integer(0, 1), g.integer(1, 2)
    onesided = 0 if inverse or parts == 2 else g.integer(0, 1)
    x = g.input(kind, (batch, size, 3, parts))
    shape = (batch, size // 2 + 1 if onesided else size, 3, 2)
    bound = 2.0 * size * parts
    attributes = {"inverse": inverse, "onesided": onesided}
    if g.has("DFT", "axis"):
        return g.node("DFT", [x], kind, shape, False, -bound, bound, axis=1, **attributes)
    return g.node("DFT", [x, None, g.constant(1, "int64")], kind, shape, False, -bound, bound, **attributes)


@operator("STFT")
def short_time_fourier(g: GraphBuilder) -> Value:
    batch = Symbolic.named("batch") if g.dynamic else g.integer(1, 2)
    frame, step = g.integer(2, 8), g.integer(1, 4)
    length = frame + g.integer(0, 12)
    x = g.input("float32", (batch, length, 1))
    taper = g.weight("float32", (frame,), 0, 1) if g.chance(0.6) else None
    inputs = [x, g.constant(step, "int64"), taper, g.constant(frame, "int64")]
    shape = (batch, (length - frame) // step + 1, frame // 2 + 1, 2)
    return g.node("STFT", inputs, "float32", shape, False, -2 * frame, 2 * frame, onesided=1)


@operator("MelWeightMatrix")
def mel_filters(g: GraphBuilder) -> Value:
    bins, size = g.integer(2, 8), g.choice([16, 32, 64])
    counts = [g.constant(v, "int64") for v in (bins, size, 8000)]
    edges = [g.constant(v, "float32") for v in (50.0, 3900.0)]
    return g.node("MelWeightMatrix", [*counts, *edges], "float32", (size // 2 + 1, bins), False, 0, 1)
