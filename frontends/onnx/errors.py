"""Import errors. Each names the place, what was expected and what to do."""

from __future__ import annotations

from relayc.te.errors import CompileError

__all__ = [
    "NoGraphError",
    "NotAModelError",
    "NothingInsideError",
    "OnnxImportError",
    "SeveralRanksError",
    "SourceTypeError",
    "UnknownRankError",
    "UnsupportedOperatorError",
    "ValueNeededError",
    "compose",
    "fault",
    "unsupported",
]


class OnnxImportError(CompileError):
    """The model is damaged, violates the ONNX specification, or uses something that this frontend can't express."""


class UnsupportedOperatorError(OnnxImportError):
    """The model uses operators, domains, versions or element types without a converter; the text lists all of them.

    `operators` names what is unsupported: operators (qualified by their domain, unless it is ai.onnx), or a kind of
    value such as ``"tensor(string)"`` or ``"sequence"``; empty for an unsupported use of an operator.
    """

    def __init__(self, message: str, operators: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.operators = operators


class SeveralRanksError(UnsupportedOperatorError):
    """An operator computes with an element of a sequence that may hold tensors of several ranks."""


class NotAModelError(OnnxImportError):
    """A file, or bytes, that hold no ONNX model."""


class NoGraphError(OnnxImportError):
    """A ModelProto without a graph, such as empty bytes are."""


class SourceTypeError(OnnxImportError, TypeError):
    """What was passed as a model is of a type that holds none."""


class ValueNeededError(OnnxImportError):
    """An operand determines a shape (a Reshape's target, a Slice's ends) and is not known at compile time.

    `inputs` names the graph inputs whose shapes or values determine it.
    """

    def __init__(self, message: str, inputs: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.inputs = inputs


class NothingInsideError(ValueNeededError):
    """An element is read from a container that, as far as inferred yet, is always empty."""


class UnknownRankError(OnnxImportError):
    """The model does not say how many dimensions an input has."""


def compose(where: str, problem: str, *, found: str = "", expected: str = "", remedy: str = "") -> str:
    """Format an import error: place and problem on the first line, then the details, one per line."""
    lines = [f"{where}: {problem}" if where else problem]
    for label, text in (("inputs", found), ("expected", expected), ("to do", remedy)):
        if text:
            lines.append(f"  {label}: {text}")
    return "\n".join(lines)


def fault(where: str, problem: str, *, found: str = "", expected: str = "", remedy: str = "") -> OnnxImportError:
    """The error for an invalid model at `where`."""
    return OnnxImportError(compose(where, problem, found=found, expected=expected, remedy=remedy))


def unsupported(
    where: str, problem: str, *, missing: str, expected: str = "", remedy: str = ""
) -> UnsupportedOperatorError:
    """The error for legal ONNX that is unsupported; `missing` names it."""
    return UnsupportedOperatorError(compose(where, problem, expected=expected, remedy=remedy), (missing,))
