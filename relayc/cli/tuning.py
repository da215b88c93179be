"""Tuning for the commands. Imported only when there is something to tune."""

from __future__ import annotations

from pathlib import Path

from relayc import relay
from relayc.cli.console import Steps
from relayc.cli.options import Build, UsageError
from relayc.frontends.onnx import from_onnx
from relayc.relay.lowering.tuning_records import default_records_path
from relayc.relay.tuning import TuningReport
from relayc.te.ir import PassContext

__all__ = ["tune_onnx"]


def tune_onnx(
    path: Path, how: Build, steps: Steps, minutes: float, records: Path | None, threads: int | None
) -> TuningReport:
    """Import the model at `path` and tune its kernels, reporting progress.

    Raises UsageError when there is no file for the tuning records.
    """
    if records is None and default_records_path() is None:
        raise UsageError(
            "there is no cache folder (RELAYC_CACHE_DIR=off, or see `relayc doctor`); say where to keep what is found: "
            "--records FILE"
        )
    with steps.step("import"):
        module, params = from_onnx(path, shape=how.shapes)
    with steps.step("tune") as step, PassContext(opt_level=how.opt_level, config=how.config):
        return relay.tune(
            module, params, how.target, minutes, records=records, threads=threads, progress=step.show
        )
