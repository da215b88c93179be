"""Public API: every name in `__all__` exists and is documented."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("te", "backend", "topi", "relay", "frontends")


def module_names() -> list[str]:
    names = []
    for layer in LAYERS:
        for path in sorted((ROOT / layer).rglob("*.py")):
            names.append("relayc." + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    return names


ALL_MODULES = module_names()

NAMESPACES = {
    "relayc": ("relay", "te", "topi", "backend", "runtime", "frontends"),
    "relayc.runtime": ("device", "load_model", "graph_executor", "nd"),
    "relayc.te": ("placeholder", "compute", "reduce_axis", "sum", "var", "create_schedule", "thread_axis", "lower"),
    "relayc.te.tir": ("PrimFunc", "For", "BufferLoad", "decl_buffer", "if_then_else"),
    "relayc.backend": ("build", "Target", "device", "nd", "NDArray", "Module", "register_func", "register_target_kind"),
    "relayc.backend.runtime": ("device", "load_model", "graph_executor", "set_num_threads", "DeviceAPI"),
    "relayc.backend.runtime.graph_executor": ("GraphModule",),
    "relayc.topi": ("register_schedule", "nn"),
    "relayc.relay": ("build", "transform", "op", "var", "const", "Function", "Call", "TensorType", "parse", "astext"),
    "relayc.relay.transform": ("PassContext", "Sequential", "FoldConstant", "FuseOps"),
    "relayc.frontends.onnx": ("from_onnx",),
    "relayc.frontends.onnx.backend": ("RelayBackend", "prepare", "run_model", "run_node", "supports_device"),
}
"""Public namespaces and names that are guaranteed to exist in them."""


def documented(thing: object) -> bool:
    """Does the object have its own docstring? Constants and instances need none."""
    if not inspect.isclass(thing) and not inspect.isroutine(thing):
        return True
    if not inspect.isclass(thing):
        return bool(inspect.getdoc(thing))
    text = thing.__dict__.get("__doc__") or ""
    return bool(text.strip()) and not text.startswith(f"{thing.__name__}(")  # the generated docstring of a dataclass


@pytest.mark.parametrize("name", ALL_MODULES)
def test_promised_names_exist_and_are_documented(name):
    module = importlib.import_module(name)
    promised = getattr(module, "__all__", ())
    missing = [item for item in promised if not hasattr(module, item)]
    assert not missing, f"{name}.__all__ promises {missing}"
    assert len(promised) == len(set(promised)), f"{name}.__all__ names something twice"
    silent = [item for item in promised if not documented(getattr(module, item))]
    assert not silent, f"{name}: no docstring on {silent}"


@pytest.mark.parametrize("name", NAMESPACES)
def test_public_namespaces(name):
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip(), f"{name} has no docstring"
    missing = [item for item in NAMESPACES[name] if not hasattr(module, item)]
    assert not missing, f"{name} has no {missing}"


def test_unknown_names_are_rejected():
    backend = importlib.import_module("relayc.backend")
    with pytest.raises(AttributeError, match="no attribute 'biuld'"):
        _ = backend.biuld
    assert {"build", "Target", "nd"} <= set(dir(backend))


@pytest.mark.parametrize("layer", LAYERS)
def test_every_file_is_installed(layer):
    """Files that are no code are named in the packaging; `make wheel` (tests/packaging) tries the wheel itself."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for path in (ROOT / layer).rglob("*"):
        if path.is_dir() or path.suffix in (".py", ".pyc"):
            continue
        package = ".".join(("relayc", *path.parent.relative_to(ROOT).parts))
        globs = data.get(package, [])
        assert any(path.match(glob) for glob in globs), f"{path} is left out of the wheel"
