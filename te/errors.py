"""Errors of the compile-time world. Each says what, where, what was expected and what to do."""

from __future__ import annotations

__all__ = ["CompileError", "DTypeError", "LoweringError", "ScheduleError", "VerifyError"]


class CompileError(Exception):
    """Root of every error that compiling can raise. `notes` name the place: a pass, an operator, an ONNX node."""


class DTypeError(CompileError, ValueError):
    """The name of no element type."""


class ScheduleError(CompileError):
    """A schedule primitive was used against its rules."""


class LoweringError(CompileError):
    """A schedule can't be lowered to loops."""


class VerifyError(CompileError):
    """A program breaks an invariant of the loop IR or can't run on its target."""
