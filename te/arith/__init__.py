"""Integer analysis: canonical forms, simplification, bounds, symbolic intervals, proofs (TVM: `tvm.arith`)."""

from relayc.te.arith.analyzer import Analyzer
from relayc.te.arith.interval import Interval

__all__ = ["Analyzer", "Interval"]
