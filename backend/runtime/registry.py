"""The global function registry, which decouples packages that must not import each other.

A name maps to a callable (`register_func`) or to the location of one ("module:attribute",
`register_provider`), which is imported at the first lookup only. Device APIs ("device_api.<kind>"), code generators
("target.build.<kind>") and Python functions called from compiled code (`call_packed`) are all found here.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar, overload

from relayc.backend.runtime.errors import RegistryError

__all__ = [
    "get_global_func",
    "list_global_func_names",
    "register_func",
    "register_provider",
    "remove_global_func",
    "resolve",
]

_F = TypeVar("_F", bound=Callable[..., Any])

_lock = threading.Lock()
_functions: dict[str, Callable[..., Any]] = {}
_providers: dict[str, str] = {
    "device_api.cpu": "relayc.backend.runtime.cpu_device:cpu_device_api",
    "device_api.cuda": "relayc.backend.cuda.runtime:cuda_device_api",
    "device_api.cuda_host": "relayc.backend.cuda.runtime:cuda_host_device_api",
    "device_api.interp": "relayc.backend.interp.runtime:interp_device_api",
    "runtime.export_c": "relayc.backend.c_library.export:export_c",
    "runtime.report_index": "relayc.backend.runtime.index_actions:report_index",
    "runtime.thread_pool.array_call_address": "relayc.backend.llvm.pool:array_call_address",
    "runtime.thread_pool.parallel_address": "relayc.backend.llvm.pool:parallel_address",
    "runtime.thread_pool.workspace_addresses": "relayc.backend.llvm.pool:workspace_addresses",
    "target.builder.cuda": "relayc.backend.cuda.builder:Builder",
    "target.builder.llvm": "relayc.backend.llvm.build:Builder",
    "target.build.c": "relayc.backend.c.codegen:build",
    "target.build.cuda": "relayc.backend.cuda.build:build",
    "target.build.interp": "relayc.backend.interp.target:build",
    "target.build.llvm": "relayc.backend.llvm.build:build",
    "target.verify.cuda": "relayc.backend.cuda.builder:broken_limits",
}


@overload
def register_func(name: str, f: None = None, override: bool = False) -> Callable[[_F], _F]: ...
@overload
def register_func(name: str, f: _F, override: bool = False) -> _F: ...
def register_func(name: str, f: Callable[..., Any] | None = None, override: bool = False) -> Callable[..., Any]:
    """Registers `f` under `name`; without `f`, a decorator that does so. Returns the function itself.

    Raises `RegistryError` when the name is taken, unless `override`. TVM: `tvm.register_func`.
    """

    def register(function: _F) -> _F:
        with _lock:
            if not override:
                _refuse_taken(name, f"function {_describe(function)}")
            _providers.pop(name, None)
            _functions[name] = function
        return function

    return register if f is None else register(f)


def register_provider(name: str, where: str, override: bool = False) -> None:
    """Registers the function found at `where` ("module:attribute"), to be imported at the first lookup.

    Raises `RegistryError` when the name is taken, unless `override`.
    """
    if where.count(":") != 1:
        raise RegistryError(f"provider of {name!r} is {where!r}; expected 'module:attribute'")
    with _lock:
        if not override:
            _refuse_taken(name, f"provider {where!r}")
        _functions.pop(name, None)
        _providers[name] = where


@overload
def get_global_func(name: str) -> Callable[..., Any]: ...
@overload
def get_global_func(name: str, allow_missing: bool) -> Callable[..., Any] | None: ...
def get_global_func(name: str, allow_missing: bool = False) -> Callable[..., Any] | None:
    """The function registered under `name`; its provider is imported on demand.

    With `allow_missing`, None for an unknown name and for a provider whose package is not installed; otherwise
    `RegistryError`. TVM: `tvm.get_global_func`.
    """
    found = _functions.get(name)
    if found is not None:
        return found
    where = _providers.get(name)
    if where is None:
        if allow_missing:
            return None
        raise RegistryError(f"no global function {name!r}; {_known_like(name)}")
    try:
        found = resolve(where)
    except ImportError as error:
        if allow_missing:
            return None
        raise RegistryError(f"global function {name!r} is at {where!r}, which can't be imported: {error}") from error
    return _functions.setdefault(name, found)


def list_global_func_names() -> list[str]:
    """All registered names, sorted; those of providers not yet imported included."""
    return sorted({*_functions, *_providers})


def remove_global_func(name: str) -> None:
    """Removes `name`, function or provider. Raises `RegistryError` for an unknown name."""
    with _lock:
        known = _functions.pop(name, None) is not None
        known = _providers.pop(name, None) is not None or known
    if not known:
        raise RegistryError(f"can't remove global function {name!r}: no such name; {_known_like(name)}")


def resolve(where: str) -> Any:
    """The object at `where` ("module:attribute"). Raises `ImportError`, also for a missing attribute."""
    module_name, attribute = where.split(":")
    module = importlib.import_module(module_name)
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise ImportError(f"module {module_name!r} has no attribute {attribute!r}") from error


def _refuse_taken(name: str, newcomer: str) -> None:
    owner = _functions.get(name)
    holder = f"function {_describe(owner)}" if owner is not None else None
    if holder is None and name in _providers:
        holder = f"provider {_providers[name]!r}"
    if holder is not None:
        raise RegistryError(
            f"global function {name!r} is taken by {holder}; can't register {newcomer}. "
            "Pass override=True to replace it, or choose another name"
        )


def _describe(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None) or repr(function)
    return f"{module}.{name}" if module else name


def _known_like(name: str) -> str:
    names = list_global_func_names()
    prefix = name.rsplit(".", 1)[0] + "."
    near = [known for known in names if known.startswith(prefix)] or names
    shown = ", ".join(near[:20]) + (", ..." if len(near) > 20 else "")
    return f"known are: {shown}"
