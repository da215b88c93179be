"""Schedules for CPUs. Importing the package registers them."""

from relayc.topi.cpu import attention, stagewise
from relayc.topi.cpu.convolution import across_groups, conv2d, depthwise, overlap_add, winograd
from relayc.topi.cpu.elementwise import injective
from relayc.topi.cpu.norms import channelwise, log_sum_exp, lrn, moments, rows, standardize
from relayc.topi.cpu.pooling import pooling
from relayc.topi.cpu.products import bits, gemv, matmul
from relayc.topi.cpu.reductions import extremum, reduction
from relayc.topi.cpu.transposes import panel_rows

__all__ = [
    "across_groups", "attention", "bits", "channelwise", "conv2d", "depthwise", "extremum", "gemv", "injective",
    "log_sum_exp", "lrn", "matmul", "moments", "overlap_add", "panel_rows", "pooling", "reduction", "rows", "stagewise",
    "standardize", "winograd",
]  # fmt: skip
