"""Tuning: schedule parameters found by measuring a model's own kernels, kept in one file, used by later builds."""

from __future__ import annotations

from relayc.relay.tuning.bench import KernelBench, Variant
from relayc.relay.tuning.selection import Choice, select
from relayc.relay.tuning.tuner import Finding, TuningReport, tune

__all__ = ["Choice", "Finding", "KernelBench", "TuningReport", "Variant", "select", "tune"]
