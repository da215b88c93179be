"""Versions of a model that hold for some inputs only.

A module's "main" is the model. Its attribute "versions" names functions of the same parameters, in the order in which
an executor tries them: each holds for inputs whose sizes agree with its parameters and pass its checks. "equal_sizes"
takes sizes to be equal that an operator broadcasts, and is faster; others take other branches than "main" does.
"""

from __future__ import annotations

from collections.abc import Mapping

from relayc.relay.bind_sizes import bind_sizes, sizes_of_inputs
from relayc.relay.expr import Function
from relayc.relay.sizes import dims_equal, evaluate
from relayc.relay.type import TensorType, shapes_equal
from relayc.te.ir import IRModule

__all__ = ["EQUAL_SIZES", "version_for", "versions_of", "with_versions", "without_versions"]

EQUAL_SIZES = "equal_sizes"


def with_versions(module: IRModule, versions: Mapping[str, Function]) -> IRModule:
    """The module with these functions as versions of "main"."""
    if not versions:
        return module
    return module.with_functions({**module.functions, **versions}).with_attr("versions", tuple(versions))


def versions_of(module: IRModule) -> dict[str, IRModule]:
    """By name, the modules whose "main" is a version, in order; functions that a pass dropped are left out."""
    names = [name for name in module.attrs.get("versions", ()) if name in module]
    rest = without_versions(module)
    return {name: rest.with_function("main", module[name]) for name in names}


def without_versions(module: IRModule) -> IRModule:
    """The module without other versions than "main"."""
    names = module.attrs.get("versions", ())
    return module.with_functions({n: f for n, f in module.functions.items() if n not in names}) if names else module


def version_for(module: IRModule, sizes: Mapping[str, int]) -> tuple[Function, Mapping[str, int]]:
    """The first version that holds for these sizes of "main", and the sizes by the names that it has for them."""
    main: Function = module["main"]
    shapes = [[evaluate(d, sizes) for d in p.ty.shape] for p in main.params if isinstance(p.ty, TensorType)]
    known = [[d for d in shape if isinstance(d, int)] for shape in shapes]
    if known == shapes:
        for version in versions_of(module).values():
            function: Function = version["main"]
            found = sizes_of_inputs(function, known)
            if _holds(bind_sizes(function, found), known):
                return function, found
    return main, sizes


def _holds(function: Function, shapes: list[list[int]]) -> bool:
    """Does a function of static sizes take these shapes, and pass its checks?"""
    wanted = [p.ty.shape for p in function.params if isinstance(p.ty, TensorType)]
    checks = function.attrs.get("size_checks", ())
    return all(map(shapes_equal, wanted, shapes)) and all(dims_equal(a, b) for a, b, _ in checks)
