"""Versions of a model that hold for some sizes only, and are faster there.

A module's "main" is the model. Its function "equal_sizes", of the same parameters, is the model with sizes taken to be
equal that an operator broadcasts: it holds for inputs whose sizes agree with its parameters and pass its checks.
"""

from __future__ import annotations

from collections.abc import Mapping

from relayc.relay.bind_sizes import bind_sizes, sizes_of_inputs
from relayc.relay.expr import Function
from relayc.relay.sizes import dims_equal, evaluate
from relayc.relay.type import TensorType, shapes_equal
from relayc.te.ir import IRModule

__all__ = ["EQUAL_SIZES", "version_for", "with_equal_sizes", "without_versions"]

EQUAL_SIZES = "equal_sizes"


def with_equal_sizes(module: IRModule) -> IRModule | None:
    """The module whose "main" is the version for equal sizes; None if there is none."""
    if EQUAL_SIZES not in module:
        return None
    return module.with_functions({**without_versions(module).functions, "main": module[EQUAL_SIZES]})


def without_versions(module: IRModule) -> IRModule:
    """The module without other versions than "main"."""
    if EQUAL_SIZES not in module:
        return module
    return module.with_functions({name: f for name, f in module.functions.items() if name != EQUAL_SIZES})


def version_for(module: IRModule, sizes: Mapping[str, int]) -> tuple[Function, Mapping[str, int]]:
    """The fastest version that holds for these sizes of "main", and the sizes by the names that it has for them."""
    main: Function = module["main"]
    if EQUAL_SIZES not in module:
        return main, sizes
    equal: Function = module[EQUAL_SIZES]
    types = [p.ty for p in main.params if isinstance(p.ty, TensorType)]
    shapes = [[evaluate(d, sizes) for d in ty.shape] for ty in types]
    if not all(isinstance(d, int) for shape in shapes for d in shape):
        return main, sizes
    known = [[int(d) for d in shape if isinstance(d, int)] for shape in shapes]
    found = sizes_of_inputs(equal, known)
    special = bind_sizes(equal, found)
    wanted = [p.ty.shape for p in special.params if isinstance(p.ty, TensorType)]
    agree = all(map(shapes_equal, wanted, known))
    checks = all(dims_equal(a, b) for a, b, _ in special.attrs.get("size_checks", ()))
    return (equal, found) if agree and checks else (main, sizes)
