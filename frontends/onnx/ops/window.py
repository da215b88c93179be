"""Sliding windows of convolutions and pooling: kernel, strides, dilations and padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from relayc.backend.runtime.sizes import MAX_ELEMENTS
from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import bordered
from relayc.frontends.onnx.tensors import MAX_COMPUTED
from relayc.relay.expr import Expr
from relayc.relay.sizes import add_sizes, floor_divide, larger, product
from relayc.te.tir import Dim

__all__ = ["Window", "reaches", "read_window"]

_MAX_GROWTH = 64
"""Greatest ratio of the elements of a large padded input to those of the input."""

_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True, slots=True)
class Window:
    """Kernel, strides and dilations per spatial axis; `padding` holds all leading amounts, then all trailing ones.

    Where the padding depends on symbolic sizes, `padding` is 0 and `border` has (before, after) per axis: the input has
    to be padded explicitly (`bordered`).
    """

    kernel: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[int, ...]
    border: tuple[tuple[Dim, Dim], ...] = ()

    @property
    def rank(self) -> int:
        return len(self.kernel)

    def bordered(self, x: Expr, fill: float) -> Expr:
        """The input [N, C, spatial...] padded by `border`, if there is one."""
        for axis, (before, after) in enumerate(self.border, start=2):
            x = bordered(x, axis, before, after, fill)
        return x


def reaches(kernel: Sequence[Dim], dilations: Sequence[int]) -> list[Dim]:
    """Effective (dilated) kernel size along each axis."""
    return [add_sizes(product((n, d)), 1 - d) for n, d in zip(kernel, dilations, strict=True)]


def read_window(node: OnnxNode, kernel: Sequence[Dim], spatial: Sequence[Dim]) -> Window:
    """The window of the node's attributes over an input of extents `spatial`.

    Raises an import error for invalid attributes.
    """
    rank = len(spatial)
    if len(kernel) != rank or any(isinstance(size, int) and size < 1 for size in kernel):
        raise node.error(f"a kernel of {list(kernel)} over {rank} spatial axes", expected=f"{rank} sizes of 1 or more")
    if any(isinstance(size, int) and size > MAX_ELEMENTS for size in kernel):
        raise node.error(f"a kernel of {list(kernel)}", expected=f"sizes of at most {MAX_ELEMENTS}")
    strides = _positive(node, "strides", rank)
    dilations = _positive(node, "dilations", rank)
    pads = node.attr_ints("pads", (0,) * (2 * rank))
    if len(pads) != 2 * rank or min(pads, default=0) < 0:
        raise node.error(f"pads are {list(pads)}", expected=f"{2 * rank} numbers of 0 or more")
    _check_border(node, spatial, pads)
    auto = node.attr_choice("auto_pad", _AUTO_PADS, "NOTSET")
    if auto == "VALID":
        pads = (0,) * (2 * rank)
    elif auto != "NOTSET":
        before, after = _same_padding(spatial, kernel, strides, dilations, upper=auto == "SAME_UPPER")
        known = tuple([n for n in (*before, *after) if isinstance(n, int)])
        if len(known) != 2 * rank:
            return Window(tuple(kernel), strides, dilations, (0,) * (2 * rank), tuple(zip(before, after, strict=True)))
        pads = known
    return Window(tuple(kernel), strides, dilations, pads)


def _positive(node: OnnxNode, name: str, rank: int) -> tuple[int, ...]:
    values = node.attr_ints(name, (1,) * rank)
    if len(values) != rank or min(values, default=1) < 1 or max(values, default=1) > MAX_ELEMENTS:
        raise node.error(f"{name} are {list(values)}", expected=f"{rank} numbers from 1 to {MAX_ELEMENTS}")
    return values


def _check_border(node: OnnxNode, spatial: Sequence[Dim], pads: Sequence[int]) -> None:
    """Raise the node's error for a padded input that is large only because of the attribute `pads`."""
    extents = [d if isinstance(d, int) else 1 for d in spatial]
    padded = math.prod([max(d, 1) + pads[a] + pads[a + len(extents)] for a, d in enumerate(extents)])
    if padded > max(MAX_COMPUTED, _MAX_GROWTH * math.prod(extents)):
        problem = f"pads are {list(pads)}, which makes {padded} elements of each channel"
        raise node.error(problem, expected=f"at most {MAX_COMPUTED}, or {_MAX_GROWTH} times those of the input")


def _same_padding(
    spatial: Sequence[Dim], kernel: Sequence[Dim], strides: Sequence[int], dilations: Sequence[int], upper: bool
) -> tuple[list[Dim], list[Dim]]:
    """SAME padding, before and after, for ceil(extent / stride) positions; an odd element goes to the end (`upper`) or
    the start."""
    before: list[Dim] = []
    after: list[Dim] = []
    for extent, reach, stride in zip(spatial, reaches(kernel, dilations), strides, strict=True):
        positions = floor_divide(add_sizes(extent, stride - 1), stride)
        total = larger(add_sizes(product((positions, stride)), reach, -stride, product((-1, extent))), 0)
        small = floor_divide(total, 2)
        rest = add_sizes(total, product((-1, small)))
        before.append(small if upper else rest)
        after.append(rest if upper else small)
    return before, after
