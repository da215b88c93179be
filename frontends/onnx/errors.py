"""What can go wrong when a model is read: every error names the place, what was expected and what to do."""

from __future__ import annotations

from relayc.te.errors import CompileError

__all__ = [
    "NothingInsideError",
    "OnnxImportError",
    "UnsupportedOperatorError",
    "ValueNeededError",
    "compose",
    "fault",
    "unsupported",
]


class OnnxImportError(CompileError):
    """The model is damaged, breaks a rule of ONNX, or asks for something that this frontend can't express."""


class UnsupportedOperatorError(OnnxImportError):
    """The model uses operators, domains, versions or element types without a converter; the text lists all of them.

    `operators` names what is missing: operators (with the domain in front, unless it is ONNX's own), or a kind of value
    such as ``"tensor(string)"`` or ``"sequence"``; empty where it is one form of an operator.
    """

    def __init__(self, message: str, operators: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.operators = operators


class ValueNeededError(OnnxImportError):
    """An operand decides a shape (a Reshape's target, a Slice's ends) and its value is not known when compiling.

    `inputs` names the graph inputs whose shapes or values would settle it.
    """

    def __init__(self, message: str, inputs: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.inputs = inputs


class NothingInsideError(ValueNeededError):
    """The element is wanted of a container that, as far as is known yet, never holds one."""


def compose(where: str, problem: str, *, found: str = "", expected: str = "", remedy: str = "") -> str:
    """The one layout of an import error: place and problem on the first line, then what else is known, one per line."""
    lines = [f"{where}: {problem}" if where else problem]
    for label, text in (("inputs", found), ("expected", expected), ("to do", remedy)):
        if text:
            lines.append(f"  {label}: {text}")
    return "\n".join(lines)


def fault(where: str, problem: str, *, found: str = "", expected: str = "", remedy: str = "") -> OnnxImportError:
    """The error for a fault of the model at `where`."""
    return OnnxImportError(compose(where, problem, found=found, expected=expected, remedy=remedy))


def unsupported(
    where: str, problem: str, *, missing: str, expected: str = "", remedy: str = ""
) -> UnsupportedOperatorError:
    """The error for what is legal ONNX and not supported; `missing` names it."""
    return UnsupportedOperatorError(compose(where, problem, expected=expected, remedy=remedy), (missing,))
