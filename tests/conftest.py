"""Options of the test suite."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from relayc.backend.runtime.context import set_random_seed
from relayc.backend.source_version import has_source_version
from tests.pairwise import pairwise

pytest_plugins = ["tests.crashes", "tests.cuda_emulation.plugin", "tests.processor_emulation.plugin"]
os.environ["RELAYC_CACHE_DIR"] = "off"  # the tests are about what the compiler makes now, not what it made before

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in background jobs of shells; tests interrupt endless runs
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("relayc", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("relayc")  # a busy machine fails no test, and tests are the same on all


@pytest.fixture(scope="module", autouse=True)
def registered_by_tests() -> Iterator[None]:
    """Operators and schedules that tests register end with their module: with any, models are not taken from caches."""
    before = set(foreign_definitions())
    yield
    for module, table, key in set(foreign_definitions()) - before:
        del getattr(sys.modules[module], table)[key]


@pytest.fixture(autouse=True)
def seeded_draws() -> Iterator[None]:
    """Random operators draw the same numbers in each run of a test, so none fails by chance."""
    set_random_seed(0)
    yield
    set_random_seed(None)


def foreign_definitions() -> Iterator[tuple[str, str, object]]:
    """(module, table, key) of what was registered from outside of the package."""
    for module, table in (("relayc.relay.op.base", "_registry"), ("relayc.topi.registry", "_schedules")):
        entries = getattr(sys.modules[module], table) if module in sys.modules else {}
        for key, entry in entries.items():
            if not has_source_version(getattr(entry, "function", entry)):
                yield module, table, key


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--random-schedules",
        type=int,
        default=200,
        metavar="N",
        help="how many random schedules tests/te/test_random_schedules.py tries (default 200)",
    )
    parser.addoption(
        "--random-graphs",
        type=int,
        default=160,
        metavar="N",
        help="how many random ONNX graphs tests/fuzz tries (default 160)",
    )
    parser.addoption(
        "--random-networks",
        type=int,
        default=15,
        metavar="N",
        help="how many random networks tests/fuzz tries (default 15)",
    )
    parser.addoption(
        "--suite",
        default="sample",
        metavar="WHICH",
        help="which cases of ONNX's backend tests are run: all, sample (default), or a regular expression",
    )
    parser.addoption(
        "--damaged-models",
        type=int,
        default=200,
        metavar="N",
        help="how many damaged models tests/fuzz tries, of each kind of damage (default 200)",
    )
    parser.addoption(
        "--all-combinations",
        action="store_true",
        help="run all combinations of three or more parametrisations of a test, not only each pair of values",
    )
    parser.addoption("--wheel", metavar="FILE", help="a built wheel, which tests/packaging is run with (`make wheel`)")
    parser.addoption("--update-docs", action="store_true", help="write what the pages' code prints into the pages")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    counts = {
        "schedule_seeds": ("random_schedules", 20),
        "graph_seeds": ("random_graphs", 20),
        "network_seeds": ("random_networks", 5),
        "damage_seeds": ("damaged_models", 20),
    }
    for fixture, (option, batch) in counts.items():
        if fixture in metafunc.fixturenames:
            count = metafunc.config.getoption(option)
            ranges = [range(start, min(start + batch, count)) for start in range(0, count, batch)]
            metafunc.parametrize(fixture, ranges, ids=[f"{r.start}-{r.stop - 1}" for r in ranges])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("all_combinations"):
        items[:], left_out = pairwise(items)
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Freeze modules and tests: they are no garbage, and collections of them during the tests take time for nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
