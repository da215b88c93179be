"""What quantisation decided, by layer, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Decision", "LayerReport", "QuantizationReport", "Scope"]

Scope = Literal["everything", "layers"]
"""Layers with the operators between them, or the inputs and weights of layers alone."""
Decision = Literal["int8", "float: slower", "float: error", "float: not quantised"]


@dataclass(frozen=True)
class LayerReport:
    """One layer: the name and operator of its ONNX node, microseconds in float and in int8, error, and its final form.

    `error` is the relative L2 error of the layer's output when its inputs and weights alone are quantised. A time is
    None where no kernel carries the layer's name, such as where it was folded into another.
    """

    name: str
    operator: str
    float_us: float | None
    int8_us: float | None
    error: float
    decision: Decision


@dataclass(frozen=True)
class QuantizationReport:
    """A quantised model against its float model: layers, milliseconds of a run, and error.

    `error` is the largest relative L2 error of an output over all calibration data (of an integer output the share of
    elements that differ). Where no form is both faster than float and within `max_error`, no model is written:
    `output` is None, and time and error are those of the float model.
    """

    model: str
    output: str | None
    target: str
    threads: int
    samples: int
    max_error: float
    error: float
    float_ms: float
    quantized_ms: float
    scope: Scope
    layers: list[LayerReport]

    @property
    def speedup(self) -> float:
        """The time of a run in float divided by that of the quantised model."""
        return self.float_ms / self.quantized_ms

    @property
    def kept(self) -> int:
        """How many layers are in int8."""
        return sum(layer.decision == "int8" for layer in self.layers)

    def record(self) -> dict[str, Any]:
        """All figures, as JSON's values."""
        return asdict(self) | {"speedup": self.speedup}

    def json(self) -> str:
        """All figures as JSON."""
        return json.dumps(self.record(), indent=2)

    def table(self, top: int | None = None) -> str:
        """The layers as text, those of the largest error first, the first `top` of them."""
        order = sorted(self.layers, key=lambda layer: -layer.error)[:top]
        rows = [("layer", "operator", "float us", "int8 us", "error", "kept as")]
        rows += [(_short(layer.name), layer.operator, _us(layer.float_us), _us(layer.int8_us), f"{layer.error:.4f}",
                  layer.decision) for layer in order]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(_line(row, widths) for row in rows)

    def __str__(self) -> str:
        """The totals in one or two sentences."""
        if self.output is None:
            return (f"{self.model}: no layer pays: none is faster in int8 than in float within an error of "
                    f"{self.max_error:g}; nothing is written. A larger --max-error, or calibration data that is more "
                    f"like the inputs, may help")  # fmt: skip
        return (f"{self.kept} of {len(self.layers)} layers in int8: {self.float_ms:.3f} ms in float, "
                f"{self.quantized_ms:.3f} ms quantised ({self.speedup:.2f} times as fast), error {self.error:.4f} "
                f"of at most {self.max_error:g}")  # fmt: skip


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _short(name: str, most: int = 48) -> str:
    """The end of a name, which tells layers apart."""
    return name if len(name) <= most else "..." + name[3 - most :]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells side by side: text to the left, figures to the right."""
    padded = [cell.rjust(width) if 2 <= i <= 4 else cell.ljust(width)
              for i, (cell, width) in enumerate(zip(cells, widths, strict=True))]  # fmt: skip
    return "  ".join(padded).rstrip()
