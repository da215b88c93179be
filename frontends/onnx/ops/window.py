"""Sliding windows: kernel, strides, dilations and padding as Conv and the pools share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frontends.onnx.node import OnnxNode
from te.tir import Dim

__all__ = ["Window", "read_window"]

_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True, slots=True)
class Window:
    """Per spatial axis: extent, step, spacing; `padding` holds all leading amounts, then all trailing ones."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.kernel)


def read_window(node: OnnxNode, kernel: Sequence[int], spatial: Sequence[Dim]) -> Window:
    """The window that the node's attributes describe, over an input of extents `spatial`.

    Raises an import error for numbers that make no window.
    """
    rank = len(spatial)
    if len(kernel) != rank or min(kernel, default=1) < 1:
        raise node.error(f"a kernel of {list(kernel)} over {rank} spatial axes", expected=f"{rank} sizes of 1 or more")
    strides = _positive(node, "strides", rank)
    dilations = _positive(node, "dilations", rank)
    pads = node.attr_ints("pads", (0,) * (2 * rank))
    if len(pads) != 2 * rank or min(pads, default=0) < 0:
        raise node.error(f"pads are {list(pads)}", expected=f"{2 * rank} numbers of 0 or more")
    auto = node.attr_choice("auto_pad", _AUTO_PADS, "NOTSET")
    if auto == "VALID":
        pads = (0,) * (2 * rank)
    elif auto != "NOTSET":
        known = tuple(d for d in spatial if isinstance(d, int))
        if len(known) != rank:
            raise node.value_needed(f"auto_pad {auto!r} of axes whose sizes are known at run time", node[0])
        pads = _same_padding(known, kernel, strides, dilations, upper=auto == "SAME_UPPER")
    return Window(tuple(kernel), strides, dilations, pads)


def _positive(node: OnnxNode, name: str, rank: int) -> tuple[int, ...]:
    values = node.attr_ints(name, (1,) * rank)
    if len(values) != rank or min(values, default=1) < 1:
        raise node.error(f"{name} are {list(values)}", expected=f"{rank} numbers of 1 or more")
    return values


def _same_padding(
    spatial: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], upper: bool
) -> tuple[int, ...]:
    """Padding that gives ceil(extent / stride) positions; an odd amount goes to the end (`upper`) or the start."""
    before: list[int] = []
    after: list[int] = []
    for extent, size, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        positions = -(-extent // stride)
        total = max((positions - 1) * stride + (size - 1) * dilation + 1 - extent, 0)
        small = total // 2
        before.append(small if upper else total - small)
        after.append(total - small if upper else small)
    return (*before, *after)
