"""The ONNX project's own backend tests: its cases and its runner (`onnx.backend.test`), with a stricter comparison.

Every case that does not pass is listed in `not_passed.txt` with its reason: "unsupported", by an
`UnsupportedOperatorError`, "differs", where the recorded values can't be reproduced, or "random", where values are
drawn: those may be the recorded ones by chance. The list has to be exact.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx.backend.base import Backend

from relayc.frontends.onnx import UnsupportedOperatorError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from onnx.backend.test.loader import load_model_tests
    from onnx.backend.test.runner import Runner

__all__ = ["NOT_PASSED", "Suite", "not_passed", "shard"]

NOT_PASSED = Path(__file__).with_name("not_passed.txt")
WAYS = {"unsupported": ("unsupported",), "differs": ("differs",), "random": ("differs", "passed")}
"""Outcomes of `Suite.run` by the way in which a case is listed."""

SAMPLED = 8
"""A sample holds one of every `SAMPLED` cases of each family, at least one."""

BFLOAT16_RTOL = 2.0**-6
"""The suite's own tolerance for bfloat16: two units in the last place."""


class WrongTypeError(Exception):
    """Results of a case are of another number, type or shape than the recorded ones."""


def not_passed() -> dict[str, str]:
    """Outcome by case, for cases that do not pass."""
    lines = [line for line in NOT_PASSED.read_text().splitlines() if line and not line.startswith("#")]
    ways: dict[str, str] = {}
    for line in lines:
        case, way, reason = line.split(": ", 2)
        assert way in WAYS and reason and case not in ways, line
        ways[case] = way
    return ways


def shard(names: Iterable[str], index: int, count: int) -> list[str]:
    """The `index`-th of `count` shards of about equal size; a case's shard depends on its name only."""
    return [name for name in names if _number(name) % count == index]


class Suite(Runner):
    """All cases of the installed onnx package for one backend, each run by the package's own code.

    The comparison is stricter than the package's: integers and booleans are equal, sequences equally long, and an empty
    optional is None.
    """

    def __init__(self, backend: type[Backend]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super().__init__(backend, __name__)
        self._cases: Any = self.tests
        self.names = sorted(name.removesuffix("_cpu") for name in vars(self._cases) if name.endswith("_cpu"))
        self.families = _families()

    def selected(self, which: str) -> list[str]:
        """Names of "all" cases, of a "sample" of them, or of those that a regular expression finds."""
        if which == "all":
            return self.names
        if which != "sample":
            pattern = re.compile(which)
            return [name for name in self.names if pattern.search(name)]
        families: dict[str, list[str]] = {}
        for name, family in self.families.items():
            families.setdefault(family, []).append(name)
        chosen: list[str] = []
        for members in families.values():
            members.sort(key=_number)
            chosen += members[: 1 + len(members) // SAMPLED]
        return sorted(chosen)

    def problem(self, name: str) -> str:
        """Why a case's outcome differs from the listed one; empty if it agrees."""
        listed = not_passed().get(name, "passed")
        way, text = self.run(name)
        if way in WAYS.get(listed, ("passed",)):
            return ""
        return f"{name} is listed in {NOT_PASSED.name} as {listed}; it is {way}: {text}"

    def run(self, name: str) -> tuple[str, str]:
        """"passed", "unsupported", "differs" (in values) or "fails", and the message."""
        test = f"{name}_cpu"
        try:
            getattr(self._cases(test), test)()
        except UnsupportedOperatorError as error:
            return "unsupported", str(error)
        except AssertionError as error:
            return "differs", str(error)
        except Exception as error:  # noqa: BLE001  # whatever a backend raises is the case's result
            return "fails", f"{type(error).__name__}: {error}"
        return "passed", ""

    @classmethod
    def assert_similar_outputs(
        cls, ref_outputs: Sequence[Any], outputs: Sequence[Any], rtol: float, atol: float, model_dir: str | None = None
    ) -> None:
        _require(len(outputs) == len(ref_outputs), f"{len(outputs)} values, expected {len(ref_outputs)}")
        for have, want in zip(outputs, ref_outputs, strict=True):
            cls._compare(have, want, rtol, atol)

    @classmethod
    def _compare(cls, have: Any, want: Any, rtol: float, atol: float) -> None:
        if want is None or isinstance(want, list | tuple):
            _require((have is None) == (want is None), f"{have}, expected {want}")
            if want is not None:
                _require(isinstance(have, list | tuple), f"{type(have)}, expected a sequence")
                cls.assert_similar_outputs(want, have, rtol, atol)
            return
        expected = np.asarray(want)
        _require(isinstance(have, np.ndarray), f"{type(have)}, expected an array")
        _require(have.shape == expected.shape, f"shape {have.shape}, expected {expected.shape}")
        if expected.dtype.kind in "OSU":
            _require(have.dtype.kind in "OSU", f"{have.dtype}, expected strings")
            assert have.astype(str).tolist() == expected.astype(str).tolist(), (have, want)
            return
        _require(have.dtype == expected.dtype, f"{have.dtype}, expected {expected.dtype}")
        if expected.dtype.kind in "biu":
            np.testing.assert_array_equal(have, expected)
            return
        wide = have.dtype if have.dtype.kind == "c" else np.float64
        slack = BFLOAT16_RTOL if have.dtype.name == "bfloat16" else rtol
        np.testing.assert_allclose(have.astype(wide), expected.astype(wide), rtol=slack, atol=atol)


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise WrongTypeError(text)


def _families() -> dict[str, str]:
    """Small cases by family: an operator, an operator by its function body, or a kind of case."""
    operators = {case.name: case.model.graph.node[0].op_type for case in load_model_tests(kind="node")}
    families: dict[str, str] = {}
    for name, operator in operators.items():
        stem = name.removesuffix("_expanded")
        families[name] = operator if stem == name else f"body of {operators.get(stem, stem)}"
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        families.update({case.name: kind for case in load_model_tests(kind=kind)})
    return families


def _number(name: str) -> int:
    """A stable hash of the name."""
    return zlib.crc32(name.encode())

