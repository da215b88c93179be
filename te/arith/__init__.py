"""Integer analysis: canonical forms, simplification, bounds, symbolic intervals, proofs (TVM: `tvm.arith`)."""

from te.arith.analyzer import Analyzer
from te.arith.interval import Interval

__all__ = ["Analyzer", "Interval"]
