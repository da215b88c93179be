"""Errors of the run-time world. Each says what, where, what was expected and what to do."""

from __future__ import annotations

__all__ = ["ArgumentError", "ArtifactError", "DeviceError", "ModuleError", "RegistryError", "RelaycError"]


class RelaycError(Exception):
    """Root of every error that loading and running compiled code can raise."""


class ArgumentError(RelaycError, ValueError):
    """A value handed to the runtime or to a compiled function is not of the kind it takes."""


class DeviceError(RelaycError):
    """A device is unknown, absent, out of memory, or can't do what was asked of it."""


class ArtifactError(RelaycError):
    """A compiled-model file is damaged, foreign, of another version, or for another machine."""


class ModuleError(RelaycError, AttributeError):
    """A module has no function of that name, or can't be saved, loaded or printed in that form."""


class RegistryError(RelaycError, LookupError):
    """A name is missing from a registry or is taken in it already."""
