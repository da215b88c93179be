"""The function table, and modules that contain it."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from relayc.backend.cuda.module import CUDAModule, load_from_bytes, runs_on
from relayc.backend.cuda.table import read_functions
from relayc.backend.runtime import ArgumentError, ArtifactError, ModuleError, load_module, nd
from relayc.backend.runtime.sizes import evaluate

ADD = {
    "params": [
        {"name": "A", "kind": "buffer", "dtype": "float32", "shape": ["n", 4]},
        {"name": "B", "kind": "buffer", "dtype": "float32", "shape": ["n", 4]},
        {"name": "k", "kind": "scalar", "dtype": "int32"},
    ],
    "workspaces": [["*", "n", 16]],
    "kernels": [
        {
            "name": "add_kernel0",
            "grid": [["//", ["+", "n", 63], 64], 1, 1],
            "block": [64, 1, 1],
            "dynamic_shared": 0,
            "arguments": [["param", 0], ["param", 1], ["workspace", 0], ["param", 2], ["size", "n", "int32"]],
        }
    ],
}


def module(**changes):
    fields = {"image": b"\x7fELF", "format": "cubin", "arch": "sm_90", "functions": {"add": ADD}, "source": "// c",
             "report": {"add_kernel0": {"registers": 8}}}  # fmt: skip
    return CUDAModule(**{**fields, **changes})


def test_a_table_is_parsed():
    function = read_functions({"add": ADD})["add"]
    assert [param.shape for param in function.params] == [("n", 4), ("n", 4), None]
    assert evaluate(function.kernels[0].grid[0], {"n": 65}) == 2
    assert [argument.kind for argument in function.kernels[0].arguments] == [
        "param", "param", "workspace", "param", "size",
    ]  # fmt: skip


def test_a_step_is_a_size_of_its_kernel():
    stepped = {**ADD["kernels"][0], "step": ["t", "n"], "arguments": [["size", ["%", "t", 2], "int32"]]}
    (kernel,) = read_functions({"add": {**ADD, "kernels": [stepped]}})["add"].kernels
    assert kernel.step == ("t", "n") and kernel.arguments[0].kind == "size"
    with pytest.raises(ArtifactError, match="arguments"):
        read_functions({"add": {**ADD, "kernels": [stepped, {**stepped, "step": ["u", 3]}]}})


WRONG = [
    (("kernels", 0, "step"), ["n", 3], "kernels[0].step"),
    (("kernels", 0, "step"), ["t", "q"], "kernels[0].step"),
    (("kernels", 0, "step"), "t", "kernels[0].step"),
    (("params", 0, "kind"), "tensor", "params[0].kind"),
    (("params", 2, "dtype"), "complex64", "params[2].kind"),
    (("workspaces", 0), ["*", "q", 16], "workspaces[0]"),
    (("workspaces", 0), ["**", "n", 2], "workspaces[0]"),
    (("kernels", 0, "grid"), [1, 1], "kernels[0].grid"),
    (("kernels", 0, "dynamic_shared"), None, "kernels[0].dynamic_shared"),
    (("kernels", 0, "arguments", 0), ["param", 3], "kernels[0].arguments[0]"),
    (("kernels", 0, "arguments", 2), ["workspace", 1], "kernels[0].arguments[2]"),
    (("kernels", 0, "surprise"), 1, "kernels[0].surprise"),
]


@pytest.mark.parametrize(("path", "value", "where"), WRONG)
def test_an_invalid_field_is_named(path, value, where):
    table = copy.deepcopy({"add": ADD})
    at = table["add"]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(ArtifactError) as caught:
        read_functions(table)
    assert f"function table.add.{where}" in str(caught.value)


def test_a_module_is_saved_and_loaded_without_a_gpu(tmp_path):
    saved = module()
    saved.save(tmp_path / "add.relayc")
    loaded = load_module(tmp_path / "add.relayc")
    assert isinstance(loaded, CUDAModule)
    assert loaded.save_to_bytes() == saved.save_to_bytes()
    assert (loaded.image, loaded.format, loaded.arch) == (b"\x7fELF", "cubin", "sm_90")
    assert loaded.functions == {"add": ADD} and loaded.report == saved.report
    assert loaded.function_names() == ["add"] and loaded.get_source() == loaded.get_source("cuda") == "// c"


@pytest.mark.parametrize("damage", [b"", b"RELAYC-C", module().save_to_bytes()[:-1], module().save_to_bytes() + b"x"])
def test_invalid_bytes_are_rejected(damage):
    with pytest.raises(ArtifactError):
        load_from_bytes(damage)


def test_a_corrupt_table_is_rejected():
    data = bytearray(module().save_to_bytes())
    data[40] = 0xFF
    with pytest.raises(ArtifactError, match="table of a cuda module is damaged"):
        load_from_bytes(bytes(data))


def test_sources():
    made = module(sources={"sass": lambda: "FFMA"})
    assert made.get_source("sass") == "FFMA"
    with pytest.raises(ModuleError, match="no source in format 'll'; it has cuda, sass"):
        made.get_source("ll")
    assert module(image=b".version 9.0\0", format="ptx").get_source("ptx") == ".version 9.0"


@pytest.mark.parametrize(
    ("arch", "format", "capability", "runs"),
    [
        ("sm_80", "cubin", (8, 0), True),
        ("sm_80", "cubin", (8, 6), True),
        ("sm_86", "cubin", (8, 0), False),
        ("sm_80", "cubin", (9, 0), False),
        ("sm_90a", "cubin", (9, 0), True),
        ("sm_100a", "cubin", (10, 3), False),
        ("sm_100f", "cubin", (10, 3), True),
        ("compute_80", "ptx", (12, 0), True),
        ("compute_90", "ptx", (8, 0), False),
        ("compute_90a", "ptx", (10, 0), False),
        ("sm_120", "cubin", (12, 1), True),
    ],
)
def test_compatibility_of_code_and_architecture(arch, format, capability, runs):
    assert runs_on(arch, format, capability) is runs


def test_host_arrays_are_rejected():
    add = module()["add"]
    x = nd.array(np.ones((3, 4), "float32"))
    with pytest.raises(ArgumentError, match="arguments are on cpu:0; expected one CUDA device"):
        add(x, x, 1)
    with pytest.raises(ArgumentError, match="got 2 arguments; expected 3: A, B, k"):
        add(x, x)
    with pytest.raises(ArgumentError, match="argument 'A' has dtype float64"):
        add(nd.array(np.ones((3, 4))), x, 1)
    with pytest.raises(ArgumentError, match="argument 'A' has 1 dimensions; expected 2"):
        add(nd.array(np.ones(3, "float32")), x, 1)
    with pytest.raises(ArgumentError, match="argument 'k' is str"):
        add(x, x, "1")
    for wrong in (1 << 32, 2.5, float("nan")):
        with pytest.raises(ArgumentError, match=f"argument 'k' is {wrong}; expected int32"):
            add(x, x, wrong)
    frozen = np.ones((3, 4), "float32")
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match="argument 0 is read-only memory"):
        add(frozen, x, 1)
