"""Exceptions by onnxruntime's names. Each is one of relayc's, too, and has the error that it reports as its cause."""

from __future__ import annotations

from relayc.runtime import ArgumentError, RelaycError

__all__ = [
    "EPFail", "EngineError", "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "ModelLoadCanceled",
    "ModelLoaded", "ModelRequiresCompilation", "NoModel", "NoSuchFile", "NotFound", "NotImplemented", "OrtError",
    "RuntimeException",
]  # fmt: skip


class OrtError(RelaycError):
    """Base of the exceptions here. The message begins with the status code, as onnxruntime's does."""

    status = "FAIL"
    code = 1

    def __init__(self, message: str) -> None:
        super().__init__(f"[ONNXRuntimeError] : {self.code} : {self.status} : {message}")


class Fail(OrtError):
    """A run that was terminated, or failed in no other way."""


class InvalidArgument(OrtError, ArgumentError):
    """An input or an option of a wrong name, type or shape."""

    status, code = "INVALID_ARGUMENT", 2


class NoSuchFile(OrtError, FileNotFoundError):
    """A model that is no file."""

    status, code = "NO_SUCHFILE", 3


class NoModel(OrtError):
    """A session without a model."""

    status, code = "NO_MODEL", 4


class EngineError(OrtError):
    """Kept for programs that name it."""

    status, code = "ENGINE_ERROR", 5


class RuntimeException(OrtError):
    """A run that failed for want of memory, or on its device."""

    status, code = "RUNTIME_EXCEPTION", 6


class InvalidProtobuf(OrtError):
    """A file or bytes that are no model."""

    status, code = "INVALID_PROTOBUF", 7


class ModelLoaded(OrtError):
    """Kept for programs that name it."""

    status, code = "MODEL_LOADED", 8


class NotImplemented(OrtError):  # onnxruntime's name
    """An operator or an option that is not supported."""

    status, code = "NOT_IMPLEMENTED", 9


class InvalidGraph(OrtError):
    """A model that can't be imported or compiled."""

    status, code = "INVALID_GRAPH", 10


class EPFail(OrtError):
    """A device that can't be used."""

    status, code = "EP_FAIL", 11


class ModelLoadCanceled(OrtError):
    """Kept for programs that name it."""

    status, code = "MODEL_LOAD_CANCELED", 12


class ModelRequiresCompilation(OrtError):
    """Kept for programs that name it."""

    status, code = "MODEL_REQUIRES_COMPILATION", 13


class NotFound(OrtError):
    """Kept for programs that name it."""

    status, code = "NOT_FOUND", 14
