"""Layout names and what they say about shapes and positions."""

from __future__ import annotations

import pytest

from relayc.te.errors import CompileError
from relayc.topi.layout import Layout


def test_parsing_a_blocked_layout() -> None:
    layout = Layout("OHWI16o")
    assert layout.axes == ("O", "H", "W", "I")
    assert layout.blocks == {"O": 16}
    assert (layout.index("O"), layout.index("o"), layout.index("C")) == (0, 4, -1)


def test_shapes_pad_the_last_block() -> None:
    layout = Layout("NCHW4c")
    assert layout.shape_of({"N": 1, "C": 6, "H": 2, "W": 3}) == (1, 2, 2, 3, 4)
    assert layout.axis_sizes((1, 2, 2, 3, 4)) == {"N": 1, "C": 8, "H": 2, "W": 3}


def test_positions_and_indices_are_inverse() -> None:
    layout = Layout("NCHW4c")
    position = layout.axis_positions((0, 1, 5, 6, 2))
    assert position == {"N": 0, "C": 6, "H": 5, "W": 6}
    assert layout.index_of(position) == [0, 1, 5, 6, 2]


@pytest.mark.parametrize("name", ["", "nchw", "NCHWc", "NCNW", "NC4h", "N C", "NCHW4c4c", "16"])
def test_invalid_layouts_raise(name: str) -> None:
    with pytest.raises(CompileError, match=r"is not a layout; examples: NCHW"):
        Layout(name)
