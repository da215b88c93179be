from __future__ import annotations

import subprocess
import sys

import pytest

from relayc.backend.runtime import (
    RegistryError,
    get_global_func,
    list_global_func_names,
    register_func,
    register_provider,
    remove_global_func,
)


@pytest.fixture
def name():
    yield "test.registry.f"
    if "test.registry.f" in list_global_func_names():
        remove_global_func("test.registry.f")


def test_register_find_list_remove(name):
    def f():
        return 7

    assert register_func(name, f) is f
    assert get_global_func(name) is f
    assert name in list_global_func_names()
    remove_global_func(name)
    assert get_global_func(name, allow_missing=True) is None
    with pytest.raises(RegistryError, match="no such name"):
        remove_global_func(name)


def test_register_as_a_decorator(name):
    @register_func(name)
    def f():
        return 1

    assert get_global_func(name)() == 1


def test_a_taken_name_names_both_owners(name):
    register_func(name, len)
    with pytest.raises(RegistryError, match=r"taken by function builtins\.len; can't register function builtins\.abs"):
        register_func(name, abs)
    register_func(name, abs, override=True)
    assert get_global_func(name) is abs


def test_an_unknown_name_shows_its_neighbours():
    with pytest.raises(RegistryError, match=r"no global function 'device_api\.foo'; known are: .*device_api\.cpu"):
        get_global_func("device_api.foo")


def test_a_provider_is_imported_at_the_first_lookup(name):
    register_provider(name, "math:sqrt")
    assert get_global_func(name)(9.0) == 3.0
    with pytest.raises(RegistryError, match="taken"):
        register_provider(name, "math:sin")


@pytest.mark.parametrize("where", ["no_such_package_at_all:f", "math:no_such_function"])
def test_a_provider_that_is_not_installed_is_missing(name, where):
    register_provider(name, where)
    assert get_global_func(name, allow_missing=True) is None
    with pytest.raises(RegistryError, match="can't be imported"):
        get_global_func(name)


def test_a_malformed_provider_is_rejected(name):
    with pytest.raises(RegistryError, match="expected 'module:attribute'"):
        register_provider(name, "math.sqrt")


def test_importing_the_runtime_is_light():
    program = (
        "import sys, relayc.backend.runtime\n"
        "heavy = {'llvmlite', 'onnx', 'networkx', 'te', 'topi', 'relay', 'frontends', 'cuda'} & set(sys.modules)\n"
        "ours = [m for m in sys.modules if m.startswith('relayc.backend.')"
        " and not m.startswith('relayc.backend.runtime')]\n"
        "assert not heavy and not ours, (heavy, ours)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
