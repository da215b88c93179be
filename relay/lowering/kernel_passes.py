"""The passes of `relay.build` over the function of each kernel, before it is lowered."""

from __future__ import annotations

from relayc.backend.target import Target
from relayc.relay.lowering.collapse_dimensions import CollapseDimensions
from relayc.relay.lowering.collapse_index_maps import CollapseIndexMaps
from relayc.relay.lowering.collapse_reductions import CollapseReductions
from relayc.relay.lowering.compose_index_maps import ComposeIndexMaps
from relayc.te.ir import Pass

__all__ = ["kernel_passes"]


def kernel_passes(target: Target) -> tuple[Pass, ...]:
    """The passes over the primitive function of a kernel, in order.

    Each gives an equivalent function on the same memory, of fewer dimensions. On CPUs only, whose kernels take
    addresses; other backends may pass tensors with their shapes.
    """
    if target.device_kind != "cpu":
        return ()
    return (
        ComposeIndexMaps(),  # first: it leaves one transposition, whose dimensions the next pass collapses
        CollapseDimensions(),  # elementwise kernels, transpositions, softmax and norms; the next passes leave these,
        CollapseIndexMaps(),  # and each other's: concatenations and paddings,
        CollapseReductions(),  # reductions
    )
