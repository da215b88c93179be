"""Output of `relayc verify`. Imported only when there is something to verify."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.table import Table

from relayc.backend.target import Target
from relayc.cli.console import Steps, out
from relayc.cli.options import Shapes, fill_inputs, read_inputs, require_values, resolved, typed
from relayc.frontends.onnx.importer import from_onnx
from relayc.frontends.onnx.verify import Comparison, VerifyReport, verify
from relayc.relay.type import TensorType
from relayc.te.ir import PassContext

__all__ = ["check_needs_no_input", "verify_model"]


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
    listed: int,
) -> bool:
    """Compare the model with the oracle and print the report; returns whether it agrees."""
    values = _values(path, inputs, fill, seed, shapes)
    steps = Steps()
    with steps.step("verify"), PassContext(opt_level=opt_level):
        report = verify(
            path,
            values,
            against=against,
            target=target,
            where=Target(target).device_kind,
            shape=shapes,
            tolerance=tolerance,
        )
    _print(report, listed)
    return report.agrees


def check_needs_no_input(path: Path, shapes: Shapes) -> None:
    """Raise UsageError, which lists the inputs, for a model that has any."""
    module, _ = from_onnx(path, shape=shapes)
    types = {p.name: p.ty for p in module["main"].params}
    tensors = {name: (_named(ty), str(ty.dtype)) for name, ty in types.items() if isinstance(ty, TensorType)}
    require_values(tensors, {}, None)


def _values(path: Path, inputs: list[str] | None, fill: str, seed: int, shapes: Shapes) -> dict[str, np.ndarray]:
    module, _ = from_onnx(path, shape=shapes)
    types = {p.name: p.tensor_type for p in module["main"].params}
    passed = typed(read_inputs(inputs or []), {name: str(ty.dtype) for name, ty in types.items()})
    sizes = {name: passed[name].shape if name in passed else resolved(_named(ty), shapes) for name, ty in types.items()}
    return fill_inputs({name: (sizes[name], str(ty.dtype)) for name, ty in types.items()}, passed, fill, seed)


def _named(type_: TensorType) -> tuple[int | str, ...]:
    """The shape with symbolic dimensions as names."""
    return tuple(d if isinstance(d, int) else str(d) for d in type_.shape)


def _print(report: VerifyReport, listed: int) -> None:
    for name, reason in report.skipped.items():
        out.print(f"not compared: {name} ({reason})")
    table = Table("tensor", "made by", "type", "error", "allowed")
    worst = sorted(report.tensors, key=lambda c: -_excess(c))[:listed]
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
