"""Errors of the runtime. Messages say what, where, what was expected and what to do."""

from __future__ import annotations

__all__ = [
    "ArgumentError", "ArtifactError", "DeviceError", "ModuleError", "RegistryError", "RelaycError", "SizeMismatchError",
]  # fmt: skip


class RelaycError(Exception):
    """Base class of all errors raised while loading and running compiled code."""


class ArgumentError(RelaycError, ValueError):
    """A value passed to the runtime or to a compiled function is invalid."""


class SizeMismatchError(ArgumentError):
    """The sizes of the inputs contradict each other, or what an operator of the model requires."""


class DeviceError(RelaycError):
    """A device is unknown, absent, out of memory, or lacks an operation."""


class ArtifactError(RelaycError):
    """A compiled-model file is damaged, foreign, of another version, or for another machine."""


class ModuleError(RelaycError, AttributeError):
    """A module has no function of that name, or can't be saved, loaded or printed in that form."""


class RegistryError(RelaycError, LookupError):
    """A name is missing from a registry or is taken in it already."""
