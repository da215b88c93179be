"""Schedules for CPUs. Importing the package registers them."""

from relayc.topi.cpu import attention, stagewise
from relayc.topi.cpu.convolution import across_groups, conv2d, depthwise, overlap_add, winograd
from relayc.topi.cpu.elementwise import injective
from relayc.topi.cpu.norms import channels, lrn, rows
from relayc.topi.cpu.pooling import pooling
from relayc.topi.cpu.products import bits, gemv, matmul, routed
from relayc.topi.cpu.reductions import extremum, reduction, two_passes
from relayc.topi.cpu.transposes import panel_rows

__all__ = [
    "across_groups", "attention", "bits", "channels", "conv2d", "depthwise", "extremum", "gemv", "injective", "lrn",
    "matmul", "overlap_add", "panel_rows", "pooling", "reduction", "routed", "rows", "stagewise", "two_passes",
    "winograd",
]  # fmt: skip
