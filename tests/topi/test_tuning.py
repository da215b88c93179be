from __future__ import annotations

import pytest

from relayc.backend.target import Target
from relayc.topi.cpu.convolution.winograd_plan import WinogradShape, winograd_pays
from relayc.topi.cpu.tiling import packed_columns, tile_rows
from relayc.topi.tuning import Config, Knob, choose

HASWELL = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=2")


def test_without_a_config_the_cost_model_decides():
    assert choose("rows", 6, [4, 8]) == 6 and Config.current() is None


def test_a_config_supplies_its_values_and_records_knobs():
    with Config({"rows": 8}) as config:
        assert choose("rows", 6, [4, 8]) == 8 and choose("parallel", True, [True, False]) is True
        assert Config.current() is config
    assert Config.current() is None
    assert list(config.knobs.values()) == [Knob("rows", 6, (6, 4, 8)), Knob("parallel", True, (True, False))]


@pytest.mark.parametrize(
    ("values", "defaults"), [({"rows": 5}, {}), ({"rows": True}, {}), ({"rows": 4}, {"rows": 7}), ({"columns": 4}, {})]
)
def test_invalid_and_stale_values_are_ignored(values, defaults):
    with Config(values, defaults):
        chosen = choose("rows", 1, [1, 4])
    assert chosen == 1 and type(chosen) is int


def test_a_name_chosen_again_with_other_candidates_is_another_knob():
    with Config({"rows": 4, "rows#2": 16}) as config:
        assert [choose("rows", 2, [4]), choose("rows", 8, [16]), choose("rows", 2, [4])] == [4, 16, 4]
    assert list(config.knobs) == ["rows", "rows#2"]


def test_configs_nest():
    with Config({"rows": 4}), Config():
        assert choose("rows", 2, [4]) == 2


def test_tile_candidates_fit_the_registers():
    with Config() as config:
        rows, width = tile_rows(HASWELL, 128, 16, 768), packed_columns(HASWELL, 128, 768, 768)
    heights = config.knobs["rows"].candidates
    assert rows in heights and max(heights) == 6 and min(heights) == 1  # 16 registers: 2 * rows + 2 + 1 of them
    widths = config.knobs["panel of 128x768x768"].candidates
    assert width == widths[0] and sorted(widths) == [8, 16, 24, 32]


def test_direct_or_winograd_is_a_knob_over_the_allowed_tiles():
    shape = WinogradShape(1, 28, 28, 128, 128)
    name = "Winograd tile of 1x28x28x128x128, 3x3"
    with Config() as config:
        plan = winograd_pays(HASWELL, shape, (2, 4))
    assert plan is not None and config.knobs[name].default == plan.tile
    assert set(config.knobs[name].candidates) == {0, 2, 4}
    for value, tiles, expected in ((0, (2, 4), None), (2, (2, 4), 2), (4, (2,), 2)):
        with Config({name: value}):
            plan = winograd_pays(HASWELL, shape, tiles)
        assert (None if plan is None else plan.tile) == expected
