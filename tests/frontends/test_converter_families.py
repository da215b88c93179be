"""The table of converters by family: complete, and a model imports the families of its operators only."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.util import module_from_spec
from pathlib import Path

import pytest

import relayc.frontends.onnx.ops as families
from relayc.frontends.onnx import registry


def test_the_table_names_what_each_family_registers(monkeypatch):
    modules = [path.stem for path in Path(families.__file__).parent.glob("*.py") if path.stem != "__init__"]
    specs = {family: import_module(f"relayc.frontends.onnx.ops.{family}").__spec__ for family in modules}
    registered: dict[tuple[str, str], set[str]] = {}
    for family, spec in specs.items():
        table: dict[tuple[str, str], object] = {}
        monkeypatch.setattr(registry, "_table", table)
        spec.loader.exec_module(module_from_spec(spec))
        for operator in table:
            registered.setdefault(operator, set()).add(family)
    named = {operator: set(found) for operator, found in families._families().items()}
    assert named == registered


@pytest.mark.parametrize(
    ("domain", "name", "family"),
    [("", "Relu", "elementwise"), ("", "DFT", "fourier"), ("com.microsoft", "QMoE", "mixture_of_experts_microsoft")],
)
def test_a_family_is_imported_on_lookup(domain, name, family):
    code = f"""
import sys
from relayc.frontends.onnx.registry import find_converter
assert not [m for m in sys.modules if m.startswith("relayc.frontends.onnx.ops.")]
assert find_converter({domain!r}, "NoSuchOperator", 18) is None
assert not [m for m in sys.modules if m.startswith("relayc.frontends.onnx.ops.")]
assert find_converter({domain!r}, {name!r}, 18) is not None
assert "relayc.frontends.onnx.ops.{family}" in sys.modules and "relayc.frontends.onnx.ops.text" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
