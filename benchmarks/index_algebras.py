"""The two integer algebras on the questions of bound inference: what each proves, and in what time.

    python -m benchmarks.index_algebras

Models of the onnx package are compiled for Zen 4, also with dynamic batches. Each question "is this index at least 0?"
that `te.index` is asked is also put to `te.arith`, which gets the index as an expression and the extents of loop
variables as ranges; the time to make these is left out. Prints a JSON object: how often both, one or none prove it, and
CPU seconds of the thread that lowers.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any
from unittest.mock import patch

from benchmarks.manifest import TARGETS
from benchmarks.manifest_cases import PROGRAMS
from relayc import relay
from relayc.te.arith import Analyzer
from relayc.te.index import IndexMath
from relayc.te.ir import PassContext
from relayc.te.poly import Poly
from relayc.te.tir import Range, const

_PROGRAMS = ("models", "models, dynamic shapes")
_OUTCOMES = {(True, True): "both", (True, False): "te.index", (False, True): "te.arith", (False, False): "none"}


class _Comparison:
    """Counts and times of the questions asked while `asked` stands for `IndexMath.nonneg`."""

    def __init__(self) -> None:
        self.proved: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self._own = IndexMath.nonneg
        self._inside = False
        self._analyzers: dict[int, tuple[IndexMath, int, Analyzer]] = {}

    def asked(self, indices: IndexMath, p: Poly) -> bool:
        """The answer of `te.index`, after both have been asked; questions that come up inside it count with it."""
        if self._inside:
            return self._own(indices, p)
        self._inside = True
        try:
            found = self._timed("te.index", lambda: self._own(indices, p))
            condition = indices.expr(p) >= 0
            known = self._analyzer(indices)
            other = self._timed("te.arith", lambda: known.can_prove(condition))
        finally:
            self._inside = False
        self.proved[_OUTCOMES[found, other]] += 1
        return found

    def _timed(self, name: str, ask: Any) -> bool:
        start = time.thread_time_ns()
        found: bool = ask()
        self.seconds[name] += (time.thread_time_ns() - start) / 1e9
        return found

    def _analyzer(self, indices: IndexMath) -> Analyzer:
        extents: dict[Any, Poly] = indices._extents
        owner, count, analyzer = self._analyzers.get(id(indices), (None, -1, Analyzer()))
        if owner is not indices or count != len(extents):
            analyzer = Analyzer()
            for var, extent in extents.items():
                analyzer.bind(var, Range(const(0, var.dtype), indices.expr(extent)))
            self._analyzers[id(indices)] = indices, len(extents), analyzer
        return analyzer


def main() -> None:
    """Compile the models and print the comparison."""
    comparison, start = _Comparison(), time.thread_time()
    cases = [case for program in _PROGRAMS for case in PROGRAMS[program](None) if case is not None]

    def asked(indices: IndexMath, p: Poly) -> bool:
        return comparison.asked(indices, p)

    with patch.object(IndexMath, "nonneg", asked):
        for case in cases:
            with PassContext(config=dict(case.options)):
                relay.build(case.make(), TARGETS["znver4"])
    seconds = {name: round(value, 3) for name, value in comparison.seconds.items()}
    row = {"models": [case.name for case in cases], "proved by": comparison.proved, "CPU seconds": seconds}
    print(json.dumps({**row, "CPU seconds of lowering": round(time.thread_time() - start, 1)}))


if __name__ == "__main__":
    main()
