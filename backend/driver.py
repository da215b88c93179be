"""`build`: compile scheduled tensors or loop functions to a runtime Module.

    functions of the loop IR
      -> for each: a raw kernel, and a host function that checks the arguments and calls it   (`packed_api`)
      -> kinds on "cpu": both go to the code generator "target.build.<kind>"
         other devices:  kernels go to the device's generator, host functions to that of the host target, and the
                         host's Module imports the device's
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from relayc.backend import options as options  # registers the options of pass contexts
from relayc.backend.packed_api import make_host_function, make_kernel
from relayc.backend.runtime.errors import RegistryError
from relayc.backend.runtime.module import Module
from relayc.backend.runtime.registry import get_global_func
from relayc.backend.target import Target, TargetError
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, deep_trees
from relayc.te.lower import lower
from relayc.te.schedule import Schedule
from relayc.te.tir import PrimFunc

__all__ = ["ModuleBuilder", "build", "host_target", "split_host_device"]


@deep_trees()
def build(
    inputs: Schedule | PrimFunc | IRModule,
    args: Sequence[Any] | None = None,
    target: str | dict[str, Any] | Target | None = None,
    name: str = "main",
) -> Module:
    """Native code for a schedule with its `args` (tensors and variables), a loop function, or a module of them.

    `target` defaults to the current one, or "llvm". Every function of the input is reachable by its name in the result;
    if there is only one, calling the result calls it. A function whose attribute "packed_api" is False gets no host
    function and so no argument checks. Raises CompileError for unsupported input. TVM: `tvm.build`.
    """
    target = Target(target) if target is not None else Target.current() or Target("llvm")
    module = _lowered(inputs, args, name)
    host, device = split_host_device(module, target)
    library = _generate(host, host_target(target))
    if device is not None:
        library.import_module(_generate(device, target))
    library.entry_name = _entry_of(list(module))
    return library


def host_target(target: Target) -> Target:
    """The target of the code that checks arguments and launches: the explicit host, or on a CPU the target itself."""
    if target.host is not None:
        return target.host
    return target if target.device_kind == "cpu" else Target("llvm")


def split_host_device(module: IRModule, target: Target) -> tuple[IRModule, IRModule | None]:
    """Split a module of loop functions into host and device modules; the latter is None if the host runs the device's
    code."""
    local = target.device_kind == "cpu"
    kernels: dict[str, PrimFunc] = {}
    hosts: dict[str, PrimFunc] = {}
    for name in module:
        function = module[name].with_attr("target", target)
        kernels[name] = make_kernel(function) if local else function
        if function.attrs.get("packed_api", True):
            host = make_host_function(function, target.device_kind, remote=not local)
            hosts[host.name] = host.with_attr("target", host_target(target))
    if local:
        return module.with_functions({**kernels, **hosts}), None
    return module.with_functions(hosts), module.with_functions(kernels)


class PartBuilder(Protocol):
    """An incremental code generator: what the function "target.builder.<kind>" returns for a Target."""

    def reuse(self, key: str) -> str | None:
        """Add the code that an earlier `add` with this key compiled; returns its note, or None on a miss."""
        ...

    def add(self, functions: Sequence[PrimFunc], key: str = "", note: str = "") -> None:
        """Compile functions together as one part, in place of what was reused under `key`, if anything was."""
        ...

    def finish(self) -> Module:
        """The module of all parts added."""
        ...


class ModuleBuilder:
    """Incremental `build` for a caller that lowers function by function, overlapped with code generation where
    possible.

    `add` takes each function when it is ready, `finish` returns the Module. With a `key`, which must cover everything
    that determines the function's code except the target and the compiler itself, a later builder may `reuse` the code
    without lowering anything; `note` is a string stored with it.
    """

    def __init__(self, target: str | dict[str, Any] | Target) -> None:
        self.target = Target(target)
        start = get_global_func(f"target.builder.{self.target.kind.name}", allow_missing=True)
        self._parts: PartBuilder | None = None
        if start is not None:
            self._parts = start(self.target)
        self._collected: dict[str, PrimFunc] = {}
        self._hosts: dict[str, PrimFunc] = {}  # host functions of device kernels
        self._names: dict[str, None] = {}  # in order

    def reuse(self, name: str, key: str) -> str | None:
        """Reuse the code compiled for function `name` under `key`; returns its note. None on a miss: lower it and `add`
        it."""
        note = None if self._parts is None else self._parts.reuse(key)
        if note is not None:
            self._names[name] = None
        return note

    @deep_trees()
    def add(self, function: PrimFunc, key: str = "", note: str = "", *, parts: Sequence[PrimFunc] = ()) -> None:
        """Compile one function, with its host function unless its attribute "packed_api" is False, and its `parts`.

        The parts are functions that it calls, found by name in the result.
        """
        functions = {f.name: f for f in (function, *parts)}
        self._names[function.name] = None
        if self._parts is None:
            self._collected.update(functions)
            return
        host, device = split_host_device(IRModule(functions), self.target)
        if device is None:
            self._parts.add(list(host.functions.values()), key, note)
        else:
            self._parts.add(list(device.functions.values()), key, note)
            self._hosts.update(host.functions)

    @deep_trees()
    def finish(self) -> Module:
        """The module of all functions. Raises CompileError for unsupported code."""
        if self._parts is None:
            return build(IRModule(self._collected), target=self.target)
        library = self._parts.finish()
        if self._hosts:
            device, library = library, _generate(IRModule(self._hosts), host_target(self.target))
            library.import_module(device)
        library.entry_name = _entry_of(list(self._names))
        return library


def _entry_of(exposed: Sequence[str]) -> str | None:
    return exposed[0] if len(exposed) == 1 else ("main" if "main" in exposed else None)


def _lowered(inputs: Schedule | PrimFunc | IRModule, args: Sequence[Any] | None, name: str) -> IRModule:
    if isinstance(inputs, Schedule):
        if args is None:
            raise CompileError("build of a schedule requires its arguments: build(s, [A, B, C], target)")
        module = lower(inputs, args, name=name)
    elif not isinstance(inputs, PrimFunc | IRModule):
        raise CompileError(f"build of a {type(inputs).__name__}; expected a schedule, a loop function or a module")
    elif args is not None:
        raise CompileError(f"build of a {type(inputs).__name__} takes no argument list: its functions have parameters")
    elif isinstance(inputs, PrimFunc):
        module = IRModule({inputs.name: inputs})
    else:
        module = inputs
    for key in module:
        if not isinstance(module[key], PrimFunc):
            raise CompileError(f"build takes functions of the loop IR; {key!r} is a {type(module[key]).__name__}")
    return module.with_functions({key: module[key].with_attr("global_symbol", key) for key in module})


def _generate(module: IRModule, target: Target) -> Module:
    """Run the target's code generator on a module."""
    try:
        generate = get_global_func(f"target.build.{target.kind.name}")
    except RegistryError as error:
        raise TargetError(
            f"no code generator for target kind {target.kind.name!r}: {error}; register a function of "
            f"(IRModule, Target) under 'target.build.{target.kind.name}'"
        ) from error
    return generate(module, target)
