"""Output of `relayc verify`. Imported only when there is something to verify."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Column, Table

from relayc.backend.target import Target
from relayc.cli.console import Steps, out
from relayc.cli.options import Shapes, check_fill, fill_inputs, read_inputs, resolved, typed
from relayc.frontends.onnx.importer import from_onnx
from relayc.frontends.onnx.verify import Comparison, VerifyReport, verify
from relayc.relay.type import TensorType
from relayc.te.ir import PassContext

__all__ = ["print_report", "report_record", "verify_model"]


def verify_model(
    path: Path,
    inputs: list[str] | None,
    fill: str,
    seed: int,
    shapes: Shapes,
    against: str,
    target: str,
    opt_level: int,
    tolerance: float | None,
) -> VerifyReport:
    """The comparison of the model with the oracle."""
    values = _values(path, inputs, fill, seed, shapes)
    steps = Steps()
    with steps.step("verify"), PassContext(opt_level=opt_level):
        return verify(
            path,
            values,
            against=against,
            target=target,
            where=Target(target).device_kind,
            shape=shapes,
            tolerance=tolerance,
        )


def report_record(report: VerifyReport, listed: int) -> dict[str, Any]:
    """The report as JSON values, with the `listed` tensors that are furthest off."""
    departs = report.departs
    return {
        "oracle": report.oracle,
        "agrees": report.agrees,
        "departs": None if departs is None else _comparison_record(departs),
        "fused_only": report.fused_only,
        "compared": len(report.tensors),
        "skipped": dict(report.skipped),
        "furthest": [_comparison_record(found) for found in _furthest(report, listed)],
    }


def _comparison_record(found: Comparison) -> dict[str, Any]:
    return {**asdict(found), "shape": list(found.shape)}


def _furthest(report: VerifyReport, listed: int) -> list[Comparison]:
    return sorted(report.tensors, key=lambda c: -_excess(c))[:listed]


def _values(path: Path, inputs: list[str] | None, fill: str, seed: int, shapes: Shapes) -> dict[str, np.ndarray]:
    check_fill(fill)
    files = read_inputs(inputs or [])
    module, _ = from_onnx(path, shape=shapes)
    types = {p.name: p.tensor_type for p in module["main"].params}
    passed = typed(files, {name: str(ty.dtype) for name, ty in types.items()})
    sizes = resolved({n: passed[n].shape if n in passed else _named(ty) for n, ty in types.items()}, shapes)
    return fill_inputs({name: (sizes[name], str(ty.dtype)) for name, ty in types.items()}, passed, fill, seed)


def _named(type_: TensorType) -> tuple[int | str, ...]:
    """The shape with symbolic dimensions as names."""
    return tuple(d if isinstance(d, int) else str(d) for d in type_.shape)


def print_report(report: VerifyReport, listed: int) -> None:
    """Print the report, with the `listed` tensors that are furthest off."""
    for name, reason in report.skipped.items():
        out.print(f"not compared: {name} ({reason})")
    table = Table(*[Column(name, overflow="fold") for name in ("tensor", "made by", "type", "error", "allowed")])
    worst = _furthest(report, listed)
    for found in worst:
        kind = f"{found.dtype}{list(found.shape)}"
        table.add_row(found.tensor, found.node, kind, f"{found.error:.2e}", f"{found.tolerance:.0e}")
    if worst:
        out.print(f"the {len(worst)} tensors furthest from {report.oracle}, as shares of their largest magnitude")
        out.print(table)
    flipped = [found for found in report.tensors if found.steps]
    if flipped:
        count = sum(found.steps for found in flipped)
        out.print(f"{count} elements of {len(flipped)} quantised tensors differ by one step")
    if report.departs is None:
        out.print(f"all {len(report.tensors)} tensors agree with {report.oracle}")
        return
    where = "only where it is fused with others, " if report.fused_only else ""
    out.print(f"departs from {report.oracle}: {where}first at {report.departs}", soft_wrap=True)


def _excess(comparison: Comparison) -> float:
    """Sort key: error over tolerance; any error of exact types comes first."""
    return comparison.error / max(comparison.tolerance, 1e-12)
