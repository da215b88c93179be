"""`Module`: a container of compiled functions and of imported modules. TVM: `tvm.runtime.Module`."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Iterable
from typing import Any

from relayc.backend.runtime.container import AGAIN, Container, Section, map_file, write_file
from relayc.backend.runtime.device import Device
from relayc.backend.runtime.errors import ArtifactError, ModuleError
from relayc.backend.runtime.fields import damaged
from relayc.backend.runtime.packed_func import PackedFunc
from relayc.backend.runtime.registry import get_global_func, resolve
from relayc.backend.runtime.timing import BenchmarkResult, measure

__all__ = [
    "HOST_SUFFIX",
    "Module",
    "exposed_names",
    "load_module",
    "load_module_bytes",
    "load_tree",
    "register_module_loader",
    "tree_records",
    "tree_sections",
]

HOST_SUFFIX = "__packed"
"""Suffix of the host function, which checks arguments, of a compiled function."""

Loader = Callable[[bytes | memoryview], "Module"]

_loaders: dict[str, str | Loader] = {
    "c": "relayc.backend.c.runtime:load_from_bytes",
    "cuda": "relayc.backend.cuda.runtime:load_from_bytes",
    "llvm": "relayc.backend.llvm.runtime:load_from_bytes",
}


class Module(abc.ABC):
    """Functions by name. A backend implements `type_key`, `function_names` and `_find`.

    Looking up a function that has a host function (`HOST_SUFFIX`) returns the host function.

    `entry_name` is the function that calling the module itself runs; None without one.
    """

    type_key: str

    def __init__(self, entry_name: str | None = None) -> None:
        self.entry_name = entry_name
        self._imports: list[Module] = []
        self._found: dict[str, PackedFunc] = {}

    # -- for the backend to give

    @abc.abstractmethod
    def function_names(self) -> list[str]:
        """Names of all functions of this module, imports left out."""

    @abc.abstractmethod
    def _find(self, name: str) -> PackedFunc | None:
        """The function `name` of this module; None when it has none. Called once per name."""

    def get_source(self, fmt: str = "") -> str:
        """The generated code as text; `fmt` picks a form ("": the usual one). Raises `ModuleError` without one."""
        raise ModuleError(f"module of type {self.type_key!r} has no source in format {fmt!r}")

    def save_to_bytes(self) -> bytes:
        """Serialize this module without its imports, for `load_module_bytes`; deterministic."""
        raise ModuleError(f"a module of type {self.type_key!r} can't be saved; it lives in its process only")

    def check_device(self, where: Device) -> None:  # noqa: B027
        """Raises `ArtifactError` when this code can't run on a device of its kind, `DeviceError` when there is none.

        Called when a model is bound to the device, so that it fails there and not in the first run. By default nothing
        is checked.
        """

    # -- for everyone

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes this module and all it imports to one file, for `load_module`. TVM: `export_library`.

        Raises `ModuleError` when one of them is of a kind that can't be saved.
        """
        write_file(path, {"modules": tree_records(self)}, tree_sections(self))

    def get_function(self, name: str, query_imports: bool = False) -> PackedFunc:
        """The function `name`, looked for in the imported modules too if `query_imports`.

        Raises `ModuleError` naming the functions that there are.
        """
        found = self._lookup(name, query_imports)
        if found is None:
            names = self.function_names()
            shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            raise ModuleError(f"module of type {self.type_key!r} has no function {name!r}; it has: {shown or 'none'}")
        return found

    def __getitem__(self, name: str) -> PackedFunc:
        return self.get_function(name)

    def implements_function(self, name: str, query_imports: bool = False) -> bool:
        """Does `get_function` find this name?"""
        return self._lookup(name, query_imports) is not None

    def find_function(self, name: str) -> Callable[..., Any]:
        """Resolve a name that this module's compiled code calls: a function of its imports, or a global one.

        Raises `RegistryError` when it is neither.
        """
        for module in self._imports:
            found = module._lookup(name, query_imports=True)
            if found is not None:
                return found
        return get_global_func(name)

    @property
    def entry_func(self) -> PackedFunc:
        """The function that calling the module runs. Raises `ModuleError` when it names none."""
        if self.entry_name is None:
            raise ModuleError(
                f"module of type {self.type_key!r} has no entry function; call one by name: "
                f"{', '.join(self.function_names()[:20])}"
            )
        return self.get_function(self.entry_name, query_imports=True)

    def __call__(self, *args: Any) -> Any:
        return self.entry_func(*args)

    def import_module(self, module: Module) -> None:
        """Makes the functions of `module` available to this one. Raises `ModuleError` for a cycle."""
        if self in module._tree():
            raise ModuleError(f"can't import module {module!r} into {self!r}: it imports that one already")
        self._imports.append(module)

    @property
    def imported_modules(self) -> list[Module]:
        return list(self._imports)

    def time_evaluator(
        self,
        name: str,
        dev: Device,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: float = 0,
        cooldown_interval_ms: float = 0,
        repeats_to_cooldown: int = 1,
    ) -> Callable[..., BenchmarkResult]:
        """A callable that times function `name` on its arguments; see `timing.measure`.

        Arguments are marshalled once, so that the call alone is timed; for functions that queue device work, the device
        time, after one call that checks the arguments. TVM: `Module.time_evaluator`.
        """
        function = self.get_function(name, query_imports=True)
        queued = next((f for m in self._imports if (f := m._lookup(name, True)) is not None and f.is_queued), None)

        def evaluate(*args: Any) -> BenchmarkResult:
            if queued is not None:
                function(*args)
            return measure(
                (function if queued is None else queued).bind(*args),
                [dev],
                number=number,
                repeat=repeat,
                min_repeat_ms=min_repeat_ms,
                cooldown_interval_ms=cooldown_interval_ms,
                repeats_to_cooldown=repeats_to_cooldown,
            )

        return evaluate

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of type {self.type_key!r} with {len(self.function_names())} functions>"

    def _lookup(self, name: str, query_imports: bool) -> PackedFunc | None:
        found = self._found.get(name)
        if found is None:
            found = self._find(name + HOST_SUFFIX) or self._find(name)
            if found is not None:
                self._found[name] = found
        if found is None and query_imports:
            for module in self._imports:
                found = module._lookup(name, query_imports=True)
                if found is not None:
                    break
        return found

    def _tree(self) -> list[Module]:
        """This module and all it imports, each once."""
        found: list[Module] = []
        pending: list[Module] = [self]
        while pending:
            module = pending.pop()
            if module not in found:
                found.append(module)
                pending += reversed(module._imports)
        return found


def exposed_names(names: Iterable[str]) -> list[str]:
    """The public names of functions: a host function has the name of its function, without the suffix."""
    return list(dict.fromkeys(name.removesuffix(HOST_SUFFIX) for name in names))


def register_module_loader(type_key: str, loader: Loader | str, override: bool = False) -> None:
    """Register the deserializer of modules of `type_key`: a function, or "module:attribute" to import on use.

    Raises `ModuleError` when the type has a loader already, unless `override`.
    """
    if type_key in _loaders and not override:
        raise ModuleError(f"modules of type {type_key!r} have a loader, {_loaders[type_key]}; pass override=True")
    _loaders[type_key] = loader


def load_module_bytes(type_key: str, data: bytes | memoryview) -> Module:
    """Deserialize a module of `type_key` from the bytes of `save_to_bytes`.

    Raises `ModuleError` for a type without a loader or whose package is missing, and what the loader raises.
    """
    loader = _loaders.get(type_key)
    if loader is None:
        raise ModuleError(f"no loader for modules of type {type_key!r}; known are {', '.join(sorted(_loaders))}")
    if isinstance(loader, str):
        try:
            loader = _loaders[type_key] = resolve(loader)
        except ImportError as error:
            raise ModuleError(f"modules of type {type_key!r} can't be loaded here: {error}") from error
    return loader(data)


def load_module(path: str | os.PathLike[str]) -> Module:
    """Loads a module that `Module.save` wrote, with all it imports. TVM: `tvm.runtime.load_module`.

    Raises `ArtifactError` for a file that is damaged, foreign, of another version or for another machine.
    """
    container = Container(map_file(path), os.fspath(path))
    if "graph" in container.manifest.value:
        raise ArtifactError(f"{container.where} holds a compiled model, not a module alone: use load_model")
    container.manifest.only("modules", "sections")
    return load_tree(container, len(container.parts))


def tree_records(root: Module) -> list[dict[str, Any]]:
    """The manifest's entries for a module and its imports; `root` comes first."""
    modules = root._tree()
    return [
        {"kind": module.type_key, "imports": [modules.index(used) for used in module.imported_modules]}
        for module in modules
    ]


def tree_sections(root: Module, seal: bytes = b"") -> list[Section]:
    """The sections that store a module and its imports, in the same order, each behind `seal`."""
    return [Section([seal, module.save_to_bytes()]) for module in root._tree()]


def load_tree(container: Container, count: int, seal: bytes = b"") -> Module:
    """The module in the first `count` sections of a container, with all it imports.

    Raises `ArtifactError` when code is damaged, not behind `seal`, or can't be loaded here.
    """
    manifest, loaded = container.manifest, list[Module]()
    records = manifest.records("modules")
    if len(records) != count or not records:
        raise damaged(f"{manifest.where}.modules", len(records), f"one for each of {count} sections of code")
    for index, record in enumerate(records):
        record.only("kind", "imports")
        code = container.check(index)
        if code[: len(seal)] != seal:
            raise ArtifactError(
                f"{container.where}: the code in section {index} was not compiled for this graph and these weights. "
                "The file was changed or put together from several; compile the model again"
            )
        try:
            loaded.append(load_module_bytes(record.get("kind", str), bytes(code[len(seal) :])))
        except ModuleError as error:
            raise ArtifactError(f"{container.where}: {error}") from error
    for module, record in zip(loaded, records, strict=True):
        for index in record.numbers("imports", 0, len(loaded) - 1):
            try:
                module.import_module(loaded[index])
            except ModuleError as error:
                raise ArtifactError(f"{record.where}.imports: {error}. {AGAIN}") from error
    return loaded[0]
