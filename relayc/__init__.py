"""A deep-learning compiler: ONNX models to native code. This package gives access to the subpackages.

    from relayc import relay, te, topi, backend, runtime, frontends

and to functions: `compile_onnx`, from a model's file to a compiled model, `compile_torch` and `from_torch`, from a
module of PyTorch, `map_batches`, from a compiled model to a function for Dask and Ray Data, and `InferenceSession`,
onnxruntime's interface to a model. Each is imported when it is first used: importing `relayc` alone reads no file.
"""

from typing import TYPE_CHECKING

__all__ = [
    "InferenceSession", "backend", "compile_onnx", "compile_torch", "from_torch", "frontends", "generation",
    "map_batches", "onnxruntime", "relay", "runtime", "te", "topi",
]  # fmt: skip

if TYPE_CHECKING:
    import relayc.backend as backend
    import relayc.frontends as frontends
    import relayc.generation as generation
    import relayc.onnxruntime as onnxruntime
    import relayc.relay as relay
    import relayc.runtime as runtime
    import relayc.te as te
    import relayc.topi as topi
    from relayc.batches import map_batches
    from relayc.frontends.compiling import compile_onnx
    from relayc.onnxruntime import InferenceSession
    from relayc.torch.modules import compile_torch, from_torch

    __version__: str
else:  # hidden from type checkers, for which each subpackage would be Any
    _FUNCTIONS = {
        "compile_onnx": "relayc.frontends.compiling", "map_batches": "relayc.batches",
        "compile_torch": "relayc.torch.modules", "from_torch": "relayc.torch.modules",
        "InferenceSession": "relayc.onnxruntime",
    }  # fmt: skip

    def __getattr__(name):
        """The subpackage or function `name`, or the installed version. Raises AttributeError for other names."""
        from importlib import import_module

        if name == "__version__":
            return import_module("importlib.metadata").version("relayc")
        if name not in __all__:
            raise AttributeError(f"module 'relayc' has no attribute {name!r}; it has {', '.join(__all__)}")
        if name in _FUNCTIONS:
            try:
                return getattr(import_module(_FUNCTIONS[name]), name)
            except ModuleNotFoundError as error:  # of another package, where only the runtime is installed
                extra = "[torch]" if name.endswith("torch") else ""
                what = f"{error}, which relayc.{name} needs: pip install 'relayc{extra}'"
                raise ModuleNotFoundError(what, name=error.name) from error
        return import_module(f"relayc.{name}")

    def __dir__():
        return sorted({*globals(), *__all__})
