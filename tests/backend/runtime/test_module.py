from __future__ import annotations

import pytest

from relayc.backend.runtime import (
    ArgumentError,
    ArtifactError,
    BenchmarkResult,
    CompiledModel,
    Module,
    ModuleError,
    cpu,
    load_model,
    load_module,
    load_module_bytes,
)
from relayc.backend.runtime.module import register_module_loader
from relayc.backend.runtime.packed_func import PythonFunc


class Table(Module):
    """A module over a table of Python functions."""

    type_key = "table"

    def __init__(self, functions, entry_name=None):
        super().__init__(entry_name)
        self.functions, self.looked_up = functions, []

    def function_names(self):
        return list(self.functions)

    def _find(self, name):
        self.looked_up.append(name)
        return PythonFunc(self.functions[name], name) if name in self.functions else None


@pytest.fixture
def pair():
    host, device = Table({"f": lambda x: x + 1}, "f"), Table({"g": lambda x: x * 2})
    host.import_module(device)
    return host, device


def test_functions_are_found_and_kept(pair):
    host, device = pair
    assert host["f"](1) == 2 and host(4) == 5
    assert host["f"] is host.get_function("f") and host.looked_up == ["f__packed", "f"]
    assert host.imported_modules == [device]
    assert host.implements_function("f") and not host.implements_function("g")
    assert host.implements_function("g", query_imports=True)
    assert host.get_function("g", query_imports=True)(4) == 8


def test_a_missing_function_shows_what_there_is(pair):
    with pytest.raises(ModuleError, match="type 'table' has no function 'h'; it has: f"):
        pair[0]["h"]
    with pytest.raises(ModuleError, match="no entry function; call one by name: g"):
        pair[1](1)


def test_imports_make_no_cycle(pair):
    host, device = pair
    with pytest.raises(ModuleError, match="imports that one already"):
        device.import_module(host)


def test_unsupported_module_operations_raise(pair):
    with pytest.raises(ModuleError, match="no source in format 'll'"):
        pair[0].get_source("ll")
    with pytest.raises(ModuleError, match="can't be saved"):
        pair[0].save_to_bytes()


def test_loaders():
    register_module_loader("table", lambda data: Table({bytes(data).decode(): abs}), override=True)
    assert load_module_bytes("table", b"name")["name"](-3) == 3
    with pytest.raises(ModuleError, match="have a loader"):
        register_module_loader("table", lambda data: Table({}))
    with pytest.raises(ModuleError, match="no loader for modules of type 'strange'; known are c, cuda"):
        load_module_bytes("strange", b"")
    register_module_loader("table.missing", "no_such_package_at_all:load", override=True)
    with pytest.raises(ModuleError, match=r"'table\.missing' can't be loaded here"):
        load_module_bytes("table.missing", b"")


def test_a_module_is_saved_with_its_imports(pair, tmp_path):
    register_module_loader("table", lambda data: Table({bytes(data).decode(): abs}), override=True)
    pair[0].save_to_bytes, pair[1].save_to_bytes = b"f".strip, b"g".strip
    pair[0].save(tmp_path / "m")
    again = load_module(tmp_path / "m")
    assert again["f"](-2) == 2 and again.get_function("g", query_imports=True)(-3) == 3
    assert [module.function_names() for module in again.imported_modules] == [["g"]]
    with pytest.raises(ArtifactError, match="does not match its hash"):
        (tmp_path / "m").write_bytes((tmp_path / "m").read_bytes().replace(b"modules", b"nodules"))
        load_module(tmp_path / "m")


def test_a_model_is_no_module(small, tmp_path):
    CompiledModel(small.graph(None), small.weights, small.Python()).save(tmp_path / "m")
    with pytest.raises(ArtifactError, match="holds a compiled model, not a module alone: use load_model"):
        load_module(tmp_path / "m")
    small.Python().save(tmp_path / "m")
    with pytest.raises(ArtifactError, match=r"modules is 1; expected one for each of 0"):
        load_model(tmp_path / "m")


def test_time_evaluator_counts_its_calls():
    calls = []
    module = Table({"f": calls.append})
    result = module.time_evaluator("f", cpu(), number=3, repeat=4)(7)
    assert calls == [7] * (1 + 3 * 4)
    assert len(result.results) == 4
    assert result.min <= result.median <= result.max and result.min <= result.mean <= result.max


def test_a_repeat_lasts_at_least_min_repeat_ms():
    calls = []
    Table({"f": lambda: calls.append(0)}).time_evaluator("f", cpu(), number=1, min_repeat_ms=2)()
    assert len(calls) > 100


def test_bad_counts_are_rejected():
    with pytest.raises(ArgumentError, match="repeat is 0"):
        Table({"f": lambda: None}).time_evaluator("f", cpu(), repeat=0)()


def test_a_result_prints_in_milliseconds():
    result = BenchmarkResult((0.001, 0.003))
    assert (result.mean, result.std, result.median) == (0.002, 0.001, 0.002)
    head, row = str(result).splitlines()
    assert head.split()[::2] == ["mean", "median", "min", "max", "std"]
    assert row.split() == ["2.0000", "2.0000", "1.0000", "3.0000", "1.0000"]
