"""A deep-learning compiler: ONNX models to native code. This package gives access to the subpackages.

    from relayc import relay, te, topi, backend, runtime, frontends

and to `compile_onnx`, from a model's file to a compiled model, and `compile_torch` and `from_torch`, from a module of
PyTorch. Each is imported when it is first used: importing
`relayc` alone reads no other file.
"""

from typing import TYPE_CHECKING

__all__ = ["backend", "compile_onnx", "compile_torch", "from_torch", "frontends", "relay", "runtime", "te", "topi"]

if TYPE_CHECKING:
    import relayc.backend as backend
    import relayc.frontends as frontends
    import relayc.relay as relay
    import relayc.runtime as runtime
    import relayc.te as te
    import relayc.topi as topi
    from relayc.frontends.compiling import compile_onnx
    from relayc.torch.modules import compile_torch, from_torch

    __version__: str
else:  # hidden from type checkers, for which each subpackage would be Any

    def __getattr__(name):
        """The subpackage or function `name`, or the installed version. Raises AttributeError for other names."""
        from importlib import import_module

        if name == "__version__":
            return import_module("importlib.metadata").version("relayc")
        if name not in __all__:
            raise AttributeError(f"module 'relayc' has no attribute {name!r}; it has {', '.join(__all__)}")
        if name == "compile_onnx":
            return import_module("relayc.frontends.compiling").compile_onnx
        if name in ("compile_torch", "from_torch"):
            return getattr(import_module("relayc.torch.modules"), name)
        return import_module(f"relayc.{name}")

    def __dir__():
        return sorted({*globals(), *__all__})
